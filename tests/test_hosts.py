"""Two processes give what one does: the real jobs, started as a user starts them, and what they tell each other."""

import json
import os
import signal
import socket
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from corpus_files import write_folder
from jobs import Jobs, free_port, lines, refusal, wait_for_step
from one_tool import ZOOM
from processes import kill, outputs_of, start
from safetensors.numpy import load_file

from pixelis_jax import hosts
from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.data import demonstrations
from pixelis_jax.data.demonstrations import DemonstrationConfig
from pixelis_jax.hosts import Share
from pixelis_jax.models import vlm
from pixelis_jax.tools.base import schemas
from pixelis_jax.types import UserError

# fp32: sums are taken in another order, and nothing else differs.
TOLERANCE = 1e-5
RFT = """
from configs import rft

def get_config(variant=""):
    config = rft.get_config("smoke")
    config.rollout.group_size = 2
    config.checkpoint.every_steps = 10
    config.sampling.max_turns = 2
    config.eval.scenes = config.eval.batch = 4
    return config
"""
# Adam makes of a gradient that is rounding alone a share of the rate, so the rate is ten tolerances: a real difference,
# which is of the size of the rate, still shows.
SFT = {"total_steps": 2, "log_every_steps": 1, "eval__scenes": 2, "eval__batch": 2, "optimizer__learning_rate": 1e-4}


@pytest.fixture(scope="module")
def jobs(compile_cache):
    with Jobs(compile_cache) as made:
        yield made


def assert_same_end(one, two):
    """Metrics of every step, and the adapter."""
    first, second = lines(one / "metrics.jsonl"), lines(two / "metrics.jsonl")
    assert [sorted(record) for record in first] == [sorted(record) for record in second]
    for before, after in zip(first, second, strict=True):
        for name, value in before.items():
            close = after[name] is None if value is None else abs(after[name] - value) <= TOLERANCE * max(1, abs(value))
            assert close, (before["step"], name, value, after[name])
    adapters = [load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (one, two)]
    assert all(np.abs(adapters[0][name] - adapters[1][name]).max() < TOLERANCE for name in adapters[0])


def train(jobs, config, workdir):
    """All steps of a job in one process, the evaluation after them cut short; what it prints."""
    process = jobs.start(config, workdir)
    wait_for_step(process, workdir, 3)
    process.send_signal(signal.SIGTERM)
    (output,) = outputs_of([process])
    assert process.returncode == 0, output
    return output


def files(workdir):
    """Names of what a job leaves, without the parts of a checkpoint."""
    found = (path.relative_to(workdir) for path in workdir.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if path.parts[0] not in ("checkpoints", "tensorboard"))


def test_a_supervised_job_of_two_processes_is_that_of_one(jobs, tmp_path):
    """Each draws its own scenes; parameters lie half in the one, half in the other."""
    one, two = tmp_path / "one", tmp_path / "two"
    jobs.run("configs/habit.py:smoke", one, **SFT)
    processes = jobs.start_two("configs/habit.py:smoke", two, mesh__fsdp=2, **SFT)
    outputs = outputs_of(processes)
    assert [p.returncode for p in processes] == [0, 0], outputs
    assert_same_end(one, two)
    assert files(one) == files(two)
    assert len(list((two / "tensorboard").iterdir())) == 1
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, two)]
    assert summaries[0]["eval"] == summaries[1]["eval"]
    assert json.loads((two / "run.json").read_text())["devices"]["processes"] == 2
    assert "habit" not in outputs[1]  # the first process speaks for both


