"""A pytest plugin for launch/test.sh: the slowest files start first, and lines say how long the rest may take.

With pytest-xdist (`-n auto`) two processes share the files, one file never being split; without it, all works the same.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator

import pytest

# Seconds that files take, where it is more than a few: two processes end together if these start first.
FILE_S = {
    "tests/test_hosts.py": 260,
    "tests/test_rft_job.py": 180,
    "tests/test_offline_jobs.py": 170,
    "tests/test_train_step.py": 150,
    "tests/test_plan.py": 95,
    "tests/test_parallel.py": 90,
    "tests/test_rft_options.py": 75,
    "tests/models/test_peft.py": 60,
    "tests/test_own_questions.py": 55,
    "tests/test_sft_job.py": 50,
    "tests/cota/test_generate.py": 50,
    "tests/rollout/test_vision_adapter.py": 50,
    "tests/models/test_qwen3_vl_parity.py": 40,
    "tests/test_predict.py": 25,
    "tests/data/test_cota_batches.py": 25,
    "tests/test_export.py": 20,
    "tests/models/test_quantized.py": 20,
    "tests/test_dropout.py": 20,
    "tests/models/test_text_parity.py": 15,
    "tests/tools/test_segmentation.py": 15,
    "tests/rollout/test_text_only.py": 15,
    "tests/models/test_published_shapes.py": 15,
    "tests/rollout/test_deepstack.py": 12,
    "tests/models/test_video_parity.py": 12,
}
OTHER_S = 2.0  # any other file
EVERY_S = 15.0  # between two lines
WORKERS = 2  # more would not fit a small machine's memory


def file_of(test: str) -> str:
    """The file in a test's id."""
    return test.partition("::")[0]


class Eta:
    """Adds up the expected seconds of finished tests: each has an equal share of its file's."""

    def __init__(self, config: pytest.Config, tests: Iterable[str]) -> None:
        self.config, self.tests = config, list(tests)
        counts: dict[str, int] = {}
        for test in self.tests:
            counts[file_of(test)] = counts.get(file_of(test), 0) + 1
        self.share_s = {file: FILE_S.get(file, OTHER_S) / count for file, count in counts.items()}
        self.total_s = sum(self.share_s[file_of(test)] for test in self.tests)
        self.done, self.done_s = 0, 0.0
        self.start = self.shown = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Called for each finished test, also for those of other processes."""
        self.done += 1
        self.done_s += self.share_s.get(file_of(nodeid), 0.0)
        now = time.monotonic()
        if self.done < len(self.tests) and now - self.shown >= EVERY_S:
            self.shown, elapsed = now, now - self.start
            left = elapsed * (self.total_s - self.done_s) / self.done_s
            reporter = self.config.pluginmanager.get_plugin("terminalreporter")
            reporter.write_line("")
            reporter.write_line(
                f"[test] {self.done} of {len(self.tests)} tests, {elapsed:.0f} s, ETA about {left:.0f} s"
            )


def start(config: pytest.Config, tests: list[str]) -> None:
    """Starts counting, once, where the terminal is."""
    manager = config.pluginmanager
    if tests and not hasattr(config, "workerinput") and not manager.has_plugin("eta"):
        manager.register(Eta(config, tests), "eta")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files first, the rest as it stands."""
    items.sort(key=lambda item: -FILE_S.get(file_of(item.nodeid), 0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """After the last test of a file, what was compiled for it is dropped: it would grow to 4 GB a process."""
    yield
    if "jax" in sys.modules and (nextitem is None or file_of(nextitem.nodeid) != file_of(item.nodeid)):
        sys.modules["jax"].clear_caches()


def pytest_collection_finish(session: pytest.Session) -> None:
    """One process: its tests are known."""
    start(session.config, [item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node, ids: list[str]) -> None:
    """Several processes, each of which collects all tests."""
    start(node.config, ids)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` stands for; 0 is this process alone."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, WORKERS) if cores > 1 else 0
