"""The main job: from start to end, killed, interrupted, and what it refuses. The stage changes at step 3 of 7."""

import dataclasses
import json
import random
import re
import shlex
import shutil
import signal
import time
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from event_files import events
from jobs import Jobs, lines, refusal, wait_for_step
from PIL import Image
from resolved import resolved

from pixelis_jax import adapters, predict
from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.metrics import names
from pixelis_jax.types import OPS, UserError

STEPS = 7
CONFIG = """
from configs import rft

def get_config(variant=""):
    config = rft.get_config("smoke")
    config.total_steps = 7
    config.checkpoint.every_steps = 2
    config.sampling.max_turns = 2
    config.lora.dropout = 0.5
    config.curriculum.evaluation_frequency = 1
    first, second, _ = config.curriculum.stages
    config.curriculum.stages = (first | {"exits": ({"kind": "max_steps", "steps": 3},)}, second | {"exits": ()})
    return config
"""
COMPARED = (
    "adapter/adapter_model.safetensors",
    "rft_adapters_base/adapter_model.safetensors",
    "metrics.jsonl",
    "trajectories.jsonl",
    "final_eval.json",
)


@dataclasses.dataclass(frozen=True)
class Ended:
    """A workdir and what the last command on it printed."""

    workdir: Path
    output: str


@pytest.fixture(scope="module")
def jobs(compile_cache):
    with Jobs(compile_cache) as made:
        yield made


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "short.py"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def straight(jobs, config, tmp_path_factory) -> Ended:
    workdir = tmp_path_factory.mktemp("straight")
    return Ended(workdir, jobs.run(config, workdir))


@pytest.fixture(scope="module")
def killed(straight, jobs, config, tmp_path_factory) -> Path:
    """A workdir that SIGKILL left, at a random moment of the loop."""
    workdir = tmp_path_factory.mktemp("killed")
    process = jobs.start(config, workdir)
    wait_for_step(process, workdir, 2)
    time.sleep(random.uniform(0.0, 0.5))
    process.kill()
    process.communicate()
    return workdir


@pytest.fixture(scope="module")
def interrupted(killed, jobs, config) -> Ended:
    """The same workdir after the same command, ended by SIGTERM."""
    process = jobs.start(config, killed)
    wait_for_step(process, killed, 4)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 0, output[-3000:]
    return Ended(killed, output)


@pytest.fixture(scope="module")
def resumed(interrupted, jobs, config, tmp_path_factory) -> Ended:
    """A copy of it, brought to its end by the same command."""
    workdir = tmp_path_factory.mktemp("resumed") / "run"
    shutil.copytree(interrupted.workdir, workdir)
    return Ended(workdir, jobs.run(config, workdir))


@pytest.fixture
def copied(interrupted, tmp_path) -> Path:
    shutil.copytree(interrupted.workdir, tmp_path / "run")
    return tmp_path / "run"


def test_sigterm_saves_and_exits_0(interrupted):
    records = lines(interrupted.workdir / "metrics.jsonl")
    assert "SIGTERM: ending after this step" in interrupted.output
    steps = [int(p.name) for p in (interrupted.workdir / "checkpoints").iterdir()]
    assert max(steps) == records[-1]["step"] >= 4
    assert not (interrupted.workdir / "finished.json").exists()


def test_a_changed_config_is_refused(copied, config, monkeypatch, capsys):
    text = refusal(monkeypatch, capsys, config, copied, optimizer__learning_rate=0.5)
    assert "optimizer.learning_rate was 0.0006, now 0.5" in text and "another --workdir" in text


