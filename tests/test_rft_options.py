"""RL with what the demo leaves off, in one job: replay, dynamic sampling, two updates a rollout, an adaptive KL."""

import json
import operator
import shutil
import signal

import numpy as np
import pytest
from jobs import Jobs, lines, refusal, wait_for_step
from resolved import resolved

from configs import common
from pixelis_jax import assembly, config, curriculum, limits
from pixelis_jax.metrics import names, windows
from pixelis_jax.models.processor import FRAMES, SYSTEM_PROMPT
from pixelis_jax.rewards import orchestrator
from pixelis_jax.rewards.orchestrator import RewardConfig
from pixelis_jax.rewards.penalty import PenaltyConfig
from pixelis_jax.tools import TOOLS
from pixelis_jax.tools.base import schemas
from pixelis_jax.types import OP_ID, OPS
from pixelis_jax.workdir import FREE_FIELDS, ROUNDING_FIELDS

OPTIONS = {
    "total_steps": 6,
    "checkpoint__every_steps": 2,
    "sampling__max_turns": 2,
    "eval__scenes": 8,
    "rollout__dynamic_batches": 2,
    "rollout__replay_ratio": 0.5,
    "algorithm__updates_per_rollout": 2,
    "algorithm__kl_target": 0.001,
    "algorithm__loss": "cispo",
    "rewards__function": "rft_rewards:half",
    "rewards__curiosity": "rapr",
}
REWARDS = """
def half(prompts, completions, answers, ground_truths, task_ids):
    '''The answer's worth; nothing applies without one, and every fifth scene breaks the function.'''
    out = []
    for answer, truth, name in zip(answers, ground_truths, task_ids):
        if sum(map(ord, name)) % 5 == 3:
            raise ValueError(name)
        out.append(None if answer is None else float(answer == truth))
    return out
"""


@pytest.fixture(scope="module")
def jobs(compile_cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "rft_rewards.py").write_text(REWARDS)
    with Jobs(compile_cache) as made:
        made.environment["PYTHONPATH"] += f":{folder}"
        yield made


