"""From hidden states to log-probs: the one place where logits become probabilities, for sampler and trainer alike."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

CHUNK_TOKENS = 2048  # rows of the [chunk, V] block that is held at a time


@struct.dataclass
class HeadOutput:
    """Log-prob of the target and entropy of the distribution, both f32 in the shape of the targets.

    `mean_logp`, where it was asked for: the mean log-prob over all ids that may be sampled, for label smoothing.
    """

    logp: Array
    entropy: Array
    mean_logp: Array | None = None


def log_softmax(logits: Array, *, forbidden: tuple[int, ...], temperature: float) -> Array:
    """f32[..., V] log-probs at `temperature`, with `forbidden` ids at -inf."""
    return jax.nn.log_softmax(_allowed(logits, forbidden) / temperature, axis=-1)


def _allowed(logits: Array, forbidden: tuple[int, ...]) -> Array:
    """f32[..., V] `logits`, `forbidden` ids at -inf."""
    logits, ids = logits.astype(jnp.float32), jnp.arange(logits.shape[-1])
    for one in forbidden:
        logits = jnp.where(ids == one, -jnp.inf, logits)
    return logits


def score_logits(
    logits: Array, targets: Array, *, forbidden: tuple[int, ...], temperature: float, with_mean: bool = False
) -> HeadOutput:
    """Log-prob of i32[...] `targets` and entropy under f32[..., V] `logits`. A forbidden target gets log-prob 0."""
    chex.assert_shape(targets, logits.shape[:-1], custom_message="targets i32[...] for logits f32[..., V]")
    logp = log_softmax(logits, forbidden=forbidden, temperature=temperature)
    chosen = jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0]
    # -inf times its probability 0 is nan; such ids add nothing to the entropy.
    finite = jnp.where(jnp.isfinite(logp), logp, 0.0)
    entropy = -jnp.sum(jnp.exp(logp) * finite, axis=-1)
    mean = jnp.sum(finite, axis=-1) / (logp.shape[-1] - len(set(forbidden))) if with_mean else None
    return HeadOutput(logp=jnp.where(jnp.isfinite(chosen), chosen, 0.0), entropy=entropy, mean_logp=mean)


def score_tokens(
    to_logits: Callable[[Array], Array],
    hidden: Array,
    targets: Array,
    wanted: Array,
    *,
    forbidden: tuple[int, ...],
    temperature: float,
    with_mean: bool = False,
) -> HeadOutput:
    """`score_logits` over hidden states f[B, T, D] where bool[B, T] `wanted` holds, 0 elsewhere.

    Each row's wanted tokens are moved to its front and scored in chunks of columns; chunks that hold none are skipped,
    so the time is that of the row with the most of them. Logits are recomputed in the backward pass, not kept.
    """
    chex.assert_rank([hidden, targets, wanted], [3, 2, 2], custom_message="hidden f[B, T, D], targets, wanted [B, T]")
    chex.assert_shape(
        [targets, wanted], hidden.shape[:2], custom_message="targets, wanted [B, T] for hidden f[B, T, D]"
    )
    b, t = targets.shape
    columns = min(t, -(-CHUNK_TOKENS // b))
    chunks = -(-t // columns)
    order = jnp.argsort(~wanted, axis=1, stable=True)
    most = jnp.max(jnp.sum(wanted, axis=1))

    def chunked(x: Array) -> Array:
        """`x` [B, T, ...] in that order as [chunks, B, columns, ...]."""
        x = jnp.pad(_take(x, order), [(0, 0), (0, chunks * columns - t), *[(0, 0)] * (x.ndim - 2)])
        return x.reshape(b, chunks, columns, *x.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def one(part: tuple[Array, Array, Array]) -> HeadOutput:
        first, states, ids = part

        def block() -> HeadOutput:
            return score_logits(
                to_logits(states), ids, forbidden=forbidden, temperature=temperature, with_mean=with_mean
            )

        def nothing() -> HeadOutput:
            zero = jnp.zeros(ids.shape)
            return HeadOutput(zero, zero, zero if with_mean else None)

        return jax.lax.cond(first < most, block, nothing)

    out = jax.lax.map(one, (columns * jnp.arange(chunks), chunked(hidden), chunked(targets)))
    back = jnp.argsort(order, axis=1)

    def restored(x: Array) -> Array:
        x = x.swapaxes(0, 1).reshape(b, -1)[:, :t]
        return jnp.where(wanted, _take(x, back), 0.0)

    return jax.tree.map(restored, out)


@jax.vmap
def _take(row: Array, order: Array) -> Array:
    """`row` [T, ...] in another order, a permutation: no two gradients meet, which spares a GPU atomic additions."""
    return row.at[order].get(unique_indices=True, mode="promise_in_bounds")
