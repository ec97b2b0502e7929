"""shared/faults.md, "Masks", "LoRA", "Resume" and "Rewards": the faults that no other test names, on their own figures.

Where the others stand. Masks: algorithms/test_grpo.py (tool tokens, accumulation, GSPO length, a loss of 0, KL across
tool spans), algorithms/test_advantages.py (groups, component scale), algorithms/test_properties.py (any mask),
test_train_step.py (old log-probs at another temperature), models/test_live_parity.py (a row without an image),
rollout/test_engine.py (noise, the end of a turn), metrics/test_alerts.py (a loss of 0 is explained),
test_own_questions.py (fewer questions than a batch). LoRA: test_train_step.py and algorithms/test_kl.py (reference),
rollout/test_multi_turn.py (rollouts see the update), test_rft_job.py (dropout), models/test_lora.py (unknown
targets), test_checkpoints.py (Adam's moments, device counts). Resume: test_rft_job.py and test_rft_options.py (kill
-9, a change of stage, replay), test_sft_job.py, test_checkpoints.py (bad checkpoints), data/test_cota_batches.py
and data/test_prompts.py (epochs). Rewards: rewards/test_orchestrator.py (looks like a call, farming, weights).
"""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from resolved import resolved

from pixelis_jax import assembly, hosts
from pixelis_jax.data.prompts import Scenes
from pixelis_jax.dynamic import final_rewards, informative
from pixelis_jax.evaluation import Outcome
from pixelis_jax.online import Online, rollout_scalars
from pixelis_jax.rewards.task import Verified
from pixelis_jax.rollout.sample import Rollout
from pixelis_jax.types import STATE_DIM, Observation, Task, ToolCall, Trajectory, Turn

GROUP = 2
ZOOM = ToolCall("ZOOM_IN", {"bbox_2d": [0, 0, 0, 0]})


def row(task, answer, *, sees=0, failed=False, status="answered"):
    """A dialogue of three tokens, whose second one is an image token that reads row `sees` of the table."""
    turns = (Turn(text="", call=ZOOM, observation=Observation("error: empty", ok=False)),) if failed else ()
    return Trajectory(
        task=task,
        sample=0,
        tokens=np.arange(3, dtype=np.int32),
        policy=np.array([False, False, True]),
        positions=np.zeros((3, 3), np.int32),
        logp=np.zeros(3, np.float32),
        turn_of=np.array([-1, -1, 0], np.int32),
        image_index=np.array([-1, sees, -1], np.int32),
        turns=(*turns, Turn(text="", answer=answer)),
        images=(),
        embeddings=np.zeros((1, STATE_DIM), np.float32),
        status=status,
    )


def collect(*batches, dynamic):
    """`Online.roll_out` over batches of (answers of a group, ...): "7" is right; row i of table k is k + i / 100."""
    config = resolved("configs/rft.py:smoke")
    config.rollout.group_size, config.rollout.dynamic_batches = GROUP, dynamic
    prompts = len(batches[0])
    left = iter(enumerate(batches))

    def sampler(tasks, *, lora, seed, step):
        k, groups = next(left)
        rows = [
            answer if isinstance(answer, Trajectory) else row(task, answer, sees=2 * g)
            for g, (task, answers) in enumerate(zip(tasks, groups, strict=True))
            for answer in answers
        ]
        return Rollout(rows, jnp.full((2 * prompts, 1), k) + jnp.arange(2 * prompts)[:, None] / 100, None)

    def tasks(k):
        return [Task(f"{k}-{g}", 10 * k + g, "counting", "How many?", (), "7") for g in range(prompts)]

    job = types.SimpleNamespace(
        config=config,
        sampler=sampler,
        reward=Verified(),
        share=hosts.Share(0, 1),
        _prompts=range(prompts),
        fresh_tasks=lambda step, attempt: tasks(attempt),
        excluded=assembly.excluded_statuses(config),
    )
    state = types.SimpleNamespace(trainable={"lora": None})
    found = Online.roll_out(job, tasks(0), state, 1)
    return found, next(left, None)


MIXED, RIGHT, WRONG = ("7", "8"), ("7", "7"), ("8", "8")


def test_a_filter_leaves_no_short_batch():
    """4 groups, 3 uniform; of the second batch two teach something, of the third one: the fourth is not asked for."""
    found, rest = collect(
        [MIXED, RIGHT, WRONG, WRONG], [WRONG, MIXED, MIXED, RIGHT], [RIGHT, RIGHT, RIGHT, MIXED], [MIXED] * 4, dynamic=5
    )
    assert rest is not None and len(found.sampled) == 24
    assert [t.task.task_id for t in found.trajectories[::GROUP]] == ["0-0", "1-1", "1-2", "2-3"]
    assert not found.left_out.any() and found.scores.tolist() == [1, 0] * 4
    assert found.earned.sum() == 4 + 2 + 2 * 4  # right answers of all three batches


