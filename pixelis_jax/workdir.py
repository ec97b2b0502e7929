"""A run's folder: one process at a time, what is needed to do the run again, and whether it is finished."""

import fcntl
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import jax
from absl import logging
from ml_collections import ConfigDict

from pixelis_jax.config import diff, to_json
from pixelis_jax.metrics.files import atomic_write
from pixelis_jax.types import UserError

RUN = "run.json"
RUN_VERSION = 1
FINISHED = "finished.json"
WALL = "wall.json"

# Fields that can't change what a step computes, so that a resumed run may change them; a group stands for its fields.
FREE_FIELDS = ("checkpoint", "data.workers", "log_every_steps", "logging", "monitor", "total_steps")

PACKAGES = (
    "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "chex", "grain", "numpy", "pillow", "tokenizers",
    "transformers",
)  # fmt: skip


class Workdir:
    """A locked workdir; a context manager. The lock goes with the process, however it ends.

    Raises UserError where another process holds it. In a multi-host job only process 0 locks and writes.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: IO[str] | None = None
        self._start = time.monotonic()
        self._earlier_s = 0.0

    def __enter__(self) -> "Workdir":
        self.path.mkdir(parents=True, exist_ok=True)
        if jax.process_index() == 0:
            self._acquire()
        if (self.path / WALL).exists():
            self._earlier_s = float(_read(self.path / WALL)["wall_s"])
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self.note_wall()
            self._lock.close()
            self._lock = None

    def begin(self, config: ConfigDict, *, seed: int, hashes: Mapping[str, str]) -> bool:
        """Writes `run.json`, or compares with the one there; True for a resumed run.

        `hashes` name what the run reads besides the config (base model, data). Raises UserError with the changed fields
        where the config, the seed or a hash differs; other package versions or devices are said in the log.
        """
        path = self.path / RUN
        run = describe(config, seed=seed, hashes=hashes)
        resumed = path.exists()
        if resumed:
            old = _read(path)
            _refuse_changes(old, run, self.path)
            for name in ("versions", "devices"):
                for change in diff(old[name], run[name]):
                    logging.warning("%s: %s; the resumed run may differ in the last bits", self.path, change)
        if jax.process_index() == 0:
            atomic_write(path, json.dumps(run, indent=1) + "\n")
        return resumed

    def finished(self, total_steps: int) -> bool:
        """Whether a run of this many steps has ended here."""
        path = self.path / FINISHED
        return path.exists() and _read(path)["total_steps"] == total_steps

    def mark_finished(self, total_steps: int) -> None:
        """Written last, after the summary."""
        atomic_write(self.path / FINISHED, json.dumps({"total_steps": total_steps}) + "\n")

    def wall_s(self) -> float:
        """Wall-clock seconds of this attempt and of all before it, as far as they were noted."""
        return self._earlier_s + time.monotonic() - self._start

    def note_wall(self) -> None:
        """Keeps `wall_s` for the next attempt; call it with each checkpoint."""
        atomic_write(self.path / WALL, json.dumps({"wall_s": self.wall_s()}) + "\n")

    def _acquire(self) -> None:
        file = (self.path / "lock").open("a+")
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


def _refuse_changes(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> None:
    changes = [c for c in diff(old["config"], new["config"]) if not _is_free(c.field)]
    changes += diff({"seed": old["seed"], "hashes": old["hashes"]}, {"seed": new["seed"], "hashes": new["hashes"]})
    if changes:
        told = "; ".join(map(str, changes))
        raise UserError(
            f"{path} holds a run with another config ({told}); restore them to resume, or choose another --workdir"
        )


def _is_free(field: str) -> bool:
    return any(field == name or field.startswith(name + ".") for name in FREE_FIELDS)


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); restore it, or choose another --workdir") from error
    return data


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
