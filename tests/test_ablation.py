"""The ablation's table by hand, and what it does with runs that are there, missing or broken."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from processes import LIMIT_S, started, wait_until

from benchmarks import ablation
from pixelis_jax import as_trained, limits
from pixelis_jax import config as configs
from pixelis_jax.types import UserError
from pixelis_jax.workdir import Workdir

STEPS = "--config.total_steps=2"


def finished(workdir, success, coherence=(0.1, 0.3), *, arm="base", seed=0, takes_s=0.0):
    """A run as `main.py` leaves it, with these results."""
    config, _ = configs.from_argv([f"--config={ablation.CONFIG}", *ablation.ARMS[arm], f"--config.seed={seed}", STEPS])
    with Workdir(workdir) as run:
        run.begin(as_trained.resolve(config).config, seed=seed, hashes={})
        time.sleep(takes_s)
        summary = {name: success for name in ablation.SUMMARY.values()} | {"steps": 2}
        (workdir / "summary.json").write_text(json.dumps(summary))
        lines = [{"step": i, "success_rate": 0.5, "rapr": i / 4, "rollout/turns/mean": 2,
                  "coherence": c, "tool/unrepaired_error_rate": 0.0} for i, c in enumerate(coherence, 1)]  # fmt: skip
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        run.mark_finished(2)


def test_the_interval_by_hand():
    """t(.975, 2) = 4.3027; deviation 1; / sqrt 3."""
    assert ablation.interval([1, 2, 3]) == (2, pytest.approx(4.3027 / math.sqrt(3), rel=1e-4))
    assert ablation.interval([5])[0] == 5 and math.isnan(ablation.interval([5])[1])


def test_every_arm_is_a_config_that_runs():
    for arm, changes in ablation.ARMS.items():
        made, _ = configs.from_argv([f"--config={ablation.CONFIG}", *changes])
        limits.check(as_trained.resolve(made).config)
        assert arm in ("curriculum", "base") or len(changes) >= 1


def test_weights_are_the_configs_unless_given(tmp_path):
    finished(tmp_path / "coherence_0", 0.5, arm="coherence")
    ablation.main([f"--out={tmp_path}", "--seeds=1", "--arms=coherence", STEPS])
    with pytest.raises(
        UserError, match=r"another config \(curriculum.stages was .*'coherence': 0\.1.*'coherence': 0\.5"
    ):
        ablation.main([f"--out={tmp_path}", "--seeds=1", "--arms=coherence", STEPS, "--coherence=0.5"])


def test_finished_runs_are_kept_and_compared_seed_by_seed(tmp_path, capsys, monkeypatch):
    for arm, values in {"base": (0.5, 0.7), "coherence": (0.6, 0.8)}.items():
        for seed, value in enumerate(values):
            finished(tmp_path / f"{arm}_{seed}", value, arm=arm, seed=seed)
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a finished run was started"))
    ablation.main([f"--out={tmp_path}", "--seeds=2", "--arms=base,coherence,base", STEPS])
    rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| ")]
    half = 12.7062 * 0.2 / math.sqrt(2) / math.sqrt(2)  # t(.975, 1), deviation .2 / sqrt 2
    assert rows[1].startswith(f"| base | 2 | 0.600 ± {half:.3f} | ")
    assert rows[1].endswith(
        "| 0.500 ± 0.000 | 2.000 ± 0.000 | 0.200 ± 0.000 | 0.000 ± 0.000 | 0.500 ± 0.000 | 0.375 ± 0.000 |"
    )
    assert rows[4].startswith("| coherence | 2 | +0.100 ± 0.000 | ")
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out


@pytest.mark.parametrize(("gpus", "jobs", "at_most"), [("0,1", 2, 1), ("4", 2, 2), ("", 2, 0)])
def test_runs_are_shared_out_to_gpus(tmp_path, monkeypatch, gpus, jobs, at_most):
    """Each sees one; `at_most` runs are on it at a time."""
    going, seen, lock = [], [], threading.Lock()

    @contextlib.contextmanager
    def started(config, workdir, overrides, environment):
        gpu = environment.get("CUDA_VISIBLE_DEVICES")
        assert ("JAX_PLATFORMS" in environment) == bool(gpus)
        with lock:
            going.append(gpu)
            seen.append((gpu, going.count(gpu)))
        time.sleep(0.1)
        finished(workdir, 0.5, seed=int(workdir.name[-1]))
        yield subprocess.Popen(["true"])
        with lock:
            going.remove(gpu)

    monkeypatch.setattr(ablation, "started", started)
    monkeypatch.setattr(ablation, "check_gpus", lambda numbers: None)  # none here; see the next test
    ablation.main([f"--out={tmp_path}", "--seeds=6", "--arms=base", STEPS, f"--jobs={jobs}", f"--gpus={gpus}"])
    assert len(seen) == 6 and {gpu for gpu, _ in seen} == (set(gpus.split(",")) if gpus else {None})
    assert not gpus or max(count for _, count in seen) <= at_most


def test_gpus_that_jax_does_not_see_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"--gpus=0,99999: JAX sees \w+ of these GPUs"):
        ablation.main([f"--out={tmp_path / 'out'}", "--gpus=0,99999"])
    assert not (tmp_path / "out").exists()


def test_a_run_that_goes_on_alone_is_waited_for(tmp_path, monkeypatch, caplog):
    """The ablation that started it was killed: nobody starts it once more, and its result counts."""
    monkeypatch.setattr(ablation, "started", lambda *a, **k: pytest.fail("a run was started beside itself"))
    alone = threading.Thread(target=finished, args=(tmp_path / "base_0", 0.5), kwargs={"takes_s": 2})
    alone.start()
    while not Workdir(tmp_path / "base_0").in_use():
        time.sleep(0.01)
    ablation.main([f"--out={tmp_path}", "--seeds=1", "--arms=base", STEPS])
    alone.join()
    assert f"base_0 is being run by process {os.getpid()} on " in caplog.text
    assert "| base | 1 | 0.500 |" in (tmp_path / "table.md").read_text()
    assert not Workdir(tmp_path / "base_0").in_use() and not Workdir(tmp_path / "none").in_use()


def test_a_run_that_fails_is_told_with_the_end_of_its_log(tmp_path):
    with pytest.raises(
        UserError, match=r"base, seed 0, did not finish \(exit code 2; .*base_0\.log\): .*no-such-model"
    ):
        ablation.main([f"--out={tmp_path}", "--seeds=1", "--arms=base", "--config.model.name=no-such-model"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms=base,nothing"], "'nothing' is unknown; use some of base"),
        (["--seeds=0"], "take a number from 1"),
        (["--config.rollout.group_size=1"], "group_size"),
        (["--config.no=1"], "there is no such field"),
        (["--gpus=0,x"], "--gpus=0,x: CUDA's numbers"),
        (["--gpus=,"], "--gpus=,: CUDA's numbers"),
        (["--other"], "--other is unknown"),
        (["--coherence=nan"], "--coherence=nan: a weight is a number from 0"),
        (["--config.seed=7"], "--config.seed is what the arms and seeds differ in"),
        (["--arms=base,icm", "--config.rewards.curiosity=rapr"], "--config.rewards.curiosity is what the arms"),
        (["--config.curriculum.stages=()"], "--config.curriculum.stages is what the arms"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_run(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        ablation.main([f"--out={tmp_path / 'out'}", *arguments])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", "{}"),
        ("summary.json", "[]"),
        ("summary.json", '{"steps": 2, "success_after": true}'),
        ("metrics.jsonl", ""),
        ("metrics.jsonl", '{"step": 1}\n'),  # cut
        ("metrics.jsonl", '{"step": 2, "success_rate": 0.5}\n'),  # at its front
        ("summary.json", json.dumps(dict.fromkeys(ablation.SUMMARY.values(), math.nan) | {"steps": 2})),
        ("metrics.jsonl", '{"step": 2, "success_rate": "x"}\n'),
    ],
)
def test_a_damaged_run_is_named(tmp_path, name, content):
    finished(tmp_path / "base_0", 0.5)
    (tmp_path / "base_0" / name).write_text(content)
    with pytest.raises(UserError, match="base_0 holds no finished RFT run"):
        ablation.main([f"--out={tmp_path}", "--seeds=1", "--arms=base", STEPS])


def test_a_run_of_another_config_is_not_taken(tmp_path):
    """Before anything is started, though seed 0 is missing."""
    finished(tmp_path / "base_1", 0.5, seed=1)
    with pytest.raises(UserError, match=r"base_1 holds a run with another config \(sampling.temperature was 1.0"):
        ablation.main([f"--out={tmp_path}", "--seeds=2", "--arms=base", STEPS, "--config.sampling.temperature=0.9"])
    assert not (tmp_path / "base_0.log").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_runs_too(tmp_path, number):
    """None goes on alone, and none is started after."""
    command = [sys.executable, "-m", "benchmarks.ablation", f"--out={tmp_path}", "--seeds=2", "--arms=base", STEPS]
    lock = tmp_path / "base_0" / "lock"
    with started(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        wait_until(process, lambda: lock.exists() and bool(lock.read_text()))
        child = int(lock.read_text().split()[1])
        process.send_signal(number)
        assert process.wait(timeout=LIMIT_S) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not (tmp_path / "base_1").exists()
