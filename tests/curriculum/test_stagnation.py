"""The stagnation exit: one-sided, and judged against the metric's own noise. Figures of seeded series."""

import itertools
import json
import math
import statistics

import numpy as np
import pytest

from benchmarks.stagnation import ends_at, series
from pixelis_jax import curriculum as c
from pixelis_jax.curriculum import Curriculum, Slope, Stage
from pixelis_jax.curriculum.stagnation import _fit, _lines, _t_over_normal, likely_overlap, stagnates

RULE = Slope("coherence_ma100")
ON, OFF = (("final", 1.0),), (("final", 1.0), ("coherence", 0.1))


def ends(*, rise, sd, overlap=1, expected=None, count=101, longest=24):
    drawn = itertools.islice(series(1, rise=rise, deviation=sd, overlap=overlap), count)
    return [ends_at(RULE, y, overlap=overlap if expected is None else expected, longest=longest) for y in drawn]


@pytest.mark.parametrize("sd", [0.0, 0.004, 0.01])
@pytest.mark.parametrize("rise", [0.0, -0.002])
def test_a_metric_that_does_not_rise_ends_its_stage_within_12_evaluations(rise, sd):
    assert statistics.median(ends(rise=rise, sd=sd, count=201 if sd == 0.01 else 41)) <= 12


@pytest.mark.parametrize("sd", [0.0, 0.004, 0.01])
def test_a_metric_that_rises_by_005_does_not(sd):
    count = 200 if sd == 0.01 else 40
    assert sum(end <= 20 for end in ends(rise=0.005, sd=sd, count=count, longest=20)) <= 0.05 * count


@pytest.mark.parametrize("expected", [1, 4])  # found in the series, and known from the metric's name
def test_averages_that_overlap_over_four_evaluations(expected):
    flat = ends(rise=0.0, sd=0.01, overlap=4, expected=expected, count=41)
    rising = ends(rise=0.005, sd=0.01, overlap=4, expected=expected, count=200, longest=20)
    assert statistics.median(flat) <= 24
    assert sum(end <= 20 for end in rising) <= 0.05 * 200


def test_a_wrongly_expected_overlap_costs_little():
    """Independent noise in a metric whose name says that ten evaluations overlap."""
    assert statistics.median(ends(rise=0.0, sd=0.01, overlap=1, expected=10, count=51)) <= 16


def noise(kind, rng):
    """20 values of another noise than the rule assumes."""
    if kind == "autoregressive":
        values = rng.normal(size=120) * 0.006
        for i in range(1, 120):
            values[i] += 0.8 * values[i - 1]
        return values[100:]
    if kind == "shares of 800":
        return rng.binomial(800, 0.5, 20) / 800
    if kind == "outliers":
        return rng.normal(size=20) * 0.004 + 0.05 * (rng.random(20) < 0.1)
    return np.round(rng.normal(size=20) * 0.01, 2)


@pytest.mark.parametrize("kind", ["autoregressive", "shares of 800", "outliers", "rounded"])
def test_a_rising_metric_with_noise_of_other_kinds(kind):
    rng = np.random.default_rng(5)
    rise = 0.005 * np.arange(20)
    assert sum(ends_at(RULE, noise(kind, rng) + rise, longest=20) <= 20 for _ in range(60)) <= 3


def test_more_noise_needs_more_evaluations_and_still_ends():
    found = [statistics.median(ends(rise=0.0, sd=sd, count=21, longest=40)) for sd in (0.004, 0.01, 0.03)]
    assert found == sorted(found) and found[0] < found[2] <= 32


def test_exact_series():
    """Without noise `patience` values decide: below .001 an evaluation is stagnation, .001 and more is not."""
    assert not RULE.holds((0.5,) * 4) and RULE.holds((0.5,) * 5)
    for rise, expected in ((0.0009, True), (0.0011, False), (-0.2, True), (0.2, False)):
        assert RULE.holds(tuple(0.3 + rise * i for i in range(30))) is expected


def test_a_plateau_after_a_rise_is_seen_by_its_latest_values():
    rise = [0.1 + 0.03 * i for i in range(20)]
    assert not RULE.holds(tuple(rise))
    assert RULE.holds((*rise, *[0.67] * 5))


def test_other_units_scale_with_the_improvement_asked_for():
    """A metric in per cent, with .1 asked for, is the same series."""
    values = next(series(4, rise=0.0, deviation=0.01))
    for n in range(5, 30):
        assert RULE.holds(tuple(values[:n])) == Slope("x", value=0.1).holds(tuple(100 * values[:n]))
        assert RULE.holds(tuple(values[:n])) == RULE.holds(tuple(values[:n] + 7.0))  # the level does not matter


