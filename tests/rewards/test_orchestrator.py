"""Totals by hand, and the faults that reward code is known for."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.algorithms.advantages import group_advantages
from pixelis_jax.metrics.names import find
from pixelis_jax.rewards import orchestrator
from pixelis_jax.rewards.curiosity import CuriosityConfig
from pixelis_jax.rewards.measures import reward_stats, tool_counts, tool_stats, violation_counts
from pixelis_jax.rewards.orchestrator import RewardConfig, check_weights
from pixelis_jax.types import UserError

PLAIN = RewardConfig(curiosity=CuriosityConfig(kind="none"))
FINAL = (("final", 1.0),)
ALL = (("final", 1.0), ("coherence", 0.1), ("curiosity", 0.5))
ICM = RewardConfig()  # its tests share one shape (4 rows, 5 calls), so that it compiles twice only
REPEAT = ("READ_TEXT", {"arguments": (0.5, 0.5, 0.2, 0.2), "observation": 0})
GOOD = ["SEGMENT_OBJECT_AT", ("GET_PROPERTIES", {"by_object": True})]
ZOOM = ("ZOOM_IN", {"arguments": (0.5, 0.5, 0.2, 0.2), "observation": 0})
run = jax.jit(orchestrator.score, static_argnames=("config", "weights"))


def score(inputs, *, config=PLAIN, weights=FINAL, state=None):
    state = orchestrator.init(jax.random.key(0), config) if state is None else state
    return run(inputs, state, config=config, weights=weights)


def total(inputs, **options):
    return np.asarray(score(inputs, **options)[0].total)


def test_the_logged_reward_carries_its_weight(batch):
    """(final 1, coherence 0) with (.7, .3): .7."""
    scores, _ = score(batch([]), weights=(("final", 0.7), ("coherence", 0.3)))
    assert scores.total.tolist() == [pytest.approx(0.7)]
    assert float(scores.raw["final"][0]) == 1 and float(scores.weighted["final"][0]) == pytest.approx(0.7)


def test_sum_with_penalty(batch):
    """Right, good pair .2 at weight .1: 1.02. Wrong, no answer: -.1. Right, tracks a still image: 1.02 - .2."""
    track = ["SEGMENT_OBJECT_AT", ("TRACK_OBJECT", {"by_object": True})]
    inputs = batch(GOOD, [], track, score=[1, 0, 1], answered=[True, False, True])
    np.testing.assert_allclose(
        total(inputs, weights=(("final", 1.0), ("coherence", 0.1))), [1.02, -0.1, 0.82], rtol=1e-6
    )


def test_an_all_correct_group(batch):
    """Coherence [.2, -.5, 0, .2] at weight .1: centred totals [.0225, -.0475, .0025, .0225]."""
    inputs = batch(GOOD, [REPEAT, REPEAT], ["ZOOM_IN"], GOOD)
    scores, _ = score(inputs, weights=(("final", 1.0), ("coherence", 0.1)))
    np.testing.assert_allclose(scores.raw["coherence"], [0.2, -0.5, 0, 0.2], atol=1e-6)
    centred = group_advantages(scores.total, inputs.group, scores.included, scale="none").values
    np.testing.assert_allclose(centred, [0.0225, -0.0475, 0.0025, 0.0225], atol=1e-6)


def test_group_norm(batch):
    """Components (1, 0), (0, .2), (1, .2), (0, 0), each normalised in its group, weights (1, 1) and (1, .5)."""
    config = RewardConfig(curiosity=CuriosityConfig(kind="none"), norm="group")
    inputs = batch([], GOOD, GOOD, [], score=[1, 0, 1, 0])
    equal = total(inputs, config=config, weights=(("final", 1.0), ("coherence", 1.0)))
    np.testing.assert_allclose(equal, [0, 0, 1.732, -1.732], atol=1e-3)
    half = total(inputs, config=config, weights=(("final", 1.0), ("coherence", 0.5)))
    np.testing.assert_allclose(half, [0.433, -0.433, 1.299, -1.299], atol=1e-3)


def test_total_is_clipped(batch):
    assert total(batch([]), weights=(("final", 25.0),)).tolist() == [10.0]


def test_running_norm_is_frozen_during_the_batch(batch):
    """Ten samples (half 1, half 0) are scored raw; the next batch has z = (1 - .5) / .527 = .9487."""
    config = RewardConfig(curiosity=CuriosityConfig(kind="none"), norm="running")
    inputs = batch(*[[]] * 10, score=[1, 0] * 5)
    first, state = score(inputs, config=config)
    assert first.total.tolist() == [1, 0] * 5
    second, _ = score(inputs, config=config, state=state)
    np.testing.assert_allclose(second.total, [0.9487, -0.9487] * 5, atol=1e-4)


def test_an_unrepaired_error_takes_a_right_answer_back(batch):
    failed = ("ZOOM_IN", {"succeeded": False})
    inputs = batch([failed], [failed, "ZOOM_IN"], ["ZOOM_IN", failed], [])
    scores, _ = score(inputs)
    assert scores.raw["final"].tolist() == [0, 1, 0, 1]
    assert scores.violations["unrepaired_error"].tolist() == [1, 0, 1, 0]


def test_a_zero_weight_is_measured_and_still_trained(batch):
    state = orchestrator.init(jax.random.key(0), ICM)
    inputs = batch(GOOD, GOOD, [], [], score=[1, 0, 0, 0], cosine=0.5, length=5)
    scores, new = score(inputs, config=ICM, state=state)
    assert scores.total.tolist() == [1, 0, 0, 0] and float(scores.raw["curiosity"][0]) > 0.01
    assert float(scores.weighted["curiosity"][0]) == 0
    assert int(new.dynamics.transitions) == 4
    assert not np.array_equal(new.dynamics.params["base"]["0"]["w"], state.dynamics.params["base"]["0"]["w"])


def test_repeating_one_crop_earns_no_more_than_once(batch):
    inputs = batch([ZOOM], [ZOOM] * 5, [], [], score=[1, 1, 0, 0], length=5)
    crop = jnp.zeros(768).at[1].set(1.0)
    inputs = inputs.replace(embeddings=inputs.embeddings.at[:, 0, 0].set(1.0).at[:2, 1:].set(crop))
    scores, _ = score(inputs, config=ICM, weights=ALL)
    np.testing.assert_allclose(scores.raw["curiosity"][0], scores.raw["curiosity"][1], rtol=1e-5)
    assert float(scores.raw["curiosity"][0]) > 0.05
    assert float(scores.total[1]) < float(scores.total[0])


def test_text_that_only_looks_like_a_call_earns_nothing(batch):
    """No call, or a call with an error: every bonus is 0."""
    failed = ("READ_TEXT", {"succeeded": False, "thought_after": True})
    inputs = batch([], [failed], [failed, "ZOOM_IN"], [], score=[1, 1, 1, 0], cosine=0.2, length=5)
    for config in (ICM, RewardConfig(curiosity=CuriosityConfig(kind="rapr"))):
        scores, _ = score(inputs, config=config, weights=ALL)
        assert not np.asarray(scores.raw["curiosity"][:2]).any() and not np.asarray(scores.raw["coherence"]).any()
        assert scores.total[:2].tolist() == [1, 0]


def test_nan_never_spreads(batch):
    """NaN embeddings in one row, NaN everywhere in an excluded row, a NaN score: the other rows do not notice."""
    rows = {"score": [1, 0, 1, 1], "excluded": [False, False, False, True], "cosine": 0.5, "length": 5}
    clean = batch(GOOD, ["ZOOM_IN"], GOOD, GOOD, **rows)
    broken = clean.replace(
        embeddings=clean.embeddings.at[2:].set(jnp.nan),
        score=clean.score.at[3].set(jnp.nan),
        arguments=clean.arguments.at[3].set(jnp.nan),
    )
    scores, state = score(broken, config=ICM, weights=ALL)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((scores, state)))
    assert not any(float(x[3]) for x in (scores.total, *scores.raw.values(), scores.violations["not_finite"]))
    unscored, _ = score(clean.replace(score=clean.score.at[1].set(jnp.nan)))
    assert unscored.included.tolist() == [True, False, True, False] and float(unscored.total[1]) == 0
    assert unscored.violations["not_finite"].tolist() == [0, 1, 0, 0]


def test_excluded_rows_change_nothing_for_the_others(batch):
    rows = [GOOD, ["ZOOM_IN"], [ZOOM, ZOOM]]
    values = {"score": [1, 0, 1, 1], "excluded": [False, False, False, True], "cosine": 0.5, "length": 5}
    alone, state = score(batch(*rows, [], **values), config=ICM, weights=ALL)
    mixed, mixed_state = score(batch(*rows, GOOD, **values), config=ICM, weights=ALL)
    np.testing.assert_allclose(mixed.total, alone.total, atol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), mixed_state, state)
    stats = reward_stats(mixed, batch(*rows, GOOD)).reduce()
    assert float(stats["reward/final/raw"]) == pytest.approx(2 / 3)


def test_rows_may_stand_in_any_order(batch):
    rows, order = [GOOD, ["ZOOM_IN"], [ZOOM, ZOOM], []], [2, 0, 3, 1]
    scores, group = np.array([1, 0, 1, 0]), np.array([0, 1, 1, 0])
    config = RewardConfig(curiosity=CuriosityConfig(kind="rapr"), norm="group")
    weights = (("final", 1.0), ("coherence", 0.3), ("curiosity", 0.3))
    plain = total(batch(*rows, score=scores, group=group), config=config, weights=weights)
    shuffled = batch(*(rows[i] for i in order), score=scores[order], group=group[order])
    np.testing.assert_allclose(total(shuffled, config=config, weights=weights), plain[order], atol=1e-6)


def test_profile_of_the_earlier_system(batch):
    config = dataclasses.replace(orchestrator.pixelis_v2(), curiosity=PLAIN.curiosity)
    assert orchestrator.pixelis_v2().norm == "running"
    back = [("GET_PROPERTIES", {}), "SEGMENT_OBJECT_AT"]
    ours, theirs = (score(batch(back), config=c, state=None)[0] for c in (PLAIN, config))
    assert float(ours.raw["coherence"][0]) == 0 and float(theirs.raw["coherence"][0]) == pytest.approx(-0.3)
    assert check_weights(orchestrator.PIXELIS_V2_WEIGHTS) == {"final": 1.0, "coherence": 0.2, "curiosity": 0.3}


def test_metric_names_are_in_the_table(batch):
    inputs = batch(GOOD, ["ZOOM_IN", ("ZOOM_IN", {"succeeded": False})], [], [], cosine=0.5, length=5)
    scores, _ = score(inputs, config=ICM)
    names = {**reward_stats(scores, inputs).reduce(), **tool_stats(inputs).reduce(), **tool_counts(inputs)}
    assert [name for name in names if find(name) is None] == []


def test_tool_measures(batch):
    """Rows: none; one crop three times; a failed last call. 6 calls, 4 distinct."""
    inputs = batch([], [ZOOM] * 3, ["ZOOM_IN", "READ_TEXT", ("READ_TEXT", {"succeeded": False})])
    found = {name: float(x) for name, x in tool_stats(inputs).reduce().items()}
    assert found == pytest.approx(
        {"rapr": 2 / 3, "loop_rate": 1 / 3, "exploration_efficiency": 4 / 6, "tool/unrepaired_error_rate": 1 / 3}
    )
    counts = tool_counts(inputs)
    assert float(counts["tool/zoom_in/calls"]) == 4 and float(counts["tool/read_text/errors"]) == 1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((("final", 1.0), ("coherance", 0.1)), "'coherance' is unknown; use coherence"),
        ((("final", 0.0),), "all reward weights are 0"),
        ((("final", -1.0),), "'final' is -1.0"),
        ((("final", float("nan")),), "'final' is nan"),
        ((("final", 1e50),), "'final' is 1e+50; use a number from 0 to 1e+09"),
        ((("final", "x"),), "'final' is 'x'; use a number"),
        (((3, 1.0),), "reward weight '3' is unknown"),
        ((("final", 1.0), ("final", 2.0)), "given twice"),
    ],
)
def test_bad_weights_are_named(weights, message):
    with pytest.raises(UserError) as error:
        check_weights(weights)
    assert message in str(error.value)


def test_unknown_norm():
    with pytest.raises(UserError, match="'zscore'"):
        RewardConfig(norm="zscore")


def test_a_policy_that_rarely_answers_has_a_low_success_rate(batch):
    """One right row and three that went in circles: .25, not 1; the mean reward is that of the answered row."""
    inputs = batch(GOOD, GOOD, GOOD, GOOD, score=[1, 0, 0, 0], excluded=[False, True, True, True])
    scores, _ = score(inputs)
    stats = reward_stats(scores, inputs).reduce()
    assert float(stats["success_rate"]) == 0.25 and float(stats["reward/final/raw"]) == 1.0


def test_violations_are_counted_in_excluded_rows_too(batch):
    inputs = batch(GOOD, GOOD, answered=[True, False], excluded=[False, True], score=[1, 0])
    scores, _ = score(inputs)
    assert float(violation_counts(scores)["penalty/no_answer"]) == 1.0
    assert float(scores.total[1]) == 0.0