def test_a_curriculum_of_two_processes_is_that_of_one(jobs, tmp_path):
    """Samples are dealt out in turn, so with one length of rows both see the same batches, and the same promotion."""
    sizes = dict.fromkeys(("simple", "medium", "hard"), 16)
    fields = {
        "model__name": "pixelis-tiny",
        "data__path": write_folder(tmp_path / "data", sizes=sizes),
        "data__buckets": 1,
        "tools__names": "('ZOOM_IN',)",
        "sampling__max_turns": 3,
        "curriculum__min_performance": 0.0,
        "curriculum__performance_window": 1,
        "curriculum__patience_cycles": 1,
        "optimizer__learning_rate": 1e-4,
        "eval__samples": 3,
        "eval__test_samples": 3,
        "eval__batch": 4,
    }
    one, two = tmp_path / "one", tmp_path / "two"
    jobs.run("configs/sft.py:smoke", one, **fields)
    processes = jobs.start_two("configs/sft.py:smoke", two, **fields)
    outputs = outputs_of(processes)
    assert [p.returncode for p in processes] == [0, 0], outputs
    assert_same_end(one, two)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, two)]
    assert summaries[0]["transitions"] and summaries[0]["transitions"] == summaries[1]["transitions"]
    assert summaries[0]["test"] == summaries[1]["test"]


def test_an_rl_job_of_two_processes_goes_on_as_one(jobs, tmp_path):
    """SIGTERM reaches one of them: both save the same step and end. One process alone then ends like a straight run."""
    config = tmp_path / "short.py"
    config.write_text(RFT)
    one, two = tmp_path / "one", tmp_path / "two"
    train(jobs, config, one)
    processes = jobs.start_two(config, two)
    wait_for_step(processes[0], two, 1)
    processes[1].send_signal(signal.SIGTERM)
    outputs = outputs_of(processes)
    assert [p.returncode for p in processes] == [0, 0], outputs
    assert "SIGTERM: ending after this step" in outputs[0]
    (saved,) = Checkpoints(two).steps()
    assert saved == lines(two / "metrics.jsonl")[-1]["step"] < 3
    assert f"resumed from step {saved}" in train(jobs, config, two)
    assert_same_end(one, two)
    told = [(folder / "trajectories.jsonl").read_text().splitlines() for folder in (one, two)]
    for before, after in zip(*(map(json.loads, text) for text in told), strict=True):
        assert before["question"] == after["question"] and before["tokens"] == after["tokens"]


def test_dynamic_sampling_and_replay_in_two_processes(jobs, tmp_path):
    """Each fills its own prompts, as often as the one that misses most; rows read the right place of a table of both.

    That they do shows in log-probs, which the trainer computes anew from that table: fresh and replayed.
    """
    config = tmp_path / "short.py"
    config.write_text(RFT)
    fields = {"rollout__dynamic_batches": 1, "rollout__replay_ratio": 0.5, "rollout__prompts": 4, "total_steps": 5}
    processes = jobs.start_two(config, tmp_path / "two", **fields)
    outputs = outputs_of(processes)
    assert [p.returncode for p in processes] == [0, 0], outputs
    records = lines(tmp_path / "two" / "metrics.jsonl")
    assert len(records) == 5 and max(r["rollout/sampled"] for r in records) > 8
    for record in records:
        assert record["rollout/sampled"] % 8 == 0 and record["sampler_trainer_logprob_diff/max"] < 1e-4
    assert any(record["replay_share"] for record in records)


ALONE = """
import sys
import jax.numpy as jnp
from pixelis_jax import hosts

hosts.initialize(sys.argv[1], 2, int(sys.argv[2]))

def job():
    for i in range(10_000):
        hosts.largest(i)
        print(i, flush=True)

hosts.run(job)
"""


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_dies_takes_the_other_along(lost):
    address = f"127.0.0.1:{free_port()}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", ALONE, address]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    processes = [start([*command, str(i)], env=environment, **pipes) for i in range(2)]
    try:
        while not (line := processes[lost].stdout.readline()).strip().isdigit():
            assert line, "ended before the first number"
        processes[lost].kill()
        outputs = outputs_of(processes)
        assert processes[1 - lost].returncode not in (0, None), outputs
    finally:
        kill(*processes)


def test_a_command_line_that_can_not_join(monkeypatch, capsys, tmp_path):
    config = "configs/habit.py:smoke"
    assert "--process_id=x: give a whole number" in refusal(
        monkeypatch, capsys, config, tmp_path, "--coordinator_address=localhost:1", "--process_id=x"
    )
    assert "did not find each other" in refusal(monkeypatch, capsys, config, tmp_path, "--distributed")
    assert "'--distributed=1' is unknown" in refusal(monkeypatch, capsys, config, tmp_path, "--distributed=1")