def test_the_standard_error_is_that_of_the_correlated_noise():
    """The spread of simulated slopes over 12 averages, against the mean of their estimates; naively half of it."""
    drawn = np.stack(list(itertools.islice(series(2, rise=0.0, deviation=1.0, overlap=4), 4000)))[:, :12]
    fit, naive = _fit(12, 4), _fit(12, 1)
    lines = [_lines(values) for values in drawn]
    slopes, squares = (np.array([line[i][-1] for line in lines]) for i in range(2))
    assert math.sqrt(fit.variance * squares.mean()) == pytest.approx(slopes.std(), rel=0.05)
    assert math.sqrt(naive.variance * squares.mean()) < 0.55 * slopes.std()


def test_lines_through_the_latest_values():
    """Against NumPy's own fit, also far from zero and steep."""
    values = np.random.default_rng(8).normal(size=30) * 0.01 + 0.05 * np.arange(30) + 40.0
    slopes, squares = _lines(values)
    for n in range(3, 31):
        (slope, _), (residual, *_), *_ = np.polyfit(np.arange(n), values[-n:], 1, full=True)
        assert slopes[n - 1] == pytest.approx(slope) and squares[n - 1] == pytest.approx(residual, rel=1e-6)


def test_independent_noise_has_the_textbook_standard_error():
    """n = 5: the slope's variance is RSS / (n - 2) / sum x^2 = RSS / 30."""
    assert _fit(5, 1).variance == pytest.approx(1 / 30)
    assert _t_over_normal(10) == pytest.approx(2.764 / 2.326, rel=2e-3)  # tables of t
    assert _t_over_normal(3) == pytest.approx(4.541 / 2.326, rel=0.03)


@pytest.mark.parametrize("overlap", [1, 2, 4, 8])
def test_the_overlap_is_found_in_the_series(overlap):
    found = [likely_overlap(y[:24]) for y in itertools.islice(series(3, rise=0.0, deviation=1.0, overlap=overlap), 60)]
    assert overlap * 0.75 <= statistics.median(found) <= overlap * 1.5


def table(metric="coherence", **fields):
    stages = (Stage("one", ON, exits=(Slope(metric, **fields),)), Stage("two", OFF))
    return Curriculum(stages, evaluation_frequency=25, rollback=None)


def test_in_a_curriculum_a_falling_metric_ends_its_stage():
    made = table()
    c.validate(made, {"coherence"})
    state = c.init(made)
    for i in range(1, 7):
        state = c.update(made, state, {"coherence": 0.5 - 0.002 * i}, 25 * i)
    assert state.stage == 1 and state.transitions[0].cause == "slope" and state.transitions[0].step == 125


def test_the_overlap_follows_from_the_metrics_name_and_the_interval():
    """ma100 every 25 steps covers four evaluations, every 100 steps one; a rollback lengthens the interval."""
    values = tuple(map(float, next(series(9, rise=0.0, deviation=0.01, overlap=4))))
    made = table("coherence_ma100")
    state = c.init(made)
    for i, value in enumerate(values, 1):
        state = c.update(made, state, {"coherence_ma100": value}, 25 * i)
        if state.stage:
            break
    assert i == ends_at(RULE, np.array(values), overlap=4)


def test_history_is_bounded_by_the_window_and_goes_through_json():
    made = table(window=20)
    state = c.init(made)
    rng = np.random.default_rng(0)
    for i in range(1, 60):
        state = c.from_json(json.loads(json.dumps(c.to_json(state))))
        state = c.update(made, state, {"coherence": 0.01 * i + float(rng.normal()) * 0.001}, 25 * i)
        assert len(dict(state.history)["coherence"]) == min(i, 20)
    assert state.stage == 0


def test_a_checkpoint_with_the_history_of_the_earlier_rule_goes_on():
    """That rule kept nine values."""
    made = table()
    old = c.to_json(c.State(interval=25, evaluated_at=225, history=(("coherence", (0.5,) * 9),)))
    state = c.update(made, c.from_json(json.loads(json.dumps(old))), {"coherence": 0.5}, 250)
    assert state.stage == 1


def test_absent_values_and_huge_ones_do_no_harm():
    made = table()
    state = c.init(made)
    for i, value in enumerate([None, math.nan, math.inf, 1e99, -1e99, 0.0, 1e99, 5.0], 1):
        state = c.update(made, state, {"coherence": value}, 25 * i)
    assert len(dict(state.history).get("coherence", ())) == 5 or state.stage == 1


def test_as_few_values_as_there_are():
    assert not stagnates([], 0.001, least=5, most=64)
    assert not stagnates([1.0, 1.0], 0.001, least=1, most=64)  # a slope with an error takes three
    assert stagnates([1.0, 1.0, 1.0], 0.001, least=1, most=64)
