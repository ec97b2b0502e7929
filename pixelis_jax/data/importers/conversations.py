r"""Dialogues with tool calls, as Pixel-Reasoner, ShareGPT and OpenAI-style data write them -> THINK and ZOOM_IN steps.

Messages have role and content (a text, or parts of text and images), or from and value with <image> marks. A turn of
the assistant is a thought with <tool_call> blocks, the last one holds the answer in <answer> or \boxed{}, else in the
record's own answer field, else it is one short line.
"""

import dataclasses
import re
from typing import Any

from pixelis_jax.data.importers import answers, calls
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, cut_out, first_of, leftovers, quoted
from pixelis_jax.data.importers.fields import IDS, IMAGES, base_record, pictures_of, placed
from pixelis_jax.data.importers.pictures import Picture

MESSAGES = ("message_list", "messages", "conversations", "conversation")
SHORT = 100  # characters: a last message of one line without marks that is taken as the answer

_ROLES = {
    **{"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"},
    **{"model": "assistant", "function_call": "call", "tool": "result", "observation": "result", "function": "result"},
    **{"ipython": "result", "tool_response": "result"},
}
_THINK = re.compile(r"</?think>")
_WRAPPED = re.compile(r"</?tool_response>")
_TAG = re.compile(r"</?(?:think|tool_call|answer|tool_response)>")
_MARK = re.compile(r"<image>|<video>")
# Pixel-Reasoner tells the model of its tools and of the form of answers in a last paragraph of each question.
_GUIDELINES, _GUIDED = "Guidelines:", ("`crop_image", "`select_frames", "\\boxed")


@dataclasses.dataclass(frozen=True)
class Message:
    """One message in one form: `images` are what its parts hold, and None for each <image> mark."""

    role: str
    text: str
    images: list[Any]
    calls: list[Record]
    is_video: bool = False


def fits(record: Record) -> bool:
    """Whether a field holds messages of an assistant."""
    _, messages = first_of(record, MESSAGES)
    if not isinstance(messages, list):
        return False
    roles = [m.get("role", m.get("from")) for m in messages if isinstance(m, dict)]
    return any(isinstance(role, str) and _ROLES.get(role.lower()) in ("assistant", "call") for role in roles)


def convert(record: Record, place: Place, context: Context) -> Record:
    """A record in our form. Raises Refusal."""
    name, raw = first_of(record, MESSAGES)
    if not isinstance(raw, list) or not raw:
        raise Refusal(place.where, name or "messages", "must be a list of messages that is not empty")
    messages = [message(item, f"{name} {number}", place) for number, item in enumerate(raw, 1)]
    used = {name, "tools", *IDS}
    system = "\n".join(m.text for m in messages if m.role == "system")
    talk = [m for m in messages if m.role != "system"]
    begin = next((i for i, m in enumerate(talk) if m.role in ("assistant", "call")), len(talk))
    if begin == 0 or begin == len(talk) or any(m.role != "user" for m in talk[:begin]):
        raise Refusal(place.where, name, "must begin with a user's message and go on with an assistant's")
    asked = talk[:begin]
    field, values = _images(asked, record, place)
    used.add(field)
    pictures = pictures_of(values, field or name, place, context)
    question = _question(asked, record, context, place)
    steps, last = Reader(place, context, calls.declared(system, record.get("tools"))).walk(talk[begin:], pictures)
    answer_name, given = first_of(record, answers.ANSWER_NAMES)
    used.add(answer_name)
    truth = answers.plain(given, place, answer_name) if answer_name else []
    thought, answer = _conclusion(last.text, truth, calm=not steps, place=place)
    made = base_record(record, place, context, used)
    choice_name, choices = first_of(record, answers.CHOICE_NAMES)
    made.update(answers.typed(question, answer, choices, place))
    made["trajectory"] = steps + ([{"action": "THINK", "thought": thought}] if thought else [])
    is_video = record.get("is_video") is True or any(m.is_video for m in asked)
    made.update(placed(pictures, is_video=is_video))
    _judge(made, truth, context)
    more = leftovers(record, used | {choice_name, "is_video"})
    made["metadata"] = {
        **made["metadata"],
        **(_frame_of(pictures) if steps else {}),
        **({"other_fields": more} if more else {}),
    }
    return made


