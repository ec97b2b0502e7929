"""Per-token estimates of KL(policy || reference) and the adaptive coefficient.

Estimators: Schulman, "Approximating KL divergence" (2020). Controller: Ziegler et al., arXiv:1909.08593, section 2.2.
"""

import chex
import jax.numpy as jnp
from jax import Array

from pixelis_jax.masked import masked_sum
from pixelis_jax.types import UserError

ESTIMATORS: tuple[str, ...] = ("k1", "k2", "k3")
MAX_LOG_RATIO = 20.0  # keeps exp finite in fp32; nothing a usable policy reaches


def kl_estimate(logp: Array, logp_ref: Array, kind: str = "k3") -> Array:
    """Per-token estimate from d = logp_ref - logp: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - d - 1. Same shape as `logp`.

    k3 of logp -1.0, reference -1.5 is .10653. d is held in +-20. Raises UserError for an unknown estimator.
    """
    chex.assert_equal_shape([logp, logp_ref], custom_message="logp, logp_ref: of one shape")
    d = jnp.clip(logp_ref - logp, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    if kind == "k1":
        return -d
    if kind == "k2":
        return 0.5 * d**2
    if kind == "k3":
        return jnp.exp(d) - d - 1.0
    raise UserError(f"KL estimator '{kind}' is unknown; choose one of {', '.join(ESTIMATORS)}")


def kl_reward(logp: Array, logp_ref: Array, policy: Array, *, beta: float | Array, kind: str = "k1") -> Array:
    """-beta * sum over policy tokens of the estimate, one number a sequence: what `kl_place` reward adds to a total.

    Shapes: logp, logp_ref f32[B, T]; policy bool[B, T] -> f32[B]. Tool tokens add nothing, whatever stands there.
    """
    chex.assert_rank(policy, 2, custom_message="policy bool[B, T]")
    chex.assert_shape([logp, logp_ref], policy.shape, custom_message="logp, logp_ref f32[B, T] like policy")
    estimate = kl_estimate(jnp.where(policy, logp, 0.0), jnp.where(policy, logp_ref, 0.0), kind)
    return -beta * masked_sum(estimate, policy, axis=1)


def adapt_beta(beta: Array, kl: Array, *, target: float, rate: float | Array) -> Array:
    """beta * (1 + rate * clip(kl / target - 1, -.2, .2)): grows while the KL is above `target`, shrinks below.

    `kl` is the mean per-token KL of the step, `rate` the step's sequences / horizon. A non-finite KL changes nothing.
    """
    error = jnp.clip(kl / target - 1.0, -0.2, 0.2)
    return jnp.where(jnp.isfinite(kl), beta * (1.0 + rate * error), beta)
