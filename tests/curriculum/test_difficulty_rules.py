"""The curriculum of difficulty mixes (spec/data.md, section 5), driven by made-up accuracies."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis_jax import curriculum as c
from pixelis_jax.curriculum.presets import CATEGORIES, DifficultyRules, accuracy_in, accuracy_on
from pixelis_jax.types import UserError

MIXES = ((1, 0, 0), (0.7, 0.3, 0), (0.4, 0.4, 0.2), (0.2, 0.4, 0.4), (0.2, 0.3, 0.5))
STAGES = tuple({"name": f"stage{i}", "mix": dict(zip(CATEGORIES, mix, strict=True))} for i, mix in enumerate(MIXES, 1))
RULES = DifficultyRules()  # evaluations every 100 steps, 500 between changes


def measured(simple, medium, hard):
    """The metrics of an evaluation with these accuracies in the three categories."""
    skill = dict(zip(CATEGORIES, (simple, medium, hard), strict=True))
    on = {accuracy_on(s["name"]): sum(s["mix"][k] * skill[k] for k in CATEGORIES) for s in STAGES}
    return on | {accuracy_in(k): v for k, v in skill.items()}


def drive(skills, *, state=None, first=1, rules=RULES, stages=STAGES):
    """State after an evaluation every 100 steps with these skills."""
    table = c.difficulty_curriculum(stages, rules)
    state = c.init(table) if state is None else state
    for number, skill in enumerate(skills, first):
        state = c.update(table, state, measured(*skill), 100 * number)
    return state


def test_a_stage_advances_after_the_interval_and_two_good_windows():
    """Windows of three evaluations from 300 on, two in a row from 400 on, and no change before step 500."""
    good = [(0.9, 0.5, 0.2)] * 5
    assert drive(good[:4]).stage == 0
    state = drive(good)
    change = state.transitions[0]
    assert (state.stage, change.step, change.cause, change.duration) == (1, 500, "threshold", 500)
    assert dict(change.metrics) == {accuracy_on("stage1"): 0.9}
    assert dict(change.record) == {accuracy_in(k): v for k, v in zip(CATEGORIES, good[0], strict=True)}


def test_one_bad_window_starts_the_count_anew():
    """Window means .65, .65, .59, .65, .65 with a window of one: good twice only at the fifth, and the wait is over."""
    rules = DifficultyRules(performance_window=1, advancement_interval=200)
    skills = [(0.65, 0, 0), (0.59, 0, 0), (0.65, 0, 0), (0.65, 0, 0)]
    assert drive(skills[:3], rules=rules).stage == 0
    assert drive(skills, rules=rules).transitions[0].step == 400


def test_max_steps_advance_without_skill_and_wait_for_the_interval():
    stages = ({**STAGES[0], "max_steps": 300}, STAGES[1])
    state = drive([(0.1, 0, 0)] * 5, stages=stages)
    assert [(t.step, t.cause) for t in state.transitions] == [(500, "max_steps")]


def test_forgetting_goes_back_doubles_the_interval_and_cools_down():
    """Accuracy on stage 1's mix was .90 at the entry (step 500). .84 is a fall of .06: twice, once the wait is over."""
    state = drive([(0.9, 0.9, 0)] * 5)
    assert state.stage == 1 and state.entry_value == 0.9
    kept = drive([(0.86, 0.9, 0)] * 3, state=state, first=6)
    assert kept.falls == 0 and kept.stage == 1
    state = drive([(0.84, 0.9, 0)] * 5, state=state, first=6)
    assert (state.stage, state.wait, state.transitions[-1].cause) == (0, 1000, "rollback")
    assert dict(state.transitions[-1].metrics) == {accuracy_on("stage1"): 0.84}
    assert state.cooldown_until == 1000 + 1000  # 1000 steps; three evaluations are fewer
    assert drive([(0.99, 0.9, 0)] * 9, state=state, first=11).stage == 0  # until step 1900
    again = drive([(0.99, 0.9, 0)] * 10, state=state, first=11)
    assert again.stage == 1 and again.transitions[-1].step == 2000


def test_a_stage_that_gets_worse_and_is_too_low_goes_back():
    state = drive([(0.9, 0.9, 0)] * 5)
    worse = drive([(0.86, -0.1, 0)] * 5, state=state, first=6)  # .572, and .90 at the entry
    assert worse.stage == 0 and worse.transitions[-1].cause == "failure"


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.floats(0, 1)] * 3))
def test_a_harder_mix_alone_never_goes_back(skill):
    """Equal skill in each category for ever: stages only rise."""
    state = drive([skill] * 60)
    assert all(change.cause == "threshold" for change in state.transitions)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-0.01, 0.01), min_size=10, max_size=10), st.integers(0, 4))
def test_a_score_at_the_threshold_changes_the_stage_at_most_once(noise, wait):
    rules = DifficultyRules(advancement_interval=100 * wait)
    skills = [(0.6 + x, 0.6 + x, 0.6 + x) for x in noise]
    assert len(drive(skills, rules=rules, stages=STAGES[:2]).transitions) <= 1


def test_the_last_stage_stays():
    state = drive([(1.0, 1.0, 1.0)] * 40)
    assert state.stage == 4 and [t.step for t in state.transitions] == [500, 1000, 1500, 2000]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.floats(0, 1)] * 3), max_size=30), st.integers(0, 30))
def test_a_state_through_json_goes_on_as_if_nothing_had_happened(skills, cut):
    straight = drive(skills)
    first = c.from_json(json.loads(json.dumps(c.to_json(drive(skills[:cut])))))
    assert drive(skills[cut:], state=first, first=min(cut, len(skills)) + 1) == straight


def test_a_nan_is_not_remembered():
    table = c.difficulty_curriculum(STAGES, RULES)
    state = c.update(table, c.init(table), measured(float("nan"), 0.5, 0.5), 100)
    assert state.history == () and state.evaluated_at == 100


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"name": "a", "mix": {"simple": 0.7, "medium": 0.2}}, "its mix sums to 0.9"),
        ({"name": "a", "mix": {"simple": 0.7, "easy": 0.3}}, "mix names 'easy'; categories are simple, medium, hard"),
        ({"name": "a", "mix": {"simple": 1.5, "medium": -0.5}}, "simple is 1.5; it takes a share"),
        ({"name": "a", "mix": {"simple": float("nan")}}, "simple is nan"),
        ({"name": "a", "mix": {"simple": "1"}}, "simple is '1'"),
        ({"name": "a", "mix": {"simple": 1}, "steps": 3}, "has no field 'steps'"),
        ({"name": "a"}, "lacks its mix"),
        ({"mix": {"simple": 1}}, "lacks its name"),
        ({"name": "a", "mix": {"simple": 1}, "max_steps": 0}, "max_steps is 0"),
    ],
)
def test_bad_stages_are_refused_in_one_line(stage, message):
    with pytest.raises(UserError, match=message) as raised:
        c.difficulty_curriculum((stage,), RULES)
    assert "\n" not in str(raised.value)


def test_stages_have_names_of_their_own():
    """Accuracies are kept by the name of a stage."""
    twice = ({"name": "s", "mix": {"simple": 1.0}}, {"name": "s", "mix": {"hard": 1.0}})
    with pytest.raises(UserError, match="curriculum stage 's' is there twice; names must differ"):
        c.difficulty_curriculum(twice, DifficultyRules())
