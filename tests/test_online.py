"""What an RL job tells its user, and the rate of each update."""

import types

import pytest
from corpus_files import write_folder
from one_tool import ZOOM
from resolved import resolved

from pixelis_jax import assembly, config
from pixelis_jax.data.demonstrations import look_tokens
from pixelis_jax.data.pixelsearch.questions import make_task
from pixelis_jax.data.prompts import Scenes, open_questions, prompt_tokens
from pixelis_jax.online import Online
from pixelis_jax.tools.base import schemas


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


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        (
            ("truncated", "truncated", "over_turn"),
            "none of 3 dialogues came to an answer: 2 were cut in a turn, at",
        ),
        (("answered", "truncated"), "nothing was left to train, or the gradient is not finite"),
    ],
)
def test_a_step_without_an_update_says_why_but_not_every_time(statuses: tuple[str, ...], words: str) -> None:
    said: list[str] = []
    run = types.SimpleNamespace(say=said.append)
    outcomes = [types.SimpleNamespace(status=status) for status in statuses]
    for step in range(1, 9):
        job().say_no_update(run, {"skipped": step, "updated": False}, outcomes, step)
        job().say_no_update(run, {"skipped": step, "updated": True}, outcomes, step)
    assert [line.partition(":")[0] for line in said] == ["step 1", "step 2", "step 4", "step 8"]
    assert all(words in line for line in said)


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
    """There no oracle knows a dialogue: a prompt and the largest crop, 16 tokens of 28 x 28 px, must have room."""
    sampler = types.SimpleNamespace(schemas=schemas(ZOOM))
    own = open_questions(
        str(write_folder(tmp_path / "own")), "", 0.3, seed=0, held_out_count=3, check=lambda task: "", train=True
    )
    made = job(policy=small_policy, sampler=sampler, questions=own)
    needed = prompt_tokens(own.train(0), small_policy.processor, sampler.schemas) + 112 * 112 // 28**2
    made.config.sampling.context_tokens = needed - 1
    assert any(f"takes about {needed} tokens" in note for note in made.notes())
    made.config.sampling.context_tokens = needed
    assert not any("takes about" in note for note in made.notes())
