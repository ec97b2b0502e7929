"""Supervised loss: token-mean cross-entropy over the tokens the policy has to say."""

import chex
import jax.numpy as jnp
from jax import Array

from pixelis_jax.masked import masked_sum
from pixelis_jax.update import Stats


def sft_loss(
    logp: Array, policy: Array, *, weights: Array | None = None, smoothing: float = 0.0, mean_logp: Array | None = None
) -> tuple[tuple[Array, Array], Stats]:
    """loss = sum_t w m (-(1 - s) logp - s mean_v logp_v) / sum_t w m, over all that is summed before dividing.

    Shapes: logp f32[B, T]; policy bool[B, T], the tokens with `loss` true; weights f32[B, T] or None (1 each);
    mean_logp f32[B, T], the mean log-prob over the vocabulary, needed where smoothing s > 0. Returns
    ((sum, weight), stats); a batch without a trainable token has weight 0, which the update skips and counts. Raises
    ValueError for smoothing without mean_logp.
    """
    chex.assert_rank(policy, 2, custom_message="policy bool[B, T]")
    given = [x for x in (logp, weights, mean_logp) if x is not None]
    chex.assert_shape(given, policy.shape, custom_message="logp, weights, mean_logp f32[B, T] like policy")
    if smoothing and mean_logp is None:
        raise ValueError("label smoothing needs mean_logp")
    logp = jnp.where(policy, logp, 0.0)
    nll = -logp
    if smoothing and mean_logp is not None:
        nll = (1.0 - smoothing) * nll - smoothing * jnp.where(policy, mean_logp, 0.0)
    share = policy.astype(jnp.float32) if weights is None else jnp.where(policy, weights, 0.0)
    stats = Stats(means={"sft/nll": (-masked_sum(logp, policy), jnp.sum(policy, dtype=jnp.float32))})
    return (jnp.sum(nll * share), jnp.sum(share)), stats
