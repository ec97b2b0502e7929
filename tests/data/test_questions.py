import numpy as np
import pytest

from pixelis_jax.data import pixelsearch
from pixelis_jax.data.pixelsearch.chart import CLASSES, make_chart
from pixelis_jax.data.pixelsearch.questions import close_up
from pixelis_jax.data.pixelsearch.scene import COLORS, SHAPES
from pixelis_jax.types import UserError

SCENES = [pixelsearch.make_scene(5, "train", index) for index in range(200)]


def test_every_question_has_one_right_answer():
    """The answer is looked up again from the words of the question alone."""
    for scene in SCENES:
        for question in pixelsearch.questions(scene):
            words = question.question.rstrip("?").split()
            if question.kind in ("digit", "text"):
                fits = [s for s in scene.shapes if (s.color, s.kind) == tuple(words[-2:])]
                assert [s.content.value for s in fits] == [question.answer]
                assert [s.content.kind for s in fits] == [question.kind]
                assert fits[0].box == question.target_box and question.needs_look
            elif question.kind == "counting":
                named = next(kind for kind in SHAPES if words[2] in (kind + "s", kind + "es"))
                assert question.answer == str(sum(s.kind == named for s in scene.shapes))
                assert question.target_box is None and not question.needs_look
            elif question.kind == "listing":
                named = [tuple(part.split(" ")) for part in question.answer.split(", ")]
                tops = [next(s.box[1] for s in scene.shapes if (s.color, s.kind) == name) for name in named]
                assert tops == sorted(s.box[1] for s in scene.shapes)
            elif words[1] == "color":
                assert [s.color for s in scene.shapes if s.kind == words[-1]] == [question.answer]
                assert question.choices == tuple(COLORS)
            else:
                assert [s.kind for s in scene.shapes if s.color == words[-1]] == [question.answer]
                assert question.choices == SHAPES


def test_every_scene_has_a_question_of_every_kind():
    for scene in SCENES:
        assert {question.kind for question in pixelsearch.questions(scene)} == set(pixelsearch.KINDS)


def test_the_vocabulary_is_small():
    words = {word for scene in SCENES for q in pixelsearch.questions(scene) for word in q.question.rstrip("?").split()}
    assert len(words) == 18 + len(COLORS) + 2 * len(SHAPES)


def test_a_task_is_its_address():
    one, same = (pixelsearch.make_task(5, "heldout", 17) for _ in range(2))
    assert (one.question, one.answer, one.metadata) == (same.question, same.answer, same.metadata)
    assert np.array_equal(one.images[0], same.images[0])
    assert (one.task_id, one.index) == (f"pixelsearch:5/heldout/17:{one.question}", 17)
    assert one.images[0].shape == (one.metadata["height"], one.metadata["width"], 3)
    assert np.array_equal(pixelsearch.image_at(one.metadata["image_path"]), one.images[0])


def test_kinds_and_their_shares():
    tasks = [pixelsearch.make_task(5, "train", i, kinds=("digit", "digit", "counting")) for i in range(120)]
    kinds = [task.metadata["kind"] for task in tasks]
    assert set(kinds) == {"digit", "counting"} and 60 < kinds.count("digit") < 100
    assert all(task.needs_look == (task.metadata["kind"] == "digit") for task in tasks)
    assert {task.task_type for task in tasks} == {"text_extraction", "object_counting"}
    assert len({task.answer for task in tasks if task.metadata["kind"] == "digit"}) == 10


def test_unknown_kinds_are_user_errors():
    with pytest.raises(UserError, match=r"'colour'.*digit, text, counting, attribute"):
        pixelsearch.make_task(5, "train", 0, kinds=("digit", "colour"))
    with pytest.raises(UserError):
        pixelsearch.make_task(5, "train", 0, kinds=())


def test_a_close_up_holds_its_shape_and_is_answered_at_once():
    for scene in SCENES[:20]:
        image = pixelsearch.render(scene)
        part, asked = close_up(scene, image, pixelsearch.generator("close-up", scene.index))
        x1, y1, x2, y2 = asked[0].target_box
        assert part.shape[0] == part.shape[1] >= (x2 - x1) * 105 // 100 and not any(q.needs_look for q in asked)
        shape = next(s for s in scene.shapes if s.box == (x1, y1, x2, y2))
        assert [q.answer for q in asked] == [shape.content.value, shape.color, shape.kind]


def test_a_chart_is_its_address_and_labels_what_it_shows():
    one, labels = make_chart(5, "train", 3)
    same, same_labels = make_chart(5, "train", 3)
    assert np.array_equal(one, same) and np.array_equal(labels, same_labels)
    assert one.shape == (224, 224, 3) and labels.shape == (16,)
    counts = [np.count_nonzero(make_chart(5, "train", i)[1]) for i in range(40)]
    # Centres keep their margin, so between two and three of the lattice's places a side hold a character.
    assert min(counts) >= 4 and max(counts) <= 9
    values = {CLASSES[k] for i in range(40) for k in make_chart(5, "train", i)[1]}
    assert set("0123456789") <= values and "" in values
