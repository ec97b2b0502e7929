"""Shares by hand, and what each mode asks the sampler for."""

import dataclasses
import types

import numpy as np
import pytest
from one_tool import ZOOM

from pixelis_jax import evaluation
from pixelis_jax.data.prompts import Scenes
from pixelis_jax.evaluation import (
    FORCED_DIRECT,
    FORCED_ZOOM,
    MODES,
    Evaluator,
    Outcome,
    evaluate_modes,
    summarise,
    unanswered,
)
from pixelis_jax.rollout.engine import SamplingConfig
from pixelis_jax.rollout.sample import RolloutConfig
from pixelis_jax.types import Observation, Task, ToolCall, Trajectory, Turn

ROLLOUT = RolloutConfig(sampling=SamplingConfig(temperature=0.7), group_size=8, max_turns=3)
GOOD, BAD = Observation("Image 2"), Observation("error: the box is empty", ok=False)
CALL = ToolCall("ZOOM_IN", {"bbox_2d": [1, 2, 3, 4]})


def trajectory(task, *turns, status="answered"):
    empty = np.zeros(0)
    return Trajectory(task, 0, empty, empty, empty, empty, empty, empty, turns, (), empty, status)


def made_up(kind, answer, *, needs_look=True, looks=(), gold="7"):
    """What comes of a trajectory that looks (with these observations) and then answers; None: it never does."""
    task = Task("t", 0, kind, "?", (), gold, needs_look=needs_look, metadata={"kind": kind})
    turns = [Turn(text="", call=CALL, observation=seen) for seen in looks]
    if answer is None:
        return Outcome.of(trajectory(task, *turns, Turn(text="", error="cut"), status="truncated"))
    return Outcome.of(trajectory(task, *turns, Turn(text="", answer=answer)))


def test_shares_by_hand():
    result = summarise(
        [
            made_up("digit", "7", looks=[GOOD]),
            made_up("digit", "8", looks=[BAD, GOOD]),
            made_up("text", None),
            made_up("text", "7"),
            made_up("counting", "7", needs_look=False),
        ]
    )
    assert result.success == 0.5  # of the four that need a look
    assert result.rapr == 0.4
    assert result.by_kind == {"counting": (1.0, 1), "digit": (0.5, 2), "text": (0.5, 2)}
    assert result.valid_calls == 2 / 4  # three calls, two of them good, and one turn that is no call at all
    assert result.statuses == {"answered": 4, "truncated": 1}


def test_many_questions_without_an_answer_are_said_with_the_commonest_reason():
    """Three of four have none: one was cut, two wrote no tag."""
    task = Task("t", 0, "digit", "?", (), "7", needs_look=True)
    untagged = Outcome.of(trajectory(task, Turn(text="It is 7.", error="no tag"), status="over_turn"))
    cut = Outcome.of(trajectory(task, Turn(text="I th", error="turn was cut"), status="truncated"))
    found = unanswered([made_up("digit", "7"), cut, untagged, untagged])
    assert (found.share, found.reason, found.example) == (0.75, "no tag", "It is 7.")
    assert found.line() == "75% of the questions got no answer; the commonest reason: no tag, as in 'It is 7.'"
    assert unanswered([made_up("digit", "7")] * 3 + [cut]).line() == ""  # a quarter is not above a quarter
    looked = Outcome.of(trajectory(task, Turn(text="", call=CALL, observation=BAD), status="over_turn"))
    assert unanswered([looked]).reason == "the dialogue ended at sampling.max_turns or context_tokens"


def test_nothing_is_not_a_division_by_zero():
    result = summarise([made_up("counting", "7", needs_look=False)])
    assert (result.success, result.rapr, result.valid_calls) == (0.0, 0.0, 0.0)


class Asked:
    """Stands for the sampler: answers every question right, and notes what it was asked."""

    calls: list = []  # noqa: RUF012

    def __init__(self, policy, config, *, tools, engine):
        self.config, self.engine = config, engine

    def __call__(self, tasks, *, lora, seed, step):
        Asked.calls.append((self.config, self.engine, [task.task_id for task in tasks], lora, seed, step))
        return types.SimpleNamespace(trajectories=[trajectory(t, Turn(text="", answer=t.answer)) for t in tasks])


@pytest.fixture
def evaluator(small_policy, monkeypatch):
    monkeypatch.setattr(evaluation, "Sampler", Asked)
    monkeypatch.setattr(Asked, "calls", [])
    kinds = ("digit", "text", "counting", "attribute")
    return Evaluator(small_policy, Scenes(4, kinds, kinds, 5), ROLLOUT, seed=4, batch=2, tools=ZOOM)


def test_every_scene_counts_once_and_batches_have_one_shape(evaluator):
    shown = []
    result = evaluator("tools_on", lora="adapter", progress=shown.append)
    assert sum(count for _, count in result.by_kind.values()) == 5 and result.success == 1.0
    assert shown == [2, 2, 1]
    ids = [i for call in Asked.calls for i in call[2]]
    assert [len(call[2]) for call in Asked.calls] == [2, 2, 2] and len(set(ids)) == 6
    assert all("4/heldout/" in i for i in ids)
    assert {call[3:] for call in Asked.calls} == {("adapter", 4, 0)}


def test_modes_differ_in_what_they_say_and_in_nothing_else(evaluator):
    for mode in MODES:
        evaluator(mode, lora=None)
    asked = dict(zip(MODES, Asked.calls[::3], strict=True))
    plain = asked["tools_on"][0]
    assert plain == dataclasses.replace(ROLLOUT, group_size=1)
    assert asked["tools_off"][0] == dataclasses.replace(plain, tools_on=False)
    assert asked["forced_direct"][0] == dataclasses.replace(plain, prefix=FORCED_DIRECT)
    assert asked["forced_zoom"][0] == dataclasses.replace(plain, prefix=FORCED_ZOOM)
    greedy = dataclasses.replace(ROLLOUT.sampling, temperature=0.0)
    assert asked["greedy"][0] == dataclasses.replace(plain, sampling=greedy)
    assert len({tuple(call[2]) for call in asked.values()}) == 1  # the same questions
    engines = {mode: call[1] for mode, call in asked.items()}
    assert engines["tools_off"] is engines["tools_on"] and engines["greedy"] is not engines["tools_on"]


def test_modes_are_said_one_by_one(evaluator):
    said = []
    results = evaluate_modes(evaluator, ("tools_on", "greedy"), None, said.append, label="before")
    assert list(results) == ["tools_on", "greedy"] and len(said) == 2
    assert said[0].startswith("before, tools_on: success 1.000 where a look is needed, rapr 0.00 (")
