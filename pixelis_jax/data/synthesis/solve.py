"""Carrying a course out with the real tools: the steps of a trajectory, each with the result that the tool gave.

What a tool reports about a shape is compared with the scene. Where it sees something else, the problem is given up
(`Unsolvable`): a sample never claims what its own results contradict.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pixelis_jax.data.cota import Step
from pixelis_jax.data.pixelsearch.draw import shape_mask
from pixelis_jax.data.pixelsearch.film import Film
from pixelis_jax.data.pixelsearch.oracle import look_box, result_record
from pixelis_jax.data.pixelsearch.scene import Shape
from pixelis_jax.data.synthesis.problems import Course, Move
from pixelis_jax.tools import Session, execute, objects
from pixelis_jax.tools.base import Tool
from pixelis_jax.types import Observation, ToolCall

BOX_NOISE = 0.1  # jitter of the oracle's boxes, as a share of the box
LEAST_IOU = 0.7  # of a segmented mask with the shape's own

DISTRACTIONS: tuple[str, ...] = ("location", "region", "parameter", "id", "out_of_range")
CORRECTIONS: tuple[str, ...] = (
    "Wait, that doesn't seem right. Let me try the {name}.",
    "Actually, that is not the {name}.",
    "Correction: I need the {name}.",
    "That doesn't seem right. I need the {name}.",
)


class Unsolvable(Exception):
    """The tools do not see what is there; the message says which one and how."""


@dataclasses.dataclass
class Attempt:
    """One dialogue with the tools on one scene or film: what is there, and what has been segmented so far."""

    session: Session
    tools: Mapping[str, Tool]
    shapes: Sequence[Shape]
    film: Film | None
    draw: np.random.Generator
    ids: dict[int, int] = dataclasses.field(default_factory=dict)  # shape number -> object id

    def carry_out(self, course: Course, *, distraction: str = "", at: int = 0) -> list[Step]:
        """All steps of a course, the last thought included. Raises Unsolvable.

        Steps from `course.misled` on carry `loss` False. A `distraction` of DISTRACTIONS is tried before move `at`,
        seen to be wrong, and taken back.
        """
        steps: list[Step] = []
        for number, move in enumerate(course.moves):
            loss = course.misled is None or number < course.misled
            if move.thought:
                steps.append(Step("THINK", thought=move.thought, loss=loss))
            if distraction and number == at:
                steps += self.distract(move, distraction)
            steps.append(self.perform(move, loss=loss))
        steps.append(Step("THINK", thought=course.conclusion, loss=course.misled is None))
        return steps

    def perform(self, move: Move, *, loss: bool) -> Step:
        """One move as it should be made."""
        step = self.call(move.op, self.arguments(move), loss=loss)
        self.check(move, step.observation)
        return step

    def call(self, op: str, arguments: Mapping[str, Any], *, loss: bool) -> Step:
        """A step with the tool's real answer."""
        observation = execute(self.session, ToolCall(op, arguments), tools=self.tools)
        return Step(op, arguments, result=result_record(observation), loss=loss, observation=observation)

    def arguments(self, move: Move) -> dict[str, Any]:
        """What the oracle gives to the tool for a move."""
        if move.op == "SEGMENT_OBJECT_AT":
            return {"point": self.point(self.shapes[move.target])}
        if move.op in ("GET_PROPERTIES", "TRACK_OBJECT") and move.target in self.ids:
            return {"object_id": self.ids[move.target]}
        return {"bbox_2d": self.box(self.shapes[move.target])}

    def point(self, shape: Shape) -> list[int]:
        """A point near the middle of a shape, as the model sees it."""
        x1, y1, x2, y2 = shape.box
        reach = (x2 - x1) // 8
        x, y = (int(self.draw.integers(-reach, reach + 1)) + (low + high) // 2 for low, high in ((x1, x2), (y1, y2)))
        return self.session.shown_point((x, y))

    def box(self, shape: Shape) -> list[int]:
        """A box around a shape, as the model sees it."""
        frame = self.session.frame(1)
        height, width = frame.image.shape[:2]
        shown = self.session.shown_size(frame)
        return look_box(shape.box, (height, width), shown, self.draw, box_noise=BOX_NOISE)

    def is_elsewhere(self, point: list[int], target: int) -> bool:
        """Whether a point as seen lies in the picture and outside the box of a shape."""
        frame = self.session.frame(1)
        high, wide = self.session.shown_size(frame)
        if not (point[0] < wide and point[1] < high):
            return False
        x, y = self.session.point(point)
        x1, y1, x2, y2 = self.shapes[target].box
        return not (x1 <= x < x2 and y1 <= y < y2)

    def check(self, move: Move, observation: Observation | None) -> None:
        """Raises Unsolvable unless the tool reports what stands in the scene."""
        assert observation is not None
        shape, data = self.shapes[move.target], observation.data or {}
        if not observation.ok:
            raise Unsolvable(f"{move.op}: {observation.text}")
        if move.op == "SEGMENT_OBJECT_AT":
            self.ids[move.target] = data["object_id"]
            if _iou(objects.recall(self.session, data["object_id"]).mask, shape) < LEAST_IOU:
                raise Unsolvable("SEGMENT_OBJECT_AT: another region")
        elif move.op == "GET_PROPERTIES" and (data["color"], data["shape"]) != (shape.color, shape.kind):
            raise Unsolvable("GET_PROPERTIES: another color or shape")
        elif move.op == "READ_TEXT" and data["text"].strip() != shape.content.value:
            raise Unsolvable("READ_TEXT: another text")
        elif move.op == "TRACK_OBJECT":
            assert self.film is not None
            if data["direction"] != self.film.motions[move.target].direction or data["lost"]:
                raise Unsolvable("TRACK_OBJECT: another way")

    def distract(self, move: Move, distraction: str) -> list[Step]:
        """A wrong step in place of `move`, with what the tool really says, and the thought that takes it back."""
        arguments = self.wrong_arguments(move, distraction)
        wrong = self.call(move.op, arguments, loss=False)
        name = f"{self.shapes[move.target].color} {self.shapes[move.target].kind}"
        thought = CORRECTIONS[int(self.draw.integers(len(CORRECTIONS)))].format(name=name)
        return [wrong, Step("THINK", thought=thought)]

    def wrong_arguments(self, move: Move, distraction: str) -> dict[str, Any]:
        """Arguments of the same tool that are wrong in the way of `distraction`, as far as the tool allows."""
        right = self.arguments(move)
        others = [i for i in range(len(self.shapes)) if i != move.target]
        other = self.shapes[others[int(self.draw.integers(len(others)))]]
        if "object_id" in right:
            known = [i for target, i in self.ids.items() if target != move.target]
            unknown = max(self.ids.values()) + 1 + int(self.draw.integers(4))
            return {"object_id": known[0] if known and distraction == "location" else unknown}
        wide = self.session.shown_size(self.session.frame(1))[1]
        if "point" in right:
            if distraction == "out_of_range":
                return {"point": [wide + int(self.draw.integers(1, wide)), right["point"][1]]}
            swapped = right["point"][::-1]
            if distraction == "parameter" and self.is_elsewhere(swapped, move.target):
                return {"point": swapped}
            return {"point": self.point(other)}
        x1, y1, x2, y2 = right["bbox_2d"]
        if distraction == "out_of_range":
            return {"bbox_2d": [wide + x1, y1, wide + x2, y2]}
        if distraction == "parameter":  # corners in the wrong order
            return {"bbox_2d": [x2, y2, x1, y1]}
        if distraction == "region":  # only a corner of what is asked about
            return {"bbox_2d": [x1, y1, max(x1 + 1, (3 * x1 + x2) // 4), max(y1 + 1, (3 * y1 + y2) // 4)]}
        return {"bbox_2d": self.box(other)}


def _iou(mask: np.ndarray, shape: Shape) -> float:
    """Overlap of a mask bool[height, width] with the pixels of a shape."""
    x1, y1, x2, y2 = shape.box
    truth = shape_mask(shape.kind, x2 - x1)
    common = int((mask[y1:y2, x1:x2] & truth).sum())
    return common / (int(mask.sum()) + int(truth.sum()) - common)
