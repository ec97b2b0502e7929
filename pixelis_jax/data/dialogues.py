"""From CoTA steps to a token row: the same template and the same real tool calls as in a rollout."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pixelis_jax.data.cota import Sample
from pixelis_jax.models.processor import Placed, Processor
from pixelis_jax.models.rows import Row
from pixelis_jax.tools import execute, grammar
from pixelis_jax.tools.base import FitSize, Session
from pixelis_jax.types import Observation, ToolCall

ANSWER, ANSWER_END = "<answer>", "</answer>"


@dataclasses.dataclass(frozen=True)
class Message:
    """One assistant turn of a demonstration. `loss` is False for a deliberately wrong step: seen, not trained."""

    text: str
    loss: bool
    observation: Observation | None  # None after the answer


def messages(
    sample: Sample,
    images: Sequence[np.ndarray],
    *,
    fit_overview: FitSize,
    fit_crop: FitSize,
    coordinates: str = "pixels",
) -> list[Message]:
    """Assistant turns of a sample. THINK steps join the think block of the action (or the answer) that follows them.

    A call without a stored observation is replayed by the real tool, so the dialogue shows what a rollout would show.
    """
    seen = [fit_overview(*image.shape[:2]) for image in images]
    session = Session(images, seen, fit_crop=fit_crop, coordinates=coordinates)
    turns, thoughts = [], []
    for step in sample.trajectory:
        if step.thought:
            thoughts.append(step.thought)
        if step.action == "THINK":
            continue
        call = ToolCall(step.action, dict(step.parameters))
        text = grammar.render(" ".join(thoughts), call=call)
        turns.append(Message(text, step.loss, step.observation or execute(session, call)))
        thoughts = []
    text = grammar.render(" ".join(thoughts), answer=sample.answer)
    turns.append(Message(text, sample.answer_loss, None))
    return turns


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
