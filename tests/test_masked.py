"""Masked reductions equal the plain ones over the subset, and nothing masked leaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis_jax.masked import masked_max, masked_mean, masked_std, masked_sum, safe_divide


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(-100, 100, width=32), st.booleans()), min_size=8, max_size=8))
def test_masked_equals_subset(pairs):
    values, mask = np.array([p[0] for p in pairs], np.float32), np.array([p[1] for p in pairs])
    kept = values[mask]
    filled = jnp.where(mask, values, jnp.nan)
    expected = [kept.sum(), kept.mean() if kept.size else 0, kept.max() if kept.size else 0]
    expected.append(kept.std(ddof=1) if kept.size > 1 else 0)
    found = [f(filled, mask) for f in (masked_sum, masked_mean, masked_max, masked_std)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_axis():
    values, mask = jnp.array([[1.0, 3.0], [5.0, jnp.inf]]), jnp.array([[True, True], [True, False]])
    assert masked_mean(values, mask, axis=1).tolist() == [2.0, 5.0]
    assert masked_sum(values, mask, axis=0).tolist() == [6.0, 3.0]
    assert masked_std(values, mask, axis=1).tolist() == [pytest.approx(2**0.5), 0.0]


def test_an_absent_component_never_spreads():
    """Window [.5, none, .8] -> .65."""
    window = jnp.array([0.5, jnp.nan, 0.8])
    assert float(masked_mean(window, jnp.isfinite(window))) == pytest.approx(0.65)


def test_gradients_stay_finite():
    mask = jnp.array([True, True, False])
    values = jnp.array([2.0, 2.0, jnp.nan])
    for reduce in (masked_sum, masked_mean, masked_std, masked_max):
        assert np.isfinite(jax.grad(lambda x, f=reduce: f(jnp.where(mask, x, 0.0), mask))(values)).all()


def test_safe_divide():
    assert safe_divide(jnp.array([1.0, 1.0, jnp.nan]), jnp.array([2.0, 0.0, 0.0])).tolist() == [0.5, 0.0, 0.0]
