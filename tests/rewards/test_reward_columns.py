"""A user's function is called by the names of its parameters, whatever their order."""

import numpy as np
import pytest

from pixelis_jax.rewards.columns import ALIASES, COLUMNS, bind
from pixelis_jax.types import STATE_DIM, Task, Trajectory, Turn, UserError


def dialogue(said, gold="7", **fields):
    metadata = {"columns": fields.pop("columns", {}), **fields.pop("metadata", {})}
    task = Task("a", 0, "counting", "How many?", fields.pop("images", ()), gold, metadata=metadata, **fields)
    turns = (Turn(text=f"<answer>{said}</answer>", answer=said),)
    none, ids = np.zeros(0, np.int32), np.array([5, 6, 7], np.int32)
    return Trajectory(
        task, 0, ids, np.array([False, True, True]), none, none, none, none, turns, task.images,
        np.zeros((1, STATE_DIM), np.float32), "answered", ((1000, 1000),) * len(task.images),
    )  # fmt: skip


ROWS = [dialogue("7", columns={"level": 3}), dialogue("8", columns={})]
TEXTS, ASKED = ["<answer>7</answer>", "<answer>8</answer>"], ["How many?"] * 2


def call(function, columns=("level",), rows=ROWS):
    return bind(function, columns, "rewards.function 'f'")(function, rows)


def test_completions_may_come_first():
    assert call(lambda completions, prompts: (completions, prompts)) == (TEXTS, ASKED)
    assert call(lambda prompts, completions: (completions, prompts)) == (TEXTS, ASKED)
    assert call(lambda completions: completions) == TEXTS
    assert call(lambda answers, ground_truths: (answers, ground_truths)) == (["7", "8"], ["7", "7"])


def test_the_right_answer_under_other_trainers_names():
    for alias in ALIASES:
        assert call(eval(f"lambda completions, {alias}: {alias}")) == ["7", "7"]

    def habit(completions, solution, **kwargs):
        return solution, kwargs["prompts"], kwargs["answers"], kwargs["level"]

    assert call(habit) == (["7", "7"], ASKED, ["7", "8"], [3, None])


def test_with_kwargs_it_gets_all_that_there_is_once():
    def everything(completions, **kwargs):
        return sorted(kwargs)

    assert call(everything) == sorted(({*COLUMNS} - {"completions"}) | {*ALIASES, "level"})


def test_keyword_only_and_defaults():
    def picky(*, completions, level, scale=2, prompts=None):
        return completions, level, scale, prompts

    assert call(picky) == (TEXTS, [3, None], 2, ASKED)


def test_positional_only_and_nameless_parameters():
    def first(completions, /, prompts, extra=1):
        return completions, prompts, extra

    def second(completions, extra=1, /, *, level):
        return completions, extra, level

    def third(completions, /, **kwargs):
        return completions, "completions" in kwargs

    assert call(first) == (TEXTS, ASKED, 1) and call(second) == (TEXTS, 1, [3, None]) and call(third) == (TEXTS, False)
    assert call(lambda *columns: columns) == (ASKED, TEXTS)


def test_a_method_and_an_object():
    class Scorer:
        def __call__(self, completions, level):
            return level

        def score(self, level, completions):
            return level

    assert call(Scorer()) == call(Scorer().score) == [3, None]


def test_sampled_ids_and_choices():
    rows = [dialogue("B", "B", choices=("a", "b"))]
    assert call(lambda completion_ids, choices: (completion_ids, choices), rows=rows) == ([[6, 7]], [["a", "b"]])


def test_a_column_of_the_data_wins_over_an_alias_and_not_over_ours():
    rows = [dialogue("7", columns={"solution": "since 3 + 4", "answers": "no"})]
    found = call(lambda solution, answers: (solution, answers), columns=("solution", "answers"), rows=rows)
    assert found == (["since 3 + 4"], ["7"])


def test_a_gold_box_comes_in_the_frame_that_the_policy_speaks():
    picture = np.broadcast_to(np.uint8(0), (1500, 2000, 3))
    rows = [dialogue("[0, 0, 1, 1]", "[1000, 750, 1500, 1125]", images=(picture,), answer_type="iou")]
    assert call(lambda ground_truths: ground_truths, rows=rows) == ["[500.0, 500.0, 750.0, 750.0]"]


@pytest.mark.parametrize(
    "function",
    [
        lambda completions, colour: 0,
        lambda colour, /: 0,
        lambda completions, *, colour: 0,
        lambda completions, colour, **kwargs: 0,
    ],
)
def test_an_unknown_name_is_refused_with_those_that_there_are(function):
    with pytest.raises(UserError) as error:
        bind(function, ("level", "split"), "rewards.function 'f'")
    told = str(error.value)
    assert told.startswith(
        "rewards.function 'f' takes 'colour', which is unknown; there are prompts, completions, answers"
    )
    assert "of the data level, split" in told and "solution" in told and "\n" not in told
    with pytest.raises(UserError, match="the data has no columns of its own"):
        bind(function, (), "f")
