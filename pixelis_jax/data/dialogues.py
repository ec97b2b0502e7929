"""From CoTA steps to a token row: the same template and the same real tool calls as in a rollout."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pixelis_jax.answers import frames
from pixelis_jax.data.cota import Sample, Step
from pixelis_jax.models.processor import Placed, Processor
from pixelis_jax.models.rows import Row
from pixelis_jax.tools import TOOLS, execute, grammar
from pixelis_jax.tools.base import Session, Tool, View
from pixelis_jax.types import Observation, ToolCall

ANSWER, ANSWER_END = "<answer>", "</answer>"


class UnusableError(Exception):
    """A sample that this job can't show as a dialogue; the message says why, the same for all of a kind."""


@dataclasses.dataclass(frozen=True)
class Message:
    """One assistant turn of a demonstration. `loss` is False for a deliberately wrong step: seen, not trained."""

    text: str
    loss: bool
    observation: Observation | None  # None after the answer


def messages(
    sample: Sample, images: Sequence[np.ndarray], *, view: View, tools: Mapping[str, Tool] = TOOLS
) -> list[Message]:
    """Assistant turns of a sample. THINK steps join the think block of the action (or the answer) that follows them.

    A call without a stored observation is replayed by the real tool, so the dialogue shows what a rollout would show,
    and its coordinates are brought to the size at which the image is seen here. Raises UnusableError for a call of a
    tool that is not among `tools`, for one that is to be learnt and fails, and for coordinates that can't be converted.
    """
    session = view.session(images, is_video=sample.is_video)
    turns, thoughts = [], []
    for step in sample.trajectory:
        if step.thought:
            thoughts.append(step.thought)
        if step.action == "THINK":
            continue
        if step.action not in tools:
            raise UnusableError(f"calls {step.action}, which tools.names lacks")
        call = ToolCall(step.action, converted(step, sample, session) if step.observation is None else step.parameters)
        observation = step.observation or execute(session, call, tools=tools)
        if step.loss and not observation.ok:
            raise UnusableError(f"{step.action} fails where it should not")
        turns.append(Message(grammar.render(" ".join(thoughts), call=call), step.loss, observation))
        thoughts = []
    text = grammar.render(" ".join(thoughts), answer=_answer(sample, session))
    turns.append(Message(text, sample.answer_loss, None))
    return turns


def converted(step: Step, sample: Sample, session: Session) -> dict[str, Any]:
    """The parameters of a step, with places given in the coordinates of the session.

    Those of the sample are pixels of `metadata["seen_size"]` (height, width), or of `seen_sizes`, one an image, or
    thousandths where `metadata["coordinates"]` says so. Raises UnusableError for a place on a tool's image where the
    sample's own images were seen at another size.
    """
    parameters, sizes = dict(step.parameters), _sizes(sample, session)
    places = [name for name in ("bbox_2d", "point") if name in parameters]
    target = parameters.get("target_image", 1)
    if not places or all(size == session.shown_size(session.frames[i]) for i, size in enumerate(sizes)):
        return parameters
    if not 1 <= target <= len(sizes):
        raise UnusableError("names a place on a tool's image that was seen at another size")
    high, wide = session.shown_size(session.frames[target - 1])
    scale = (wide / sizes[target - 1][1], high / sizes[target - 1][0])
    for name in places:
        old = parameters[name]
        new = [int(value * scale[i % 2] + 0.5) for i, value in enumerate(old)]
        for low in range(len(new) - 2):  # a box that held something still does
            if old[low] < old[low + 2] and new[low] == new[low + 2]:
                new[low + 2] += 1
        parameters[name] = new
    return parameters


def _answer(sample: Sample, session: Session) -> str:
    """The answer; a box in the coordinates of the session, as a rollout's is read."""
    if sample.answer_type != "iou":
        return sample.answer
    own = session.frames[: len(sample.image_paths)]
    index, frame = frames.gold_frame(sample.metadata, [image.image.shape[:2] for image in own])
    return frames.to_frame(sample.answer, frame, session.shown_size(own[index]), whole=True)


def _sizes(sample: Sample, session: Session) -> list[tuple[int, int]]:
    """(height, width) that the sample's coordinates are relative to, of each of its images."""
    count, metadata = len(sample.image_paths), sample.metadata
    if metadata.get("coordinates", "pixels") == "norm1000":
        return [(1000, 1000)] * count
    if "seen_sizes" in metadata:
        return [(int(high), int(wide)) for high, wide in metadata["seen_sizes"]]
    if "seen_size" in metadata:
        high, wide = metadata["seen_size"]
        return [(int(high), int(wide))] * count
    return [session.shown_size(frame) for frame in session.frames[:count]]


def view_of(processor: Processor) -> View:
    """How a processor shows images."""
    return View(processor.fit_overview, processor.fit_crop, processor.coordinates)


def crops_of(turns: Sequence[Message], processor: Processor) -> list[np.ndarray]:
    """Images returned by tools, resized as the model sees them, in order."""
    images = [m.observation.image for m in turns if m.observation is not None and m.observation.image is not None]
    return [processor.seen(image, crop=True) for image in images]


def encode(
    turns: Sequence[Message],
    question: str,
    *,
    processor: Processor,
    schemas: str,
    images: Sequence[Placed],
    crops: Sequence[Placed],
) -> Row:
    """Token row of a whole dialogue. Policy tokens are those of assistant turns with `loss`, their end token included.

    `row.answer` marks the tokens between the answer tags.
    """
    row, places = Row(), iter(crops)
    processor.append_prompt(row, question, images, schemas)
    for i, message in enumerate(turns):
        ids, answer = encode_message(message.text, processor)
        row.append_text([*ids, processor.im_end], policy=message.loss, turn=i, answer=[*answer, False])
        observation = message.observation
        if observation is not None:
            place = next(places) if observation.image is not None else None
            processor.append_observation(row, observation.text, place)
    return row


def encode_message(text: str, processor: Processor) -> tuple[list[int], list[bool]]:
    """(ids of an assistant message, True for each token with a character between `<answer>` and `</answer>`)."""
    start = text.find(ANSWER) + len(ANSWER) if ANSWER in text else len(text)
    end = text.find(ANSWER_END, start)
    encoding = processor.tokenizer.encode(text, add_special_tokens=False)
    return encoding.ids, [first < end and last > start for first, last in encoding.offsets]