def test_each_row_still_sees_its_own_image():
    found, _ = collect([MIXED, RIGHT, WRONG, WRONG], [WRONG, MIXED, MIXED, MIXED], dynamic=1)
    seen = [round(float(found.features[t.image_index[1], 0]), 4) for t in found.trajectories]
    assert seen == [0.0, 0.0, 1.02, 1.02, 1.04, 1.04, 1.06, 1.06]
    assert found.features.shape == (4, 1)  # and nobody else's


def test_where_the_cap_is_reached_the_batch_is_smaller_and_not_wrong():
    found, rest = collect([MIXED, RIGHT, WRONG, WRONG], [WRONG, WRONG, WRONG, MIXED], dynamic=1)
    assert rest is None and len(found.trajectories) == 8
    assert found.left_out.tolist() == [False, False, True, True, True, True, False, False]
    assert [t.task.task_id for t in found.trajectories[::GROUP]] == ["0-0", "0-1", "0-2", "1-3"]


def test_a_group_of_one_answer_and_one_cut_row_teaches_nothing():
    cut = row(Task("c", 1, "counting", "?", (), "7"), "8", status="truncated")
    found, _ = collect([MIXED, ("7", cut)], dynamic=0)
    assert not found.left_out.any()  # without dynamic sampling nothing is chosen
    found, _ = collect([MIXED, ("7", cut)], [RIGHT, RIGHT], dynamic=1)
    assert found.left_out.tolist() == [False, False, True, True]


def test_an_unrepaired_error_counts_as_it_is_paid():
    """Right behind a call that failed is worth nothing, so this group teaches something."""
    careless = row(Task("e", 0, "counting", "?", (), "7"), "7", failed=True)
    found, _ = collect([("7", careless), RIGHT], [RIGHT, RIGHT], dynamic=1)
    assert found.left_out.tolist() == [False, False, True, True] and found.earned[:2].tolist() == [1, 0]


def test_a_reward_that_does_not_apply_is_none_though_a_call_failed():
    """Not 0: then three right answers beside it would pass for a group that teaches something."""
    rows = [row(None, "7", failed=True), row(None, "7"), row(None, "7", failed=True)]
    finals = final_rewards(rows, np.array([np.nan, 1, 1], np.float32), unrepaired=True)
    np.testing.assert_array_equal(finals, [np.nan, 1, 0])
    assert not informative(np.zeros(2, int), finals[:2], counted=[True] * 2).any()


def test_two_prompts_with_one_index_are_refused():
    """They would be one group of four, whose samples have the same noise twice."""
    twin = row(Task("other", 0, "counting", "?", (), "7"), "8")
    with pytest.raises(ValueError, match=r"a group has 3 rows, not 2: two prompts share a task.index"):
        collect([MIXED, ("7", twin)], [RIGHT, RIGHT], dynamic=1)


def test_fresh_prompts_are_no_steps_own():
    config = resolved("configs/rft.py:smoke")
    config.rollout.dynamic_batches = 3
    kinds = tuple(config.rollout.kinds)
    job = types.SimpleNamespace(config=config, questions=Scenes(config.seed, kinds, kinds, 1), _prompts=range(2))
    fresh = [Online.fresh_tasks(job, step, attempt) for step in (1, 2) for attempt in (1, 2, 3)]
    numbers = [task.index for tasks in fresh for task in tasks]
    assert len(set(numbers)) == 12 and min(numbers) > 10**9
    again = Online.fresh_tasks(job, 2, 1)
    assert [t.question for t in again] == [t.question for t in fresh[3]]


def outcome(tokens, status):
    return Outcome("digit", "text_extraction", True, status, 0.0, tokens, 1, 0, 0, 0, 0)


@pytest.mark.parametrize("status", ["answered", "truncated"])
def test_truncated_rows_are_in_the_lengths(status):
    """3 tokens (ended) and 8 (cut): min 3, max 8, mean 5.5, half of the rows cut; finite where all are."""
    found = rollout_scalars([outcome(3, status), outcome(8, "truncated")])
    assert [found[f"rollout/length_tokens/{name}"] for name in ("min", "mean", "max")] == [3, 5.5, 8]
    assert found["rollout/clipped_share"] == (0.5 if status == "answered" else 1.0)
    assert all(np.isfinite(value) for value in found.values())


def test_budgets_are_tokens_and_not_characters(small_policy):
    """300 CJK characters: byte-level, up to three tokens each, and not the 75 that four characters a token would be."""
    ids = small_policy.processor.encode("看" * 300)
    assert 300 <= len(ids) <= 900 and small_policy.processor.decode(ids) == "看" * 300
