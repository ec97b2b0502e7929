import threading

import numpy as np
import pytest

from pixelis_jax.tools import cache, pool
from pixelis_jax.tools.base import Session, Tool, ToolError
from pixelis_jax.tools.pool import ToolPool
from pixelis_jax.types import Observation, ToolCall, UserError

WAIT_S = 60  # that a thread waits for another before the test fails
LIMIT_S = 2  # of calls that never end by themselves
IMAGE = np.zeros((8, 8, 3), np.uint8)
NUMBER = {"n": {"type": "integer"}}


def sessions(count):
    return [Session([IMAGE], [(8, 8)], fit_crop=lambda height, width: (8, 8)) for _ in range(count)]


def tool(run, name="TOOL"):
    return {name: Tool(name, "", NUMBER, (), run)}


def numbered(count, name="TOOL"):
    return [(session, ToolCall(name, {"n": n})) for n, session in enumerate(sessions(count))]


def pool_of(run, *, workers=4, time_limit_s=WAIT_S, **options):
    return ToolPool(tool(run), workers=workers, time_limit_s=time_limit_s, **options)


def test_observations_come_in_the_order_of_the_calls():
    """The first call ends last: it waits for the others."""
    done = [threading.Event() for _ in range(3)]

    def run(session, arguments):
        n = arguments["n"]
        if n == 0:
            assert done[1].wait(WAIT_S) and done[2].wait(WAIT_S)
        done[n].set()
        return Observation(str(n))

    assert [seen.text for seen in pool_of(run).run(numbered(3))] == ["0", "1", "2"]
    assert pool_of(run).run([]) == []


def test_as_many_calls_run_at_once_as_there_are_workers_and_no_more():
    """64 calls in 8 workers: each waits until 8 of them run, so fewer at a time would never end."""
    together = threading.Barrier(8)
    lock, running, most = threading.Lock(), [0], [0]

    def run(session, arguments):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait(WAIT_S)
        with lock:
            running[0] -= 1
        return Observation("done")

    seen = pool_of(run, workers=8).run(numbered(64))
    assert [s.text for s in seen] == ["done"] * 64 and most == [8]


def test_a_session_has_what_its_call_left():
    def run(session, arguments):
        session.memory = session.memory | {"n": arguments["n"]}
        return Observation("image", image=IMAGE[:4])

    calls = numbered(3)
    pool_of(run).run(calls)
    assert [(session.memory, len(session.frames)) for session, _ in calls] == [({"n": n}, 2) for n in range(3)]


def test_a_call_that_hangs_is_cut_and_stalls_no_other(caplog):
    """One worker; what the first call does after it was cut does not reach its session."""
    go, ended = threading.Event(), threading.Event()

    def run(session, arguments):
        if arguments["n"] == 0:
            assert go.wait(WAIT_S)
            session.memory["late"] = session.append(IMAGE)
            ended.set()
        return Observation(str(arguments["n"]))

    calls = numbered(4)
    own = pool_of(run, workers=1, time_limit_s=LIMIT_S)
    seen = own.run(calls)
    assert seen[0] == Observation("error: TOOL took longer than 2 s", ok=False)
    assert [s.text for s in seen[1:]] == ["1", "2", "3"]
    assert "TOOL took longer than 2 s and is left running: {'n': 0}" in caplog.text
    counts = own.counters()
    assert counts == {
        "tool/tool/calls": 4,
        "tool/tool/errors": 1,
        "tool/tool/time_outs": 1,
        "tool/nondeterministic": 1,
    }
    assert own.seconds()["tool/tool/seconds"] >= LIMIT_S
    go.set()
    assert ended.wait(WAIT_S)
    assert len(calls[0][0].frames) == 1 and calls[0][0].memory == {}
    assert [s.text for s in own.run(numbered(2)[1:])] == ["1"]  # and the pool goes on


def test_time_in_the_queue_does_not_count():
    """One worker, three calls of 0.4 limits each: the last one ends 1.2 limits after it was queued."""

    def run(session, arguments):
        threading.Event().wait(1.2)
        return Observation("done")

    own = pool_of(run, workers=1, time_limit_s=3)
    assert all(seen.ok for seen in own.run(numbered(3)))
    assert own.counters()["tool/nondeterministic"] == 0


