"""Group advantages against numbers worked out by hand, and relations between batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.algorithms.advantages import check_group_size, group_advantages
from pixelis_jax.types import UserError


def values(rewards, group, included=None, scale="group"):
    included = [True] * len(rewards) if included is None else included
    out = group_advantages(jnp.array(rewards, jnp.float32), jnp.array(group), jnp.array(included), scale=scale)
    return np.asarray(out.values)


def test_one_group_by_hand():
    np.testing.assert_allclose(values([1, 1, 2], [0, 0, 0]), [-0.57725, -0.57725, 1.15450], atol=1e-5)


def test_two_images_with_one_text_are_two_groups():
    np.testing.assert_allclose(values([1, 0, 0, 0], [0, 0, 1, 1]), [0.707, -0.707, 0, 0], atol=1e-3)


def test_sum_then_normalise_puts_a_correct_row_below_a_bonus_row():
    np.testing.assert_allclose(values([1, 10, 11, 0], [0] * 4), [-0.776, 0.776, 0.948, -0.948], atol=1e-3)


def test_equal_rewards_give_exactly_zero():
    for scale in ("batch", "group", "none"):
        assert not values([0.1] * 3 + [0.7] * 3, [0] * 3 + [1] * 3, scale=scale).any()


def test_rounding_noise_in_a_group_is_not_blown_up():
    assert not values([0.3, 0.3 + 5e-8, 0.3], [0, 0, 0]).any()


def test_scales():
    rewards, group = [0.0, 2.0, 5.0, 5.0], [0, 0, 1, 1]
    np.testing.assert_allclose(values(rewards, group, scale="none"), [-1, 1, 0, 0])
    std = np.std(rewards, ddof=1)
    np.testing.assert_allclose(values(rewards, group, scale="batch"), np.array([-1, 1, 0, 0]) / (std + 1e-4), rtol=1e-6)


def test_an_all_correct_group_stays_small_with_batch_scale():
    """Totals 1 + .1 * coherence beside a mixed group: style alone gets a twentieth of the signal."""
    totals = [1.02, 0.95, 1.0, 1.02, 1, 0, 1, 0]
    batch, group = (values(totals, [0] * 4 + [1] * 4, scale=s) for s in ("batch", "group"))
    assert np.abs(batch[:4]).max() < 0.12 < 1.0 < np.abs(group[:4]).max()
    np.testing.assert_allclose(
        values(totals, [0] * 4 + [1] * 4, scale="none")[:4], [0.0225, -0.0475, 0.0025, 0.0225], atol=1e-6
    )


@pytest.mark.parametrize("scale", ["batch", "group", "none"])
def test_row_order_and_excluded_rows_do_not_matter(scale):
    rng = np.random.Generator(np.random.Philox(1))
    rewards, group = rng.normal(size=12).astype(np.float32), np.repeat(np.arange(3), 4)
    plain = values(rewards, group, scale=scale)
    order = rng.permutation(12)
    np.testing.assert_allclose(values(rewards[order], group[order], scale=scale), plain[order], atol=1e-5)
    extra = np.concatenate([rewards, [np.nan, 1e6]]).astype(np.float32)
    with_excluded = values(extra, [*group, 0, 2], [True] * 12 + [False] * 2, scale=scale)
    np.testing.assert_allclose(with_excluded, [*plain, 0, 0], atol=1e-5)


def test_shares_and_single_groups():
    """Groups: mixed, uniform, shrunk to one, and one that is wholly excluded (counts nowhere)."""
    rewards = jnp.array([1.0, 0, 1, 1, 0, 9, 5, 5])
    group = jnp.array([0, 0, 1, 1, 2, 2, 3, 3])
    included = jnp.array([True, True, True, True, True, False, False, False])
    out = jax.jit(lambda: group_advantages(rewards, group, included, scale="group"))()
    assert float(out.uniform_share) == pytest.approx(2 / 3)
    assert float(out.filtering_rate) == pytest.approx(2 / 5)
    assert int(out.single) == 1
    assert out.uniform.tolist() == [False, False, True, True, True, True, False, False]


def test_everything_excluded_is_finite_and_zero():
    out = group_advantages(jnp.full(4, jnp.nan), jnp.zeros(4, jnp.int32), jnp.zeros(4, bool))
    assert not np.asarray(out.values).any() and float(out.uniform_share) == 0 and float(out.filtering_rate) == 0


def test_refusals():
    with pytest.raises(UserError, match="group_size 1"):
        check_group_size(1)
    check_group_size(2)
    with pytest.raises(UserError, match="'std'"):
        group_advantages(jnp.zeros(2), jnp.zeros(2, jnp.int32), jnp.ones(2, bool), scale="std")
