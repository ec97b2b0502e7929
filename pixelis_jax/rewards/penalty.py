"""Tool misuse penalty."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from pixelis_jax.rewards import calls
from pixelis_jax.types import OP_ID, RewardInputs


@dataclasses.dataclass(frozen=True)
class PenaltyConfig:
    """`base` is what one violation costs; the other numbers are multiples of it and the maxima an operation."""

    base: float = 0.1
    track_on_still: float = 2.0
    out_of_image: float = 0.5
    limits: tuple[tuple[int, int], ...] = (
        (OP_ID["ZOOM_IN"], 3),
        (OP_ID["SEGMENT_OBJECT_AT"], 10),
        (OP_ID["GET_PROPERTIES"], 10),
        (OP_ID["READ_TEXT"], 15),
        (OP_ID["TRACK_OBJECT"], 5),
    )


def penalty(row: RewardInputs, config: PenaltyConfig) -> tuple[Array, dict[str, Array]]:
    """(penalty <= 0, count of each violation) of one trajectory; all f32[].

    over_limit: each use above the operation's maximum; missing_prerequisite: an object is named although none was
    segmented (once); track_on_still: each TRACK_OBJECT on a still image (x 2); out_of_image: each call with coordinates
    outside (x .5); no_answer.
    """
    over = jnp.array(0)
    for op, limit in config.limits:
        over += jnp.maximum(jnp.sum(row.valid & (row.ops == op)) - limit, 0)
    named = row.by_object & ((row.ops == calls.PROPERTIES) | (row.ops == calls.TRACK))
    counts = {
        "over_limit": over,
        "missing_prerequisite": jnp.any(named & calls.before_segment(row)),
        "track_on_still": jnp.sum(row.valid & (row.ops == calls.TRACK) & ~row.is_video),
        "out_of_image": jnp.sum(row.valid & row.out_of_image),
        "no_answer": ~row.answered,
    }
    factors = {"track_on_still": config.track_on_still, "out_of_image": config.out_of_image}
    violations = {name: count.astype(jnp.float32) for name, count in counts.items()}
    total = sum((factors.get(name, 1.0) * count for name, count in violations.items()), jnp.float32(0))
    return -config.base * total, violations
