"""What an RL job tells its user, and the rate of each update."""

import dataclasses
import types

import numpy as np
import pytest
from corpus_files import write_folder
from one_tool import ZOOM
from resolved import resolved

from pixelis_jax import assembly, config, left_out
from pixelis_jax.data.demonstrations import look_tokens
from pixelis_jax.data.pixelsearch.questions import make_task
from pixelis_jax.data.prompts import Scenes, open_questions, prompt_tokens
from pixelis_jax.evaluation import Outcome
from pixelis_jax.online import Online
from pixelis_jax.tools import grammar
from pixelis_jax.tools.base import schemas
from pixelis_jax.types import Observation, Task, Trajectory, Turn


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]), ("cosine", [0.25, 0.5, 0.75, 1, None, 0.55, None, 0.1])],
)
def test_the_first_update_already_has_a_rate(schedule: str, rates: list[float | None]) -> None:
    """Warm-up of 4 of 8 updates; halfway down a cosine to a tenth are (1 + 0.1) / 2 of the peak."""
    settings = config.load("configs/rft.py").optimizer
    settings.learning_rate, settings.warmup_steps, settings.schedule = 1.0, 4, schedule
    found = assembly.make_schedule(settings, 8)
    for count, rate in enumerate(rates):
        assert rate is None or float(found(count)) == pytest.approx(rate, abs=1e-6)


def job(**fields: object) -> Online:
    made = object.__new__(Online)  # without a model
    made.config = resolved("configs/rft.py")
    made.rl_config = types.SimpleNamespace(replay=None)
    made.__dict__.update(fields)
    return made


def outcome(status: str = "over_turn", **fields: object) -> Outcome:
    return Outcome("digit", "text_extraction", True, status, 0.0, 8, 1, 0, 0, 1, 1, **fields)


def spoke(*texts: str, status: str = "over_turn") -> Outcome:
    """The outcome of a dialogue whose turns read so."""
    turns = tuple(dataclasses.replace(grammar.parse(text, ZOOM), observation=Observation("")) for text in texts)
    task = Task("t", 0, "text_extraction", "q", "3", ())
    return Outcome.of(trajectory(task, turns, status))


def trajectory(task: Task, turns: tuple[Turn, ...], status: str) -> Trajectory:
    none = np.zeros(0, np.int32)
    return Trajectory(task, 0, none, none > 0, none, none, none, none, turns, (), none, status)


ANSWERED = outcome("answered")
CUT = outcome("truncated", refusal="turn was cut at the token limit", refused_text="<think>so")
LOOKING = outcome()
CALL = '<think>Look.</think><tool_call>{"name": "ZOOM_IN", "arguments": {"bbox_2d": [0, 0, 9, 9]}}</tool_call>'
UNKNOWN = '<think>Look.</think><tool_call>{"name": "LOOK", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("outcomes", "words"),
    [
        (
            [CUT, CUT, LOOKING],
            "none of 3 dialogues came to an answer: 2 were cut in a turn, at sampling.max_new_tokens=",
        ),
        ([ANSWERED, CUT], "nothing was left to train, or the gradient is not finite"),
    ],
)
def test_a_step_without_an_update_says_why_but_not_every_time(outcomes: list[Outcome], words: str) -> None:
    said: list[str] = []
    run = types.SimpleNamespace(say=said.append)
    for step in range(1, 9):
        job().say_no_update(run, {"skipped": step, "updated": False}, outcomes, step)
        job().say_no_update(run, {"skipped": step, "updated": True}, outcomes, step)
    assert [line.partition(":")[0] for line in said] == ["step 1", "step 2", "step 4", "step 8"]
    assert all(words in line and "\n" not in line for line in said)


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["The answer is 3."] * 3, "a turn begins with one <think>...</think> block; as in 'The answer is 3.'"),
        (
            ["<think>I see it.</think>The answer is 3."] * 3,
            "no tool call and no answer; as in '<think>I see it.</think>",
        ),
        ([CALL, "3", "3"], "as in '3'"),
        (["\\boxed{3}"] * 3, "as in '\\\\boxed{3}'"),
        (["Answer: 3\nI am sure."] * 3, "as in 'Answer: 3\\nI am sure.'"),
        (["", "", ""], "the turn is empty; as in ''"),
        (["x" * 900], "as in '" + "x" * 200 + "'"),
    ],
)
def test_dialogues_that_answer_without_tags_are_told_what_teaches_the_format(texts: list[str], complaint: str) -> None:
    """Raising a budget would not help them."""
    line = left_out.why_unanswered([spoke(*texts)] * 3 + [CUT], job().config)
    assert line.startswith("3 wrote no answer tag and no tool call (the parser: ") and complaint in line
    remedy = line.rpartition("; ")[2]
    assert "teach the format: start from an SFT adapter (init_from), or set algorithm.mask_over_turn=False" in remedy
    assert "rewards.function that pays for the tags" in remedy and "raise" not in remedy and "\n" not in line


@pytest.mark.parametrize(
    ("outcomes", "words", "remedy"),
    [
        ([spoke(UNKNOWN)], "1 wrote turns that can't be parsed (the parser: there is no tool 'LOOK';", "tools.names"),
        ([spoke("<think>a</think><answer>3")], "can't be parsed (the parser: a tag is not closed", "SFT"),
        ([spoke("<answer>3</answer>")], "can't be parsed (the parser: a turn begins with one", "SFT"),
        ([spoke(CALL, CALL)], "1 were still calling tools at sampling.max_turns=3 or context_tokens=152;", "raise"),
        ([CUT], "1 were cut in a turn, at sampling.max_new_tokens=32 or context_tokens=152 (as in", "raise"),
        ([CUT, *[spoke(UNKNOWN)] * 2], "2 wrote turns that can't be parsed", "offer the tools that the model calls"),
    ],
)  # fmt: skip
def test_other_ways_to_end_without_an_answer(outcomes: list[Outcome], words: str, remedy: str) -> None:
    line = left_out.why_unanswered(outcomes, job().config)
    assert words in line and remedy in line.rpartition("; ")[2]


