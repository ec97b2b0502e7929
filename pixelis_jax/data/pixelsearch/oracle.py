"""What a perfect policy does on a PixelSearch task, with the real tool's results, as CoTA samples."""

from typing import Any

import numpy as np

from pixelis_jax.data.cota import Provenance, Sample, Step
from pixelis_jax.data.dialogues import Message
from pixelis_jax.tools import execute, grammar
from pixelis_jax.tools.base import View
from pixelis_jax.types import Observation, Task, ToolCall

LOOK = "I need a closer look."
READ = "Now I can read it."
SEE = "I can see it."
COUNT = "I count them."
VERSION = "1"

_PADDING = 1.35  # side of the oracle's box in sides of the shape's


def demonstrate(
    task: Task,
    generator: np.random.Generator,
    *,
    direct: bool,
    box_noise: float,
    view: View,
) -> Sample:
    """The oracle's trajectory: with a look (think, ZOOM_IN on the target, think, answer), or direct (think, answer).

    A task that needs no look is always answered directly. `direct` on one that does gives the "bad habit": the right
    answer that nobody could have read. `box_noise` moves and resizes the box by up to this share of its sides.
    `view` is how the model sees the scene and the crop.
    """
    height, width = task.images[0].shape[:2]
    seen = view.fit_overview(height, width)
    if direct or not task.needs_look:
        trajectory = [_think(COUNT if task.metadata["kind"] == "counting" else SEE)]
    else:
        session = view.session(task.images)
        shown = session.shown_size(session.frames[0])
        box = look_box(task.metadata["target_box"], (height, width), shown, generator, box_noise=box_noise)
        call = ToolCall("ZOOM_IN", {"bbox_2d": box})
        observation = execute(session, call)
        if not observation.ok:
            raise ValueError(f"{task.task_id}: the oracle's own call failed: {observation.text}")
        zoom = Step(call.name, call.arguments, result=result_record(observation), observation=observation)
        trajectory = [_think(LOOK), zoom, _think(READ)]
    return Sample(
        task_type=task.task_type,
        question=task.question,
        image_paths=(task.metadata["image_path"],),
        trajectory=tuple(trajectory),
        answer=task.answer,
        ground_truth=task.answer,
        answer_type=task.answer_type,
        choices=task.choices,
        provenance=Provenance("pixelsearch", task.task_id, VERSION, "direct" if len(trajectory) == 1 else "oracle"),
        metadata={"kind": task.metadata["kind"], "size": [height, width], "seen_size": list(seen)},
        images=task.images,
    )


def careless(task: Task, view: View) -> Message:
    """A look at an empty box, with the error that it gives: a turn to go on from as if nothing had happened.

    Learnt, it is the habit of ignoring errors, which `rewards.unrepaired_rule` is there to unlearn.
    """
    session = view.session(task.images)
    call = ToolCall("ZOOM_IN", {"bbox_2d": [0, 0, 0, 0]})
    observation = execute(session, call)
    assert not observation.ok, observation.text
    return Message(grammar.render(LOOK, call=call), True, observation)


def look_box(
    target: tuple[int, int, int, int],
    size: tuple[int, int],
    seen: tuple[int, int],
    generator: np.random.Generator,
    *,
    box_noise: float,
) -> list[int]:
    """Integer box [x1, y1, x2, y2] around `target`, which is in pixels of `size`, in those of `seen`; clamped."""
    spans = []
    for axis in (0, 1):
        scale = seen[1 - axis] / size[1 - axis]
        low, high = target[axis] * scale, target[axis + 2] * scale
        side = (high - low) * _PADDING
        reach = round(side * box_noise)
        shift, growth = (int(generator.integers(-reach, reach + 1)) for _ in range(2))
        middle, half = (low + high) / 2 + shift, (side + growth) / 2
        start = min(max(round(middle - half), 0), seen[1 - axis] - 1)
        spans.append((start, min(max(round(middle + half), start + 1), seen[1 - axis])))
    (x1, x2), (y1, y2) = spans
    return [x1, y1, x2, y2]


def result_record(observation: Observation) -> dict[str, Any]:
    """The JSON form of a tool's result, without pixels."""
    record: dict[str, Any] = {"text": observation.text, "ok": observation.ok}
    if observation.region is not None:
        record["region"] = [round(value, 6) for value in observation.region]
    if observation.image is not None:
        record["size"] = list(observation.image.shape[:2])
    return record


def _think(thought: str) -> Step:
    return Step("THINK", thought=thought)