@pytest.fixture(scope="module")
def straight(jobs, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("straight")
    jobs.run("configs/rft.py:smoke", workdir, **OPTIONS)
    return workdir


def test_a_killed_run_ends_like_a_straight_one(jobs, straight, tmp_path):
    """The replay buffer, the KL coefficient and the fresh prompts are what they would have been."""
    process = jobs.start("configs/rft.py:smoke", tmp_path, **OPTIONS)
    wait_for_step(process, tmp_path, 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    shutil.rmtree(tmp_path / "tensorboard")
    assert "resumed from step" in jobs.run("configs/rft.py:smoke", tmp_path, **OPTIONS)
    for name in ("metrics.jsonl", "trajectories.jsonl", "final_eval.json", "adapter/adapter_model.safetensors"):
        assert (tmp_path / name).read_bytes() == (straight / name).read_bytes(), name


def test_what_its_metrics_say(straight):
    records = lines(straight / "metrics.jsonl")
    assert [name for name in set().union(*records) - {"step"} if names.find(name) is None] == []
    for record in records:
        assert record["rollout/sampled"] in (8, 16, 24)
        assert record["sampler_trainer_logprob_diff/max"] < 1e-4  # also of rows whose table was put together anew
        assert record["skipped/uniform_rows"] % 4 == 0
        assert 0 <= record["skipped/excluded_rows"] <= 8 - record["skipped/uniform_rows"]
        assert record["skipped/uniform_rows"] == 0 or record["grpo/uniform_group_share"] > 0
    assert max(r["rollout/sampled"] for r in records) > 8 and min(r["rollout/sampled"] for r in records) < 24
    assert max(r["skipped/reward"] for r in records) > 0
    assert max(r["replay_share"] for r in records) > 0
    assert records[0]["kl/beta"] == pytest.approx(0.01) and records[-1]["kl/beta"] != records[0]["kl/beta"]
    summary = json.loads((straight / "summary.json").read_text())
    assert summary["steps"] == 6 and np.isfinite(summary["success_after"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rollout__replay_ratio": 0.5, "rollout__length_buckets": 2}, "set rollout.length_buckets to 1"),
        ({"rollout__replay_ratio": 0.05}, "of 8 rows is none"),
        (
            {"rollout__replay_ratio": 0.5, "init_from": "", "lora__targets": r"('visual/blocks.*',)"},
            "rollout.replay_ratio needs a frozen vision tower",
        ),
        (
            {"rollout__dynamic_batches": 1, "init_from": "", "lora__targets": r"('visual/blocks.*',)"},
            "rollout.dynamic_batches needs a frozen vision tower",
        ),
        ({"rewards__majority": "gated", "rewards__function": "a:b"}, "leave one of them empty"),
        ({"rewards__majority": "always"}, "use one of '', gated, weighted"),
        ({"rollout__group_size": 1}, "group_size 1 gives no advantage"),
        ({"rewards__function": "no_such:f"}, "can't be imported"),
        ({"rewards__overlong_to": 30}, "exclude each other"),
        ({"rewards__overlong_from": 30, "rewards__overlong_to": 20}, "must be below"),
        ({"algorithm__kl_target": 0.1, "algorithm__kl_beta": 0.0}, "start it above 0"),
        ({"algorithm__kl_estimator": "k1"}, "kl_estimator 'k1' has no useful gradient in the loss"),
        ({"algorithm__correction": "some"}, "algorithm.correction is 'some'; use one of auto, none"),
        ({"rewards__coherence": "v3"}, "rewards.coherence is 'v3'; use one of standard, pixelis_v2"),
        (
            {"curriculum__stages": "({'name': 'a', 'weights': {'final': 0.0}},)"},
            "all reward weights are 0",
        ),
        (
            {
                "curriculum__stages": "({'name': 'a', 'weights': {'curiosity': 1.0, 'final': 0.0}},)",
                "rewards__curiosity": "none",
            },
            "all reward weights but curiosity's are 0 and its kind is none",
        ),
        (
            {
                "curriculum__stages": "({'name': 'a', 'weights': {'final': 1.0}, 'exits': ({'kind': 'threshold',"
                " 'metric': 'sucess_rate_ma20', 'value': 0.5},)}, {'name': 'b', 'weights': {'final': 1.0}})"
            },
            "sucess_rate_ma20",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(fields, words, monkeypatch, capsys, tmp_path):
    assert words in refusal(monkeypatch, capsys, "configs/rft.py:smoke", tmp_path / "run", **fields)
    assert not (tmp_path / "run").exists()


def test_the_earlier_systems_combination_is_a_variant():
    """Each number of spec/rewards_and_curriculum.md, section 5."""
    made = config.load("configs/rft.py:pixelis_v2")
    rewards = assembly.reward_config(made)
    assert rewards == orchestrator.pixelis_v2()
    assert (rewards.norm, rewards.clip, rewards.penalty.base) == ("running", 10.0, 0.1)
    assert (OP_ID["GET_PROPERTIES"], OP_ID["SEGMENT_OBJECT_AT"]) in rewards.coherence.bad_pairs
    assert (made.rollout.group_size, made.rollout.replay_size, made.rollout.replay_ratio) == (4, 100, 0.5)
    (stage,) = assembly.reward_curriculum(made).stages
    assert dict(stage.weights) == {"final": 1.0, "curiosity": 0.3, "coherence": 0.2}


def test_the_earlier_systems_table_of_weights_by_step():
    """0: task alone; from step 1000 (.7, .2, .1) and from 5000 (.5, .3, .2) for task, curiosity and coherence."""
    made = config.load("configs/rft.py:pixelis_v2_steps")
    assert assembly.reward_config(made) == orchestrator.pixelis_v2()
    assert (made.rollout.group_size, made.rollout.replay_size, made.rollout.replay_ratio) == (4, 100, 0.5)
    table = assembly.reward_curriculum(made)
    state, weights = curriculum.init(table), {}
    for step in range(1, made.total_steps + 1):
        held = dict(curriculum.current(table, state).weights)  # of the step itself
        weights[step] = (held["final"], held["curiosity"], held["coherence"])
        state = curriculum.update(table, state, {}, step)
    assert [step for step in weights if step > 1 and weights[step] != weights[step - 1]] == [1001, 5001]
    assert (weights[1], weights[1001], weights[5001]) == ((1, 0, 0), (0.7, 0.2, 0.1), (0.5, 0.3, 0.2))


def test_the_default_constants_are_those_of_the_parts():
    made = config.load("configs/rft.py")
    assert assembly.reward_config(made) == RewardConfig()
    rollback = assembly.reward_curriculum(made).rollback
    assert rollback == curriculum.Rollback(cooldown_steps=20)


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("rewards.norm_window", 50, "window"),
        ("rewards.norm_warmup", 0, "warmup"),
        ("rewards.clip", 2.5, "clip"),
        ("rewards.success_threshold", 0.9, "curiosity.success_threshold"),
        ("rewards.curiosity_eta", 2.0, "curiosity.eta"),
        ("rewards.curiosity_cap", 0.25, "curiosity.cap"),
        ("rewards.rapr_target", 0.6, "curiosity.rapr_target"),
        ("rewards.rapr_operations", 4, "curiosity.rapr_operations"),
        ("rewards.rapr_alpha", 0.75, "curiosity.rapr_alpha"),
        ("rewards.rapr_beta", 0.125, "curiosity.rapr_beta"),
        ("penalty.base", 0.0, "penalty.base"),
        ("penalty.track_on_still", 3.0, "penalty.track_on_still"),
        ("penalty.out_of_image", 1.5, "penalty.out_of_image"),
        ("curriculum.rollback_threshold", -0.2, "threshold"),
        ("curriculum.rollback_patience", 7, "patience"),
        ("curriculum.rollback_factor", 4.0, "factor"),
    ],
)
def test_each_constant_reaches_its_part_and_is_bound(field, value, part):
    """A field that reached nothing would be set in vain; one that may change on resume would mix two rewards."""
    made = config.override(resolved("configs/rft.py"), [f"--config.{field}={value}"])
    limits.check(made)
    group = assembly.reward_curriculum(made).rollback if "curriculum" in field else assembly.reward_config(made)
    assert operator.attrgetter(part)(group) == abs(value)
    assert not any(field == free or field.startswith(free + ".") for free in (*FREE_FIELDS, *ROUNDING_FIELDS))


@pytest.mark.parametrize("name", OPS[:-1])
def test_each_operations_maximum_is_its_own(name):
    made = config.override(config.load("configs/rft.py"), [f"--config.penalty.max_{name.lower()}=77"])
    expected = dict(PenaltyConfig().limits) | {OP_ID[name]: 77}
    assert dict(assembly.reward_config(made).penalty.limits) == expected


def test_the_mean_final_reward_may_move_the_curriculum():
    stages = "({'name': 'a', 'weights': {'final': 1.0}, 'exits': ({'kind': 'threshold', 'metric': 'reward_final_ma20',"
    stages += " 'value': 0.5},)}, {'name': 'b', 'weights': {'final': 1.0, 'coherence': 0.1}})"
    made = config.override(config.load("configs/rft.py"), [f"--config.curriculum.stages={stages}"])
    table = assembly.reward_curriculum(made)
    state = windows.init(assembly.window_lengths(made))
    for _ in range(5):
        state = windows.update(state, {"reward/final/raw": 0.75, "reward": 0.1})
    averages = windows.averages(state)
    assert averages["reward_final_ma20"] == averages["reward_final_ma100"] == 0.75
    assert curriculum.update(table, curriculum.init(table), averages, 5).stage == 1
    assert all(names.find(name) is not None for name in averages)


@pytest.mark.parametrize("variant", common.LARGE)
def test_real_checkpoints_get_the_original_curriculum_and_room_for_six_looks(variant):
    made = resolved(f"configs/rft.py:{variant}")
    limits.check(made)
    table, original = assembly.reward_curriculum(made), curriculum.reward_curriculum()
    assert [dict(stage.weights) for stage in table.stages] == [dict(stage.weights) for stage in original.stages]
    assert [(s.name, s.exits, s.entry_metric) for s in table.stages] == [
        (s.name, s.exits, s.entry_metric) for s in original.stages
    ]
    assert (table.evaluation_frequency, table.rollback) == (100, curriculum.Rollback())
    assert set(made.tools.names) == set(TOOLS) and made.sampling.max_turns == 7
    assert room_for_looks(made) >= 6


def room_for_looks(made):
    """Looks that fit into a dialogue whose turns are as long as may be; a token stands for two characters at least."""
    text = SYSTEM_PROMPT.format(schemas=schemas(assembly.tools_of(made))) + max(FRAMES.values(), key=len)
    prompt = len(text) // 2 + 32  # markup and a short question
    overview, crop = (budget.max_pixels // 28**2 + 2 for budget in assembly.budgets(made))
    look = made.sampling.max_new_tokens + crop + 50
    return (made.sampling.context_tokens - prompt - overview - made.sampling.max_new_tokens) // look


def test_the_original_curriculum_moves_by_its_own_numbers():
    """.70 of the last hundred steps, then coherence that no longer rises: five evaluations of a hundred steps."""
    table = assembly.reward_curriculum(config.load("configs/rft.py:qwen2_5_vl_7b"))
    state = curriculum.init(table)
    metrics = {"success_rate_ma100": 0.70, "coherence_ma100": 0.1, "combined_score_ma100": 0.4}
    for step in range(1, 2001):
        metrics |= {"success_rate_ma100": 0.71} if step == 700 else {}
        state = curriculum.update(table, state, metrics, step)
    assert [(t.step, t.cause) for t in state.transitions] == [(700, "threshold"), (1200, "slope")]