class Reader:
    """Turns the messages from the first of the assistant on into steps."""

    def __init__(self, place: Place, context: Context, frames: dict[str, str]) -> None:
        self.place, self.context, self.frames = place, context, frames
        self.steps: list[Record] = []

    def walk(self, talk: list[Message], pictures: list[Picture]) -> tuple[list[Record], Message]:
        """(the steps before the last message, the last message). Raises Refusal."""
        self.known = all(picture.size for picture in pictures)
        sizes = [picture.size or (0, 0) for picture in pictures]
        self.views = [calls.View(i, (0, 0, wide, high), given=True) for i, (high, wide) in enumerate(sizes, 1)]
        at = 0
        while at < len(talk):
            message = talk[at]
            text, found = calls.split(message.text, self.place)
            found = [*found, *message.calls]
            if not found:
                if at + 1 < len(talk):
                    raise Refusal(self.place.where, "messages", "go on after an answer; one question a sample")
                return self.steps, message
            self._call(text, found)
            at += 1
            after = at
            while after < len(talk) and talk[after].role in ("user", "result"):
                after += 1
            self._result(talk[at:after], len(found))
            at = after
        raise Refusal(self.place.where, "messages", "end with a tool call and without an answer")

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

    def _result(self, messages: list[Message], count: int) -> None:
        """Keeps the text of what the calls returned."""
        text = " ".join(_WRAPPED.sub(" ", m.text) for m in messages)
        text = " ".join(_MARK.sub(" ", text).split())
        images = sum(len(m.images) for m in messages)
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


def _conclusion(text: str, truth: list[str], *, calm: bool, place: Place) -> tuple[str, str]:
    """(thought, answer) of the last message. `calm` says that no tool was called."""
    answer, boxed = answers.tagged(text), answers.around_box(text)
    if answer is not None:
        answer, rest = answers.unboxed(answer), cut_out(text, "answer")[0]
    elif boxed is not None:
        before, answer, behind = boxed
        rest = f"{before.removesuffix('$')}{answer}{behind.removeprefix('$')}"
    elif truth:
        answer, rest = truth[0], text
    elif calm and len(text.strip()) <= SHORT and "\n" not in text.strip() and not _TAG.search(text):
        answer, rest = text.strip(), ""
    else:
        reason = "the last message marks no answer: neither <answer> nor \\boxed{}, and there is no answer field"
        raise Refusal(place.where, "answer", reason)
    if not answer:
        raise Refusal(place.where, "answer", "missing or empty")
    if _TAG.search(answer):
        raise Refusal(place.where, "answer", "has a tag inside", quoted(answer))
    return cleaned(rest, place), answer


def _frame_of(pictures: list[Picture]) -> Record:
    """What the boxes are relative to: the images at their full size."""
    sizes = [list(picture.size or ()) for picture in pictures]
    several = {"seen_sizes": sizes} if len(sizes) > 1 else {}
    return {"size": sizes[0], "seen_size": sizes[0], **several, "coordinates": "pixels"}


def _judge(made: Record, truth: list[str], context: Context) -> None:
    """Sets the ground truth, and marks a dialogue whose answer is another one: it is not to be learnt from."""
    if not truth:
        return
    choices = made.get("choices", [])
    best = next((t for t in truth if answers.agree(made["answer"], t, choices)), None)
    if best is None:
        context.notes["answers that differ from the ground truth: sample_type outcome_negative"] += 1
        letter = answers.letter_of(truth[0], choices) if choices else None
        made.update(sample_type="outcome_negative", answer_loss=False, ground_truth=letter or truth[0])
        return
    if len(truth) > 1 and made["answer_type"] != "choice":
        made["metadata"]["answers"] = truth