@pytest.mark.parametrize(
    ("processes", "devices", "tensor", "shares"),
    [
        (2, 8, 1, [(0, 2), (1, 2)]),
        (2, 8, 4, [(0, 2), (1, 2)]),
        (2, 8, 8, [(0, 1), (0, 1)]),
        (4, 4, 2, [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ],
)
def test_shares(monkeypatch, processes, devices, tensor, shares):
    """Rows lie on the mesh in the order of the processes; `tensor` may span some of them."""
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    mesh = types.SimpleNamespace(devices=np.zeros(devices), shape={"tensor": tensor})
    for index, share in enumerate(shares):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        assert hosts.share(mesh) == Share(*share)


def test_a_mesh_that_tears_rows_apart_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match=r"mesh\.tensor is 2 and each process has 3 device\(s\)"):
        hosts.share(types.SimpleNamespace(devices=np.zeros(6), shape={"tensor": 2}))


def test_uneven_parts_are_refused():
    assert Share(1, 2).of(4, "rollout.prompts") == range(2, 4)
    with pytest.raises(UserError, match=r"rollout\.prompts is 3 and 2 processes feed equal parts"):
        Share(1, 2).of(3, "rollout.prompts")


def test_parts_of_a_batch_make_the_whole(monkeypatch, small_policy):
    """Dialogues with one look and with none, so that the parts hold different numbers of crops."""
    settings = {"seed": 0, "scenes": 2, "questions": 3, "direct_answer_share": 0.5, "row_tokens": 224}

    def made(part=None):
        config = DemonstrationConfig(**settings, part=part)
        return demonstrations.make_batch(config, small_policy.processor, schemas(ZOOM), 1)

    encode = jax.jit(lambda images: vlm.encode_images(small_policy.model, {"params": small_policy.params}, images))
    parts = [made(range(1)), made(range(1, 2))]
    sizes = [[size for images in (p.overview, p.crops) for size in images.valid.shape[:2]] for p in parts]
    monkeypatch.setattr(hosts, "largest", lambda *_: tuple(np.max(sizes, axis=0).tolist()))
    config = small_policy.model.config
    parts = [demonstrations.as_part(part, Share(i, 2), config) for i, part in enumerate(parts)]
    joined = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    whole = made()
    np.testing.assert_array_equal(joined.rows.tokens, whole.rows.tokens)
    seen = []
    for batch in (joined, whole):
        table = np.concatenate([encode(batch.overview), encode(batch.crops)])
        index = batch.rows.image_index
        seen.append(np.where(index[..., None] >= 0, table[np.maximum(index, 0)], 0.0))
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-5)
    assert np.abs(seen[0]).max() > 0.1


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ((None, 2, 0), "--coordinator_address is missing"),
        (("localhost:4000", None, 0), "--num_processes is missing"),
        (("localhost", 2, 0), "give HOST:PORT"),
        (("localhost:x", 2, 0), "give HOST:PORT"),
        (("localhost:99999", 2, 0), "a port from 1 to 65535"),
        (("localhost:4000", 2, 5), "from 0 to 1"),
        (("localhost:4000", 0, 0), "from 0 to -1"),
    ],
)
def test_a_place_that_can_not_be_is_refused(place, words):
    with pytest.raises(UserError, match=words):
        hosts.initialize(*place)


def test_a_host_that_is_not_known_is_refused_at_once():
    with pytest.raises(UserError, match=r"nowhere\.invalid is not known here"):
        hosts.initialize("nowhere.invalid:4000", 2, 1)


def test_a_first_process_that_never_comes_is_one_line(monkeypatch):
    monkeypatch.setattr(hosts, "TIMEOUT_S", 0.5)
    with socket.socket() as closed:
        closed.bind(("localhost", 0))  # and nobody listens
        port = closed.getsockname()[1]
        with pytest.raises(UserError, match=f"localhost:{port}: no process 0 answered there"):
            hosts.initialize(f"localhost:{port}", 2, 1)


def test_a_taken_port_is_refused():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        with pytest.raises(UserError, match="can't be opened here"):
            hosts.initialize(f"localhost:{other.getsockname()[1]}", 2, 0)
