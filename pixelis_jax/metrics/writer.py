"""What a run writes while it goes on. Method names follow clu's MetricWriter; see design.md, decision 13.

| file in the workdir | content | bitwise after a kill and a resume |
|---|---|---|
| `metrics.jsonl` | one object a step, `step` first, then names of metrics/names.py in order; null = no value | yes |
| `trajectories.jsonl`, `trajectory_images/` | a few whole rollouts a step (metrics/trajectories.py) | yes |
| `perf.jsonl` | times, rates, memory | no |
| `tensorboard/` | the same scalars (times under `perf/`), texts and images | no |
| `monitor/metrics.json` | the last steps, for the dashboard | no |
"""

import io
import queue
import shutil
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pixelis_jax.metrics.files import append_lines, atomic_write, cut_back, json_line, read_jsonl
from pixelis_jax.metrics.tensorboard import EventFile

METRICS = "metrics.jsonl"
PERF = "perf.jsonl"
TRAJECTORIES = "trajectories.jsonl"
IMAGES = "trajectory_images"
MONITOR = "monitor/metrics.json"
MONITOR_VERSION = 1

Scalars = Mapping[str, Any]


class MetricWriter:
    """Writer of one run's files in `workdir`. Call `resume_from` once at start, `flush` at the end of each step.

    Scalars given for one step, in any number of calls, become one line, written by `flush` (or by the first call for a
    later step). So flush comes before the checkpoint of that step: then a kill can lose only what is computed again.
    A full disk raises UserError.
    """

    def __init__(self, workdir: Path | str, *, monitor_steps: int = 500, tensorboard: bool = True) -> None:
        self.workdir = Path(workdir)
        self.workdir.mkdir(parents=True, exist_ok=True)
        self._pending: dict[str, dict[str, Any]] = {METRICS: {}, PERF: {}}
        self._events = EventFile(self.workdir / "tensorboard") if tensorboard else None
        self._recent: deque[dict[str, Any]] = deque(maxlen=monitor_steps)
        self._monitor = _MonitorFile(self.workdir / MONITOR)

    def resume_from(self, step: int | None) -> None:
        """Cuts all files back to `step`, the restored one; None, nothing restored: the run starts with empty files."""
        last = -1 if step is None else step
        for name in (METRICS, PERF, TRAJECTORIES):
            cut_back(self.workdir / name, last)
        for folder in (self.workdir / IMAGES).glob("*"):
            if folder.name.isdecimal() and int(folder.name) > last:
                shutil.rmtree(folder)
        if self._events is not None:
            self._events.purge_step = last + 1
        self._recent.clear()
        self._recent.extend(read_jsonl(self.workdir / METRICS)[-(self._recent.maxlen or 0) :])

    def write_scalars(self, step: int, scalars: Scalars) -> None:
        """Metrics that are bitwise the same in a resumed run; None and NaN are written as null."""
        self._collect(METRICS, step, scalars)
        self._event_scalars(step, scalars, prefix="")

    def write_perf(self, step: int, scalars: Scalars) -> None:
        """Times, rates and memory: `perf.jsonl`, outside all bitwise comparisons."""
        self._collect(PERF, step, scalars)
        self._event_scalars(step, scalars, prefix="perf/")

    def write_trajectories(self, step: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Appends records that metrics/trajectories.py made; `images` (u8 arrays) become PNG files and their names."""
        lines = []
        for row, record in enumerate(records):
            names = []
            for i, image in enumerate(record["images"]):
                name = f"{IMAGES}/{step:08d}/{row:02d}_{i:02d}.png"
                atomic_write(self.workdir / name, png(image))
                names.append(name)
            lines.append({**record, "step": step, "images": names})
        append_lines(self.workdir / TRAJECTORIES, lines)

    def write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Texts for TensorBoard."""
        if self._events is not None:
            for name, text in texts.items():
                self._events.text(step, name, text)

    def write_images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Images u8[height, width, 3] for TensorBoard."""
        if self._events is not None:
            for name, image in images.items():
                self._events.image(step, name, image)

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        """The flat config for TensorBoard's table of runs."""
        if self._events is not None:
            self._events.hparams({k: v if isinstance(v, int | float | str) else str(v) for k, v in hparams.items()})

    def flush(self) -> None:
        """Ends the step: everything given so far is in the files when this returns (the monitor's follows soon)."""
        for name in self._pending:
            self._write_pending(name)
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Flushes, and waits for the monitor's file."""
        self.flush()
        if self._events is not None:
            self._events.close()
        self._monitor.close()

    def __enter__(self) -> "MetricWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _collect(self, name: str, step: int, scalars: Scalars) -> None:
        if self._pending[name] and self._pending[name]["step"] != step:
            self._write_pending(name)
        self._pending[name] |= {"step": step, **{k: _number(v) for k, v in scalars.items()}}

    def _write_pending(self, name: str) -> None:
        record, self._pending[name] = self._pending[name], {}
        if record:
            append_lines(self.workdir / name, [record])
            if name == METRICS:
                self._recent.append(record)
                self._monitor.put(list(self._recent))

    def _event_scalars(self, step: int, scalars: Scalars, prefix: str) -> None:
        if self._events is not None:
            for name, value in scalars.items():
                if (number := _number(value)) is not None:
                    self._events.scalar(step, prefix + name, number)


class _MonitorFile:
    """Rewrites one JSON file off the caller's thread. A slow disk drops old snapshots, never blocks the training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue: queue.Queue[list[dict[str, Any]] | None] = queue.Queue(maxsize=1)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="monitor-file", daemon=True)
        self._thread.start()

    def put(self, steps: list[dict[str, Any]]) -> None:
        """Hands over the newest snapshot in place of one not yet written. Raises what the last write raised."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        while True:
            try:
                return self._queue.put_nowait(steps)
            except queue.Full:
                try:
                    self._queue.get_nowait()
                except queue.Empty:
                    continue

    def close(self) -> None:
        if self._thread.is_alive():
            self._queue.put(None)  # waits for the last snapshot's turn
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        while (steps := self._queue.get()) is not None:
            try:
                atomic_write(self.path, json_line({"version": MONITOR_VERSION, "steps": steps}) + "\n")
            except BaseException as error:  # handed to the caller's next put or close
                self._error = error


def png(image: np.ndarray) -> bytes:
    """PNG bytes of u8[height, width, 3]."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def _number(value: Any) -> float | None:
    """A Python float of a number or 0-d array; None for an absent or non-finite value."""
    if value is None:
        return None
    number = float(value)
    return number if np.isfinite(number) else None