def _images(asked: list[Message], record: Record, place: Place) -> tuple[str, list[Any]]:
    """(field that holds them, the given images in order): those of the parts; marks take the record's own in turn."""
    field, own = first_of(record, IMAGES)
    own = own if isinstance(own, list) else [own] if field else []
    held = [image for message in asked for image in message.images]
    marks = sum(image is None for image in held)
    if marks > len(own):
        raise Refusal(place.where, "messages", f"{marks} <image> marks and {len(own)} images")
    if not held:
        return field, own
    given = iter(own)
    values = [next(given) if image is None else image for image in held]
    # Behind those of the question stand the images that tools returned; ours are made anew.
    return field if marks else "", values


def _question(asked: list[Message], record: Record, context: Context, place: Place) -> str:
    """The user's words without marks and guidelines for other tools, else the question field."""
    text = answers.without_marks("\n".join(m.text for m in asked if m.text.strip()))
    start = text.rfind(_GUIDELINES)
    last = text[max(start, 0) :]
    if start > 0 and "\n\n" not in last and any(words in last for words in _GUIDED):
        context.notes["questions without the guidelines for other tools at their end"] += 1
        text = text[:start].rstrip()
    if not text and isinstance(record.get("question"), str):
        text = answers.without_marks(record["question"])
    if not text.strip():
        raise Refusal(place.where, "question", "missing or empty")
    return text


def message(item: Any, field: str, place: Place) -> Message:
    """The message of a JSON object; `field` names it in errors. Raises Refusal."""
    if not isinstance(item, dict):
        raise Refusal(place.where, field, "must be a JSON object")
    role = item.get("role") if item.get("role") is not None else item.get("from")
    kind = _ROLES.get(role.lower()) if isinstance(role, str) else None
    if kind is None:
        raise Refusal(place.where, field, "unknown role", quoted(role))
    content = item.get("content") if item.get("content") is not None else item.get("value")
    text, images, is_video = _content(content, field, place)
    listed = item.get("tool_calls")
    if not isinstance(listed, list | None):
        raise Refusal(place.where, field, "tool_calls must be a list", quoted(listed))
    made = [_function(call, field, place) for call in listed or []]
    if kind == "call":
        text = f"<tool_call>{text}</tool_call>"
    if kind != "assistant" and kind != "call" and made:
        raise Refusal(place.where, field, "only an assistant calls tools")
    return Message("assistant" if kind == "call" else kind, text, images, made, is_video)


def _function(call: Any, field: str, place: Place) -> Record:
    """A call of the OpenAI form."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise Refusal(place.where, field, "tool_calls must hold JSON objects")
    return {"name": function.get("name"), "arguments": function.get("arguments")}


def _content(content: Any, field: str, place: Place) -> tuple[str, list[Any], bool]:
    """(text, images, whether they are frames of a video) of a message's content. Raises Refusal."""
    if content is None:
        return "", [], False
    if isinstance(content, str):
        return content, [None] * len(_MARK.findall(content)), False
    if not isinstance(content, list):
        raise Refusal(place.where, field, "content must be a text or a list of parts")
    texts: list[str] = []
    images: list[Any] = []
    is_video = False
    for part in content:
        if isinstance(part, str):
            part = {"text": part}
        if not isinstance(part, dict):
            raise Refusal(place.where, field, "a part must be a text or a JSON object")
        if isinstance(part.get("text"), str):
            texts.append(part["text"])
            images += [None] * len(_MARK.findall(part["text"]))
        _, image = first_of(part, ("image", "image_url"))
        if isinstance(part.get("video"), list):
            is_video = True
            images += part["video"]
        elif part.get("video") is not None:
            raise Refusal(place.where, field, "a video file; give its frames as images", quoted(part["video"]))
        elif image is not None:
            images.append(image)
        elif part.get("type") in ("image", "image_url"):
            images.append(None)
    return "\n".join(texts), images, is_video
