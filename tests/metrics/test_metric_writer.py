import errno
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from event_files import events

from pixelis_jax.metrics import writer as writer_module
from pixelis_jax.metrics.files import read_jsonl
from pixelis_jax.metrics.writer import IMAGES, METRICS, MONITOR, PERF, TRAJECTORIES, MetricWriter, png
from pixelis_jax.types import UserError


def one_step(writer: MetricWriter, step: int) -> None:
    image = np.full((4, 6, 3), step, np.uint8)
    writer.write_scalars(step, {"loss": np.float32(step / 3), "kl": float("nan"), "entropy": None})
    writer.write_scalars(step, {"rapr": 0.5})
    writer.write_perf(step, {"seconds/rollout": 0.1})
    writer.write_trajectories(step, [{"schema": 1, "task_id": f"t{step}", "images": [image, image]}])
    writer.write_texts(step, {"sample": "hello"})
    writer.write_images(step, {"crop": image})
    writer.flush()


def test_one_line_a_step_with_null_for_absent_values(tmp_path: Path) -> None:
    with MetricWriter(tmp_path) as writer:
        one_step(writer, 1)
        one_step(writer, 2)
    first = read_jsonl(tmp_path / METRICS)[0]
    assert first == {"step": 1, "entropy": None, "kl": None, "loss": float(np.float32(1 / 3)), "rapr": 0.5}
    assert [r["step"] for r in read_jsonl(tmp_path / METRICS)] == [1, 2]
    assert "seconds/rollout" in read_jsonl(tmp_path / PERF)[0]
    trajectory = read_jsonl(tmp_path / TRAJECTORIES)[1]
    assert trajectory["step"] == 2 and len(trajectory["images"]) == 2
    assert (tmp_path / trajectory["images"][0]).read_bytes() == png(np.full((4, 6, 3), 2, np.uint8))


def test_a_resumed_run_leaves_bitwise_the_same_files(tmp_path: Path) -> None:
    straight, resumed = tmp_path / "a", tmp_path / "b"
    with MetricWriter(straight) as writer:
        writer.resume_from(None)
        for step in range(1, 7):
            one_step(writer, step)
    with MetricWriter(resumed) as writer:
        writer.resume_from(None)
        for step in range(1, 6):  # the checkpoint stands at 3
            one_step(writer, step)
    with (resumed / METRICS).open("a") as file:
        file.write('{"step": 6, "lo')  # killed in the middle of a line
    with MetricWriter(resumed) as writer:
        writer.resume_from(3)
        for step in range(4, 7):
            one_step(writer, step)
    for name in (METRICS, TRAJECTORIES):
        assert (resumed / name).read_bytes() == (straight / name).read_bytes()
    images = [p.relative_to(straight) for p in (straight / IMAGES).rglob("*.png")]
    assert sorted(images) == sorted(p.relative_to(resumed) for p in (resumed / IMAGES).rglob("*.png"))


def test_a_fresh_start_empties_what_a_killed_run_left(tmp_path: Path) -> None:
    with MetricWriter(tmp_path) as writer:
        one_step(writer, 0)
    with MetricWriter(tmp_path) as writer:
        writer.resume_from(None)
    assert (tmp_path / METRICS).read_bytes() == b""
    assert not list((tmp_path / IMAGES).iterdir())


def test_tensorboard_is_purged_from_the_restored_step(tmp_path: Path) -> None:
    for restored, steps in ((None, (1, 2)), (1, (2,))):
        with MetricWriter(tmp_path) as writer:
            writer.resume_from(restored)
            for step in steps:
                one_step(writer, step)
    starts = [e.step for e in events(tmp_path) if e.HasField("session_log")]
    assert starts == [0, 2]
    scalars = {(e.step, v.tag): v.simple_value for e in events(tmp_path) for v in e.summary.value}
    assert scalars[2, "loss"] == np.float32(2 / 3)
    assert (2, "perf/seconds/rollout") in scalars and (2, "crop") in scalars and (2, "sample/text_summary") in scalars
    assert (2, "kl") not in scalars


def test_hparams_take_any_value(tmp_path: Path) -> None:
    with MetricWriter(tmp_path) as writer:
        writer.write_hparams({"lr": 1e-3, "targets": ("q_proj",), "name": None, "on": True})
    assert "_hparams_/session_start_info" in {v.tag for e in events(tmp_path) for v in e.summary.value}


def test_the_monitor_file_holds_the_last_steps_also_after_a_resume(tmp_path: Path) -> None:
    for restored, steps in ((None, (1, 2, 3)), (2, (3, 4))):
        with MetricWriter(tmp_path, monitor_steps=3, tensorboard=False) as writer:
            writer.resume_from(restored)
            for step in steps:
                writer.write_scalars(step, {"loss": 1.0})
                writer.flush()
    shown = json.loads((tmp_path / MONITOR).read_text())
    assert shown["version"] == 1
    assert [s["step"] for s in shown["steps"]] == [2, 3, 4]


def test_a_slow_disk_does_not_block_the_training_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, written = threading.Event(), []

    def slow(path: Path, data: str) -> None:
        gate.wait(20)
        written.append(len(json.loads(data)["steps"]))

    monkeypatch.setattr(writer_module, "atomic_write", slow)
    writer = MetricWriter(tmp_path, tensorboard=False)
    for step in range(50):
        writer.write_scalars(step, {"loss": 1.0})
        writer.flush()
    gate.set()
    writer.close()
    assert written[-1] == 50 and len(written) <= 3


def test_a_full_disk_in_the_monitor_thread_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: str) -> None:
        raise UserError(f"{path}: the disk is full")

    monkeypatch.setattr(writer_module, "atomic_write", full)
    writer = MetricWriter(tmp_path, tensorboard=False)
    writer.write_scalars(1, {"loss": 1.0})
    with pytest.raises(UserError, match="disk is full"):
        writer.close()


def test_a_full_disk_in_tensorboard_raises_instead_of_waiting(tmp_path: Path) -> None:
    writer = MetricWriter(tmp_path)
    writer.write_scalars(1, {"loss": 1.0})

    class Full:
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    writer._events._writer = Full()
    with pytest.raises(UserError, match="tensorboard: the disk is full"):
        writer.flush()


def test_the_package_loads_without_jax() -> None:
    names = ("names", "windows", "writer", "files", "trajectories", "progress")
    code = f"import sys, {', '.join(f'pixelis_jax.metrics.{n}' for n in names)}; print('jax' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
