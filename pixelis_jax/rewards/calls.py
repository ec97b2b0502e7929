"""Facts about the calls of one trajectory that several rewards and metrics share. All arguments are one row (no B)."""

import jax.numpy as jnp
from jax import Array

from pixelis_jax.types import OP_ID, RewardInputs

SEGMENT, PROPERTIES, TRACK = OP_ID["SEGMENT_OBJECT_AT"], OP_ID["GET_PROPERTIES"], OP_ID["TRACK_OBJECT"]
SAME_REGION = 0.8  # intersection over union
SAME_POINT = 0.02  # of the image side


def same_call(row: RewardInputs) -> Array:
    """bool[K, K]: calls i and j are the same operation with the same arguments, on the same image."""
    return _equal(row.call) & _both(row.valid)


def distinct_transitions(row: RewardInputs) -> Array:
    """bool[K]: the first of each (op, arguments, observation) among the calls that succeeded."""
    good = row.valid & row.succeeded
    return good & ~_earlier(same_call(row) & _equal(row.observation) & _both(good))


def repeated(row: RewardInputs) -> Array:
    """bool[K]: an earlier call of the trajectory was the same."""
    return _earlier(same_call(row))


def same_region(row: RewardInputs) -> Array:
    """bool[K, K]: boxes (centre and size) on one image with an intersection over union of .8 or more."""
    centre, size = row.arguments[:, :2], row.arguments[:, 2:]
    low, high = centre - size / 2, centre + size / 2
    sides = jnp.minimum(high[:, None], high[None]) - jnp.maximum(low[:, None], low[None])
    shared = jnp.prod(jnp.maximum(sides, 0.0), axis=-1)
    area = jnp.prod(size, axis=-1)
    union = area[:, None] + area[None] - shared
    overlap = jnp.where(union > 0, shared / jnp.where(union > 0, union, 1.0), 0.0)
    return (overlap >= SAME_REGION) & _equal(row.target_image) & _both(row.valid)


def segmented_again(row: RewardInputs) -> Array:
    """bool[K]: SEGMENT_OBJECT_AT within 2 % of the image side of an earlier one, on the same image."""
    placed = row.valid & (row.ops == SEGMENT) & jnp.any(row.arguments != 0, axis=-1)
    offset = jnp.abs(row.arguments[:, None, :2] - row.arguments[None, :, :2])
    near = jnp.all(offset <= SAME_POINT + 1e-6, axis=-1)
    return _earlier(near & _both(placed) & _equal(row.target_image))


def before_segment(row: RewardInputs) -> Array:
    """bool[K]: no earlier SEGMENT_OBJECT_AT succeeded."""
    segment = (row.valid & row.succeeded & (row.ops == SEGMENT)).astype(jnp.int32)
    return row.valid & (jnp.cumsum(segment) - segment == 0)


def last_failed(row: RewardInputs) -> Array:
    """bool[]: the last visual operation failed, so nothing after it repaired the error."""
    place = jnp.where(row.valid, jnp.arange(row.valid.shape[0]), -1)
    last = place == jnp.max(place)
    return jnp.any(last & row.valid & ~row.succeeded)


def _equal(x: Array) -> Array:
    return x[:, None] == x[None]


def _both(x: Array) -> Array:
    return x[:, None] & x[None]


def _earlier(related: Array) -> Array:
    """bool[K]: related to a call before it."""
    return jnp.any(jnp.tril(related, -1), axis=-1)