def test_the_commonest_complaint_is_the_one_that_is_shown() -> None:
    many, few = spoke("The answer is 3."), spoke("<think>a</think>three")
    line = left_out.why_unanswered([few, many, many], job().config)
    assert "as in 'The answer is 3.'" in line and "three" not in line


@pytest.mark.parametrize(
    ("right", "group", "expected"),
    [(0.5, 8, "1%"), (0.5, 2, "50%"), (1.0, 8, "100%"), (0.0, 8, "100%"), (0.9, 4, "66%"), (0.25, 4, "32%")],
)
def test_the_first_step_says_how_many_groups_will_be_uniform(right: float, group: int, expected: str) -> None:
    """p^G + (1 - p)^G: .9^4 + .1^4 = .656, .25^4 + .75^4 = .320, 2 x .5^8 = .0078."""
    settings = job().config
    settings.rollout.group_size = group
    scalars = {"success_rate": right, "grpo/uniform_group_share": 0.5, "skipped/excluded_rows": 0.0}
    (line,) = left_out.first_step_lines(scalars, [ANSWERED], settings, excluded=("over_turn",))
    assert (
        f"{right:.0%} of the dialogues are right, so at least {expected} of the groups of {group} are expected" in line
    )
    assert "in this step the rewards of 50% do not differ" in line
    assert ("dynamic_batches" in line) is (right**group + (1 - right) ** group > 0.5)


def test_the_first_step_says_that_most_rows_are_left_out() -> None:
    """33 of 64 are, with the commonest complaint and a turn; 32 are half of them, which is not said."""
    settings = job().config
    outcomes = [spoke("The answer is 3.")] * 33 + [ANSWERED] * 31
    scalars = {"success_rate": None, "skipped/excluded_rows": 33.0}
    (line,) = left_out.first_step_lines(scalars, outcomes, settings, excluded=("truncated", "over_turn"))
    assert line.startswith("warning: 33 of 64 dialogues are left out of the update: 33 wrote no answer tag")
    assert "as in 'The answer is 3.'" in line
    scalars["skipped/excluded_rows"] = 32.0
    assert left_out.first_step_lines(scalars, outcomes, settings, excluded=("truncated", "over_turn")) == []
    scalars["skipped/excluded_rows"] = 64.0
    (line,) = left_out.first_step_lines(scalars, [ANSWERED] * 64, settings, excluded=("truncated", "over_turn"))
    assert line.endswith("no reward applies to them; see rewards.majority_share")


def test_a_context_in_which_no_look_ends_is_said(small_policy) -> None:
    processor = small_policy.processor
    sampler = types.SimpleNamespace(schemas=schemas(ZOOM))
    kinds = tuple(job().config.rollout.kinds)
    made = job(policy=small_policy, sampler=sampler, questions=Scenes(0, kinds, kinds, 1))
    task = next(t for t in (make_task(0, "train", i, kinds=kinds) for i in range(16)) if t.needs_look)
    needed = look_tokens(task, processor, sampler.schemas)
    made.config.sampling.context_tokens = needed
    assert made.notes() == []
    made.config.sampling.context_tokens = needed - 1
    (note,) = made.notes()
    assert f"sampling.context_tokens is {needed - 1}" in note and f"takes about {needed} tokens" in note


def test_what_replay_takes_is_said(small_policy) -> None:
    """100 rows of 152 tokens (38 bytes each, see test_replay.py) with 48 features of 64 f32, and two numbers each."""
    sampler = types.SimpleNamespace(schemas=schemas(ZOOM))
    made = job(policy=small_policy, sampler=sampler, questions=Scenes(0, ("counting",), ("counting",), 1))
    made.config.rollout.replay_ratio = 0.5
    replay = assembly.replay_config(made.config, small_policy.model.config.vision, pictures=1)
    made.rl_config = types.SimpleNamespace(replay=replay)
    size = 100 * (152 * 38 + 48 * 64 * 4 + 8)
    (note,) = made.notes()
    assert note.startswith("replay: 100 rows of 152 tokens, 48 of them of images at most: ")
    assert f": {size / 2**20:.1f} MiB on each device" in note


def test_a_context_without_room_for_a_crop_is_said_of_own_questions(small_policy, tmp_path) -> None:
    """There no oracle knows a dialogue: a prompt and a crop that fills the policy's budget must have room."""
    sampler = types.SimpleNamespace(schemas=schemas(ZOOM))
    own = open_questions(
        str(write_folder(tmp_path / "own")), "", 0.3, seed=0, held_out_count=3, check=lambda task: "", train=True
    )
    made = job(policy=small_policy, sampler=sampler, questions=own)
    needed = prompt_tokens(own.train(0), small_policy.processor, sampler.schemas)
    needed += small_policy.processor.full_tokens(crop=True)
    made.config.sampling.context_tokens = needed - 1
    assert any(f"takes about {needed} tokens" in note for note in made.notes())
    made.config.sampling.context_tokens = needed
    assert not any("takes about" in note for note in made.notes())
