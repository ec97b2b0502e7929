"""The task reward: verifiers, and a user's own function that may do anything."""

import dataclasses

import numpy as np
import pytest

from pixelis_jax.rewards.columns import ALIASES, COLUMNS
from pixelis_jax.rewards.task import MajorityVote, UserFunction, Verified
from pixelis_jax.types import STATE_DIM, Task, ToolCall, Trajectory, Turn, UserError

ASKED = Task("a", 0, "counting", "How many?", (), "7")
ZOOM = ToolCall("ZOOM_IN", {"bbox_2d": [0, 0, 9, 9]})


def dialogue(answer, *, call=None, status="answered", task=ASKED):
    """One turn, after one that calls a tool where `call` is given."""
    turns = (Turn(text=f"<answer>{answer}</answer>", answer=answer),)
    if call is not None:
        turns = (Turn(text="I look.", call=call), *turns)
    none = np.zeros(0, np.int32)
    return Trajectory(
        task, 0, none, none, none, none, none, none, turns, (), np.zeros((1, STATE_DIM), np.float32), status
    )


def by_length(prompts, completions):
    return [float(len(c)) for c in completions]


def with_columns(prompts, completions, answers, calls, *, scale=2.0):
    return [None if a is None else scale * len(c) for a, c in zip(answers, calls, strict=True)]


def everything(prompts, completions, **columns):
    return [float(len(columns))] * len(prompts)


def picky(prompts, completions, answers):
    """Raises for one answer, gives no number for another."""
    if "bad" in answers:
        raise ValueError("no such answer")
    return [float("nan") if a == "nan" else 1.0 for a in answers]


def short(prompts, completions):
    return [1.0]


def unknown(prompts, completions, colour):
    return [1.0] * len(prompts)


def messages(prompts, completions):
    """As for a trainer that passes conversations."""
    return [float(len(c[0]["content"])) for c in completions]


def function(name, columns=()):
    return UserFunction(f"{__name__}:{name}", columns)


def test_the_verifier_by_default():
    assert Verified()([dialogue("7"), dialogue("8"), dialogue(None)]).tolist() == [1, 0, 0]


def test_prompts_completions_and_the_columns_that_it_asks_for():
    rows = [dialogue("7", call=ZOOM), dialogue("8"), dialogue(None)]
    np.testing.assert_array_equal(function("with_columns")(rows), np.float32([2, 0, np.nan]))
    assert function("by_length")(rows[:1]).tolist() == [len("I look.\n<answer>7</answer>")]
    assert function("everything")(rows).tolist() == [len(COLUMNS) + len(ALIASES) - 2] * 3


def test_none_is_not_refused():
    made = function("with_columns")
    made([dialogue(None), dialogue("7")])
    assert made.refused == 0


def test_a_row_that_raises_or_gives_no_number_is_refused_alone_and_counted():
    made = function("picky")
    np.testing.assert_array_equal(made([dialogue(a) for a in ("7", "bad", "nan")]), np.float32([1, np.nan, np.nan]))
    assert made.refused == 2
    assert made([dialogue("7")]).tolist() == [1] and made.refused == 0


def leaves(prompts, completions, answers):
    if len(answers) > 2 or "bad" in answers:
        raise SystemExit(3)
    return [1.0] * len(answers)


def test_why_a_row_is_refused_is_logged_once(caplog):
    """Leaving the process is an error like any other."""
    made = function("leaves")
    for _ in range(2):
        assert np.isnan(made([dialogue("7"), dialogue("bad"), dialogue("8")])).tolist() == [False, True, False]
    (record,) = [r.getMessage() for r in caplog.records if "rewards.function" in r.getMessage()]
    assert "it raised SystemExit: 3; such rows are left out, see skipped/reward" in record


class Silent:
    """A value that can't be written."""

    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        "x",
        float("inf"),
        [1.0],
        np.float64("nan"),
        {},
        1e39,
        -1e39,
        10**400,
        pytest.param(10**5000, id="10**5000"),
        Silent(),
        1j,
        np.complex64(1),
        np.timedelta64(1, "s"),
    ],
)
def test_what_is_no_finite_number_is_refused(value, monkeypatch):
    made = function("by_length")
    monkeypatch.setattr(made, "function", lambda **columns: [value])
    assert np.isnan(made([dialogue("7")])).all() and made.refused == 1


@pytest.mark.parametrize("value", [True, 1, np.float32(1), np.int64(1), np.True_])
def test_what_is_a_number(value, monkeypatch):
    made = function("by_length")
    monkeypatch.setattr(made, "function", lambda **columns: [value])
    assert made([dialogue("7")]).tolist() == [1] and made.refused == 0


@pytest.mark.parametrize("value", ["x", [1.0], Silent()])
def test_a_function_that_gives_no_numbers_is_refused_before_the_first_rollout(value, monkeypatch):
    made = function("by_length")
    monkeypatch.setattr(made, "function", lambda **columns: [None, value])
    with pytest.raises(UserError, match="on the first training prompt; give numbers, or None"):
        made.check(ASKED)


