"""One attempt at a job: lock, resume, log files, checkpoints, signals: what train.py calls around its steps.

Of several processes the first one locks, writes and speaks; a signal that any of them got ends all at the same step.
"""

import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from pixelis_jax import hosts
from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.config import flatten
from pixelis_jax.metrics.files import atomic_write, read_jsonl
from pixelis_jax.metrics.progress import Progress
from pixelis_jax.metrics.writer import METRICS, MetricWriter
from pixelis_jax.train_step import TrainState
from pixelis_jax.types import UserError
from pixelis_jax.workdir import Workdir

PyTree = Any
Host = dict[str, Any]
PARAMETERS = "parameters.txt"
Summary = dict[str, Any]  # the content of summary.json
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(Exception):
    """Raised by `Run.check` where a signal asked to end; ends the job's `with` block without an error."""


class Run:
    """A context manager around a job. `stopped` becomes True when it ends early because a signal asked for that.

    `summary` is what `finish` was given, None before.
    """

    def __init__(
        self, config: ConfigDict, workdir: Path, *, hashes: Mapping[str, str], keep_best: bool = False
    ) -> None:
        self.config = config
        self.keep_best = keep_best
        self.hashes = hashes
        self.workdir = Workdir(workdir)
        self.path = workdir
        self.stopped = False
        self.summary: Summary | None = None
        self._asked = 0  # the signal that asked to end
        self._progress: Progress | None = None
        self._handlers: dict[int, Any] = {}
        self._phase_start = 0.0
        self._phases: dict[str, float] = {}

    def __enter__(self) -> "Run":
        self.workdir.__enter__()
        try:
            self.resumed = self.workdir.begin(self.config, seed=self.config.seed, hashes=self.hashes)
            self.checkpoints = Checkpoints(self.path, keep=self.config.checkpoint.keep, keep_best=self.keep_best)
            self.writer: Any = MetricWriter(self.path) if hosts.first() else _NoWriter()
        except BaseException:
            self.workdir.__exit__()
            raise
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        try:
            self.writer.close()
            self.checkpoints.close()
        finally:
            self.workdir.__exit__()
        return kind is Stopped

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Ends at the next safe point; the default handler comes back, so that a second signal ends at once."""
        self._asked = number  # said later: the main thread may be printing just now
        signal.signal(number, self._handlers[number])

    def check(self) -> None:
        """A point outside the steps where the job may end: raises Stopped if a signal asked for it."""
        if asked := self._signal():
            self.stopped = True
            self.say(f"{asked}: ending here; the same command goes on")
            raise Stopped

    def _signal(self) -> str:
        """The signal that asked any process to end, read once for all of them; "" where none did."""
        (number,) = hosts.largest(self._asked)
        return signal.Signals(number).name if number else ""

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """A JSON file of the run, from the first process."""
        if hosts.first():
            atomic_write(self.path / name, json.dumps(content, indent=1) + "\n")

    def finish(self, summary: Summary) -> None:
        """The last thing that a job does: writes `summary.json`, and that it is finished."""
        self.write("summary.json", summary)
        self.workdir.mark_finished(self.config.total_steps)
        self.summary = summary

    def restore(self, state: PyTree, host: Host) -> tuple[int, PyTree, Host]:
        """(step, state, host) of the last whole checkpoint, or 0 and what was given; all files are cut back to it."""
        if isinstance(state, TrainState):
            self._list_parameters(state.trainable)
        named = self.config.checkpoint.restore_step
        restored = self.checkpoints.restore(state, None if named < 0 else named)
        step = None if restored is None else restored[0]
        self._check_records(step)
        self.checkpoints.resume_from(step)
        self.writer.resume_from(step)
        if restored is None:
            if self.resumed:
                logging.warning("%s has no whole checkpoint yet: starting at step 0", self.path)
            self.writer.write_hparams(flatten(self.config))
            return 0, state, host
        if restored[0] > self.config.total_steps:
            raise UserError(
                f"{self.path} is at step {restored[0]} already and total_steps is {self.config.total_steps}; raise it,"
                " or name an earlier step with --config.checkpoint.restore_step"
            )
        self.say(f"resumed from step {restored[0]}")
        return restored

    def _list_parameters(self, trainable: PyTree) -> None:
        """`parameters.txt`: name, shape, type and size of every array that is trained; a line has the totals."""
        from clu import parameter_overview

        table = parameter_overview.get_parameter_overview(trainable, include_stats=False)
        if hosts.first():
            atomic_write(self.path / PARAMETERS, table + "\n")
        leaves = jax.tree.leaves(trainable)
        count, size = sum(x.size for x in leaves), sum(x.nbytes for x in leaves)
        self.say(f"{count:,} trained parameters in {len(leaves)} arrays, {size / 2**20:.1f} MiB: see {PARAMETERS}")

    def _check_records(self, step: int | None) -> None:
        """Says that records are lost before files are cut back to `step`, and loses none where checkpoints are.

        A step is logged before it is saved, so records beyond the first interval mean that there was a checkpoint.
        """
        if not hosts.first():
            return
        records = read_jsonl(self.path / METRICS)
        last = records[-1]["step"] if records else 0
        if step is None and last > self.config.checkpoint.every_steps:
            raise UserError(
                f"{self.path / METRICS} reaches step {last}, but {self.checkpoints.directory} has no whole checkpoint;"
                " put them back, or name another --workdir to start anew"
            )
        if step is not None and last + self.config.get("log_every_steps", 1) <= step:
            logging.warning(
                "%s ends at step %d and the run goes on from %d: what lies between is lost", METRICS, last, step
            )

    def steps(self, start: int, label: str) -> Iterator[int]:
        """Numbers of the steps still to do, with a progress line, until `total_steps` or a signal."""
        total = self.config.total_steps
        with self.progress(total, label, initial=start):
            for step in range(start + 1, total + 1):
                self._begin_step()
                yield step
                if self.stopped:
                    return

    @contextlib.contextmanager
    def progress(self, total: int, label: str, *, initial: int = 0) -> Iterator[None]:
        """A progress line for `total` pieces of work, which `show` counts."""
        with contextlib.ExitStack() as stack:
            file = None if hosts.first() else stack.enter_context(open(os.devnull, "w"))
            self._progress = stack.enter_context(Progress(total, label=label, initial=initial, file=file))
            try:
                yield
            finally:
                self._progress = None

    def show(self, numbers: Mapping[str, float], *, count: int = 1) -> None:
        """Count one step, or `count` pieces of other work, as done on the progress line, with a few numbers."""
        assert self._progress is not None
        self._progress.update(count, numbers)

    def say(self, text: str) -> None:
        """A line of its own, beside the progress line; of several processes the first speaks for all."""
        if not hosts.first():
            return
        if self._progress is None:
            print(text, flush=True)
        else:
            self._progress.say(text)

    def say_all(self, lines: Sequence[str]) -> None:
        """Lines of their own."""
        for line in lines:
            self.say(line)

    def phase(self, name: str) -> None:
        """The time since the last call (or the step's start) was spent on `name`."""
        now = time.monotonic()
        self._phases[name] = self._phases.get(name, 0.0) + now - self._phase_start
        self._phase_start = now

    def log(
        self, step: int, scalars: Mapping[str, Any], *, policy_tokens: int, perf: Mapping[str, float] | None = None
    ) -> None:
        """End the step's lines in metrics.jsonl and perf.jsonl, which also has what a job measured itself.

        Call before `checkpoint`: a kill then loses only what is computed again.
        """
        seconds = sum(self._phases.values())
        self.writer.write_scalars(step, scalars)
        perf = {f"seconds/{name}": value for name, value in self._phases.items()} | dict(perf or {})
        perf["tokens_per_s"] = policy_tokens / max(seconds, 1e-9)
        perf["memory/host_peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if stats := jax.local_devices()[0].memory_stats():
            perf["memory/device_peak_mib"] = stats.get("peak_bytes_in_use", 0) / 2**20
        self.writer.write_perf(step, perf)
        self.writer.flush()

    def checkpoint(
        self, step: int, state: PyTree, host: Host, *, score: float | None = None, lasting: bool = False
    ) -> None:
        """Save where the config's interval, a score, the last step, a signal or `lasting` says so.

        A `lasting` step is never dropped. With `keep_best` the step of the highest score is kept. After a signal the
        loop ends here.
        """
        last = step == self.config.total_steps
        asked = self._signal()  # read once: a signal from here on ends the next step
        if step % self.config.checkpoint.every_steps == 0 or last or asked or score is not None or lasting:
            self.checkpoints.save(step, state, host, score=score, lasting=lasting)
            self.workdir.note_wall()
        self.stopped = bool(asked) and not last
        if self.stopped:
            self.say(f"{asked}: ending after this step; step {step} is saved, the same command goes on")

    def _begin_step(self) -> None:
        self._phases = {}
        self._phase_start = time.monotonic()


class _NoWriter:
    """Takes every call of a MetricWriter and writes nothing: what processes beside the first one have."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None


def write_rollouts(writer: MetricWriter, step: int, records: Sequence[dict[str, Any]]) -> None:
    """Whole rollouts into trajectories.jsonl, and the first of them into TensorBoard as text and pictures."""
    from pixelis_jax.metrics.trajectories import as_text

    writer.write_trajectories(step, records)
    if records:
        first = records[0]
        writer.write_texts(step, {"rollout": as_text(first)})
        writer.write_images(step, {f"rollout/image_{i + 1}": image for i, image in enumerate(first["images"])})
