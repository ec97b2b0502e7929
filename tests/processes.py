"""Processes that tests start: each has an end, however its test ends."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence

LIMIT_S = 1800  # of whatever a test waits for: a busy machine may take ten times as long as a quiet one


def start(command: Sequence[str], **options) -> subprocess.Popen:
    """A process with a group of its own, so that `kill` reaches what it starts too."""
    return subprocess.Popen(command, start_new_session=True, **options)


def kill(*processes: subprocess.Popen) -> None:
    """Kills those that are alive with all that they started, and waits for their end."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def started(command: Sequence[str], **options) -> Iterator[subprocess.Popen]:
    """A process that is killed when the block is left."""
    process = start(command, **options)
    try:
        yield process
    finally:
        kill(process)


def wait_until(process: subprocess.Popen, reached: Callable[[], bool], *, limit_s: float = LIMIT_S) -> None:
    """Returns as soon as `reached()`. Where the process ends before, or takes too long, kills it and fails."""
    end = time.monotonic() + limit_s
    while True:
        ended = process.poll() is not None  # asked first: it may reach its aim and end between two looks
        if reached():
            return
        if ended or time.monotonic() >= end:
            break
        time.sleep(0.02)
    kill(process)
    shown = process.stdout.read() if process.stdout else ""
    raise AssertionError(f"{'ended' if ended else f'not within {limit_s} s'}: {shown[-3000:]}")


def outputs_of(processes: Sequence[subprocess.Popen], limit_s: float = LIMIT_S) -> list[str]:
    """What processes that belong together print; none is left running."""
    try:
        return [process.communicate(timeout=limit_s)[0] for process in processes]
    finally:
        kill(*processes)
