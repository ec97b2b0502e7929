"""One attempt at a job: when a signal ends it, and what is saved then. Signals are real, steps are not."""

import os
import shutil
import signal

import jax.numpy as jnp
import optax
import pytest
from ml_collections import ConfigDict

from pixelis_jax import train_step
from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.metrics.writer import METRICS
from pixelis_jax.runtime import Run, Stopped
from pixelis_jax.types import UserError

STEPS = 6


@pytest.fixture
def config():
    return ConfigDict(
        {
            "job": "rft",
            "seed": 0,
            "total_steps": STEPS,
            "checkpoint": {"every_steps": 4, "keep": 2, "restore_step": -1},
            "optimizer": {"schedule": "constant"},
        }
    )


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def run_steps(config, path, *, before=lambda step: None, after=lambda step: None):
    """The loop of a job; returns (steps done, run)."""
    done = []
    with Run(config, path, hashes={}) as run:
        start, state, _ = run.restore({"x": jnp.zeros(())}, {})
        for step in run.steps(start, "test"):
            before(step)
            done.append(step)
            run.checkpoint(step, state, {})
            after(step)
            run.show({})
    return done, run


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_signal_is_never_obeyed_without_a_save(config, tmp_path, moment):
    """Before the checkpoint it ends this step, right after it the next one: never a step that was not saved."""
    done, run = run_steps(config, tmp_path, **{moment: lambda step: terminate() if step == 2 else None})
    ended = {"before": 2, "after": 3}[moment]
    assert done == list(range(1, ended + 1)) and run.stopped
    assert Checkpoints(tmp_path).steps() == [ended]
    again, run = run_steps(config, tmp_path)
    assert again == list(range(ended + 1, STEPS + 1)) and not run.stopped


def test_a_signal_in_the_last_step_ends_the_evaluation_and_nothing_is_lost(config, tmp_path):
    checked = []
    with Run(config, tmp_path, hashes={}) as run:
        start, state, _ = run.restore({"x": jnp.zeros(())}, {})
        for step in run.steps(start, "test"):
            if step == STEPS:
                terminate()
            run.checkpoint(step, state, {})
            run.show({})
        assert not run.stopped
        with run.progress(3, "evaluation"):
            for i in range(3):
                run.show({})
                checked.append(i)
                run.check()
    assert checked == [0] and run.stopped
    assert Checkpoints(tmp_path).steps()[-1] == STEPS


def test_other_exceptions_are_not_swallowed(config, tmp_path):
    with pytest.raises(ValueError, match="ours"), Run(config, tmp_path, hashes={}):
        raise ValueError("ours")
    with Run(config, tmp_path, hashes={}) as run:
        run.check()
        raise Stopped


def test_the_handlers_come_back(config, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with Run(config, tmp_path, hashes={}):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_fewer_steps_than_are_done_are_refused(config, tmp_path):
    run_steps(config, tmp_path)
    config.total_steps = 3
    with pytest.raises(UserError, match=rf"is at step {STEPS} already and total_steps is 3"):
        run_steps(config, tmp_path)


def log(path, *steps):
    (path / METRICS).write_text("".join(f'{{"step": {step}, "loss": 0.0}}\n' for step in steps))


def test_records_without_their_checkpoints_are_not_cut(config, tmp_path):
    """Steps beyond the first interval were saved once: who removed the checkpoints may still have them."""
    run_steps(config, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    log(tmp_path, 1, config.checkpoint.every_steps + 1)
    kept = (tmp_path / METRICS).read_bytes()
    with pytest.raises(UserError, match=r"metrics\.jsonl reaches step \d+, but .*checkpoints has no whole checkpoint"):
        run_steps(config, tmp_path)
    assert (tmp_path / METRICS).read_bytes() == kept
    log(tmp_path, 1)  # killed before the first one
    assert run_steps(config, tmp_path)[0][0] == 1


def test_records_that_end_before_the_checkpoint_are_said(config, tmp_path, caplog):
    run_steps(config, tmp_path)
    log(tmp_path, *range(1, STEPS))
    with caplog.at_level("WARNING"):
        run_steps(config, tmp_path)
    assert f"metrics.jsonl ends at step {STEPS - 1} and the run goes on from {STEPS}" in caplog.text


def test_the_trained_parameters_are_listed_with_their_total(config, tmp_path, capsys):
    """Two arrays of 6 and 8 numbers, 4 bytes each; a second attempt writes the same."""
    lora = {"layers_0": {"q_proj": {"a": jnp.zeros((3, 2)), "b": jnp.zeros((2, 4))}}}
    seen = []
    for _ in range(2):
        with Run(config, tmp_path / "run", hashes={}) as run:
            run.restore(train_step.init_state({"lora": lora}, optax.sgd(0.1)), {})
        seen.append((tmp_path / "run" / "parameters.txt").read_text())
    assert "14 trained parameters in 2 arrays, 0.0 MiB: see parameters.txt" in capsys.readouterr().out
    assert seen[0] == seen[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in seen[0].splitlines() if line.startswith("|")]
    assert rows[1:] == [
        ["lora/layers_0/q_proj/a", "(3, 2)", "float32", "6"],
        ["lora/layers_0/q_proj/b", "(2, 4)", "float32", "8"],
    ]
    assert seen[0].splitlines()[-1] == "Total: 14 -- 56 bytes"
