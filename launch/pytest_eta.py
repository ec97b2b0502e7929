"""A pytest plugin for launch/test.sh: each tenth of the run says what is done and how long the rest may take."""

import time
from collections.abc import Iterator

import pytest


class Eta:
    """Counts finished tests and prints a line at each tenth of them, ten seconds apart at least."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.start = self.shown = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        before, self.done = self.done * 10 // self.total, self.done + 1
        now = time.monotonic()
        if self.done < self.total and self.done * 10 // self.total != before and now - self.shown > 10:
            self.shown, elapsed = now, now - self.start
            left = elapsed * (self.total - self.done) / self.done
            reporter = item.config.pluginmanager.get_plugin("terminalreporter")
            reporter.write_line("")
            reporter.write_line(f"[test] {self.done} of {self.total} tests, {elapsed:.0f} s, ETA {left:.0f} s")
        return result


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts counting when the tests are known."""
    if session.items:
        session.config.pluginmanager.register(Eta(len(session.items)))
