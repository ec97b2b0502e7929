"""The curriculum: when it advances, when it must not, what it records, and what it refuses."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis_jax import curriculum as c
from pixelis_jax.curriculum import AllOf, Curriculum, MaxSteps, Rollback, Slope, Stage, Threshold
from pixelis_jax.types import UserError

ON, OFF = (("final", 1.0),), (("final", 1.0), ("coherence", 0.1))
KNOWN = {"success", "coherence", "success_rate_ma100", "coherence_ma100", "combined_score_ma100"}


def two_stages(*exits, rollback=None, second=None, **fields):
    return Curriculum(
        stages=(Stage("one", ON, exits=exits, **fields), second or Stage("two", OFF, entry_metric="success")),
        evaluation_frequency=10,
        rollback=rollback,
    )


def run(table, values, *, metric="success", state=None, start=0, every=10):
    """Feeds one value each evaluation."""
    state = c.init(table) if state is None else state
    for i, value in enumerate(values, 1):
        state = c.update(table, state, value if isinstance(value, dict) else {metric: value}, start + i * every)
    return state


def test_threshold_on_the_mean_of_the_last_evaluations():
    """Patience 2, above .7: (.9, .4) has mean .65, (.4, .9) too; (.9, .8) passes at step 40."""
    table = two_stages(Threshold("success", 0.7, patience=2))
    assert run(table, [0.9, 0.4, 0.9]).stage == 0
    state = run(table, [0.9, 0.4, 0.9, 0.8])
    assert state.stage == 1 and state.entry_value == 0.8
    (moved,) = state.transitions
    assert moved == c.Transition(40, "one", "two", 40, "threshold", (("success", 0.8),))


def test_consecutive_evaluations_start_again_after_a_miss():
    table = two_stages(Threshold("success", 0.6, consecutive=2))
    assert run(table, [0.7, 0.5, 0.7]).stage == 0
    assert run(table, [0.7, 0.5, 0.7, 0.7]).stage == 1


@pytest.mark.parametrize(
    ("comparison", "value", "stage"), [(">", 0.7, 0), (">=", 0.7, 1), ("<", 0.7, 0), ("<=", 0.7, 1)]
)
def test_comparisons(comparison, value, stage):
    assert run(two_stages(Threshold("success", value, comparison)), [0.7]).stage == stage


def test_evaluations_and_minimum_steps():
    """Every step has a good value: nothing before min_steps 25; evaluations fall on 10, 20, 30."""
    table = two_stages(Threshold("success", 0.5), min_steps=25)
    state = run(table, [1.0] * 29, every=1)
    assert state.stage == 0 and state.evaluated_at == 20
    assert run(table, [1.0], state=state, start=29, every=1).transitions[0].step == 30


def test_max_steps_is_exact_and_needs_no_metric():
    """The step-based stages 0/1000/5000 are the same table with only max_steps."""
    stages = (Stage("a", ON, exits=(MaxSteps(1000),)), Stage("b", ON, exits=(MaxSteps(4000),)), Stage("c", OFF))
    table = Curriculum(stages, evaluation_frequency=300)
    state, changes = c.init(table), {}
    for step in range(1, 6000):
        new = c.update(table, state, {}, step)
        if new.stage != state.stage:
            changes[step] = c.current(table, new).name
        state = new
    assert changes == {1000: "b", 5000: "c"}
    assert [t.duration for t in state.transitions] == [1000, 4000] and state.transitions[0].cause == "max_steps"


def test_any_exit_advances_and_all_of_needs_every_part():
    either = two_stages(Threshold("success", 0.9), Threshold("coherence", 0.5))
    both = two_stages(AllOf((Threshold("success", 0.9), Threshold("coherence", 0.5))))
    half, full = {"success": 0.1, "coherence": 0.6}, {"success": 0.95, "coherence": 0.6}
    assert run(either, [half]).stage == 1 and run(both, [half]).stage == 0
    state = run(both, [half, full])
    assert state.transitions[0].cause == "all_of" and state.transitions[0].metrics == (
        ("success", 0.95),
        ("coherence", 0.6),
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-0.01, 0.01), min_size=10, max_size=10),
    st.integers(1, 3),
    st.integers(1, 3),
    st.floats(0.3, 0.9),
)
def test_no_oscillation_at_the_threshold(noise, patience, consecutive, bound):
    """A score at the threshold +-.01 for ten windows causes at most one change."""
    exit_ = Threshold("success", bound, patience=patience, consecutive=consecutive)
    table = two_stages(exit_, rollback=Rollback(threshold=0.05, patience=2, cooldown_steps=0))
    assert len(run(table, [bound + x for x in noise]).transitions) <= 1


def test_rollback_cools_down_and_doubles_the_interval():
    """In at .8. Twice .74 in a row, more than .05 below: back at step 50, interval 20, silent until 150."""
    rule = Rollback(threshold=-0.05, patience=2, cooldown_steps=100, factor=2.0)
    table = two_stages(Threshold("success", 0.7), MaxSteps(50), rollback=rule)
    state = run(table, [0.8, 0.74, 0.76, 0.74])
    assert state.stage == 1 and state.falls == 1
    state = run(table, [0.74], state=state, start=40)
    assert (state.stage, state.interval, state.cooldown_until, state.entered_at) == (0, 20, 150, 50)
    assert state.transitions[-1] == c.Transition(50, "two", "one", 40, "rollback", (("success", 0.74),))
    waiting = run(table, [0.9] * 9, state=state, start=50)
    assert waiting.stage == 0 and waiting.evaluated_at == 130  # measured, nothing decided
    assert run(table, [0.9], state=waiting, start=140).stage == 1  # 150


def test_cooldown_in_evaluations():
    rule = Rollback(patience=1, cooldown_steps=0, cooldown_evaluations=3)
    state = run(two_stages(Threshold("success", 0.7), rollback=rule), [0.8, 0.5])
    assert state.cooldown_until == 20 + 3 * 20


def test_failure_condition_rolls_back_once_its_window_is_full():
    second = Stage("two", OFF, failures=(Threshold("success", 0.6, "<", patience=3),))
    table = two_stages(Threshold("success", 0.7), second=second, rollback=Rollback(cooldown_steps=0))
    assert run(table, [0.8, 0.5, 0.5]).stage == 1
    state = run(table, [0.8, 0.5, 0.5, 0.5])
    assert state.stage == 0 and state.transitions[-1].cause == "failure"


def test_harder_stage_with_equal_skill_does_not_roll_back():
    """Accuracy on the old mix stays; only the new mix is harder, and that is not the entry metric."""
    second = Stage("two", OFF, entry_metric="success")
    table = two_stages(Threshold("success", 0.7), second=second, rollback=Rollback(patience=1))
    state = run(table, [{"success": 0.8, "coherence": 0.9}] + [{"success": 0.79, "coherence": 0.3}] * 20)
    assert state.stage == 1


def test_absent_and_nan_values_are_no_evaluations():
    table = two_stages(Threshold("success", 0.7, patience=2))
    state = run(table, [0.9, float("nan"), {"success": None}, {}])
    assert state.stage == 0 and dict(state.history)["success"] == (0.9,)
    assert run(table, [0.8], state=state, start=40).stage == 1


def test_history_stays_bounded_and_starts_anew_in_a_stage():
    table = two_stages(Threshold("success", 0.7, patience=2, consecutive=3))
    state = run(table, [0.1] * 50)
    assert len(dict(state.history)["success"]) == 4
    assert run(table, [1.0] * 6).history == ()


values = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 1))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.fixed_dictionaries({"success": values, "coherence": values}), max_size=40), st.integers(1, 30))
def test_json_round_trip_at_any_point(metrics, every):
    table = two_stages(
        Threshold("success", 0.5, patience=2),
        Slope("coherence", window=3, patience=2),
        rollback=Rollback(patience=1, cooldown_steps=20),
    )
    state = c.init(table)
    for i, row in enumerate(metrics, 1):
        straight = c.update(table, state, row, i * every)
        resumed = c.update(
            table, c.from_json(json.loads(json.dumps(c.to_json(state), allow_nan=False))), row, i * every
        )
        assert straight == resumed
        state = straight
    assert hash(state) == hash(c.from_json(c.to_json(state)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=100, max_size=100))
def test_whatever_is_measured_it_goes_back_ever_more_rarely(skill):
    """Each rollback doubles the interval, so k of them take 20 (2^k - 1) steps: 6 in 1000 steps at most."""
    table = two_stages(Threshold("success", 0.5), rollback=Rollback(threshold=0.01, patience=1, cooldown_steps=0))
    state = run(table, skill)
    back = [t for t in state.transitions if t.target == "one"]
    assert len(back) <= math.log2(len(skill) * 10 / 20 + 1) + 1
    steps = [change.step for change in state.transitions]
    assert steps == sorted(set(steps))


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1), st.lists(st.floats(-0.02, 0.02), min_size=60, max_size=60))
def test_a_level_with_noise_below_the_threshold_does_not_oscillate(level, noise):
    table = two_stages(Threshold("success", 0.5, patience=3), rollback=Rollback(threshold=0.1, cooldown_steps=0))
    assert len(run(table, [level + x for x in noise]).transitions) <= 1


def test_the_default_table_goes_through_its_three_phases():
    table = c.reward_curriculum()
    c.validate(table, KNOWN)
    metrics = {"success_rate_ma100": 0.71, "coherence_ma100": 0.1, "combined_score_ma100": 0.66}
    state = run(table, [metrics] * 2, every=100)
    assert c.current(table, state).name == "Phase3_Learn_Curiosity"
    assert c.current(table, state).weights == (("final", 1.0), ("coherence", 0.1), ("curiosity", 0.05))
    assert hash(c.current(table, state).weights) is not None
    assert [t.cause for t in state.transitions] == ["threshold", "threshold"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (Curriculum(()), "no stage"),
        (two_stages(Threshold("succes", 0.7)), "stage 'one': metric 'succes' is never logged; did you mean 'success'?"),
        (two_stages(AllOf((Slope("zzz"),))), "metric 'zzz' is never logged"),
        (two_stages(MaxSteps(5), entry_metric="coherense"), "did you mean 'coherence'?"),
        (two_stages(), "'one' has no exit, so 'two' is never reached"),
        (two_stages(MaxSteps(5), min_steps=6), "max_steps 5 is below 6"),
        (two_stages(MaxSteps(5), min_steps=-5), "min_steps -5 must be 0 or more"),
        (two_stages(Threshold("success", 0.7, "=>")), "comparison '=>' is unknown"),
        (two_stages(Threshold("success", 0.7, patience=0)), "patience 0"),
        (two_stages(Slope("success", window=1)), "window 1 of 'success' must be 20 or more"),
        (two_stages(Slope("success", window=5, patience=5)), "window 5 of 'success' must be 20 or more"),
        (two_stages(Slope("success", patience=2)), "patience 2 of 'success' must be 3 or more"),
        (two_stages(MaxSteps(5), second=Stage("two", (("final", 0.0),))), "stage 'two': all weights are 0"),
        (two_stages(MaxSteps(5), second=Stage("two", (("final", -1.0),))), "weight 'final' is -1.0"),
        (two_stages(MaxSteps(5), second=Stage("one", ON)), "'one' is there twice"),
        (dataclasses.replace(two_stages(MaxSteps(5)), evaluation_frequency=0), "evaluation_frequency 0"),
    ],
)
def test_bad_tables_are_refused_at_the_start(table, message):
    with pytest.raises(UserError) as error:
        c.validate(table, KNOWN)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_exits_from_config():
    made = c.exit_from_config({"kind": "threshold", "metric": "success", "value": 0.7, "patience": 3})
    assert made == Threshold("success", 0.7, patience=3)
    part = {"kind": "slope", "metric": "coherence"}
    assert c.exit_from_config({"kind": "all_of", "conditions": [part]}) == AllOf((Slope("coherence"),))
    assert c.exit_from_config({"kind": "max_steps", "steps": 5}) == MaxSteps(5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "treshold"}, "'treshold' is unknown; did you mean 'threshold'?"),
        ({"metric": "success"}, "kind '' is unknown"),
        ({"kind": "threshold", "metrics": "success"}, "has no field 'metrics'; its fields are metric, value"),
        ({"kind": "threshold", "metric": "success"}, "lacks the field 'value'"),
        ({"kind": "all_of", "conditions": [{"kind": "max_steps", "steps": 1}]}, "takes only `conditions`"),
        ({"kind": "all_of", "conditions": 3}, "conditions is 3; it takes a list of dicts"),
        ({"kind": "all_of", "conditions": (3,)}, "conditions is (3,)"),
        ({"kind": ["x"]}, "kind is ['x']; it takes a text"),
        ({"kind": "max_steps", "steps": "9"}, "'max_steps': steps is '9'; it takes a whole number"),
        ({"kind": "threshold", "metric": 3, "value": 0.7}, "metric is 3; it takes a text"),
        ({"kind": "threshold", "metric": "success", "value": "x"}, "value is 'x'; it takes a finite number"),
        ({"kind": "threshold", "metric": "success", "value": math.inf}, "value is inf"),
        ({"kind": "threshold", "metric": "success", "value": 10**400}, "it takes a finite number"),
        ({"kind": "threshold", "metric": "success", "value": 0.7, "patience": 1.5}, "patience is 1.5"),
        ({"kind": "slope", "metric": "success", "window": True}, "window is True; it takes a whole number"),
    ],
)
def test_bad_exits_are_named(fields, message):
    with pytest.raises(UserError) as error:
        c.exit_from_config(fields)
    assert message in str(error.value)


def test_stages_from_config():
    """Weights are sorted by name, so that two ways to write them are one static argument."""
    fields = {"name": "one", "weights": {"final": 1.0, "coherence": 0.1}, "min_steps": 3, "entry_metric": "success"}
    weights = (("coherence", 0.1), ("final", 1.0))
    made = c.stage_from_config(fields | {"exits": [{"kind": "max_steps", "steps": 5}]})
    assert made == Stage("one", weights, exits=(MaxSteps(5),), min_steps=3, entry_metric="success")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ["a"]}, "stage ['a']: name is ['a']; it takes a text"),
        ({"name": None}, "name is None"),
        ({"min_steps": "x"}, "stage 'one': min_steps is 'x'; it takes a whole number"),
        ({"entry_metric": 3}, "entry_metric is 3; it takes a text"),
        ({"exits": 3}, "exits is 3; it takes a list of dicts"),
        ({"exits": (3,)}, "exits is (3,)"),
        ({"exits": {"kind": "max_steps"}}, "exits is {'kind': 'max_steps'}"),
        ({"weights": 3}, "weights is 3; it takes a dict such as {'final': 1.0}"),
        ({"weights": {"final": "x"}}, "weight 'final' is 'x'; it takes a finite number"),
        ({"weights": {3: 1.0, "final": 1.0}}, "a name in weights is 3"),
        ({"exit": ()}, "has no field 'exit'; its fields are name, weights, exits, min_steps, entry_metric"),
        ({3: 4}, "has no field 3"),
    ],
)
def test_bad_stages_are_named(fields, message):
    with pytest.raises(UserError) as error:
        c.stage_from_config({"name": "one", "weights": {"final": 1.0}} | fields)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_stage_without_a_name_or_weights_is_refused():
    with pytest.raises(UserError, match=r"stage '\?' lacks the field 'name'; its fields are name, weights"):
        c.stage_from_config({"weights": {"final": 1.0}})
    with pytest.raises(UserError, match="stage 'one' lacks the field 'weights'"):
        c.stage_from_config({"name": "one"})


def test_a_state_of_another_version_is_refused():
    fields = c.to_json(c.State())
    del fields["falls"]
    with pytest.raises(UserError, match="falls"):
        c.from_json(fields)
