"""Questions about a scene, each with exactly one right answer, and tasks drawn from them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.draw import render
from pixelis_jax.data.pixelsearch.scene import COLORS, SHAPES, Scene, Shape, make_scene
from pixelis_jax.types import Task, UserError

PATH_PREFIX = "pixelsearch:"

# kind -> task type of the CoTA specification. Reading a digit is reading: both digits and codes are text_extraction.
KINDS: dict[str, str] = {
    "digit": "text_extraction",
    "text": "text_extraction",
    "counting": "object_counting",
    "attribute": "attribute_recognition",
}


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
    return found


def make_task(seed: int, split: str, index: int, *, kinds: Sequence[str] = tuple(KINDS)) -> Task:
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
