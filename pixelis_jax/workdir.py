"""A run's folder: one process at a time, what is needed to do the run again, and whether it is finished."""

import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import jax
from absl import logging
from ml_collections import ConfigDict

from pixelis_jax import hosts
from pixelis_jax.checkpoints import MANIFEST
from pixelis_jax.config import Change, diff, flatten, open_fields, replaced, to_json
from pixelis_jax.metrics.files import atomic_write, check_steps
from pixelis_jax.metrics.writer import METRICS, PERF, TRAJECTORIES
from pixelis_jax.types import UserError

RUN = "run.json"
RUN_VERSION = 1
FINISHED = "finished.json"
WALL = "wall.json"
# Fields of run.json, and of what kind they are.
RUN_FIELDS = {"config": dict, "seed": int, "versions": dict, "devices": dict, "hashes": dict}
_OTHERWISE = "restore it, or choose another --workdir"
LONGEST_S = 1e10  # a longer wall time is none

# Fields that a resumed run may change, with the reason; a group stands for its fields. `_bound` has the exceptions.
FREE_FIELDS = {
    "checkpoint": "when a run is saved, and from where it goes on: the steps are the same",
    "data.workers": "batches are a function of the seed and the step, whoever makes them",
    "tools.workers": "a call's result depends on nothing but the call",
    "tools.time_limit_s": "where tools run in the evaluation at the end only",
    "eval": "where that is the evaluation at the end only",
    "log_every_steps": "which steps have a line",
    "logging": "which dialogues are kept",
    "total_steps": "where nothing before the end depends on it",
}
# Fields that change a step by rounding only: a resumed run may change them, and it is said.
ROUNDING_FIELDS = {
    "mesh": "sums are taken in another order; sft keeps the number of rows a batch, see cota_batches",
    "optimizer.micro_batches": "likewise",
    "eval.batch": "likewise",
}

PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "chex", "grain", "numpy", "pillow", "tokenizers",
    "transformers",
)  # fmt: skip
PIXELS = "pictures may be resized to other pixels, so the resumed run may differ from here on"


