"""Running moments equal NumPy's until the window is full, and forget afterwards."""

import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.rewards import moments


def fed(*batches, window=1000):
    state = moments.init()
    for batch in batches:
        values = jnp.array(batch, jnp.float32)
        state = moments.update(state, values, jnp.isfinite(values), window=window)
    return state


def test_equals_numpy_whatever_the_batches():
    values = np.random.Generator(np.random.Philox(0)).normal(3, 2, 24)
    for parts in ([values], np.split(values, 4), np.split(values, [1, 5])):
        state = fed(*parts)
        assert float(state.count) == 24
        assert float(state.mean) == pytest.approx(values.mean(), rel=1e-5)
        assert float(state.squares) / 23 == pytest.approx(values.var(ddof=1), rel=1e-4)


def test_masked_values_and_empty_batches_change_nothing():
    state = fed([1, 2, np.nan], [np.nan] * 3)
    assert [float(x) for x in (state.count, state.mean, state.squares)] == [2, 1.5, 0.5]


def test_the_window_forgets():
    state = fed(*[[0.0] * 10] * 5, *[[1.0] * 10] * 10, window=20)
    assert float(state.count) == 20 and float(state.mean) > 0.95


def test_raw_until_ten_samples_then_z_scores():
    early, late = fed(range(9)), fed(range(10))
    assert float(moments.standardise(early, jnp.float32(7), warmup=10)) == 7
    expected = (7 - 4.5) / np.std(np.arange(10), ddof=1)
    assert float(moments.standardise(late, jnp.float32(7), warmup=10)) == pytest.approx(expected)


def test_equal_samples_are_only_centred():
    assert float(moments.standardise(fed([0.7] * 12), jnp.float32(0.7), warmup=10)) == pytest.approx(0, abs=1e-6)
