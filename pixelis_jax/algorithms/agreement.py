"""How far the sampler's log-probs are from the trainer's for the same tokens."""

import chex
import jax.numpy as jnp
from jax import Array

from pixelis_jax.masked import masked_max, masked_sum
from pixelis_jax.update import Stats

NAME = "sampler_trainer_logprob_diff"


def sampler_trainer_difference(
    logp: Array, logp_sampler: Array, mask: Array, turn_of: Array | None = None, *, turns: int = 0
) -> Stats:
    """|trainer - sampler| in nats over the masked tokens: mean and max, over all and in each of the first turns.

    A drift that begins with the first inserted image shows in turn 1 first. `turns` says how many have their own.
    Shapes: logp, logp_sampler f32[B, T]; mask bool[B, T]; turn_of i32[B, T], -1 outside assistant turns. Names:
    `sampler_trainer_logprob_diff/{mean,max}` and `sampler_trainer_logprob_diff/turn_<n>/{mean,max}`.
    """
    chex.assert_rank(mask, 2, custom_message="mask bool[B, T]")
    given = [x for x in (logp, logp_sampler, turn_of) if x is not None]
    chex.assert_shape(given, mask.shape, custom_message="logp, logp_sampler, turn_of [B, T] like mask")
    difference = jnp.abs(jnp.where(mask, logp, 0.0) - jnp.where(mask, logp_sampler, 0.0))
    means = {f"{NAME}/mean": (jnp.sum(difference), jnp.sum(mask, dtype=jnp.float32))}
    maxima = {f"{NAME}/max": masked_max(difference, mask)}
    if turn_of is not None:
        for turn in range(turns):
            here = mask & (turn_of == turn)
            means[f"{NAME}/turn_{turn}/mean"] = (masked_sum(difference, here), jnp.sum(here, dtype=jnp.float32))
            maxima[f"{NAME}/turn_{turn}/max"] = masked_max(difference, here)
    return Stats(means=means, maxima=maxima)
