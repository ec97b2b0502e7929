"""A dialogue with several questions as one sample each, and which pictures each question is about.

The rules:

- A question is asked without the others. One that refers back ("it", "those", "the same", "And ...", "What about ...")
  keeps the earlier questions and their answers in front of it.
- A question that brings pictures is about these alone; one that brings none, or refers back, or names pictures by
  number, is about all that were shown so far.
- Given pictures are those that marks in questions stand for. The others of the record must be what tools returned, as
  many as there are calls or marks in results; ours are made anew. Without any mark all are given.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pixelis_jax.data.importers import marks
from pixelis_jax.data.importers.base import Place, Refusal
from pixelis_jax.data.importers.messages import Message

_BACK = re.compile(
    r"\b(?:it|its|it's|they|them|their|theirs|he|him|his|she|her|hers|that|those|these|former|latter|previous(?:ly)?"
    r"|above|earlier|same|another|also|again|instead|too|your|other ones?|this(?! (?:image|picture|photo|figure"
    r"|chart|graph|diagram|scene|screenshot|table|page|document|map|drawing|video|frame|shot|painting)))\b"
    r"|^\W*(?:and|but|so|then|or|what about|how about|how so|why|really|are you sure|explain|which one|what else)\b",
    re.IGNORECASE,
)
# The same in other languages, sure words only; 其他 and 吉他 are not 他, and 这张图 is the picture.
_BACK_ABROAD = re.compile(
    r"它|她|他们|(?<![其吉])他(?![人国乡])|那(?:个|些|么|里|边|只|辆|人|是|，|,|呢)|其中|上述|刚才|还有|另外|另一|此外|这是为什么"
    r"|这(?:个|些|只|辆|人)(?!图|场景|表格|表中|页面|视频|截图|文档|文件|照片|画面|网页|界面)"
    r"|[上前]面(?:说|提|的(?:问题|回答|答案))|^(?:(?![什几多哪谁怎吗]).)*呢\W*$|^\W*(?:那|为什么|真的|你确定|所以|然后|但是|第[二三四]个)"
    r"|それ|そこ|その(?!画像|写真|図)|^\W*(?:では[、，]|なぜ|どうして)"
    r"|(?<![가-힣])(?:그것|그는|그녀|그럼|그러면|그리고)|^\W*왜(?![가-힣])"
    r"|¿\s*y\b|^\W*(?:y\s+(?:el|la|los|las|qué|cuál|cuánt[oa]s?|cómo|en|de|dónde|quién)|por\s+qué|pourquoi|warum|wieso)\b"
    r"|^\W*et\s+(?:l['’]|(?:les?|la|à|aux?|en|du|des?|combien|où|comment|pour|son|sa|ses|dans|sur|celui|celle)\b)"
    r"|^\W*und\s+(?:der|die|das|den|dem|was|wie|wo|wer|welche[rsmn]?|wann|warum|rechts|links|im|in|auf|dort|hier)\b",
    re.IGNORECASE,
)
MISMATCH = "as many <image> marks as images are needed, or no mark"


@dataclasses.dataclass
class Turn:
    """One question with what was said to it. `calling` are the assistant's calls with their results in front of `last`.

    `first` to `end` are its own pictures, counted from 1 (first 0: all). `answer` is filled in when it is read.
    """

    number: int
    asked: list[Message]
    calling: list[tuple[Message, list[Message]]]
    answered: Message | None
    of: int = 1
    first: int = 0
    end: int = 0
    answer: str = ""
    refusal: str = ""  # why it has no answer

    @property
    def text(self) -> str:
        return "\n".join(m.text for m in self.asked if m.text.strip())

    @property
    def last(self) -> str:
        return self.answered.text if self.answered else ""

    @property
    def is_calling(self) -> bool:
        return bool(self.calling)

    @property
    def is_video(self) -> bool:
        return any(m.is_video for m in self.asked)

    @property
    def box_image(self) -> int:
        return self.answered.box_image if self.answered else 0

    @property
    def has_boxes(self) -> bool:
        return any(m.box_image for m in self.asked)

    @property
    def refers_back(self) -> bool:
        words = marks.without(self.text).strip()
        return self.number > 1 and any(pattern.search(words) for pattern in (_BACK, _BACK_ABROAD))


def split(talk: Sequence[Message], name: str, place: Place) -> list[Turn]:
    """The questions of a dialogue without system messages. Raises Refusal where it is none."""
    found: list[Turn] = []
    at = 0
    while at < len(talk):
        start = at
        while at < len(talk) and talk[at].role == "user":
            at += 1
        if at == start or (at == len(talk) and not found):
            reason = "go on after an answer without a question" if found else "must begin with a user's message"
            raise Refusal(place.where, name, f"{reason} and go on with an assistant's" if not found else reason)
        turn = Turn(len(found) + 1, [*talk[start:at]], [], None)
        while at < len(talk) and talk[at].role == "assistant" and turn.answered is None:
            message = talk[at]
            at += 1
            if "tool_call>" not in message.text and not message.calls:
                turn.answered = message
                break
            after = at
            while after < len(talk) and talk[after].role in ("user", "result"):
                after += 1
            turn.calling.append((message, [*talk[at:after]]))
            at = after
        if turn.answered is None:
            reason = "end with a tool call and without an answer" if turn.calling else "end with a question"
            if at < len(talk):
                reason = "a tool's result without a call"
            turn.refusal = reason
            at = len(talk)
        found.append(turn)
    for turn in found:
        turn.of = len(found)
    return found


def given(turns: Sequence[Turn], own: Sequence[Any], name: str, place: Place, *, is_video: bool) -> list[Any]:
    """The given pictures, in the order of the marks, and for each turn which of them are its own.

    `own` are the pictures of the record's field; parts of messages may hold their own. Raises Refusal unless marks and
    pictures are as many, except for pictures that tools returned.
    """
    asked = [m for turn in turns for m in turn.asked]
    held = [value for m in asked for value in m.held]
    numbers, plain = marks.count([m.text for m in asked])
    returned = [m for turn in turns for _, results in turn.calling for m in results]
    back = marks.of([m.text for m in returned])
    calls = sum(max(m.text.count("<tool_call>"), len(m.calls)) for turn in turns for m, _ in turn.calling)
    if numbers and plain:
        raise Refusal(place.where, name, "marks of images with numbers and without; use one kind")
    if is_video and len(held) == 1 and held[0] is None:
        return [*own]
    if held and not numbers:
        needed = held.count(None)
    elif numbers:
        held, needed = [value for value in held if value is not None], len(numbers)
        needed -= len(held)
    elif calls and not back and len(own) > 1:
        raise Refusal(
            place.where, name, "images without <image> marks, some perhaps a tool's; mark those that are given"
        )
    else:
        needed = len(own) - back if calls and len(own) > back else len(own)
    spare = [value for value in own[max(needed, 0) :] if value not in held]
    if spare and held and not needed and not back and not calls:
        raise Refusal(place.where, name, "images inside messages, and others in a field; leave out one of the two")
    if not 0 <= needed <= len(own) or (spare and len(spare) not in {back, calls} - {0}):
        raise Refusal(
            place.where, name, MISMATCH, f"{marks.of([m.text for m in asked])} <image> marks and {len(own)} images"
        )
    waiting = iter(own[:needed])
    values = [next(waiting) if value is None else value for value in held] if held else []
    values += [*waiting]
    if numbers and numbers not in ({*range(len(values))}, {*range(1, len(values) + 1)}):
        raise Refusal(place.where, name, "marks of images must be numbered from 1 or from 0 without a gap")
    if held and not numbers:
        _share(turns)
    return values


def _share(turns: Sequence[Turn]) -> None:
    """Sets which pictures each question is about, by its marks."""
    shown = 0
    for turn in turns:
        before, shown = shown, shown + sum(len(m.held) for m in turn.asked)
        turn.first = 1 if turn.refers_back or shown == before else before + 1
        turn.end = shown


def worded(turn: Turn, before: Sequence[Turn], record: Mapping[str, Any], place: Place) -> str:
    """The words of a question, with the earlier ones in front where it refers back. Raises Refusal."""
    text = turn.text
    if not marks.without(text).strip() and turn.of == 1 and isinstance(record.get("question"), str):
        text = record["question"]
    if not turn.refers_back:
        return text
    lines = []
    *asked, text = marks.labelled([*(earlier.text for earlier in before), text])
    for earlier, words in zip(before, asked, strict=True):
        said = earlier.answer or earlier.last
        if not said.strip() or re.search(r"</?(?:think|tool_call|answer)>", said):
            reason = "refers back to a question of the dialogue that is refused"
            raise Refusal(place.where, "question", reason)
        lines.append(f"Question: {words.strip()}\nAnswer: {said.strip()}")
    return "Earlier in this dialogue:\n" + "\n".join(lines) + f"\n\nQuestion: {text.strip()}"
