"""Tests must end what they started: a process that goes on for ever, and one whose child does."""

import subprocess
import sys
import time

import pytest
from jobs import Jobs, wait_for_step
from processes import kill, outputs_of, start, started, wait_until

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
ENDLESS = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"]
# The child holds the pipe, too: reading to its end would wait for it.
PARENT = [sys.executable, "-c", f"import subprocess; subprocess.run({ENDLESS!r})"]


@pytest.mark.parametrize("command", [ENDLESS, PARENT], ids=["alone", "with a child"])
def test_a_live_process_that_does_not_get_there_is_killed_and_shown(command):
    begin = time.monotonic()
    process = start(command, **PIPES)
    with pytest.raises(AssertionError, match=r"not within 3 s"):
        wait_until(process, lambda: False, limit_s=3)
    assert process.returncode == -9 and time.monotonic() - begin < 300


def test_a_process_that_ends_before_is_shown():
    with started([sys.executable, "-c", "print('why')"], **PIPES) as process, pytest.raises(AssertionError) as error:
        wait_until(process, lambda: False)
    assert str(error.value) == "ended: why\n"


def test_what_is_reached_at_the_very_end_counts(tmp_path):
    """The process writes its file and ends: no look may fall between the two."""
    program = f"open({str(tmp_path / 'done')!r}, 'w').close()"
    with started([sys.executable, "-c", program]) as process:
        process.wait()
        wait_until(process, (tmp_path / "done").exists)


def test_a_block_that_fails_leaves_nothing_running():
    with pytest.raises(ZeroDivisionError), started(ENDLESS, **PIPES) as process:
        assert process.stdout.readline() == "here\n" and 1 / 0
    assert process.returncode == -9


def test_of_processes_that_belong_together_none_stays():
    first, second = (start(ENDLESS, **PIPES) for _ in range(2))
    with pytest.raises(subprocess.TimeoutExpired):
        outputs_of([first, second], 0.5)
    assert (first.returncode, second.returncode) == (-9, -9)
    kill(first)  # once more does no harm


def test_jobs_end_with_their_tests(tmp_path, monkeypatch):
    """The job here is an endless process: its log never has a step."""
    with Jobs("") as jobs:
        monkeypatch.setattr(jobs, "command", lambda *_, **__: ENDLESS)
        process, other = (jobs.start("configs/rft.py", tmp_path) for _ in range(2))
        with pytest.raises(AssertionError, match="not within 1 s"):
            wait_for_step(process, tmp_path, 1, limit_s=1)
        assert other.poll() is None
    assert other.returncode == -9