def test_too_many_calls_that_hang_are_an_error(monkeypatch):
    monkeypatch.setattr(pool, "MAX_HANGING", 3)
    go = threading.Event()

    def run(session, arguments):
        go.wait(WAIT_S)
        return Observation("late")

    own = pool_of(run, workers=2, time_limit_s=0.05)
    try:
        assert not own.run(numbered(1))[0].ok
        with pytest.raises(UserError, match=r"^3 calls of tools hang, the last one of TOOL: .*tools\.time_limit_s"):
            own.run(numbered(5))
    finally:
        go.set()
    for thread in own._hanging:
        thread.join(WAIT_S)
    own.time_limit_s = WAIT_S
    assert own.run(numbered(1))[0].text == "late"  # those that ended count no more


def test_counters_are_of_the_calls_since_they_were_read():
    def run(session, arguments):
        if arguments["n"] == 1:
            raise ToolError("no")
        return Observation("yes")

    own = pool_of(run)
    own.run(numbered(3))
    own.run([(sessions(1)[0], ToolCall("FLY", {}))])
    assert own.counters() == {
        "tool/tool/calls": 3,
        "tool/tool/errors": 1,
        "tool/tool/time_outs": 0,
        "tool/unknown/calls": 1,
        "tool/unknown/errors": 1,
        "tool/unknown/time_outs": 0,
        "tool/nondeterministic": 0,
    }
    assert set(own.counters().values()) == {0}
    assert own.seconds().keys() == {"tool/tool/seconds"} and own.seconds() == {"tool/tool/seconds": 0}


def test_a_tool_that_raises_fails_alone():
    def run(session, arguments):
        return Observation(str(1 // arguments["n"]))

    assert [s.text for s in pool_of(run).run(numbered(3))] == ["error: TOOL failed", "1", "0"]


@pytest.mark.parametrize(
    "result",
    [
        None,
        "text",
        Observation(5),
        Observation(None),
        Observation("\ud800"),
        Observation("x", image=np.zeros((4, 4), np.uint8)),
        Observation("x", image=np.zeros((4, 4, 4), np.uint8)),
        Observation("x", image=np.zeros((4, 4, 3), np.float32)),
        Observation("x", target_image=0),
        SystemExit(0),
    ],
)
def test_what_a_dialogue_can_not_show_is_an_error(result):
    def run(session, arguments):
        if isinstance(result, BaseException):
            raise result
        return result if arguments["n"] == 1 else Observation("good")

    assert pool_of(run).run(numbered(2))[-1].text == "error: TOOL failed"


def test_an_empty_text_is_told_as_nothing():
    assert [o.text for o in pool_of(lambda session, arguments: Observation("")).run(numbered(1))] == ["nothing"]


def test_pictures_can_not_be_written_to():
    def run(session, arguments):
        session.frame(1).image[:] = 0
        return Observation("painted over")

    (session,) = sessions(1)
    before = session.frame(1).image.copy()
    assert [o.text for o in pool_of(run).run([(session, ToolCall("TOOL", {"n": 0}))])] == ["error: TOOL failed"]
    assert (session.frame(1).image == before).all()


def test_out_of_memory_ends_the_job_and_what_waits_is_not_begun():
    begun = []

    def run(session, arguments):
        begun.append(arguments["n"])
        if arguments["n"] == 1:
            raise MemoryError
        return Observation("done")

    calls = numbered(5)
    with pytest.raises(MemoryError):
        pool_of(run, workers=1).run(calls)
    assert begun == [0, 1]


def test_tools_can_be_off():
    own = pool_of(lambda *_: Observation("ran"), enabled=False)
    assert [s.text for s in own.run(numbered(2))] == ["error: tools are off"] * 2


def test_equal_images_in_several_sessions_are_computed_once():
    """All four wait for one result: the cache computes it once, whichever of them comes first."""
    computed, asked = [], threading.Barrier(4)

    def run(session, arguments):
        asked.wait(WAIT_S)
        key = ("test_pool", session.frame(1).digest)
        return Observation(cache.cached(key, lambda: computed.append(1) or "seen"))

    assert [s.text for s in pool_of(run).run(numbered(4))] == ["seen"] * 4
    assert len(computed) == 1


def test_two_calls_of_one_session_are_refused():
    (session,) = sessions(1)
    with pytest.raises(ValueError, match="two calls of one session"):
        pool_of(lambda *_: Observation("")).run([(session, ToolCall("TOOL", {}))] * 2)


@pytest.mark.parametrize(("workers", "limit"), [(0, 1), (1, 0), (1, float("nan")), (1, float("inf"))])
def test_a_pool_needs_a_worker_and_a_limit(workers, limit):
    with pytest.raises(ValueError, match="needs a worker"):
        ToolPool({}, workers=workers, time_limit_s=limit)
