"""Problems against the scene itself: the answer is right, the traps are wrong, and all can be told in ten steps."""

import re

import numpy as np
import pytest

from pixelis_jax.data.cota import MAX_STEPS, TASK_TYPES
from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.draw import shape_mask
from pixelis_jax.data.pixelsearch.film import make_film
from pixelis_jax.data.pixelsearch.scene import make_scene
from pixelis_jax.data.synthesis.problems import FILM_BUILDERS, SCENE_BUILDERS, name_of

STILL = sorted(SCENE_BUILDERS)


def made(task_type, count=150):
    """(what is seen, problem) for many scenes that have one."""
    found = []
    for index in range(count):
        draw = generator(3, index, task_type)
        if task_type in SCENE_BUILDERS:
            seen = make_scene(3, "train", index)
            problem = SCENE_BUILDERS[task_type](seen, draw)
        else:
            seen = make_film(3, "train", index)
            problem = FILM_BUILDERS[task_type](seen, draw)
        if problem is not None:
            found.append((seen, problem))
    assert len(found) > count // 2
    return found


def named(scene):
    return {name_of(shape): shape for shape in scene.shapes}


def area(shape):
    return int(shape_mask(shape.kind, shape.box[2] - shape.box[0]).sum())


def middle(shape):
    return np.array([shape.box[0] + shape.box[2], shape.box[1] + shape.box[3]]) / 2


def truth(seen, problem):
    """The answer worked out from question and scene alone."""
    question, kind = problem.question, problem.kind
    scene = seen.scene if problem.task_type == "temporal_tracking" else seen
    shapes = named(scene)
    asked = [shapes[name] for name in re.findall("|".join(shapes), question)]
    if kind in ("count_kind", "count_color"):
        word = question.split()[2]
        return str(sum(word in (s.color, f"{s.kind}s", f"{s.kind}es") for s in scene.shapes))
    if kind == "count_all":
        return str(len(scene.shapes))
    if kind in ("larger_of_two", "largest"):
        return name_of(max(asked or scene.shapes, key=area))
    if kind in ("digit", "text"):
        return asked[0].content.value
    if kind == "sum_of_digits":
        return str(sum(int(s.content.value) for s in asked))
    if kind == "side":
        dx, dy = middle(asked[1]) - middle(asked[0])
        return ("right" if dx > 0 else "left") if abs(dx) > abs(dy) else ("below" if dy > 0 else "above")
    if kind == "extreme":
        word = question.split()[3].rstrip("?")
        sign, axis = {"leftmost": (1, 0), "rightmost": (-1, 0), "topmost": (1, 1), "bottommost": (-1, 1)}[word]
        return name_of(min(scene.shapes, key=lambda s: sign * middle(s)[axis]))
    if kind in ("color", "shape"):
        word = question.split()[-1].rstrip("?")
        return next(s.color if kind == "color" else s.kind for s in scene.shapes if word in (s.kind, s.color))
    if kind == "closest":
        others = [s for s in scene.shapes if s is not asked[0]]
        return name_of(min(others, key=lambda s: np.hypot(*(middle(s) - middle(asked[0])))))
    if kind == "same_sort":
        return "yes" if asked[0].content.kind == asked[1].content.kind else "no"
    motions = {name_of(s): m for s, m in zip(scene.shapes, seen.motions, strict=True)}
    if kind == "direction":
        return motions[name_of(asked[0])].direction
    assert kind == "farther"
    return max((name_of(s) for s in asked), key=lambda name: motions[name].step_px)


def test_there_is_a_builder_for_each_task_type():
    assert {*SCENE_BUILDERS, *FILM_BUILDERS} == set(TASK_TYPES)


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_answer_is_what_the_scene_shows(task_type):
    for seen, problem in made(task_type):
        assert problem.right.answer == truth(seen, problem), problem.question
        assert problem.right.misled is None


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_ways_astray_end_wrong_and_say_where(task_type):
    for _, problem in made(task_type):
        for course in (problem.misperceived, problem.misjudged):
            assert course.answer != problem.right.answer, problem.question
            assert course.misled is not None and 0 <= course.misled <= len(course.moves)
            assert not problem.choices or course.answer in problem.choices
        assert not problem.choices or problem.right.answer in problem.choices
        assert problem.misjudged.moves == problem.right.moves  # it saw all that there is


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_every_course_has_two_to_ten_steps_with_a_correction_in_it(task_type):
    for _, problem in made(task_type):
        steps = [
            len(c.moves) + sum(bool(m.thought) for m in c.moves) + 1 for c in (problem.right, problem.misperceived)
        ]
        assert min(steps) >= 2 and max(steps) + 2 <= MAX_STEPS, problem.question


def test_counting_slips_as_the_specification_says():
    """Off by -2, -1, 1 or 2, never below 0; the perceptual trap leaves out the last object."""
    slips = set()
    for _, problem in made("object_counting", 300):
        count, right, missed = len(problem.right.moves), int(problem.right.answer), problem.misperceived
        assert count == right
        slips.add(int(problem.misjudged.answer) - right)
        assert int(problem.misjudged.answer) >= 0
        if right > 1:
            assert missed.moves == problem.right.moves[:-1] and int(missed.answer) == right - 1
    assert slips == {-2, -1, 1, 2}


def test_a_misread_text_differs_by_one_character_in_answer_and_trajectory():
    for _, problem in made("text_extraction"):
        if problem.kind != "sum_of_digits":
            right, wrong = problem.right.answer, problem.misperceived.answer
            assert sum(a != b for a, b in zip(right, wrong, strict=True)) == 1
            assert problem.misperceived.conclusion == f"It says {wrong}."


def test_a_comparison_trap_swaps_the_winner():
    for _, problem in made("geometric_comparison"):
        if problem.kind == "larger_of_two":
            assert {problem.right.answer, problem.misjudged.answer} == set(problem.choices)


def test_kinds_and_answers_vary():
    for task_type, kinds in {
        "object_counting": {"count_kind", "count_color", "count_all"},
        "geometric_comparison": {"larger_of_two", "largest"},
        "text_extraction": {"digit", "text", "sum_of_digits"},
        "spatial_reasoning": {"side", "extreme"},
        "temporal_tracking": {"direction", "farther"},
        "attribute_recognition": {"color", "shape"},
        "relationship_detection": {"closest", "same_sort"},
    }.items():
        problems = [problem for _, problem in made(task_type, 300)]
        assert {problem.kind for problem in problems} == kinds
        most = max(np.unique([problem.right.answer for problem in problems], return_counts=True)[1])
        assert most < 0.6 * len(problems), task_type
