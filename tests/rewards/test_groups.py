"""Group statistics and normalisation, by hand."""

import jax.numpy as jnp
import numpy as np

from pixelis_jax.rewards.groups import group_normalise, group_statistics


def normalise(values, group, included=None):
    included = jnp.ones(len(values), bool) if included is None else jnp.array(included)
    return np.asarray(group_normalise(jnp.array(values, jnp.float32), jnp.array(group), included))


def test_components_of_any_scale_count_alike():
    """Rows (1, 0), (0, 10), (1, 10), (0, 0): the row with both wins, one with either is in the middle."""
    group = [2, 2, 2, 2]
    final, bonus = normalise([1, 0, 1, 0], group), normalise([0, 10, 10, 0], group)
    np.testing.assert_allclose(final + bonus, [0, 0, 1.732, -1.732], atol=1e-3)
    np.testing.assert_allclose(final + 0.5 * bonus, [0.433, -0.433, 1.299, -1.299], atol=1e-3)


def test_statistics_of_interleaved_groups():
    values, group = jnp.array([1.0, 10.0, 3.0, 10.0, jnp.nan]), jnp.array([0, 3, 0, 3, 0])
    stats = group_statistics(values, group, jnp.array([True, True, True, True, False]))
    assert stats.mean.tolist() == [2, 10, 2, 10, 2] and stats.count.tolist() == [2] * 5
    np.testing.assert_allclose(stats.std, [2**0.5, 0, 2**0.5, 0, 2**0.5], rtol=1e-6)
    assert stats.uniform.tolist() == [False, True, False, True, False]
    assert stats.first.tolist() == [True, True, False, False, False]


def test_excluded_and_uniform_rows_are_exactly_zero():
    assert not normalise([0.1, 0.1, 5, np.nan], [0, 0, 1, 1], [True, True, True, False]).any()
