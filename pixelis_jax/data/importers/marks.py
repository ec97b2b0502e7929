"""Marks in the texts of other data: what stands for a picture, an object or a box is filled in, or the record refused.

One rule for all formats. A question without marks is about all its pictures. Otherwise marks and pictures are as many:
the mark of number k, or the k-th of marks without numbers, stands for picture k of the record. Marks before or behind
the words are dropped; others become "image k", which is how the dialogue's tools number pictures too. Pictures stay in
the order of the record.
"""

import itertools
import re
from collections.abc import Sequence

from pixelis_jax.data.importers.base import Place, Refusal, quoted

IMAGE = "<image>"
_PADS = r"(?:<\|(?:image|video)_pad\|>)"
_PICTURE = (
    rf"<\|vision_start\|>\s{{0,9}}{_PADS}*\s{{0,9}}<\|vision_end\|>|{_PADS}+"
    r"|(?:Picture \d{1,3}:[ \t]?)?<img>[^<>]{0,300}</img>|<img>\s{0,9}<ImageHere>\s{0,9}</img>"
    r"|<im_start>\s{0,9}<image>\s{0,9}<im_end>"
    r"|<\|?(?:image|img|picture|video)[ _:#-]?(?P<number>\d{0,4})\|?>"
    r"|<\|?(?:image|img|video)_?(?:placeholder|token|here|soft_token)\|?>|<start_of_image>|\[IMG\]"
)
_MARK = re.compile(_PICTURE, re.IGNORECASE)
# Names of what special tokens and placeholders of other systems stand for: a tag that begins with one is no text.
_NAMES = (
    *("image", "img", "im_", "pic", "photo", "video", "frame", "audio", "speech", "vision", "visual"),
    *("bbox", "box", "ref", "obj", "region", "roi", "point", "mask", "seg", "loc", "quad", "poly", "patch", "ground"),
    *("phrase", "placeholder", "start_of", "end_of", "delimiter", "tool", "answer", "think", "function"),
)
_LEFT = re.compile(
    rf"<\|[^<>|\s]{{1,60}}\|>|</?(?:{'|'.join(_NAMES)})[\w.:#-]{{0,40}}(?: \d{{1,4}})?/?>"
    r"|</?(?:s|p|unk|pad|eos|bos|sep|cls)>|\[/?(?:IMG|IMAGE|SEG|INST|BOX|BBOX)[ _]?\d{0,4}\]|<<?SYS>?>"
    r"|<(?:x|y|bin|coord)?_?\d{1,4}>|&lt;/?(?:image|img|video|bbox|box|ref)[\w -]{0,20}&gt;"
    r"|<img\s[^<>]{1,300}>|!\[[^\[\]]{0,100}\]\([^()\s]{1,300}\)|\{\{?\s?(?:image|img|video|bbox)[ _]?\d{0,3}\s?\}",
    re.IGNORECASE,
)
_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<|end_of_text|>", "<|eom_id|>", "</s>", "<eos>"),
    *("<end_of_turn>", "<|return|>"),
)
_NAMED = re.compile(
    r"<\|object_ref_start\|>(.{0,500}?)<\|object_ref_end\|>|<ref>(.{0,500}?)</ref>|<phrase>(.{0,500}?)</phrase>"
    r"|<p>([^<>]*)</p>|<obj>([^<>]*)</obj>",
    re.DOTALL,
)
_SIGNS = r"[\s\d.,()\[\]{}<>-]{7,200}?"
_BOXED = re.compile(
    rf"<\|box_start\|>({_SIGNS})<\|box_end\|>|<box>({_SIGNS})</box>|<bbox>({_SIGNS})</bbox>"
    rf"|<\|bbox\|>({_SIGNS})<\|/bbox\|>|<BBOX>({_SIGNS})</BBOX>"
)
_PATH = re.compile(r"(?:Picture \d{1,3}:[ \t]?)?<img>([^<>]*)</img>", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_CLOSED = (".", "?", "!", ":", "。", "？", "\n")


def without_ends(text: str) -> str:
    """A text without the tokens that end a turn in other systems."""
    bare = text.rstrip()
    while bare.endswith(_ENDS):
        end = next(end for end in _ENDS if bare.endswith(end))
        text = bare = bare[: -len(end)].rstrip()
    return text


def _found(text: str) -> list[re.Match[str]]:
    """The marks of pictures in a text; most texts have none, which is seen quickly."""
    return [*_MARK.finditer(text)] if "<" in text or "[" in text else []


def count(texts: Sequence[str]) -> tuple[set[int], int]:
    """(numbers that marks of pictures have, how many marks have none) in texts that belong together."""
    found = [match["number"] or "" for text in texts for match in _found(text)]
    return {int(number) for number in found if number}, found.count("")


def of(texts: Sequence[str]) -> int:
    """How many pictures the marks of texts stand for."""
    numbers, plain = count(texts)
    return len(numbers) + plain


def without(text: str) -> str:
    """A text without its marks of pictures."""
    return _MARK.sub(" ", text) if "<" in text or "[" in text else text


def paths(text: str) -> list[str | None]:
    """The file that each mark without a number names, as in <img>a.png</img>; None where it names none."""
    found = [_PATH.fullmatch(match[0]) for match in _found(text) if not match["number"]]
    return [match[1].strip() if match and match[1].strip() else None for match in found]


def check_count(texts: Sequence[str], pictures: int, place: Place, field: str, *, is_video: bool = False) -> None:
    """Raises Refusal unless texts have no marks, or as many as there are pictures. One mark may stand for a video."""
    numbers, plain = count(texts)
    if numbers and plain:
        raise Refusal(place.where, field, "marks of images with numbers and without; use one kind")
    found = len(numbers) or plain
    if found and found != pictures and not (is_video and found == 1):
        shown = f"{found} <image> marks and {pictures} images"
        raise Refusal(place.where, field, "as many <image> marks as images are needed, or no mark", shown)
    if numbers and numbers not in ({*range(pictures)}, {*range(1, pictures + 1)}) and not is_video:
        shown = f"numbers {', '.join(map(str, sorted(numbers)[:8]))} of {pictures}"
        raise Refusal(place.where, field, "marks of images must be numbered from 1 or from 0 without a gap", shown)


def bound(texts: Sequence[str], *, first: int = 1, questions: int = 1, pictures: int = 0) -> list[str]:
    """Questions and then choices with marks of pictures in words, counted from `first` where they have no number.

    Marks before the words, behind the last sentence or on lines of their own are dropped, if all stand so, in turn.
    Numbered ones are kept where they name only some of the `pictures` (0: not known).
    """
    found = [match["number"] or "" for text in texts for match in _found(text)]
    numbers = [int(number) for number in found if number]
    in_turn = numbers in ([*range(len(numbers))], [*range(1, len(numbers) + 1)])
    all_named = in_turn and (not pictures or len(numbers) == pictures)
    if found and (not numbers or all_named) and not of(texts[questions:]) and all(map(_outside, texts[:questions])):
        return [*(_tidy(_MARK.sub(" ", text)) for text in texts[:questions]), *texts[questions:]]
    shift, at = int(0 in numbers), iter(range(first, first + 10**9))

    def word(match: re.Match[str]) -> str:
        number = int(match["number"]) + shift if match["number"] else next(at)
        text, start, end = match.string, match.start(), match.end()
        before = " " if start and text[start - 1].isalnum() else ""
        after = " " if end < len(text) and (text[end].isalnum() or text[end] == "<") else ""
        return f"{before}image {number}{after}"

    return [_MARK.sub(word, text) for text in texts] if found else [*texts]


def _outside(text: str) -> bool:
    """Whether all marks of a text stand before its words, behind its last sentence, or on lines of their own."""
    marks = _found(text)
    first, at = 0, 0
    while first < len(marks) and not text[at : marks[first].start()].strip(" \t\n,;:"):
        first, at = first + 1, marks[first].end()
    last, end = len(marks), len(text)
    while last > first and not text[marks[last - 1].end() : end].strip():
        last, end = last - 1, marks[last - 1].start()
    if not text[:end].rstrip(" \t").endswith(_CLOSED):
        last = len(marks)
    lines = {text.rfind("\n", 0, mark.start()) + 1: mark.end() for mark in marks[first:last]}
    return not any(_MARK.sub("", text[start:].partition("\n")[0]).strip(" ,;:") for start in lines)


def labelled(texts: Sequence[str]) -> list[str]:
    """The questions of a dialogue in turn, those with marks of their own with the numbers of their pictures in front.

    With one picture in all, or none, the marks are dropped.
    """
    counts = [of([text]) for text in texts]
    if sum(counts) < 2 or count(texts)[0] or not all(map(_outside, texts)):
        return bound(texts, questions=len(texts))
    ends = [*itertools.accumulate(counts)]
    names = [", ".join(f"image {n + 1}" for n in range(end - own, end)) for end, own in zip(ends, counts, strict=True)]
    bare = [_tidy(_MARK.sub(" ", text)) for text in texts]
    return [f"({name}) {text}" if name else text for name, text in zip(names, bare, strict=True)]


def _tidy(text: str) -> str:
    return "\n".join(line.strip() for line in text.split("\n")).strip()


def spelled(text: str, place: Place, field: str) -> str:
    """A text in which an object that tokens name stands without them, and a box as [x1, y1, x2, y2]. Raises Refusal."""

    def box(match: re.Match[str]) -> str:
        inside = next(group for group in match.groups() if group is not None)
        numbers = _NUMBER.findall(inside)
        if len(numbers) < 4 or len(numbers) % 4:
            raise Refusal(place.where, field, "a box that has no 4 numbers", quoted(match[0]))
        return ", ".join(f"[{', '.join(numbers[i : i + 4])}]" for i in range(0, len(numbers), 4))

    if "<" not in text:
        return text
    named = _NAMED.sub(lambda match: next(group for group in match.groups() if group is not None), text)
    return _BOXED.sub(box, named)


def has_boxes(text: str) -> bool:
    """Whether a text has a box between tokens, which `spelled` writes as numbers."""
    return "<" in text and _BOXED.search(text) is not None


def answer(text: str, place: Place) -> str:
    """An answer as `spelled` writes it; of the name of an object and its box the box alone. Raises Refusal."""
    named = _NAMED.search(text) if "<" in text else None
    rest = _NAMED.sub("", text).strip() if named else ""
    return spelled(rest if rest and _BOXED.fullmatch(rest) else text, place, "answer")


def left(text: str) -> str:
    """The first mark of a text that nothing has read; "" where there is none."""
    found = (_LEFT.search(text) or _MARK.search(text)) if any(sign in text for sign in "<[&{") else None
    return found[0] if found else ""


def refuse_left(texts: Sequence[str], place: Place, field: str) -> None:
    """Raises Refusal for texts with a mark that nothing has read."""
    for text in texts:
        if found := left(text):
            raise Refusal(place.where, field, "has a mark that the record does not fill in", quoted(found))
