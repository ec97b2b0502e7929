"""Supervised jobs: what they leave, and that one that was stopped and goes on ends like one that was not."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from jobs import Jobs, lines

from pixelis_jax import adapters, reading
from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.metrics import names
from pixelis_jax.models import policy as policies
from pixelis_jax.reading import READER, ReadingConfig

TARGETS = "('language_model/.*_proj','visual/merger.*')"


@pytest.fixture(scope="module")
def jobs(compile_cache):
    with Jobs(compile_cache) as made:
        yield made


def run_twice(jobs, name: str, folder: Path, *, kept: int, **fields) -> tuple[Path, Path, str]:
    """(straight run, the same set back to step `kept` as a kill would leave it and run again, what that printed)."""
    config = f"configs/{name}.py:smoke"
    straight, resumed = folder / "straight", folder / "resumed"
    jobs.run(config, straight, **fields)
    shutil.copytree(straight, resumed)
    for step in Checkpoints(resumed).steps():
        if step > kept:
            shutil.rmtree(resumed / "checkpoints" / str(step))
    for left in ("finished.json", "summary.json"):
        (resumed / left).unlink()
    output = jobs.run(config, resumed, **fields)
    assert f"resumed from step {kept}" in output
    return straight, resumed, output


@pytest.fixture(scope="module")
def habit(jobs, tmp_path_factory):
    """With dropout, whose noise is nowhere stored, and with an adapter on part of the vision tower."""
    fields = {"lora__dropout": 0.5, "lora__targets": TARGETS, "optimizer__micro_batches": 2}
    return run_twice(jobs, "habit", tmp_path_factory.mktemp("habit"), kept=2, **fields)


@pytest.fixture(scope="module")
def pretrain(jobs, tmp_path_factory):
    sizes = {"model__width": 64, "model__layers": 1, "model__vision_width": 64, "model__vision_depth": 2}
    return run_twice(jobs, "pretrain", tmp_path_factory.mktemp("pretrain"), kept=3, **sizes)


def final_state(workdir: Path, step: int) -> list[np.ndarray]:
    found, trainable, _ = Checkpoints(workdir).restore_part("trainable")
    _, optimizer, _ = Checkpoints(workdir).restore_part("opt_state")
    assert found == step
    return jax.tree.leaves((trainable, optimizer))


def assert_equal_ends(straight: Path, resumed: Path, *, step: int, result: str) -> None:
    """Result, metrics, weights and Adam's moments, all bytes."""
    for name in (result, "metrics.jsonl"):
        assert (straight / name).read_bytes() == (resumed / name).read_bytes()
    pairs = list(zip(final_state(straight, step), final_state(resumed, step), strict=True))
    assert len(pairs) > 10 and all(a.tobytes() == b.tobytes() for a, b in pairs)


def test_a_habit_of_4_steps_is_2_and_2(habit):
    assert_equal_ends(*habit[:2], step=4, result="adapter/adapter_model.safetensors")


def test_the_habit_leaves_an_adapter_a_summary_and_metrics(habit):
    workdir = habit[0]
    trained = adapters.read(workdir, base_name="pixelis-tiny")
    assert trained.lora.rank == 8 and trained.lora.scale == 2.0
    assert any(np.abs(x).max() > 0 for x in jax.tree.leaves(jax.device_get(trained.adapter)))
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["steps"] == 4 and summary["seed"] == 0 and 0 <= summary["eval"]["tools_on"]["success"] <= 1
    assert [record["step"] for record in lines(workdir / "metrics.jsonl")] == [2, 4]
    logged = set().union(*lines(workdir / "metrics.jsonl")) - {"step"}
    assert [name for name in logged if names.find(name) is None] == [] and "sft/nll" in logged


def test_pretraining_of_6_steps_is_3_and_3(pretrain):
    assert_equal_ends(*pretrain[:2], step=6, result="model/model.safetensors")


def test_pretraining_reads_first_and_only_once(pretrain):
    assert "reading: step" not in pretrain[2]
    logged = set().union(*lines(pretrain[0] / "metrics.jsonl"))
    assert {"pretrain/reading_loss", "pretrain/reading_accuracy"} <= logged


