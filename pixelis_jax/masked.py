"""Masked reductions: the only file that divides by a mask sum."""

import jax.numpy as jnp
from jax import Array


def masked_sum(values: Array, mask: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Sum of `values` where `mask` holds. A NaN or infinity under a false mask never reaches the sum."""
    return jnp.sum(jnp.where(mask, values, 0), axis=axis)


def masked_mean(values: Array, mask: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Mean of `values` where `mask` holds; 0 where nothing does."""
    return safe_divide(masked_sum(values, mask, axis), jnp.sum(jnp.broadcast_to(mask, values.shape), axis=axis))


def masked_max(values: Array, mask: Array, axis: int | tuple[int, ...] | None = None) -> Array:
    """Maximum of `values` where `mask` holds; 0 where nothing does."""
    top = jnp.max(jnp.where(mask, values, -jnp.inf), axis=axis)
    return jnp.where(jnp.any(jnp.broadcast_to(mask, values.shape), axis=axis), top, 0.0)


def masked_std(values: Array, mask: Array, axis: int | None = None) -> Array:
    """Sample standard deviation (n - 1) of `values` where `mask` holds; 0 with fewer than two."""
    mean = masked_mean(values, mask, axis)
    centred = values - (mean if axis is None else jnp.expand_dims(mean, axis))
    count = jnp.sum(jnp.broadcast_to(mask, values.shape), axis=axis)
    variance = safe_divide(masked_sum(centred**2, mask, axis), count - 1)
    # sqrt has no gradient at 0; a constant set has deviation exactly 0.
    return jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)


def safe_divide(total: Array, weight: Array) -> Array:
    """`total / weight`, and 0 where the weight is not positive."""
    weight = jnp.asarray(weight)
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1), 0.0)
