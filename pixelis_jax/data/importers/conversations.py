r"""Dialogues, with tool calls or without, as Pixel-Reasoner, LLaVA, ShareGPT, ms-swift and OpenAI-style data have them.

A turn of the assistant is a thought with <tool_call> blocks, the last one holds the answer in <answer> or \boxed{},
else in the record's own answer field, else it is one short line. A dialogue that goes on with another question gives a
sample for each (see turns.py).
"""

import re
from collections.abc import Sequence
from typing import Any

from pixelis_jax.answers import boxes, kinds
from pixelis_jax.answers import text as texts
from pixelis_jax.answers.choices import NEEDS_ALL, indices_of
from pixelis_jax.data.importers import (
    answer_types,
    box_frames,
    calls,
    choices,
    choices_in_text,
    chosen,
    gold,
    gold_texts,
    gold_values,
    marks,
    messages,
    objects,
    other_pictures,
    questions,
    turns,
    visual_cot,
)
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, cut_out, first_of, leftovers, quoted
from pixelis_jax.data.importers.box_answers import Seen
from pixelis_jax.data.importers.choices import Asked
from pixelis_jax.data.importers.fields import (
    FILMS,
    IDS,
    base_record,
    image_columns,
    images_of,
    pictures_of,
    placed,
    refuse_without,
)
from pixelis_jax.data.importers.messages import Message
from pixelis_jax.data.importers.pictures import Picture
from pixelis_jax.data.importers.turns import Turn
from pixelis_jax.types import UserError

SHORT = 100  # characters: a last message of one line without marks that is taken as the answer
_WORD = re.compile(r"[^\W_]+")
_THINK = re.compile(r"</?think(?:ing)?>")
_WRAPPED = re.compile(r"</?tool_response>")
_TAG = re.compile(r"</?(?:think|tool_call|answer|tool_response)>")


def fits(record: Record) -> bool:
    """Whether a field holds messages of an assistant, or what one said to a question."""
    name = messages.find(record)[0]
    listed = name == messages.QUESTIONS or bool(first_of(record, messages.MESSAGES)[0])
    return bool(name) and (listed or not _is_answered(record))


def _is_answered(record: Record) -> bool:
    """Whether a question with a response has an answer of its own, and no history: it is a prompt then."""
    return not gold.is_empty(gold.answer_of(record)[1]) and gold.is_empty(record.get(messages.HISTORY))


def convert(record: Record, place: Place, context: Context) -> list[Record | UserError]:
    """The samples of a record, one a question. Raises Refusal."""
    name, raw, used = messages.find(record)
    if not name:
        name, value = first_of(record, messages.MESSAGES)
        raw = value if isinstance(value, list) else []
    if not raw:
        raise Refusal(place.where, name or "messages", "must be a list of messages that is not empty")
    record, raw = visual_cot.as_calls(record, raw, context)
    talk = [messages.message(item, f"{name} {number}", place) for number, item in enumerate(raw, 1)]
    return Dialogue(record, place, context, name, used | {name}).samples(talk)


