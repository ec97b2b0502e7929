"""Running mean and deviation of a reward component: Welford's recurrence over a decayed window."""

import jax.numpy as jnp
from flax import struct
from jax import Array

from pixelis_jax.masked import masked_mean, masked_sum


@struct.dataclass
class Moments:
    """Count (held at the window), mean and sum of squared deviations; all f32[]."""

    count: Array
    mean: Array
    squares: Array


def init() -> Moments:
    """No samples yet."""
    return Moments(count=jnp.float32(0), mean=jnp.float32(0), squares=jnp.float32(0))


def update(state: Moments, values: Array, mask: Array, *, window: int) -> Moments:
    """Moments after the masked values of a batch, f32[B] and bool[B].

    Batches are joined by Chan's formula; beyond `window` samples the older ones lose weight in proportion. A batch
    without values changes nothing.
    """
    new = jnp.sum(mask, dtype=jnp.float32)
    batch_mean = masked_mean(values, mask)
    total = state.count + new
    share = jnp.where(total > 0, new / jnp.maximum(total, 1.0), 0.0)
    delta = batch_mean - state.mean
    spread = masked_sum((values - batch_mean) ** 2, mask) + delta**2 * state.count * share
    count = jnp.minimum(total, float(window))
    keep = jnp.where(total > 0, count / jnp.maximum(total, 1.0), 1.0)
    return Moments(count=count, mean=state.mean + delta * share, squares=(state.squares + spread) * keep)


def standardise(state: Moments, values: Array, *, warmup: int) -> Array:
    """(value - mean) / std with n - 1; raw until `warmup` samples; only centred where all samples were equal."""
    std = jnp.sqrt(state.squares / jnp.maximum(state.count - 1.0, 1.0))
    centred = values - state.mean
    scaled = jnp.where(std > 1e-6, centred / jnp.where(std > 1e-6, std, 1.0), centred)
    return jnp.where(state.count < warmup, values, scaled)