@pytest.mark.parametrize(
    "result", [None, 1.0, {0: 0.5, 1: 0.5}, {0.5, 0.25}, "ab", b"ab", np.array(1.0), np.float32(1)]
)
def test_a_result_that_is_no_list_is_refused(result, monkeypatch):
    """The keys of a dict were once taken for the rewards."""
    made = function("by_length")
    monkeypatch.setattr(made, "function", lambda **columns: result)
    with pytest.raises(UserError, match="; give a list with one number for each completion"):
        made.check(ASKED)
    assert np.isnan(made([dialogue("7"), dialogue("8")])).all() and made.refused == 2


def test_pictures_can_be_read_and_not_written():
    """They are shown to others after."""
    picture = np.zeros((28, 28, 3), np.uint8)
    row = dataclasses.replace(dialogue("7"), images=(picture,))
    assert function("by_pixel")([row]).tolist() == [0] and function("by_pixel").refused == 0
    assert np.isnan(function("paints")([row])).all()
    assert picture.max() == 0 and picture.flags.writeable


def by_pixel(prompts, completions, images):
    return [float(shown[0][0, 0, 0]) for shown in images]


def paints(prompts, completions, images):
    images[0][0][:] = 255
    return [1.0]


def test_another_length_stops():
    with pytest.raises(UserError, match="gave 1 scores for 2 completions"):
        function("short")([dialogue("7")] * 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__name__}:short", "gave 1 scores for 2 completions"),
        (f"{__name__}:messages", r"first training prompt \(TypeError.*\); prompts and completions are texts here, not"),
    ],
)
def test_what_can_be_known_is_known_before_the_first_rollout(name, message):
    with pytest.raises(UserError, match=message):
        UserFunction(name).check(ASKED)
    function("picky").check(ASKED)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("statistics.mean", "must be written package.module:function"),
        ("no_such_module_here:f", "can't be imported"),
        ("statistics:meen", "has no function meen"),
        ("math:pi", "has no function pi"),
        (f"{__name__}:unknown", "takes 'colour', which is unknown; there are prompts, completions, answers"),
        ("math:sqrt", "takes 'x', which is unknown"),
    ],
)
def test_bad_names(name, message):
    with pytest.raises(UserError, match=message):
        UserFunction(name)


def vote(*answers, name="a", **options):
    rows = [dialogue(a, task=Task(name, 0, "counting", "How many?", (), "never used")) for a in answers]
    return MajorityVote(**{"weighted": False, "least": 0.5} | options)(rows)


def test_what_most_samples_say_is_right():
    """Without a look at the answer; case and spaces do not count."""
    assert vote("7", "8", " 7", "7").tolist() == [1, 0, 1, 1]
    assert vote("Red", "red ", "blue", None).tolist() == [1, 1, 0, 0]


def test_the_majority_may_be_weighted_by_its_share():
    assert vote("7", "8", "7", "7", weighted=True).tolist() == [0.75, 0, 0.75, 0.75]


@pytest.mark.parametrize("answers", [("7", "8", "9", None), (None, None, None, None)])
def test_a_prompt_without_a_majority_teaches_nothing(answers):
    assert np.isnan(vote(*answers)).all()


def test_of_equal_votes_the_first_samples_is_taken():
    assert vote("8", "7", "7", "8").tolist() == [1, 0, 0, 1]


def test_a_choice_may_be_named_by_its_letter_or_its_text():
    task = Task("a", 0, "counting", "Which?", (), "(unknown)", choices=("red", "blue"))
    rows = [dialogue(a, task=task) for a in ("B", "b. blue", "blue", "red")]
    assert MajorityVote(weighted=False, least=0.5)(rows).tolist() == [1, 1, 1, 0]


def test_each_prompt_has_its_own_vote():
    """Prompts differ by their index: the same question may be asked twice in a step."""
    rows = [dialogue(a, task=Task("same", n, "counting", "?", (), "")) for a, n in zip("7788", (0, 1) * 2, strict=True)]
    assert np.isnan(MajorityVote(weighted=False, least=0.6)(rows)).all()
    assert MajorityVote(weighted=False, least=0.5)(rows).tolist() == [1, 1, 0, 0]
    answers = [("x", 0)] * 3 + [("y", 0)] + [("y", 1)] * 4
    rows = [dialogue(a, task=Task("same", n, "counting", "?", (), "")) for a, n in answers]
    assert MajorityVote(weighted=False, least=0.5)(rows).tolist() == [1, 1, 1, 0, 1, 1, 1, 1]


def test_a_vote_counts_what_is_written_in_several_ways():
    """As the verifiers read it: numbers, wrapped texts, expressions."""
    assert vote("1,234", "$1234.00", r"\\boxed{1234}", "1235").tolist() == [1, 1, 1, 0]
    assert vote("red", "**Red**", "“red”.", "blue").tolist() == [1, 1, 1, 0]
    assert vote(r"3\\sqrt{2}", r"3 \\sqrt2", "3√2", "3").tolist() == [1, 1, 1, 0]


def by_level(completions, level, weight=2.0):
    return [weight * level_ for level_ in level]


def test_a_column_of_the_data_is_filled_by_its_name():
    hard = dataclasses.replace(ASKED, metadata={"columns": {"level": 3}})
    assert function("by_level", ("level", "source"))([dialogue("7", task=hard)]).tolist() == [6]
    with pytest.raises(
        UserError, match=r"takes 'level', which is unknown; .*; of the data source; for the right answer"
    ):
        function("by_level", ("source",))