class Dialogue:
    """The conversion of one record."""

    def __init__(self, record: Record, place: Place, context: Context, name: str, used: set[str]) -> None:
        self.record, self.place, self.context, self.name, self.used = record, place, context, name, used
        self.used |= {"tools", *IDS, "is_video"}

    def samples(self, talk: list[Message]) -> list[Record | UserError]:
        """A record or a refusal for each question. Raises Refusal for what concerns them all."""
        system = "\n".join(m.text for m in talk if m.role == "system" and m.text.strip())
        self.context.notes["system prompts left out, since the dialogue has its own"] += bool(system)
        talk, found = self._filled([m for m in talk if m.role != "system"])
        split = turns.split(talk, self.name, self.place)
        self.frames, self.tools = calls.declared(system, self.record.get("tools"))
        self.frame = found.frame if found else ""
        self.pictures = self._pictures(split)
        answer_name, given = gold.answer_of(self.record)
        gold.refuse_judged(answer_name, given, split[-1].last, self.place)
        self.used.add(answer_name.partition(".")[0])
        truths = self._truths(answer_name, given, len(split))
        self.choices, columns = choices.of_record(self.record, self.place)
        self.used |= columns | {"answer_type"}
        if self.choices.texts and len(split) > 1:
            raise Refusal(self.place.where, "choices", f"one list of choices for {len(split)} questions; split them")
        reader = Reader(self.place, self.context, self.frames)
        reader.show(self.pictures, mixed=any(m.held for turn in split[1:] for m in turn.asked))
        made: list[Record | UserError] = []
        for number, (turn, truth) in enumerate(zip(split, truths, strict=True), 1):
            place = self.place if len(split) == 1 else self.place.part(number)
            try:
                made.append(self._sample(turn, truth, reader.at(place), split[: number - 1], place))
            except Refusal as refusal:
                made.append(refusal)
                reader.lost |= turn.is_calling
        if len(split) == 1 and isinstance(made[0], UserError):
            raise made[0]
        if len(split) > 1:
            self.context.notes["dialogues of several questions, each a sample"] += 1
        return made

    def _filled(self, talk: list[Message]) -> tuple[list[Message], objects.Objects | None]:
        """(messages with what their placeholders of objects stand for, the objects if there are placeholders)."""
        said = [m.text for m in talk]
        if not objects.are_in(said) or self.record.get(objects.FIELD) is None:
            return talk, None
        self.used.add(objects.FIELD)
        found = objects.of_record(self.record[objects.FIELD], self.place)
        said, images = objects.filled(said, found, self.place, self.name)
        return [m.replaced(text, image) for m, text, image in zip(talk, said, images, strict=True)], found

    def _truths(self, name: str, given: Any, count: int) -> list[list[str]]:
        """The accepted answers of each question, from the record's own field; none where it has none."""
        if not name:
            return [[]] * count
        each = [given] if count == 1 else given
        if not isinstance(each, list) or len(each) != count:
            reason = "one answer field for several questions; give a list, or split them"
            raise Refusal(self.place.where, name, reason, f"{count} questions")
        found = [gold_values.plain(item, self.place, name) for item in each]
        truths = [[gold_values.bare(marks.answer(text, self.place)) for text in item] for item in found]
        for item in truths:
            marks.refuse_left(item, self.place, name)
        return truths

    def _pictures(self, split: list[Turn]) -> list[Picture]:
        """The given pictures, looked up."""
        fields = images_of(self.record, self.place)
        field, own = fields[0] if fields else ("", [])
        self.is_video = self.record.get("is_video") is True or field in FILMS or any(t.is_video for t in split)
        values = turns.given(split, own, self.name, self.place, is_video=self.is_video)
        if not values:
            refuse_without(self.record, self.place)
        self.used |= image_columns(self.record) if len(fields) == 1 else {field}
        found = pictures_of(values, field or self.name, self.place, self.context)
        other_pictures.refuse_unused(self.record, field, fields[1:], found, self.place, self.context)
        return found

    def _sample(self, turn: Turn, truth: list[str], reader: "Reader", before: list[Turn], place: Place) -> Record:
        """The sample of one question. Raises Refusal."""
        steps = reader.walk(turn)
        if turn.refusal:
            raise Refusal(place.where, "messages", turn.refusal)
        options = self.choices.texts or choices_in_text.listed(turn.text)
        if turn.answered and turn.answered.is_untrained:
            raise Refusal(place.where, "messages", "the answer has no loss or no weight, so that it is none to learn")
        thought, answer = _conclusion(turn.last, truth, options, calm=not steps, place=place)
        turn.answer = answer
        visible = self.pictures[turn.first - 1 : turn.end] if turn.first else self.pictures
        if not visible:
            raise Refusal(place.where, "image", "no picture is shown before this question; a sample has at least one")
        asked = turns.worded(turn, before, self.record, self.place)
        seen = Seen(visible, self.is_video, 1, self.frame, turn.box_image, turn.has_boxes, box_frames.said(self.record))
        made = base_record(self.record, place, self.context, self.used)
        fields = Asked(asked, [answer], self.choices, answer_types.of_record(self.record))
        typed = questions.typed(fields, seen, place, self.context, self.tools)
        is_box = "answer_frame" in typed["metadata"]
        if truth and is_box and boxes.four(typed["answer"]) != boxes.four(answer):
            raise Refusal(place.where, "answer", "boxes that are no corners beside an answer field; make them xyxy")
        before_it = box_frames.without(made["metadata"]) if is_box else made["metadata"]
        metadata = before_it | typed.pop("metadata")
        made.update(typed, metadata=metadata)
        made["trajectory"] = steps + ([{"action": "THINK", "thought": thought}] if thought else [])
        for step in made["trajectory"]:
            if "thought" in step:
                step["thought"] = marks.spelled(step["thought"], place, "thought")
                marks.refuse_left([step["thought"]], place, "thought")
        made.update(placed(visible, is_video=self.is_video))
        _judge(made, truth, place, self.context, self.choices, answer_types.of_record(self.record))
        if before or turn.number < turn.of:
            metadata["turn"] = turn.number
        if steps:
            metadata |= _frame_of(visible)
        if more := leftovers(self.record, self.used | ({*box_frames.FIELDS} if is_box else set())):
            metadata["other_fields"] = more
        return made


