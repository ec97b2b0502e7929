"""From hidden states to log-probs: the one place where logits become probabilities, for sampler and trainer alike."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

CHUNK_TOKENS = 4096  # rows of the [chunk, V] block that is held at a time


@struct.dataclass
class HeadOutput:
    """Log-prob of the target and entropy of the distribution, both f32 in the shape of the targets."""

    logp: Array
    entropy: Array


def log_softmax(logits: Array, *, forbidden: tuple[int, ...], temperature: float) -> Array:
    """f32[..., V] log-probs at `temperature`, with `forbidden` ids at -inf."""
    logits = logits.astype(jnp.float32)
    if forbidden:
        logits = logits.at[..., jnp.array(forbidden)].set(-jnp.inf)
    return jax.nn.log_softmax(logits / temperature, axis=-1)


def score_logits(logits: Array, targets: Array, *, forbidden: tuple[int, ...], temperature: float) -> HeadOutput:
    """Log-prob of i32[...] `targets` and entropy under f32[..., V] `logits`. A forbidden target gets log-prob 0."""
    logp = log_softmax(logits, forbidden=forbidden, temperature=temperature)
    chosen = jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0]
    # -inf times its probability 0 is nan; such ids add nothing to the entropy.
    finite = jnp.where(jnp.isfinite(logp), logp, 0.0)
    entropy = -jnp.sum(jnp.exp(logp) * finite, axis=-1)
    return HeadOutput(logp=jnp.where(jnp.isfinite(chosen), chosen, 0.0), entropy=entropy)


def score_tokens(
    to_logits: Callable[[Array], Array],
    hidden: Array,
    targets: Array,
    *,
    forbidden: tuple[int, ...],
    temperature: float,
) -> HeadOutput:
    """`score_logits` over hidden states f[B, T, D] in chunks; logits are recomputed in the backward pass, not kept."""
    b, t, width = hidden.shape
    chunk_rows = max(1, min(b, CHUNK_TOKENS // t))
    while b % chunk_rows:
        chunk_rows -= 1

    @jax.checkpoint
    def one(part: tuple[Array, Array]) -> HeadOutput:
        return score_logits(to_logits(part[0]), part[1], forbidden=forbidden, temperature=temperature)

    if chunk_rows == b:
        return one((hidden, targets))
    parts = (hidden.reshape(-1, chunk_rows, t, width), targets.reshape(-1, chunk_rows, t))
    return jax.tree.map(lambda x: x.reshape(b, t), jax.lax.map(one, parts))
