"""Questions about a scene, each with exactly one right answer, and tasks drawn from them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.draw import render
from pixelis_jax.data.pixelsearch.scene import COLORS, SHAPES, Scene, Shape, make_scene
from pixelis_jax.types import Task, UserError

PATH_PREFIX = "pixelsearch:"

# kind -> task type of a CoTA sample. Reading a digit is reading: both digits and codes are text_extraction.
KINDS: dict[str, str] = {
    "digit": "text_extraction",
    "text": "text_extraction",
    "counting": "object_counting",
    "attribute": "attribute_recognition",
    "listing": "relationship_detection",
}
LOOK_KINDS: tuple[str, ...] = ("digit", "text")  # what the overview of a whole scene does not answer
TASK_KINDS: tuple[str, ...] = ("digit", "text", "counting", "attribute")  # what RL and evaluation ask


@dataclasses.dataclass(frozen=True)
class Question:
    """One question. `target_box` is (x1, y1, x2, y2) of the shape asked about, in original px; None for counting."""

    kind: str
    question: str
    answer: str
    answer_type: str
    needs_look: bool
    target_box: tuple[int, int, int, int] | None
    choices: tuple[str, ...] = ()

    @property
    def task_type(self) -> str:
        return KINDS[self.kind]


def questions(scene: Scene) -> list[Question]:
    """All questions of a scene in a fixed order. At least one of each kind exists in every scene."""
    found = [_reading(shape) for shape in scene.shapes]
    kinds = [shape.kind for shape in scene.shapes]
    colors = [shape.color for shape in scene.shapes]
    for kind in SHAPES:
        count = str(kinds.count(kind))
        found.append(Question("counting", f"How many {_plural(kind)} are there?", count, "numeric", False, None))
    for shape in scene.shapes:
        if kinds.count(shape.kind) == 1:
            text = f"What color is the {shape.kind}?"
            found.append(Question("attribute", text, shape.color, "choice", False, shape.box, tuple(COLORS)))
        if colors.count(shape.color) == 1:
            text = f"What shape is {shape.color}?"
            found.append(Question("attribute", text, shape.kind, "choice", False, shape.box, SHAPES))
    listed = sorted(scene.shapes, key=lambda shape: (shape.box[1], shape.box[0]))
    names = ", ".join(f"{shape.color} {shape.kind}" for shape in listed)
    found.append(Question("listing", "What shapes are there from top to bottom?", names, "exact", False, None))
    return found


def close_up(scene: Scene, image: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, list[Question]]:
    """A part of the scene around one shape, large enough to read at once, and the questions that it answers."""
    shape = scene.shapes[int(draw.integers(len(scene.shapes)))]
    x1, y1, x2, y2 = shape.box
    side = (x2 - x1) * int(draw.integers(105, 200)) // 100
    height, width = image.shape[:2]
    left = min(max(0, (x1 + x2 - side) // 2 + int(draw.integers(-side // 8, side // 8 + 1))), width - side)
    top = min(max(0, (y1 + y2 - side) // 2 + int(draw.integers(-side // 8, side // 8 + 1))), height - side)
    asked = [
        dataclasses.replace(_reading(shape), needs_look=False),
        Question(
            "attribute", f"What color is the {shape.kind}?", shape.color, "choice", False, shape.box, tuple(COLORS)
        ),
        Question("attribute", f"What shape is {shape.color}?", shape.kind, "choice", False, shape.box, SHAPES),
    ]
    return np.ascontiguousarray(image[top : top + side, left : left + side]), asked


def make_task(seed: int, split: str, index: int, *, kinds: Sequence[str] = TASK_KINDS) -> Task:
    """The task at the address (seed, split, index): its scene and one question of a kind drawn from `kinds`.

    A kind named twice comes twice as often. Cheap, and independent of every other index.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        named = unknown[0] if unknown else ""
        raise UserError(f"PixelSearch has no question kind {named!r}; use some of {', '.join(KINDS)}")
    scene = make_scene(seed, split, index)
    draw = generator(seed, split, index, "question")
    kind = kinds[int(draw.integers(0, len(kinds)))]
    fitting = [question for question in questions(scene) if question.kind == kind]
    question = fitting[int(draw.integers(0, len(fitting)))]
    return task_of(scene, render(scene), question)


def task_of(scene: Scene, image: np.ndarray, question: Question) -> Task:
    """The task that asks `question` about `scene`, whose pixels are `image`; its index is the scene's."""
    address = f"{scene.seed}/{scene.split}/{scene.index}"
    return Task(
        task_id=f"pixelsearch:{address}:{question.question}",
        index=scene.index,
        task_type=question.task_type,
        question=question.question,
        images=(image,),
        answer=question.answer,
        answer_type=question.answer_type,
        needs_look=question.needs_look,
        choices=question.choices,
        metadata={
            "kind": question.kind,
            "target_box": question.target_box,
            "height": scene.height,
            "width": scene.width,
            "image_path": PATH_PREFIX + address,
        },
    )


def image_at(path: str) -> np.ndarray:
    """Pixels of an image path of the form "pixelsearch:SEED/SPLIT/INDEX", as in `Task.metadata["image_path"]`."""
    seed, split, index = path.removeprefix(PATH_PREFIX).split("/")
    return render(make_scene(int(seed), split, int(index)))


def _reading(shape: Shape) -> Question:
    asked = "Which digit" if shape.content.kind == "digit" else "What text"
    text = f"{asked} is inside the {shape.color} {shape.kind}?"
    return Question(shape.content.kind, text, shape.content.value, "exact", True, shape.box)


def _plural(kind: str) -> str:
    return kind + ("es" if kind.endswith("s") else "s")