class Workdir:
    """A locked workdir; a context manager. The lock goes with the process, however it ends.

    Raises UserError where another process holds it. Of several processes of a job the first one locks, looks and
    writes; the others wait for what it found.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: IO[str] | None = None
        self._start = time.monotonic()
        self._earlier_s = 0.0

    def __enter__(self) -> "Workdir":
        self.path.mkdir(parents=True, exist_ok=True)
        if not hosts.first():
            return self
        self._acquire()
        try:
            self._earlier_s = _earlier_s(self.path / WALL)
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self.note_wall()
            self._unlock()

    def begin(self, config: ConfigDict, *, seed: int, hashes: Mapping[str, str]) -> bool:
        """Writes `run.json`, or compares with the one there; True for a resumed run.

        `hashes` name what the run reads besides the config (base model, data). Raises UserError with the changed fields
        where the config, the seed or a hash differs, unless no step was done yet (a start that was refused leaves
        `run.json` too); other package versions or devices are said in the log.
        """
        resumed = self._begin(config, seed=seed, hashes=hashes) if hosts.first() else False
        return bool(hosts.largest(resumed)[0])

    def _begin(self, config: ConfigDict, *, seed: int, hashes: Mapping[str, str]) -> bool:
        path = self.path / RUN
        run = describe(config, seed=seed, hashes=hashes)
        resumed = path.exists() and self._fits(read_run(path), run)
        if not path.exists():
            self._refuse_foreign_files()
        for name in (METRICS, PERF, TRAJECTORIES):  # before any of them, or a checkpoint, is cut back
            check_steps(self.path / name)
        (self.path / FINISHED).unlink(missing_ok=True)  # it goes on: what it has now is its last checkpoint
        atomic_write(path, json.dumps(run, indent=1) + "\n")
        return resumed

    def _fits(self, old: Mapping[str, Any], run: Mapping[str, Any]) -> bool:
        """Whether `run` goes on with the one that is here; False where that one never did a step and is another."""
        try:
            self._refuse(old, run)
        except UserError as error:
            if self._has_steps():
                raise
            logging.warning("%s; no step of it was done, so this one starts in its place", error)
            return False
        for change in diff(old["config"], run["config"]):
            if may_change(change.field, run["config"]) == "rounding":
                logging.warning("%s: %s; the resumed run may differ in the last bits", self.path, change)
        for name in ("versions", "devices"):
            for change in diff(old[name], run[name]):
                effect = PIXELS if change.field == "pillow" else "the resumed run may differ in the last bits"
                logging.warning("%s: %s.%s; %s", self.path, name, change, effect)
        return True

    def _has_steps(self) -> bool:
        """Whether anything that was trained or measured is here, whole or not."""
        metrics, folders = self.path / METRICS, ("checkpoints", "checkpoints_set_aside")
        logged = metrics.exists() and metrics.stat().st_size > 0
        saved = any(next((self.path / name).glob(f"*/{MANIFEST}"), None) for name in folders)
        return logged or saved or (self.path / FINISHED).exists()

    def finished(self, config: ConfigDict) -> bool:
        """Whether this run has ended here. Raises UserError where the run here is one of another config.

        Fields that the config leaves open are as the run had them: what it started from may be gone.
        """
        path, run = self.path / FINISHED, self.path / RUN
        if not (path.exists() and run.exists()):
            return False
        theirs = read_run(run)["config"]
        known = flatten(theirs)
        own = {field: known[field] for field in open_fields(config) if field in known}
        self._refuse({"config": theirs}, {"config": to_json(replaced(config, own))})
        steps = _read(path).get("total_steps")
        if type(steps) is not int:
            raise UserError(f"{path} is damaged (total_steps is {steps!r:.40}); remove it, and the job ends once more")
        return bool(steps == config.total_steps)

    def ended_before(self, source: Path) -> bool:
        """Whether files of what a finished run read (a run, an adapter, a data folder) were written after its end."""
        end, patterns = (self.path / FINISHED).stat().st_mtime, ("*.json*", "*.safetensors", "*/*.safetensors")
        files = [source] if source.is_file() else [file for name in patterns for file in source.glob(name)]
        return any(file.stat().st_mtime > end for file in [*files, *source.glob(f"checkpoints/*/{MANIFEST}")])

    def mark_finished(self, total_steps: int) -> None:
        """Written last, after the summary."""
        if hosts.first():
            atomic_write(self.path / FINISHED, json.dumps({"total_steps": total_steps}) + "\n")

    def wall_s(self) -> float:
        """Wall-clock seconds of this attempt and of all before it, as far as they were noted."""
        return self._earlier_s + time.monotonic() - self._start

    def note_wall(self) -> None:
        """Keeps `wall_s` for the next attempt; call it with each checkpoint."""
        if hosts.first():
            atomic_write(self.path / WALL, json.dumps({"wall_s": self.wall_s()}) + "\n")

    def _refuse(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """UserError, with the fields, where two runs (or the parts of them that are given) can't be one."""
        changes = [c for c in diff(old["config"], new["config"]) if not may_change(c.field, new["config"])]
        known = flatten(old["config"])
        if changes and not any(c.field in known for c in changes):
            raise UserError(
                f"{self.path} holds a run of an earlier version, whose config has no"
                f" {', '.join(c.field for c in changes)}; go on with that version, or start anew in another --workdir"
            )
        rest = [{name: run[name] for name in ("seed", "hashes") if name in run} for run in (old, new)]
        changes += map(_short, diff(*rest))
        if changes:
            told = "; ".join(dict.fromkeys(map(str, changes)))  # the seed stands in both
            raise UserError(
                f"{self.path} holds a run with another config ({told}); restore them to resume,"
                " or choose another --workdir"
            )

    def _refuse_foreign_files(self) -> None:
        """UserError where the folder holds what no run of ours left: a new run would cut such files back."""
        ours = {"lock", WALL}
        if self.path.is_dir():
            found = sorted(
                p.name for p in self.path.iterdir() if p.name not in ours and not p.name.startswith(f".{RUN}")
            )
            if found:
                raise UserError(f"{self.path} has no {RUN} but holds {found[0]}; name an empty or new --workdir")

    def in_use(self) -> str:
        """Who holds it, as "process 7 on host"; "" where nobody does."""
        try:
            with (self.path / "lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return (self.path / "lock").read_text(errors="replace").strip() or "another process"
        except OSError:  # no lock, so no run
            return ""
        return ""

    def _acquire(self) -> None:
        lock = self.path / "lock"
        if lock.exists() and not lock.is_file():
            raise UserError(f"{lock} is no regular file; remove it or name another --workdir")
        file = lock.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise UserError(f"{self.path} is in use by {holder}; stop it or name another --workdir") from error
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._lock = file

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def read_run(path: Path) -> dict[str, Any]:
    """The content of a `run.json`. Raises UserError where it is of another version, or not what `describe` gives."""
    run = _read(path)
    version = run.get("version")
    if version != RUN_VERSION:
        raise UserError(f"{path} has version {version!r:.40}, this program reads {RUN_VERSION}; {_OTHERWISE}")
    for name, kind in RUN_FIELDS.items():
        if type(run.get(name)) is not kind:
            raise UserError(f"{path} is damaged ({name} is {run.get(name)!r:.40}); {_OTHERWISE}")
    return run


def describe(config: ConfigDict, *, seed: int, hashes: Mapping[str, str]) -> dict[str, Any]:
    """What `run.json` holds: config, seed, versions, commit, devices, hashes."""
    devices = jax.devices()
    return {
        "version": RUN_VERSION,
        "config": to_json(config),
        "seed": seed,
        "versions": {"python": platform.python_version(), "pixelis_jax": _version("pixelis-jax")}
        | {name: _version(name) for name in PACKAGES},
        "commit": commit(),
        "devices": {"kind": devices[0].device_kind, "count": len(devices), "processes": jax.process_count()},
        "hashes": dict(hashes),
    }


def commit() -> str | None:
    """The commit of the source tree that this package runs from, `+changes` where files differ; None outside git."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # installed into somebody else's repository
    head = git("rev-parse", "HEAD")
    return f"{head}+changes" if head and git("status", "--porcelain", "--untracked-files=no") else head


def _short(change: Change) -> Change:
    """Of a hash as much as one can tell apart at a glance."""
    if not change.field.startswith("hashes."):
        return change
    return dataclasses.replace(change, old=change.old and str(change.old)[:12], new=change.new and str(change.new)[:12])


def _bound(config: Mapping[str, Any]) -> set[str]:
    """Fields and groups of the two tables that decide a result under this config (`to_json`)."""
    job, optimizer, found = config.get("job"), config.get("optimizer", {}), set()
    if job in ("rft", "sft", "eval"):
        found.add("tools.time_limit_s")  # a call that is cut gives another dialogue, which is trained on or counted
    if job == "eval":
        found.add("eval")  # the job itself
    if job == "sft":  # its accuracy moves the curriculum and picks the best adapter
        found |= {f"eval.{name}" for name in config.get("eval", {}) if name != "batch"}
    if job == "sft" or optimizer.get("schedule") == "cosine":
        found.add("total_steps")  # sft evaluates at the last step and averages the last ones; a rate that depends on it
    if config.get("algorithm", {}).get("aggregation") == "bnpo":
        found.add("optimizer.micro_batches")  # it takes the mean of each part
    if job == "pretrain" and config.get("cota", {}).get("samples"):
        found.add("mesh")  # its batches of dialogues are made to divide by the devices
    return found


def may_change(field: str, config: Mapping[str, Any]) -> str:
    """Whether a run with this config (`to_json`) may be resumed with another value: free, rounding, or "" for no."""
    if _is_in(field, _bound(config)):
        return ""
    return "rounding" if _is_in(field, ROUNDING_FIELDS) else "free" if _is_in(field, FREE_FIELDS) else ""


def _is_in(field: str, names: Iterable[str]) -> bool:
    return any(field == name or field.startswith(name + ".") for name in names)


def _earlier_s(path: Path) -> float:
    """Seconds that earlier attempts noted; 0 where there was none."""
    if not path.exists():
        return 0.0
    seconds = _read(path).get("wall_s")
    if not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_S:  # NaN is in no interval
        raise UserError(f"{path} is damaged (wall_s is {seconds!r:.40}); remove it, and the time counts from 0")
    return float(seconds)


def _read(path: Path) -> dict[str, Any]:
    """The JSON object of a file. Raises UserError where it is none."""
    if not path.is_file():  # reading a pipe would wait for ever
        raise UserError(f"{path} is no regular file; {_OTHERWISE}")
    try:
        data = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}); {_OTHERWISE}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is damaged (not a JSON object); {_OTHERWISE}")
    return data


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
