"""Group-relative advantages.

Sources: GRPO arXiv:2402.03300, section 4.1; scale `none` Dr. GRPO arXiv:2503.20783; scale `batch` arXiv:2508.08221.
"""

from typing import Literal

import chex
import jax.numpy as jnp
from flax import struct
from jax import Array

from pixelis_jax.masked import masked_mean, masked_std, safe_divide
from pixelis_jax.rewards.groups import EPSILON, group_statistics
from pixelis_jax.types import UserError

Scale = Literal["batch", "group", "none"]
SCALES: tuple[str, ...] = ("batch", "group", "none")


@struct.dataclass
class Advantages:
    """Advantages and what is known about the groups they came from."""

    values: Array  # f32[B], 0 for excluded rows
    uniform: Array  # bool[B] the row's group is uniform: no gradient comes from it
    uniform_share: Array  # f32[] uniform groups / groups with an included row
    filtering_rate: Array  # f32[] share of included rows with |advantage| > threshold
    single: Array  # i32[] groups that shrank to one included row


def check_group_size(size: int) -> None:
    """Raises UserError for a group that can have no deviation from its own mean."""
    if size < 2:
        raise UserError(f"group_size {size} gives no advantage (a row is compared with its group); set it to 2 or more")


def group_advantages(
    rewards: Array, group: Array, included: Array, *, scale: Scale = "batch", threshold: float = 0.01
) -> Advantages:
    """A = (R - mean of the group) / (std + 1e-4).

    `scale` says what the deviation (n - 1) is taken over: rewards of the batch, of the group, or `none` (no division).
    Shapes: rewards f32[B]; group i32[B], ids 0..B-1, rows in any order; included bool[B]. Excluded rows count nowhere.
    A uniform group (max - min < 1e-6) gives exactly 0, and so does a group of one, which counts as uniform too.
    [1, 1, 2] in one group -> [-.57725, -.57725, 1.15450] with scale `group`.
    Raises UserError for an unknown scale.
    """
    chex.assert_rank(rewards, 1, custom_message="rewards f32[B]")
    chex.assert_shape([group, included], rewards.shape, custom_message="group i32[B], included bool[B] like rewards")
    if scale not in SCALES:
        raise UserError(f"advantage scale '{scale}' is unknown; choose one of {', '.join(SCALES)}")
    stats = group_statistics(rewards, group, included)
    centred = jnp.where(included & ~stats.uniform, jnp.where(included, rewards, 0.0) - stats.mean, 0.0)
    if scale == "group":
        values = centred / (stats.std + EPSILON)
    elif scale == "batch":
        values = centred / (masked_std(rewards, included) + EPSILON)
    else:
        values = centred
    groups = jnp.sum(stats.first)
    return Advantages(
        values=values,
        uniform=stats.uniform,
        uniform_share=safe_divide(jnp.sum(stats.first & stats.uniform), groups),
        filtering_rate=masked_mean((jnp.abs(values) > threshold).astype(jnp.float32), included),
        single=jnp.sum(stats.first & (stats.count == 1)),
    )
