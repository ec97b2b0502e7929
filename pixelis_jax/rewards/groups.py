"""Statistics of prompt groups when the rows of a group stand anywhere in the batch."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from pixelis_jax.masked import safe_divide

EPSILON = 1e-4  # added to a standard deviation before dividing by it
UNIFORM_RANGE = 1e-6  # a group whose max - min is below this carries no preference


@struct.dataclass
class GroupStatistics:
    """For every row what holds for its group, over the included rows only; 0 where the group has none."""

    mean: Array  # f32[B]
    std: Array  # f32[B] with n - 1; 0 for a uniform group
    count: Array  # i32[B] included rows of the group
    uniform: Array  # bool[B] max - min < UNIFORM_RANGE (a group of one is uniform)
    first: Array  # bool[B] True at exactly one included row of each group: sums over groups are sums over these


def group_statistics(values: Array, group: Array, included: Array) -> GroupStatistics:
    """Mean, deviation and size of each row's group.

    Shapes: values f32[B]; group i32[B], ids 0..B-1 in any order; included bool[B]. Excluded rows count
    nowhere, whatever their value (NaN too).
    """
    rows = values.shape[0]

    def total(x: Array) -> Array:
        return jax.ops.segment_sum(x, group, num_segments=rows)[group]

    values = jnp.where(included, values, 0.0)
    count = total(included.astype(jnp.int32))
    mean = safe_divide(total(values), count)
    high = jax.ops.segment_max(jnp.where(included, values, -jnp.inf), group, num_segments=rows)[group]
    low = jax.ops.segment_min(jnp.where(included, values, jnp.inf), group, num_segments=rows)[group]
    uniform = (count > 0) & (high - low < UNIFORM_RANGE)
    squares = total(jnp.where(included, (values - mean) ** 2, 0.0))
    std = jnp.where(uniform, 0.0, jnp.sqrt(safe_divide(squares, count - 1)))
    index = jnp.arange(rows)
    earliest = jax.ops.segment_min(jnp.where(included, index, rows), group, num_segments=rows)[group]
    return GroupStatistics(mean=mean, std=std, count=count, uniform=uniform, first=included & (index == earliest))


def group_normalise(values: Array, group: Array, included: Array) -> Array:
    """(value - group mean) / (group std + 1e-4); exactly 0 for uniform groups and excluded rows. f32[B]."""
    stats = group_statistics(values, group, included)
    centred = jnp.where(included & ~stats.uniform, jnp.where(included, values, 0.0) - stats.mean, 0.0)
    return centred / (stats.std + EPSILON)
