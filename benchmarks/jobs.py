"""Jobs of `pixelis_jax.main` in processes of their own, which end with the benchmark that started them."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from pixelis_jax import as_trained, limits
from pixelis_jax import config as configs
from pixelis_jax.types import UserError


def checked_config(config: str, overrides: Sequence[str]) -> ConfigDict:
    """The config of a job. Raises UserError where it does not run, or where an argument is none of a config."""
    checked, rest = configs.from_argv([f"--config={config}", *overrides])
    checked = as_trained.resolve(checked).config
    limits.check(checked)
    if rest:
        raise UserError(f"{rest[0]} is unknown; fields of the config are written --config.FIELD=VALUE")
    return checked


@contextlib.contextmanager
def started(
    config: str, workdir: Path, overrides: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A job that begins, or goes on, in `workdir`; its output is added to `log_of(workdir)`.

    `environment` is set for it beside what this process has.

    Leaving the block with the job still running asks it to end (SIGTERM: it keeps a checkpoint), and waits.
    """
    command = [sys.executable, "-m", "pixelis_jax.main", f"--config={config}", f"--workdir={workdir}", *overrides]
    with log_of(workdir).open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def log_of(workdir: Path) -> Path:
    """What all starts on a workdir print."""
    return workdir.parent / f"{workdir.name}.log"


def last_line(log: Path) -> str:
    """Of a log, at most 300 characters of it."""
    return " ".join(log.read_text(errors="replace").strip().splitlines()[-1:])[:300]


def end_on_sigterm() -> None:
    """SIGTERM unwinds the main thread like Ctrl-C does, so that jobs end too. Call it in the main thread."""

    def end(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