class Reader:
    """Turns the messages from the assistant's first on into steps; the views of earlier questions stay numbered."""

    def __init__(self, place: Place, context: Context, frames: dict[str, str]) -> None:
        self.place, self.context, self.frames = place, context, frames
        self.lost = False  # an earlier question whose views are not known

    def show(self, pictures: list[Picture], *, mixed: bool) -> None:
        """Numbers the given pictures; `mixed` says that some of them come after the first question."""
        self.mixed = mixed
        self.known = all(picture.size for picture in pictures)
        sizes = [picture.size or (0, 0) for picture in pictures]
        self.views = [calls.View(i, (0, 0, wide, high), given=True) for i, (high, wide) in enumerate(sizes, 1)]

    def at(self, place: Place) -> "Reader":
        """The same reader, for the question at a place."""
        self.place = place
        return self

    def walk(self, turn: Turn) -> list[Record]:
        """The steps before the last message of a question. Raises Refusal."""
        self.steps: list[Record] = []
        if turn.is_calling and self.lost:
            raise Refusal(
                self.place.where, "tool_call", "an earlier question of the dialogue, which calls tools, is refused"
            )
        if turn.is_calling and self.mixed:
            reason = "a later question brings images, and tools are called; split the dialogue"
            raise Refusal(self.place.where, "messages", reason)
        for message, results in turn.calling:
            text, found = calls.split(message.text, self.place)
            found = [*found, *message.calls]
            self._call(text, found)
            self._result(results, len(found))
        return self.steps

    def _call(self, text: str, found: list[Record]) -> None:
        thought = cleaned(text, self.place)
        if thought:
            self.steps.append({"action": "THINK", "thought": thought})
        for record in found:
            call = calls.read(record, self.frames, self.context.options, self.place)
            if not self.known:
                raise Refusal(self.place.where, "image", "its size can't be read, and boxes are relative to it")
            padding = self.context.options.crop_padding
            if 1 <= call.target <= len(self.views) and not self.views[call.target - 1].given:
                self.context.notes["boxes on a zoomed image, moved to the image it was cut from"] += 1
            view, cut = calls.zoomed(call, self.views, padding, self.place)
            self.context.notes[f"boxes read as {call.frame}"] += 1
            self.context.notes["boxes cut to their image"] += cut
            self.context.notes["labels of calls left out"] += bool(call.label)
            self.views.append(view)
            parameters = {"bbox_2d": list(view.box), **({"target_image": view.root} if view.root > 1 else {})}
            self.steps.append({"action": "ZOOM_IN", "parameters": parameters})

    def _result(self, said: list[Message], count: int) -> None:
        """Keeps the text of what the calls returned."""
        text = " ".join(_WRAPPED.sub(" ", m.text) for m in said)
        images = marks.of([m.text for m in said])
        text = " ".join(marks.without(text).split())
        if text.lower().startswith(("error", "invalid", "failed")):
            raise Refusal(self.place.where, "messages", "a call failed there, which ours might not do", quoted(text))
        if images not in (0, count):
            raise Refusal(self.place.where, "messages", f"{images} images come back for {count} calls")
        if text:
            self.steps[-1]["result"] = {"text": text}


def cleaned(text: str, place: Place) -> str:
    """A thought without its tags. Raises Refusal where one of another kind is inside."""
    text = _THINK.sub(" ", text).strip()
    if tag := _TAG.search(text):
        raise Refusal(place.where, "messages", f"{tag[0]} stands inside a thought")
    return text


