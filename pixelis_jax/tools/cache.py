"""Results of tools, kept by what they were computed from, so that equal calls on equal images are computed once.

A group's dialogues start from the same image and often make the same call. A key names the work and everything that
the result depends on, such as `("ocr", backend, frame.digest, box)`; nothing of it may come from a clock or a session.
"""

import dataclasses
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Set
from typing import Any, TypeVar

import numpy as np

MAX_ENTRIES = 4096
MAX_BYTES = 256 << 20  # of numpy arrays; what else a value holds is small and bounded by the number of entries

T = TypeVar("T")
Key = tuple[Hashable, ...]


@dataclasses.dataclass(eq=False)
class _Flight:
    """One computation under way: who runs it, and what came of it once `done` is set."""

    owner: int
    done: threading.Event = dataclasses.field(default_factory=threading.Event)
    value: Any = None
    error: BaseException | None = None


class ResultCache:
    """A cache that drops what was used longest ago, bounded by entries and by the bytes of the arrays in its values.

    Threads that ask for one key at the same time compute it once; an error goes to all that wait for it and is not
    kept. Values are shared: their arrays are made read-only, and nobody may change anything else in them.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES):
        self.max_entries, self.max_bytes = max_entries, max_bytes
        self.restart()

    def restart(self) -> None:
        """Begins anew, counters too, without waiting for anything: for a process that was forked from another."""
        self._lock = threading.Lock()
        self._flights: dict[Key, _Flight] = {}
        self._entries: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._bytes = self._hits = self._misses = self._evictions = 0

    def cached(self, key: Key, compute: Callable[[], T]) -> T:
        """The value kept under `key`, or what `compute()` returns, which is then kept.

        A call that waits for another thread's result is a hit. A value of more than `max_bytes` is returned and not
        kept. Raises what `compute` raises, and RuntimeError where `compute` asks for the key it is computing.
        """
        with self._lock:
            if key in self._entries:
                self._hits += 1
                self._entries.move_to_end(key)
                value: T = self._entries[key][0]
                return value
            flight = self._flights.get(key)
            if flight is None:
                self._misses += 1
                mine = _Flight(threading.get_ident())
                self._flights[key] = mine
            elif flight.owner == threading.get_ident():
                raise RuntimeError(f"the result of {key[:1]} is asked for by its own computation")
            else:
                self._hits += 1
        if flight is None:
            return self._compute(key, compute, mine)
        flight.done.wait()
        if flight.error is not None:
            raise flight.error
        waited: T = flight.value
        return waited

    def stats(self) -> dict[str, int]:
        """Hits, misses and evictions since the last `clear`; entries kept and bytes of their arrays."""
        with self._lock:
            return {
                "hits": self._hits,
                "misses": self._misses,
                "evictions": self._evictions,
                "entries": len(self._entries),
                "bytes": self._bytes,
            }

    def clear(self) -> None:
        """Drops all values and counts. What is under way goes on for those that wait for it, and is not kept."""
        with self._lock:
            self._flights.clear()
            self._entries.clear()
            self._bytes = self._hits = self._misses = self._evictions = 0

    def _compute(self, key: Key, compute: Callable[[], T], flight: _Flight) -> T:
        try:
            value = compute()
            size = _freeze(value, set())
        except BaseException as error:  # an interrupt as well: nobody may wait for ever
            flight.error = error
            self._land(key, flight)
            raise
        flight.value = value
        self._land(key, flight, size)
        return value

    def _land(self, key: Key, flight: _Flight, size: int | None = None) -> None:
        """Ends a computation; with a `size` in bytes its value is kept as far as there is room."""
        with self._lock:
            current = self._flights.get(key) is flight  # else the cache was cleared meanwhile
            if current:
                del self._flights[key]
            if current and size is not None and size <= self.max_bytes:
                self._entries[key] = (flight.value, size)
                self._bytes += size
                while self._bytes > self.max_bytes or len(self._entries) > self.max_entries:
                    self._bytes -= self._entries.popitem(last=False)[1][1]
                    self._evictions += 1
        flight.done.set()


def _freeze(value: Any, known: set[int]) -> int:
    """Makes the arrays in a value read-only and returns their size in bytes, each array counted once."""
    if id(value) in known:
        return 0
    if isinstance(value, np.ndarray):
        known.add(id(value))
        value.flags.writeable = False
        return value.nbytes
    if isinstance(value, Mapping):
        parts: list[Any] = list(value.values())
    elif isinstance(value, tuple | list | Set):
        parts = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        return 0
    known.add(id(value))
    return sum(_freeze(part, known) for part in parts)


RESULTS = ResultCache()
os.register_at_fork(after_in_child=RESULTS.restart)  # a computation of the parent never ends in its child


def cached(key: Key, compute: Callable[[], T]) -> T:
    """`ResultCache.cached` of this process's one cache."""
    return RESULTS.cached(key, compute)
