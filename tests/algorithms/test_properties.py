"""Relations that hold for any batch: advantages, and masks of the loss."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pixelis_jax.algorithms.advantages import SCALES, group_advantages
from pixelis_jax.algorithms.grpo import GRPOConfig, GRPOInputs, grpo_loss

B, T = 6, 5
REWARDS = st.lists(st.sampled_from([-10.0, -1.0, -0.1, 0.0, 0.05, 0.5, 1.0, 1.1, 10.0]), min_size=B, max_size=B)
GROUPS = st.lists(st.integers(0, 2), min_size=B, max_size=B)
FLAGS = st.lists(st.booleans(), min_size=B, max_size=B)
LOSSES = (
    GRPOConfig(kl_beta=0.1),
    GRPOConfig(kl_beta=0.1, aggregation="grpo", delta=2.0),
    GRPOConfig(kl_beta=0.1, aggregation="dr_grpo", max_completion=9, kl_estimator="k2"),
    GRPOConfig(kl_beta=0.1, loss="cispo", correction="token_mask"),
    GRPOConfig(kl_beta=0.1, loss="gspo", correction="sequence_truncate"),
    GRPOConfig(kl_beta=0.1, loss="sapo", aggregation="luspo", entropy_bonus=0.1),
)


def advantages(rewards, group, included, scale):
    found = group_advantages(jnp.float32(rewards), jnp.array(group), jnp.array(included), scale=scale)
    return np.asarray(found.values)


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=60, deadline=None)
@given(REWARDS, GROUPS, FLAGS, st.permutations(range(B)), st.sampled_from([-3.0, 0.25, 4.0]))
def test_advantages(scale, rewards, group, included, order, shift):
    found = advantages(rewards, group, included, scale)
    rewards, group, included = np.float32(rewards), np.array(group), np.array(included)
    assert np.isfinite(found).all() and not found[~included].any()
    for number in set(group):
        own = found[(group == number) & included]
        if not len(own):
            continue
        assert abs(own.sum()) < 1e-4 * max(1.0, np.abs(own).max())  # what one row gains, the others lose
        same = rewards[(group == number) & included]
        if same.max() == same.min():
            assert not own.any()
        better = np.argsort(same, kind="stable")
        assert (np.diff(own[better]) >= -1e-5).all()  # a higher reward is never a lower advantage
    moved = advantages(rewards[list(order)], group[list(order)], included[list(order)], scale)
    np.testing.assert_allclose(moved, found[list(order)], atol=1e-5)
    if scale != "batch":  # the batch's deviation sees how far groups are apart
        lifted = advantages(np.where(group == 0, rewards + np.float32(shift), rewards), group, included, scale)
        np.testing.assert_allclose(lifted, found, atol=1e-3)


NUMBERS = arrays.arrays(np.float32, (5, B, T), elements=st.floats(-2, 2, width=16))
MASKS = arrays.arrays(bool, (B, T))
JUNK = st.sampled_from([50.0, -50.0, np.nan, np.inf])


@jax.jit
def evaluated(numbers, mask, included, which):
    """(loss sum, weight, metrics, gradient) of one of LOSSES."""

    def one(config):
        def total(logp):
            _, old, reference, sampler, entropy = numbers
            data = GRPOInputs(
                mask,
                entropy[:, 0],
                included,
                logp_old=old,
                logp_ref=reference,
                logp_sampler=sampler,
                turn_of=jnp.zeros(mask.shape, jnp.int32),
            )
            (value, weight), stats = grpo_loss(logp, entropy, data, dataclasses.replace(config, log_turns=1))
            return value, (weight, {name: stats.reduce()[name] for name in ("kl", "entropy", "ratio/max")})

        (value, rest), grads = jax.value_and_grad(total, has_aux=True)(numbers[0])
        return value, rest, grads

    return jax.lax.switch(which, [lambda c=c: one(c) for c in LOSSES])


@settings(max_examples=120, deadline=None)
@given(NUMBERS, MASKS, FLAGS, JUNK, st.integers(0, len(LOSSES) - 1))
def test_what_stands_under_a_false_mask_is_never_read(numbers, mask, included, junk, which):
    included = np.array(included)
    used = mask & included[:, None]
    advantage = np.where(included, numbers[4, :, 0], 0.0)
    clean = np.where(used, numbers, 0.0)
    clean[4, :, 0] = advantage  # entropy's first column serves as the advantages
    dirty = np.where(used, numbers, junk).astype(np.float32)
    dirty[4, :, 0] = advantage
    a, b = (evaluated(x, mask, included, which) for x in (clean, dirty))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert np.isfinite(a[0]) and not np.asarray(a[2])[~used].any()
    if not used.any():
        assert a[0] == 0 and not np.asarray(a[2]).any()
