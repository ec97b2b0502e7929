"""Coherence reward: hand-worked trajectories."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.rewards.coherence import CoherenceConfig, coherence

SAME = {"arguments": (0.5, 0.5, 0.2, 0.2), "observation": 0}
ZOOM = ("ZOOM_IN", SAME)


@pytest.fixture
def value(batch):
    score = jax.jit(jax.vmap(lambda row: coherence(row, CoherenceConfig())))

    def run(*calls, **options):
        return float(score(batch(list(calls), length=6, **options))[0])

    return run


def test_fewer_than_two_calls_give_nothing(value):
    assert value() == 0
    assert value(("READ_TEXT", {"thought_after": True}), cosine=0.5) == 0


def test_good_pair(value):
    assert value("SEGMENT_OBJECT_AT", ("GET_PROPERTIES", {"by_object": True})) == pytest.approx(0.2)


def test_good_pair_with_flow(value):
    """(ZOOM_IN, READ_TEXT) .2 and cosine .5 gives .3: mean .25."""
    assert value("ZOOM_IN", "READ_TEXT", cosine=0.5) == pytest.approx(0.25)


def test_repeated_zoom_has_two_terms(value):
    """Exact repeat -.5 and the same region -.3: mean -.4; with cosine 1 (-.2) the mean is -1/3."""
    assert value(ZOOM, ZOOM) == pytest.approx(-0.4)
    assert value(ZOOM, ZOOM, cosine=1.0) == pytest.approx(-1 / 3)


def test_five_repeats_are_no_better_than_two(value):
    assert value(*[ZOOM] * 5) == pytest.approx(-0.4)


def test_nearly_the_same_region(value):
    """Boxes .2 wide shifted by .01: IoU .19/.21 = .905, bad; by .03: .17/.23 = .739, no term."""
    near = ("ZOOM_IN", {"arguments": (0.51, 0.5, 0.2, 0.2)})
    far = ("ZOOM_IN", {"arguments": (0.53, 0.5, 0.2, 0.2)})
    other = ("ZOOM_IN", {"arguments": (0.5, 0.5, 0.2, 0.2), "target_image": 2})
    assert value(ZOOM, near) == pytest.approx(-0.3)
    assert value(ZOOM, far) == 0
    assert value(ZOOM, other) == 0


def test_good_pair_is_paid_once(value):
    """Three zoom-read pairs: one term of .2, no more; alternating cannot be farmed."""
    calls = [("ZOOM_IN", {"arguments": (0.1, 0.1, 0.1, 0.1)}), "READ_TEXT"] * 3
    assert value(*calls[:2]) == value(*calls) == pytest.approx(0.2)


def test_thoughts(value):
    """READ_TEXT with a thought, GET_PROPERTIES (of a box) with one: two good pairs, mean .2."""
    thinking = {"thought_after": True}
    assert value(("READ_TEXT", thinking), ("GET_PROPERTIES", thinking)) == pytest.approx(0.2)


def test_failed_calls_make_no_good_pair(value):
    assert value("ZOOM_IN", ("READ_TEXT", {"succeeded": False, "thought_after": True})) == 0


def test_contradictions(value):
    """Properties of an object before any segment -.3; then the same point segmented twice, 1 % apart: -.3."""
    named = ("GET_PROPERTIES", {"by_object": True})
    assert value(named, "ZOOM_IN") == pytest.approx(-0.3)
    assert value("GET_PROPERTIES", "ZOOM_IN") == 0
    points = [("SEGMENT_OBJECT_AT", {"arguments": (x, 0.5, 0, 0)}) for x in (0.5, 0.51, 0.54)]
    assert value(points[0], points[1]) == pytest.approx(-0.3)
    assert value(points[0], points[2]) == 0
    assert value(points[0], "ZOOM_IN", points[1]) == pytest.approx(-0.3)


def test_track(value):
    """TRACK twice: bad pair, and each before any segment: (-.3 -.3 -.3)/3. After a segment: (.2 -.3)/2."""
    first, second = ("TRACK_OBJECT", {"observation": 1}), ("TRACK_OBJECT", {"observation": 2})
    assert value(first, second, is_video=True) == pytest.approx(-0.3)
    assert value("SEGMENT_OBJECT_AT", first, second, is_video=True) == pytest.approx(-0.05)


@pytest.mark.parametrize(
    ("cosine", "expected"), [(0.0, -0.3), (0.05, -0.3), (0.2, 0), (0.5, 0.3), (0.8, 0), (0.95, -0.2), (1.0, -0.2)]
)
def test_flow(value, cosine, expected):
    assert value("ZOOM_IN", "GET_PROPERTIES", cosine=cosine) == pytest.approx(expected)


def test_calls_are_told_apart_by_their_arguments(value):
    """Two objects' properties have no place in common terms: other arguments are no repeat, equal ones are."""
    one, two = (("GET_PROPERTIES", {"by_object": True, "arguments": (0, 0, 0, 0), "call": n}) for n in (1, 2))
    assert value("SEGMENT_OBJECT_AT", one, two) == pytest.approx(0.2)
    assert value("SEGMENT_OBJECT_AT", one, one) == pytest.approx((0.2 - 0.5) / 2)


def test_what_is_not_valid_or_not_finite_does_not_matter(batch):
    inputs = batch([ZOOM, "READ_TEXT"], cosine=0.5)
    score = jax.vmap(lambda row: coherence(row, CoherenceConfig()))
    padding = ~inputs.valid
    dirty = inputs.replace(
        arguments=jnp.where(padding[..., None], jnp.nan, inputs.arguments),
        embeddings=inputs.embeddings.at[:, 3:].set(jnp.nan),
        ops=jnp.where(padding, 4, inputs.ops),
    )
    np.testing.assert_array_equal(score(dirty), score(inputs))
    unknown = inputs.replace(embeddings=jnp.full_like(inputs.embeddings, jnp.inf))
    assert float(score(unknown)[0]) == pytest.approx(0.2)
