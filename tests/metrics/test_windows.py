import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis_jax.metrics import windows


def run(values: list[float | None], length: int = 100) -> windows.Windows:
    state = windows.init({"success_rate": (length,)})
    for value in values:
        state = windows.update(state, {"success_rate": value})
    return state


def test_an_absent_value_keeps_its_place_and_counts_for_nothing() -> None:
    for absent in (None, math.nan, math.inf):
        state = run([0.5, absent, 0.8])
        assert windows.averages(state)["success_rate_ma100"] == pytest.approx(0.65)
        assert windows.count(state.history["success_rate"]) == 2


def test_a_metric_that_is_not_given_is_absent() -> None:
    state = windows.init({"success_rate": (2,), "coherence": (2,)})
    state = windows.update(state, {"success_rate": 1.0, "other": 5.0})
    assert windows.averages(state)["coherence_ma2"] is None
    assert windows.averages(state)["combined_score_ma2"] is None


def test_the_window_moves_by_steps() -> None:
    assert windows.averages(run([1.0, 0.0, 0.0], length=2))["success_rate_ma2"] == 0.0
    assert windows.averages(run([1.0, None, None], length=2))["success_rate_ma2"] is None


def test_several_lengths_of_one_metric() -> None:
    state = windows.init({"reward": (4, 2)})
    for value in (4.0, 3.0, 2.0, 1.0):
        state = windows.update(state, {"reward": value})
    assert windows.averages(state) == {
        "reward_ma2": 1.5,
        "reward_ma4": 2.5,
        "reward_slope2": pytest.approx(-1.0),
        "reward_slope4": pytest.approx(-1.0),
    }


def test_slope_uses_the_steps_of_the_values() -> None:
    assert windows.slope([0.0, None, 1.0]) == pytest.approx(0.5)
    assert windows.slope([1.0, None]) is None


def test_combined_score() -> None:
    state = windows.init({"success_rate": (100,), "coherence": (100,)})
    state = windows.update(state, {"success_rate": 0.7, "coherence": 0.2})
    assert windows.averages(state)["combined_score_ma100"] == pytest.approx(0.42)  # .7 * 1.2 / 2


def test_update_leaves_the_old_state_alone() -> None:
    old = run([1.0])
    windows.update(old, {"success_rate": 0.0})
    assert old.history["success_rate"] == (1.0,)


@pytest.mark.parametrize("lengths", [(), (0,)])
def test_bad_lengths_raise(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="reward"):
        windows.init({"reward": lengths})


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=8))
def test_json_round_trip_is_exact(values: list[float | None]) -> None:
    state = run(values, length=5)
    assert windows.from_json(json.loads(json.dumps(windows.to_json(state)))) == state
