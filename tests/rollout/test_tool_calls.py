"""The sampler's tools run in a pool: in the order of the rows, bounded, and without waiting for one that hangs."""

import dataclasses
import threading

import numpy as np
from one_tool import ZOOM
from scripted import ANSWER, LOOK, SAMPLING

from pixelis_jax.models.rows import Row
from pixelis_jax.tools import zoom_in

FIRST = LOOK % (4, 8, 40, 50)
WAIT_S = 60


def patched(monkeypatch, run):
    monkeypatch.setitem(ZOOM, "ZOOM_IN", dataclasses.replace(zoom_in.TOOL, run=run))


def test_rows_get_the_result_of_their_own_call_whichever_ends_first(script, demo_tasks, demo, monkeypatch):
    """Row 0 waits until row 3 has its crop; the rows are those of a rollout in which nobody waits."""
    ended = threading.Event()

    def run(session, arguments):
        if np.shares_memory(session.frames[0].image, demo_tasks[0].images[0]) and len(session.frames) == 1:
            assert ended.wait(WAIT_S)
        observation = zoom_in.run(session, arguments)
        if np.shares_memory(session.frames[0].image, demo_tasks[3].images[0]):
            ended.set()
        return observation

    patched(monkeypatch, run)
    turns = [[turn.text for turn in trajectory.turns] for trajectory in demo.trajectories]
    rows = script(demo_tasks, turns, tool_workers=2).trajectories
    for got, wanted in zip(rows, demo.trajectories, strict=True):
        assert [turn.observation and turn.observation.text for turn in got.turns] == [
            turn.observation and turn.observation.text for turn in wanted.turns
        ]
        np.testing.assert_array_equal(got.tokens, wanted.tokens)
        for a, b in zip(got.images, wanted.images, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_call_that_hangs_costs_its_own_row_an_error_and_is_counted(script, demo_tasks, monkeypatch):
    go = threading.Event()

    def run(session, arguments):
        if np.shares_memory(session.frames[0].image, demo_tasks[0].images[0]) and len(session.frames) == 1:
            go.wait(WAIT_S)
        return zoom_in.run(session, arguments)

    patched(monkeypatch, run)
    turns = [[FIRST, ANSWER], [FIRST, ANSWER], [ANSWER], ["just text", ANSWER]]
    rows = script(demo_tasks, turns, tool_workers=1, tool_time_limit_s=2.0).trajectories
    counts = script.sampler.pool.counters()
    go.set()
    assert rows[0].turns[0].observation.text == "error: ZOOM_IN took longer than 2 s"
    assert rows[1].turns[0].observation.ok and [t.status for t in rows] == ["answered"] * 4
    assert [len(t.images) - len(t.task.images) for t in rows] == [0, 1, 0, 0]
    assert counts["tool/nondeterministic"] == counts["tool/zoom_in/time_outs"] == 1
    assert (counts["tool/zoom_in/calls"], counts["tool/zoom_in/errors"]) == (2, 1)


def test_no_tool_runs_for_a_row_that_can_not_see_its_result(script, demo_tasks, monkeypatch):
    """On the last turn a call is noted and answered with the limit; one that would hang takes no time, and none counts.

    Four rows of two turns: three first calls run, the three second ones do not.
    """
    ran = []

    def run(session, arguments):
        assert len(session.frames) == len(demo_tasks[3].images) or len(session.frames) == 1, "a second call ran"
        ran.append(arguments)
        return zoom_in.run(session, arguments)

    patched(monkeypatch, run)
    rows = script(demo_tasks, [[FIRST, FIRST], [FIRST, FIRST], [ANSWER], [FIRST, FIRST]]).trajectories
    counts = script.sampler.pool.counters()
    assert len(ran) == counts["tool/zoom_in/calls"] == 3 and counts["tool/zoom_in/errors"] == 0
    assert [t.status for t in rows] == ["over_turn", "over_turn", "answered", "over_turn"]
    for row in (rows[0], rows[1], rows[3]):
        first, second = row.turns
        assert first.observation.ok and second.call is not None
        assert (second.observation.ok, second.observation.text) == (False, "error: turn limit reached")
    only = script(demo_tasks, [[FIRST], [FIRST], [ANSWER], [FIRST]]).trajectories
    assert len(ran) == 3 and [t.status for t in only] == ["over_turn", "over_turn", "answered", "over_turn"]


def test_no_tool_runs_where_not_even_an_empty_result_fits(script, demo_tasks, demo, monkeypatch):
    """The context ends right behind the first call of row 0; at the last place at which an empty one fits, it runs."""
    ran = []
    patched(monkeypatch, lambda session, arguments: ran.append(1) or zoom_in.run(session, arguments))
    (ends,) = np.flatnonzero(np.diff(demo.trajectories[0].turn_of == 0, append=False))[1:2] + 1
    probe = Row()
    script.policy.processor.append_observation(probe, "", None)
    for room, runs in ((len(probe), 0), (len(probe) + 1, 1)):
        ran.clear()
        sampling = dataclasses.replace(SAMPLING, context_tokens=int(ends) + room)
        turns = [[FIRST, ANSWER], [ANSWER], [ANSWER], [ANSWER]]
        row = script(demo_tasks, turns, sampling=sampling).trajectories[0]
        assert row.status == "over_turn" and row.turns[0].observation.text == "error: context limit reached"
        assert len(ran) == runs and len(row.tokens) == ends
