"""Log-probs and entropy of tokens from logits: one function for the sampler and the trainer, so that they agree."""

import jax
import jax.numpy as jnp
from jax import Array

from pixelis_jax.types import UserError

NEVER = -1e30  # logit of a token that can't be sampled: finite, so that 0 * logit stays 0


def scaled_logits(logits: Array, *, temperature: float, forbidden: Array | None = None) -> Array:
    """fp32 logits / temperature with the forbidden ids out of reach; what sampling draws from. Shape as `logits`.

    Raises UserError for a temperature that is not positive (greedy decoding is an argmax, not a temperature).
    """
    if not temperature > 0:
        raise UserError(f"temperature {temperature} has no log-probs; use a value above 0, or greedy decoding")
    logits = logits.astype(jnp.float32) / temperature
    return logits if forbidden is None else jnp.where(forbidden, NEVER, logits)


def token_logprobs(
    logits: Array, targets: Array, *, temperature: float = 1.0, forbidden: Array | None = None
) -> tuple[Array, Array]:
    """(log-prob of each target, entropy of each distribution), in nats, at `temperature`, computed in fp32.

    Shapes: logits [..., V] of any float type; targets i32[...]; forbidden bool[V], ids that can't be sampled (image and
    video placeholders) -> f32[...], f32[...]. A forbidden target gets log-prob 0, not -inf: such tokens are prompt or
    tool tokens, and a masked row must stay finite. Logits [2, 0], temperature .5, token 0 -> -.01815.
    """
    logits = scaled_logits(logits, temperature=temperature, forbidden=forbidden)
    norm = jax.nn.logsumexp(logits, axis=-1)
    logp = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] - norm
    entropy = norm - jnp.sum(jnp.exp(logits - norm[..., None]) * logits, axis=-1)
    return logp if forbidden is None else jnp.where(forbidden[targets], 0.0, logp), entropy


def mean_logprob(logits: Array, *, forbidden: Array | None = None) -> Array:
    """Mean log-prob over the permitted vocabulary: what label smoothing mixes in. [..., V] -> f32[...]."""
    logits = scaled_logits(logits, temperature=1.0, forbidden=forbidden)
    mean = jnp.mean(logits, axis=-1) if forbidden is None else jnp.mean(logits, axis=-1, where=~forbidden)
    return mean - jax.nn.logsumexp(logits, axis=-1)
