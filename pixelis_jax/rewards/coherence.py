"""Coherence reward: does one operation follow from the other?"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from pixelis_jax.masked import masked_mean, safe_divide
from pixelis_jax.rewards import calls
from pixelis_jax.types import OP_ID, RewardInputs

ZOOM = OP_ID["ZOOM_IN"]


def _pairs(*names: tuple[str, str]) -> tuple[tuple[int, int], ...]:
    return tuple((OP_ID[a], OP_ID[b]) for a, b in names)


@dataclasses.dataclass(frozen=True)
class CoherenceConfig:
    """Terms of the coherence reward; op ids in pairs, THINK as a second op means `thought_after`."""

    repeat: float = -0.5  # the same operation with the same arguments twice in a row
    good: float = 0.2
    bad: float = -0.3
    contradiction: float = -0.3
    flow: float = 0.3  # neighbouring observations neither equal nor unrelated
    stale: float = -0.2  # mean cosine above `stale_above`
    unrelated: float = -0.3  # mean cosine below `unrelated_below`
    flow_between: tuple[float, float] = (0.3, 0.7)
    stale_above: float = 0.9
    unrelated_below: float = 0.1
    good_pairs: tuple[tuple[int, int], ...] = _pairs(
        ("SEGMENT_OBJECT_AT", "GET_PROPERTIES"),
        ("ZOOM_IN", "READ_TEXT"),
        ("SEGMENT_OBJECT_AT", "TRACK_OBJECT"),
        ("READ_TEXT", "THINK"),
        ("GET_PROPERTIES", "THINK"),
    )
    bad_pairs: tuple[tuple[int, int], ...] = _pairs(("TRACK_OBJECT", "TRACK_OBJECT"))


def coherence(row: RewardInputs, config: CoherenceConfig) -> Array:
    """clip(mean of the terms that apply, -1, 1) of one trajectory; 0 where none applies or below two calls.

    Terms: each consecutive pair that is an exact repeat, each bad pair, each ZOOM_IN on the region just zoomed into,
    each kind of good pair once (both calls must have succeeded), each contradiction, and the mean cosine of
    neighbouring embeddings. Valid calls stand first in the row. Returns f32[].
    """
    count = jnp.sum(row.valid)
    good, bad = _good_pairs(row, config), _bad_pairs(row, config)
    repeats = jnp.sum(jnp.diagonal(calls.same_call(row), offset=-1))
    contradictions = jnp.sum(contradiction(row))
    flow, flows = _flow(row, config)
    total = (
        config.repeat * repeats + config.good * good + config.bad * bad + config.contradiction * contradictions + flow
    )
    terms = repeats + good + bad + contradictions + flows
    return jnp.where(count >= 2, jnp.clip(safe_divide(total, terms), -1.0, 1.0), 0.0)


def contradiction(row: RewardInputs) -> Array:
    """bool[K]: segments the same point again, or uses GET_PROPERTIES by object or TRACK_OBJECT before any segment."""
    needs = (row.ops == calls.TRACK) | ((row.ops == calls.PROPERTIES) & row.by_object)
    return calls.segmented_again(row) | (needs & calls.before_segment(row))


def _good_pairs(row: RewardInputs, config: CoherenceConfig) -> Array:
    """Number of kinds of good pairs that occur: a pair that is repeated earns nothing more."""
    worked = row.valid & row.succeeded
    found = []
    for first, second in config.good_pairs:
        if second == OP_ID["THINK"]:
            found.append(jnp.any(worked & (row.ops == first) & row.thought_after))
        else:
            found.append(jnp.any(_followed(row, first, second, worked)))
    return jnp.sum(jnp.array(found)) if found else jnp.array(0)


def _bad_pairs(row: RewardInputs, config: CoherenceConfig) -> Array:
    total = jnp.sum(_followed(row, ZOOM, ZOOM, row.valid) & jnp.diagonal(calls.same_region(row), offset=-1))
    for first, second in config.bad_pairs:
        total += jnp.sum(_followed(row, first, second, row.valid))
    return total


def _followed(row: RewardInputs, first: int, second: int, counted: Array) -> Array:
    """bool[K-1]: call k is `first` and call k+1 is `second`, both counted."""
    return (row.ops[:-1] == first) & (row.ops[1:] == second) & counted[:-1] & counted[1:]


def _flow(row: RewardInputs, config: CoherenceConfig) -> tuple[Array, Array]:
    """(term, 1 or 0 for whether it applies) of the mean cosine over the states before and after each call."""
    before, after = row.embeddings[:-1], row.embeddings[1:]
    norms = jnp.linalg.norm(before, axis=-1) * jnp.linalg.norm(after, axis=-1)
    known = row.valid & (norms > 0) & jnp.isfinite(norms)
    cosine = jnp.sum(before * after, axis=-1) / jnp.where(known, norms, 1.0)
    mean = masked_mean(cosine, known)
    low, high = config.flow_between
    term = jnp.where((low < mean) & (mean < high), config.flow, 0.0)
    term = jnp.where(mean > config.stale_above, config.stale, term)
    term = jnp.where(mean < config.unrelated_below, config.unrelated, term)
    term = jnp.where(jnp.any(known), term, 0.0)
    return term, (term != 0).astype(jnp.int32)