def test_a_corrupt_checkpoint_is_refused(copied, config, monkeypatch, capsys):
    newest = max((copied / "checkpoints").iterdir(), key=lambda path: int(path.name))
    file = max((p for p in (newest / "state").rglob("*") if p.is_file()), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    before = (copied / "metrics.jsonl").read_bytes()
    text = refusal(monkeypatch, capsys, config, copied)
    assert f"{newest} is corrupt: {file.relative_to(newest)} has" in text
    older = max(int(p.name) for p in (copied / "checkpoints").iterdir() if p != newest)
    assert f"--config.checkpoint.restore_step={older}" in text
    assert (copied / "metrics.jsonl").read_bytes() == before


def test_a_second_process_is_refused_with_the_holders_number(copied, config, monkeypatch, capsys):
    from pixelis_jax.workdir import Workdir

    with Workdir(copied):
        holder = (copied / "lock").read_text().strip()
        assert holder in refusal(monkeypatch, capsys, config, copied)


@pytest.mark.parametrize("name", COMPARED)
def test_killed_and_interrupted_ends_like_a_straight_run(straight, resumed, name):
    assert "resumed from step" in resumed.output
    assert (resumed.workdir / name).read_bytes() == (straight.workdir / name).read_bytes()


def test_the_same_command_after_the_end_says_so(straight, jobs, config):
    before = (straight.workdir / "summary.json").read_bytes()
    said = jobs.run(config, straight.workdir)
    assert "this job is finished" in said and "restore_step" not in said
    assert (straight.workdir / "summary.json").read_bytes() == before


def test_the_user_sees_where_it_starts_the_gate_the_stage_and_the_next_command(straight):
    output = straight.output
    assert "starting from the adapter pixelis-tiny-sft" in output
    assert "start-up gate: |sampler - trainer log-prob|" in output and "(bound 1e-04)" in output
    assert "step 3: Phase1_Learn_Goal -> Phase2_Learn_Coherence (max_steps" in output
    assert f"rft: {STEPS}/{STEPS} (100 %)" in output and "ETA" in output


def test_the_next_command_that_the_job_prints_works(straight, capsys):
    (line,) = re.findall(r"^Next: \S+ -m pixelis_jax.predict (.+)$", straight.output, re.MULTILINE)
    predict.main(shlex.split(line))
    assert lines(straight.workdir / "trajectories.jsonl")[-1]["question"] in capsys.readouterr().out
    assert " -m pixelis_jax.export" in straight.output and "tensorboard --logdir" in straight.output


def test_the_whole_state_of_a_stages_end_is_kept(straight):
    """Step 3, beside the last two of those that are saved every second step."""
    with Checkpoints(straight.workdir) as checkpoints:
        assert checkpoints.steps() == [3, 6, 7]
        _, trained, _ = checkpoints.restore_part("trainable", 3)
    adapter = adapters.read(straight.workdir / "rft_adapters_base", base_name="pixelis-tiny").adapter
    for kept, saved in zip(jax.tree.leaves(trained["lora"]), jax.tree.leaves(adapter), strict=True):
        np.testing.assert_array_equal(kept, saved)


def test_summary_json_has_what_it_should(straight):
    summary = json.loads((straight.workdir / "summary.json").read_text())
    shares = (
        "success_base success_before success_after success_tools_off success_forced_zoom_before"
        " success_forced_zoom_after success_greedy_before success_greedy_after rapr_before rapr_after"
    )
    assert all(0 <= summary[name] <= 1 for name in shares.split())
    assert summary["by_task"].keys() == {"base", "before", "after"}
    assert summary["steps"] == STEPS and summary["seed"] == 0 and summary["wall_s"] > 0
    (transition,) = summary["transitions"]
    assert transition["step"] == 3 and transition["cause"] == "max_steps"


def test_every_metric_is_in_the_table(straight):
    metrics, perf = (lines(straight.workdir / name) for name in ("metrics.jsonl", "perf.jsonl"))
    assert [record["step"] for record in metrics] == [record["step"] for record in perf] == list(range(1, STEPS + 1))
    for records, bitwise in ((metrics, True), (perf, False)):
        logged = set().union(*records) - {"step"}
        found = {name: names.find(name) for name in logged}
        assert [name for name, metric in found.items() if metric is None or metric.bitwise != bitwise] == []
    assert {"rapr", "grpo/filtering_rate", "kl", "success_rate", "curriculum/stage"} <= metrics[0].keys()
    assert [record["curriculum/stage"] for record in metrics] == [0, 0, 0, 1, 1, 1, 1]
    assert all(record["kl"] == 0 for record in metrics[:1]) and metrics[-1]["kl"] > 0


def test_dropout_of_one_half_leaves_every_ratio_at_1(straight):
    """The starting adapter is not 0, and what is trained is the policy that was sampled from."""
    for record in lines(straight.workdir / "metrics.jsonl"):
        assert record["ratio/mean"] == record["ratio/max"] == 1.0
        assert record["sampler_trainer_logprob_diff/max"] < 1e-4
    assert "without lora.dropout 0.5, which is for sft" in straight.output


def test_tensorboard_holds_scalars_text_and_images(straight):
    values = [(event.step, value) for event in events(straight.workdir) for value in event.summary.value]
    for name in ("rapr", "loss", "perf/tokens_per_s"):
        assert [step for step, value in values if value.tag == name] == list(range(1, STEPS + 1))
    texts = [value.tensor.string_val[0].decode() for _, value in values if value.tag.startswith("rollout/text")]
    assert len(texts) == STEPS and all("right answer" in text and "policy:" in text for text in texts)
    images = [value.image for _, value in values if value.tag == "rollout/image_1"]
    assert len(images) == STEPS and all(min(image.height, image.width) > 100 for image in images)


def test_trajectories_fit_their_schema(straight):
    records = lines(straight.workdir / "trajectories.jsonl")
    assert [record["step"] for record in records] == [s for s in range(1, STEPS + 1) for _ in range(2)]
    for record in records:
        assert record["schema"] == 1 and record["status"] in ("answered", "over_turn", "truncated")
        assert {"task_id", "index", "task_type", "question", "gold", "sample", "answer"} <= record.keys()
        assert 0 < record["policy_tokens"] < record["tokens"]
        assert {"final", "coherence", "curiosity", "total", "advantage"} <= record["numbers"].keys()
        images = [np.asarray(Image.open(straight.workdir / name)) for name in record["images"]]
        assert all(image.ndim == 3 and image.dtype == np.uint8 for image in images)
        for turn in record["turns"]:
            assert turn.keys() == {"text", "thought", "call", "answer", "error", "observation"}
            assert sum(turn[k] is not None for k in ("call", "answer", "error")) == 1
            if turn["call"]:
                assert turn["call"]["name"] in OPS and turn["observation"] is not None
            if turn["observation"] and turn["observation"]["image"] is not None:
                assert turn["observation"]["image"] < len(images)


def test_a_resumed_run_reports_the_gate_and_decides_nothing(config, monkeypatch):
    """What the gate decides holds for the run: a straight run would not look again at the step of the resume."""
    from pixelis_jax.online import Online

    job = Online(resolved(str(config)))
    monkeypatch.setattr("pixelis_jax.online.AGREEMENT_BOUNDS", {"float32": (1e-12, 1e-12)})
    state, said = job.first_state(), []
    batch = job.verify(job.roll_out(next(job.prompts(0)), state, 1))
    run = types.SimpleNamespace(say=said.append)
    job.gate(run, state, batch, job.first_host() | {"gated": True})
    assert len(said) == 1 and said[0].startswith("start-up gate:")
    job._gated = False  # as in a new process
    with pytest.raises(UserError, match="over ten times the bound"):
        job.gate(run, state, batch, job.first_host())