def test_pretraining_leaves_a_model_that_loads(pretrain):
    """Weights in half precision, all of them those of the last checkpoint."""
    policy = policies.load(str(pretrain[0] / "model"))
    assert adapters.settings_of(pretrain[0] / "model")["image"]["crop_min_pixels"] == 7056
    trained = Checkpoints(pretrain[0]).restore_part("trainable")[1]["params"]
    for saved, loaded in zip(jax.tree.leaves(trained), jax.tree.leaves(policy.params), strict=True):
        np.testing.assert_array_equal(saved.astype(np.float16).astype(np.float32), np.asarray(loaded))
    assert policy.processor.decode(policy.processor.encode("Which digit?")) == "Which digit?"


def test_a_decoder_goes_on_with_another_vocabulary_and_the_tower_frozen(jobs, pretrain, tmp_path):
    """Pixels become the same features, what is not trained keeps its bytes, and the tokenizer is a new one."""
    first = pretrain[0] / "model"
    fields = {"model__init_from": first, "model__freeze_vision": True, "model__new_tokenizer": True, "seed": 1}
    output = jobs.run("configs/pretrain.py:smoke", tmp_path / "more", **fields, total_steps=3)
    assert "the vision tower is frozen" in output and "reading: step" not in output
    before, after = (policies.load(str(folder)) for folder in (first, tmp_path / "more" / "model"))
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), before.params["visual"], after.params["visual"])
    assert all(jax.tree.leaves(same))
    assert not np.array_equal(*(p.params["language_model"]["norm"]["scale"] for p in (before, after)))
    vocabularies = [policy.processor.tokenizer.get_vocab() for policy in (before, after)]
    assert vocabularies[0] != vocabularies[1]
    assert after.params["embed_tokens"].shape[0] == len(vocabularies[1]) == after.model.config.text.vocab_size


def test_without_charts_all_weights_learn_from_dialogues_alone(jobs, pretrain, tmp_path):
    first = pretrain[0] / "model"
    fields = {"model__init_from": first, "reading__charts": 0, "total_steps": 3}
    output = jobs.run("configs/pretrain.py:smoke", tmp_path / "more", **fields)
    assert "dialogues alone" in output and "reading: step" not in output
    assert "pretrain/reading_loss" not in set().union(*lines(tmp_path / "more" / "metrics.jsonl"))
    before, after = (policies.load(str(folder)).params for folder in (first, tmp_path / "more" / "model"))
    for part in ("visual", "language_model"):
        moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before[part], after[part])
        assert any(jax.tree.leaves(moved)), part


def test_an_adapter_of_another_job_is_a_start(jobs, habit, tmp_path):
    """Evaluated without dropout, and with what the adapter does to the vision tower."""
    fields = {"init_from": habit[0], "eval__modes": "('tools_on',)", "lora__targets": TARGETS}
    output = jobs.run("configs/eval.py:smoke", tmp_path / "eval", **fields)
    assert f"evaluating pixelis-tiny with the adapter {habit[0]}" in output
    result = json.loads((tmp_path / "eval" / "summary.json").read_text())["eval"]["tools_on"]
    assert result == json.loads((habit[0] / "summary.json").read_text())["eval"]["tools_on"]


def test_reading_a_fixed_batch_of_charts_gets_better(small_policy):
    """From a head of zeros, whose loss is the log of the number of classes."""
    model, reader = small_policy.model, reading.init_reader(small_policy.model)
    charts = reading.make_pool(0, small_policy.processor, mesh=small_policy.mesh, charts=4, workers=0)
    settings = ReadingConfig(charts=4, first_steps=12, first_batch=4, batch=4, learning_rate=3e-3)
    loss = jax.jit(lambda variables: reading.reading_loss(model, variables, charts)[0])
    before = loss({"params": small_policy.params, READER: reader})
    assert before == pytest.approx(np.log(reader["bias"].size), abs=1e-5)
    said = []
    params, reader = reading.read_first(small_policy, charts, settings, said.append)
    assert loss({"params": params, READER: reader}) < 0.8 * before
    assert said[-1].startswith("reading: step 12/12, ")
    assert params["language_model"] is small_policy.params["language_model"]