def _conclusion(text: str, truth: list[str], options: Sequence[str], *, calm: bool, place: Place) -> tuple[str, str]:
    """(thought, answer) of the last message. `calm` says that no tool was called."""
    answer, boxed = gold_values.tagged(text), [*texts.boxes_in(text)]
    if answer is not None:
        answer, rest = gold_values.bare(gold_values.refuse_long(answer, place, "answer")), cut_out(text, "answer")[0]
    elif boxed:
        start, end, inside = boxed[-1]
        answer = gold_values.bare(gold_values.refuse_long(inside, place, "answer"))
        rest = f"{text[:start].removesuffix('$')}{answer}{text[end:].removeprefix('$')}"
    elif truth and not (calm and _is_short(text) and _is_answer(text, truth, options)):
        answer, rest = truth[0], text
    elif concluded := gold_texts.concluded(text):
        answer, rest = gold_values.bare(concluded[1]), concluded[0]
    elif calm and _is_short(text):
        answer, rest = gold_values.bare(text), ""
    else:
        reason = "the last message marks no answer: neither <answer> nor \\boxed{}, and there is no answer field"
        raise Refusal(place.where, "answer", reason)
    if not answer:
        raise Refusal(place.where, "answer", "missing or empty")
    if _TAG.search(answer):
        raise Refusal(place.where, "answer", "has a tag inside", quoted(answer))
    return cleaned(rest, place), answer


def _is_answer(text: str, truth: list[str], options: Sequence[str]) -> bool:
    """Whether a short message is itself the answer, right or wrong: not a sentence around the right one."""
    if any(kinds.agree(text, one, options) for one in truth) or (options and indices_of(text, options)):
        return True
    return not any(_words(one) in _words(text) for one in truth)


def _words(text: str) -> str:
    """The words of a text between spaces."""
    return f" {' '.join(_WORD.findall(texts.key(text)))} "


def _is_short(text: str) -> bool:
    """Whether a message is an answer alone: one short line, or a box with its marks and fences."""
    bare = text.strip()
    if _TAG.search(bare):
        return False
    return (len(bare) <= SHORT and "\n" not in bare) or (len(bare) <= 4 * SHORT and kinds.kind_of(bare) == "iou")


def _frame_of(pictures: list[Picture]) -> Record:
    """What the boxes are relative to: the images at their full size."""
    sizes = [list(picture.size or ()) for picture in pictures]
    several = {"seen_sizes": sizes} if len(sizes) > 1 else {}
    return {"size": sizes[0], "seen_size": sizes[0], **several, "coordinates": "pixels"}


def _judge(
    made: Record, truth: list[str], place: Place, context: Context, listed: choices.Choices, answer_type: Any
) -> None:
    """Sets the ground truth, and marks a dialogue whose answer is another one: it is not to be learnt from."""
    if not truth:
        return
    options, kind = made.get("choices", []), made["answer_type"]
    if kind == "choice":
        all_of = answer_types.wants_all(made["question"], answer_type)
        given = choices.Choices(tuple(options), listed.labels)
        letters = chosen.letters_of(truth, given, place, context, all_of=all_of)
        if not letters:
            raise Refusal(place.where, "answer", "the record's own answer names none of the choices", quoted(truth[0]))
        truth = [letters]
        if "," in letters and all_of:
            made["metadata"][NEEDS_ALL] = True
    all_of = bool(made["metadata"].get(NEEDS_ALL))
    if not any(_agree(made["answer"], one, kind, options, all_of=all_of) for one in truth):
        context.notes["answers that differ from the ground truth: sample_type outcome_negative"] += 1
        made.update(sample_type="outcome_negative", answer_loss=False, ground_truth=truth[0])
        return
    if kind in ("choice", "iou"):
        made["ground_truth"] = truth[0]
    if len(truth) > 1:
        made["metadata"]["answers"] = truth


def _agree(said: str, truth: str, kind: str, options: Sequence[str], *, all_of: bool) -> bool:
    """Whether an answer is right: names accepted choices only, is a box that overlaps by half, or says the same.

    Where `all_of` the accepted choices are needed, it names each of them.
    """
    if kind == "choice":
        named, accepted = indices_of(said, options), indices_of(truth, options)
        return named == accepted if all_of else bool(named) and named <= accepted
    one, other = (boxes.parse(text) for text in (said, truth)) if kind == "iou" else (None, None)
    return boxes.iou(one, other) >= 0.5 if one and other else kinds.agree(said, truth)
