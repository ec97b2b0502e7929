import dataclasses
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pixelis_jax.tools import cache
from pixelis_jax.tools.cache import ResultCache

WAIT_S = 60  # that a thread waits for another before the test fails


def test_an_equal_key_is_computed_once():
    found = ResultCache()
    calls = []
    for _ in range(3):
        assert found.cached(("double", 2), lambda: calls.append(1) or 4) == 4
    assert found.cached(("double", 3), lambda: 6) == 6
    assert len(calls) == 1
    assert found.stats() == {"hits": 2, "misses": 2, "evictions": 0, "entries": 2, "bytes": 0}


def test_none_is_a_result_like_any_other():
    found = ResultCache()
    assert found.cached(("none",), lambda: None) is None
    assert found.cached(("none",), lambda: 1) is None


def test_what_was_used_longest_ago_is_dropped():
    found = ResultCache(max_entries=2)
    for key in ("a", "b", "a", "c"):  # b was used before a's second use
        found.cached((key,), lambda key=key: key)
    assert found.stats()["evictions"] == 1
    assert found.cached(("a",), lambda: "new") == "a"
    assert found.cached(("b",), lambda: "new") == "new"


@dataclasses.dataclass(frozen=True)
class Segment:
    mask: np.ndarray
    parts: tuple = ()


def test_bytes_of_arrays_inside_values_are_bounded():
    """Values of 400, 100 + 100 + 200, 300 bytes, where 900 fit: the first goes. The same array counts once."""
    found = ResultCache(max_bytes=900)
    array = np.zeros(100, np.uint8)
    found.cached(("a",), lambda: np.zeros(100, np.float32))
    found.cached(("b",), lambda: Segment(np.zeros(100, bool), ({"x": [array, array]}, np.zeros(25, np.int64), "text")))
    assert found.stats()["bytes"] == 800
    found.cached(("c",), lambda: (np.zeros(300, np.uint8),))
    assert found.stats() | {"misses": 3} == {"hits": 0, "misses": 3, "evictions": 1, "entries": 2, "bytes": 700}


def test_a_value_larger_than_the_cache_is_returned_and_not_kept():
    found = ResultCache(max_bytes=99)
    found.cached(("small",), lambda: np.zeros(50, np.uint8))
    assert found.cached(("large",), lambda: np.zeros(100, np.uint8)).shape == (100,)
    assert found.stats()["entries"] == 1 and found.stats()["evictions"] == 0


def test_arrays_are_read_only():
    found = ResultCache()
    value = found.cached(("s",), lambda: Segment(np.zeros(3), (np.zeros(2),)))
    for array in (value.mask, *value.parts):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def waiting(found, count, compute):
    """Futures of `count` threads that ask for one key while the first computes it; the event that lets it end."""
    begun, go = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert go.wait(WAIT_S)
        return compute()

    def never():
        raise AssertionError("computed twice")

    pool = ThreadPoolExecutor(count)
    first = pool.submit(found.cached, ("slow",), slow)
    assert begun.wait(WAIT_S)
    rest = [pool.submit(found.cached, ("slow",), never) for _ in range(count - 1)]
    while found.stats()["hits"] < count - 1:  # all of them wait now
        threading.Event().wait(0.001)
    return [first, *rest], go


def test_threads_that_ask_at_the_same_time_compute_once():
    found = ResultCache()
    futures, go = waiting(found, 5, lambda: np.arange(3))
    # Another key is not held up.
    assert found.cached(("other",), lambda: 1) == 1
    go.set()
    values = [future.result(WAIT_S) for future in futures]
    assert all(value is values[0] for value in values)
    assert found.stats() | {"bytes": 24} == {"hits": 4, "misses": 2, "evictions": 0, "entries": 2, "bytes": 24}


def test_an_error_goes_to_all_that_wait_and_is_not_kept():
    found = ResultCache()
    futures, go = waiting(found, 3, lambda: 1 // 0)
    go.set()
    for future in futures:
        with pytest.raises(ZeroDivisionError):
            future.result(WAIT_S)
    assert found.stats()["entries"] == 0
    assert found.cached(("slow",), lambda: 5) == 5


def test_a_result_that_ends_after_a_clear_is_not_kept():
    found = ResultCache()
    futures, go = waiting(found, 2, lambda: 7)
    found.clear()
    go.set()
    assert [future.result(WAIT_S) for future in futures] == [7, 7]
    assert found.stats() == {"hits": 0, "misses": 0, "evictions": 0, "entries": 0, "bytes": 0}


def test_a_result_that_needs_itself_is_an_error_and_no_deadlock():
    found = ResultCache()
    with pytest.raises(RuntimeError, match="by its own computation"):
        found.cached(("a",), lambda: found.cached(("a",), lambda: 1))
    assert found.cached(("a",), lambda: found.cached(("b",), lambda: 1) + 1) == 2


def _in_child(queue):
    queue.put((cache.RESULTS.stats()["entries"], cache.cached(("under way",), lambda: "child")))


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_has_a_cache_of_its_own():
    """Also while a thread of the parent computes, whose result would never come in the child."""
    cache.cached(("mine",), lambda: 1)
    begun, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=cache.cached, args=(("under way",), lambda: begun.set() or go.wait(WAIT_S)))
    thread.start()
    assert begun.wait(WAIT_S)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=WAIT_S) == (0, "child")
    finally:
        go.set()
        child.join(WAIT_S)
        thread.join(WAIT_S)
    assert cache.RESULTS.stats()["entries"] >= 1
