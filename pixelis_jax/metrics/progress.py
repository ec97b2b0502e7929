"""A progress line with an ETA: a live bar on a terminal, a plain line every few seconds elsewhere (logs, CI)."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO

from tqdm import tqdm


class Progress:
    """Counts from `initial` to `total`; the ETA counts only what this process does. A context manager.

    `update(n, numbers)` shows a few numbers behind the count. `say` prints a line without breaking the bar.
    """

    def __init__(
        self,
        total: int,
        *,
        label: str,
        initial: int = 0,
        interval_s: float = 10.0,
        file: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.label, self.initial, self.done = total, label, initial, initial
        self._file = sys.stderr if file is None else file
        self._clock, self._interval_s = clock, interval_s
        self._start = self._shown = clock()
        self._bar = None
        if self._file.isatty():
            self._bar = tqdm(
                total=total, initial=initial, desc=label, file=self._file, dynamic_ncols=True, smoothing=0.1
            )

    def update(self, n: int = 1, numbers: Mapping[str, float] | None = None) -> None:
        """`n` more are done."""
        self.done += n
        text = ", ".join(f"{name} {_number(value)}" for name, value in (numbers or {}).items())
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(n)
            return
        now = self._clock()
        first = self.done - n == self.initial  # says early that work goes on
        if first or self.done >= self.total or now - self._shown >= self._interval_s:
            self._shown = now
            self._print(f"{self.label}: {self.line()}{': ' + text if text else ''}")

    def line(self) -> str:
        """`12/40 (30 %), 24 s, ETA 56 s`."""
        elapsed = self._clock() - self._start
        made = self.done - self.initial
        left = "?" if made <= 0 else f"{elapsed * (self.total - self.done) / made:.0f} s"
        share = 100 * self.done // max(self.total, 1)
        return f"{self.done}/{self.total} ({share} %), {elapsed:.0f} s, ETA {left}"

    def say(self, text: str) -> None:
        """Prints `text` on a line of its own."""
        if self._bar is not None:
            self._bar.write(text, file=self._file)
        else:
            self._print(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _print(self, text: str) -> None:
        print(text, file=self._file, flush=True)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"  # NaN: nothing to measure
