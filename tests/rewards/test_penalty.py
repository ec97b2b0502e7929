"""Tool misuse penalty: hand-worked trajectories."""

import jax
import jax.numpy as jnp
import pytest

from pixelis_jax.rewards.penalty import PenaltyConfig, penalty


@pytest.fixture
def fee(batch):
    score = jax.jit(jax.vmap(lambda row: penalty(row, PenaltyConfig())))

    def run(*calls, **options):
        value, counts = score(batch(list(calls), length=8, **options))
        return float(value[0]), {name: int(x[0]) for name, x in counts.items() if x[0]}

    return run


def test_a_clean_trajectory_costs_nothing(fee):
    assert fee("ZOOM_IN", "READ_TEXT") == (0, {})
    assert fee() == (0, {})


def test_each_use_above_the_maximum(fee):
    """Three ZOOM_IN are free, five cost two violations."""
    assert fee(*["ZOOM_IN"] * 3) == (0, {})
    assert fee(*["ZOOM_IN"] * 5) == (pytest.approx(-0.2), {"over_limit": 2})


def test_missing_prerequisite_once(fee):
    named = ("GET_PROPERTIES", {"by_object": True})
    assert fee(named, named, "SEGMENT_OBJECT_AT", named) == (pytest.approx(-0.1), {"missing_prerequisite": 1})
    assert fee("SEGMENT_OBJECT_AT", named) == (0, {})
    assert fee(("SEGMENT_OBJECT_AT", {"succeeded": False}), named)[1] == {"missing_prerequisite": 1}
    assert fee("GET_PROPERTIES") == (0, {})  # by box: needs no object


def test_track_on_a_still_image_costs_double(fee):
    calls = ("SEGMENT_OBJECT_AT", ("TRACK_OBJECT", {"by_object": True}))
    assert fee(*calls) == (pytest.approx(-0.2), {"track_on_still": 1})
    assert fee(*calls, is_video=True) == (0, {})


def test_out_of_image_costs_half_and_a_missing_answer_one(fee):
    outside = ("ZOOM_IN", {"out_of_image": True, "succeeded": False})
    assert fee(outside, outside) == (pytest.approx(-0.1), {"out_of_image": 2})
    assert fee(answered=False) == (pytest.approx(-0.1), {"no_answer": 1})
    assert fee(outside, answered=False)[0] == pytest.approx(-0.15)


def test_padding_is_not_a_call(batch):
    inputs = batch(["ZOOM_IN"], length=8)
    dirty = inputs.replace(ops=jnp.full_like(inputs.ops, 4).at[0, 0].set(0), out_of_image=~inputs.valid)
    value, _ = jax.vmap(lambda row: penalty(row, PenaltyConfig()))(dirty)
    assert float(value[0]) == 0
