"""The sampler's tools run in a pool: in the order of the rows, bounded, and without waiting for one that hangs."""

import dataclasses
import threading

import numpy as np
from one_tool import ZOOM
from scripted import ANSWER, LOOK

from pixelis_jax.tools import zoom_in

FIRST = LOOK % (4, 8, 40, 50)
WAIT_S = 60


def patched(monkeypatch, run):
    monkeypatch.setitem(ZOOM, "ZOOM_IN", dataclasses.replace(zoom_in.TOOL, run=run))


def test_rows_get_the_result_of_their_own_call_whichever_ends_first(script, demo_tasks, demo, monkeypatch):
    """Row 0 waits until row 3 has its crop; the rows are those of a rollout in which nobody waits."""
    ended = threading.Event()

    def run(session, arguments):
        if session.frames[0].image is demo_tasks[0].images[0] and len(session.frames) == 1:
            assert ended.wait(WAIT_S)
        observation = zoom_in.run(session, arguments)
        if session.frames[0].image is demo_tasks[3].images[0]:
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
        if session.frames[0].image is demo_tasks[0].images[0] and len(session.frames) == 1:
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
