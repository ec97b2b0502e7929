"""Selective sample replay: rows that would train nothing give their place to informative ones of earlier steps.

Source: VL-Rethinker, arXiv:2504.08837, section 3.2. A row is informative where |advantage| is above a threshold. It is
kept whole, with the image features it was sampled with, so a replayed row is scored against its own old log-probs. All
is pure and of fixed shapes: the buffer is part of the train state, and a resumed run draws what it would have drawn.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from pixelis_jax.algorithms.grpo import GRPOInputs
from pixelis_jax.masked import masked_mean
from pixelis_jax.types import TokenBatch


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """`size` places; at most `ratio` of a batch is replaced, by rows up to `max_age` steps old.

    They are drawn with P ~ |advantage|^alpha. `tokens` is the length of a row. Of these `image_tokens` may be of
    images; a row with more is not kept.
    """

    size: int
    ratio: float
    alpha: float
    max_age: int
    tokens: int
    image_tokens: int


@struct.dataclass
class Replay:
    """The buffer; leading axis N. `step` is -1 where a place is empty.

    `rows.image_index` counts within the row's own features.
    """

    rows: TokenBatch
    turn_of: Array  # i32[N, T]
    logp_old: Array  # f32[N, T] the trainer's when the row was sampled
    logp_ref: Array  # f32[N, T]
    logp_sampler: Array  # f32[N, T]
    features: Array  # f[N, U, D] of its image tokens, in their order
    advantage: Array  # f32[N]
    step: Array  # i32[N] the training step that sampled it


def init(config: ReplayConfig, *, width: int, dtype: Any) -> Replay:
    """An empty buffer for features of `width`."""
    n, t = config.size, config.tokens
    whole, flag, number = jnp.zeros((n, t), jnp.int32), jnp.zeros((n, t), bool), jnp.zeros((n, t))
    rows = TokenBatch(whole, flag, flag.copy(), jnp.zeros((n, 3, t), jnp.int32), whole - 1)
    return Replay(
        rows=rows,
        turn_of=whole - 1,
        logp_old=number,
        logp_ref=number.copy(),
        logp_sampler=number.copy(),
        features=jnp.zeros((n, config.image_tokens, width), dtype),
        advantage=jnp.zeros(n),
        step=jnp.full(n, -1, jnp.int32),
    )


def bytes_of(config: ReplayConfig, *, width: int, dtype: Any) -> int:
    """Memory that a buffer takes on each device."""
    made = jax.eval_shape(lambda: init(config, width=width, dtype=dtype))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(made))


def draw(replay: Replay, key: Array, step: Array, config: ReplayConfig, *, count: int) -> tuple[Array, Array]:
    """(places i32[count], how many of these are real): without replacement, P ~ |advantage|^alpha, none too old.

    Gumbel noise on the log-weights makes the largest a sample without replacement (arXiv:1903.06059).
    """
    there = (replay.step >= 0) & (step - replay.step <= config.max_age)
    weights = config.alpha * jnp.log(jnp.maximum(jnp.abs(replay.advantage), 1e-30))
    noisy = jnp.where(there, weights + jax.random.gumbel(key, weights.shape), -jnp.inf)
    _, places = jax.lax.top_k(noisy, count)
    return places, jnp.minimum(jnp.sum(there), count)


def splice(
    rows: TokenBatch,
    inputs: GRPOInputs,
    features: Array,
    replay: Replay,
    *,
    informative: Array,
    key: Array,
    step: Array,
    config: ReplayConfig,
) -> tuple[TokenBatch, GRPOInputs, Array, dict[str, Array]]:
    """(rows, inputs, feature table, metrics) with replayed rows in the places of uninformative ones.

    Shapes: rows and inputs of B rows, logp_old and logp_ref given; features f[F, D]; informative bool[B]. The table
    grows by the features of the drawn rows. Metrics: replay_share of the batch, replay/age of the drawn rows in steps.
    """
    _check_shapes(rows, inputs, features, replay, informative)
    assert inputs.logp_old is not None and inputs.logp_ref is not None
    assert inputs.logp_sampler is not None and inputs.turn_of is not None
    b = informative.shape[0]
    count = min(config.size, int(config.ratio * b))
    places, real = draw(replay, key, step, config, count=count)
    rank = jnp.cumsum(~informative) - 1  # of an uninformative row among these
    replaced = ~informative & (rank < real)
    number = jnp.clip(rank, 0, count - 1)  # of the drawn row
    source = places[number]

    def chosen(fresh: Array, kept: Array) -> Array:
        return jnp.where(replaced.reshape(-1, *[1] * (fresh.ndim - 1)), kept[source], fresh)

    u = config.image_tokens
    local = replay.rows.image_index[source]
    moved = jnp.where(local < 0, -1, features.shape[0] + number[:, None] * u + local)
    rows = dataclasses.replace(
        jax.tree.map(chosen, rows, replay.rows), image_index=jnp.where(replaced[:, None], moved, rows.image_index)
    )
    drawn = replay.features[places].reshape(count * u, features.shape[1]).astype(features.dtype)
    inputs = dataclasses.replace(
        inputs,
        policy=rows.policy,
        advantages=chosen(inputs.advantages, replay.advantage),
        included=inputs.included | replaced,
        logp_old=chosen(inputs.logp_old, replay.logp_old),
        logp_ref=chosen(inputs.logp_ref, replay.logp_ref),
        logp_sampler=chosen(inputs.logp_sampler, replay.logp_sampler),
        turn_of=chosen(inputs.turn_of, replay.turn_of),
    )
    age = (step - replay.step[source]).astype(jnp.float32)
    metrics = {
        "replay_share": jnp.mean(replaced.astype(jnp.float32)),
        "replay/age": jnp.where(jnp.any(replaced), masked_mean(age, replaced), jnp.nan),
        "replay/kept": jnp.sum(replay.step >= 0).astype(jnp.float32),
    }
    return rows, inputs, jnp.concatenate([features, drawn]), metrics


def insert(
    replay: Replay, rows: TokenBatch, inputs: GRPOInputs, features: Array, *, informative: Array, step: Array
) -> tuple[Replay, dict[str, Array]]:
    """(buffer, metrics) with the informative rows of a batch in place of the oldest; of more than N the first N.

    A row with more image tokens than the buffer has room for is left out whole: of its images none may be missing.
    Metrics: skipped/replay_rows, how many these are.
    """
    _check_shapes(rows, inputs, features, replay, informative)
    assert inputs.logp_old is not None and inputs.logp_ref is not None
    assert inputs.logp_sampler is not None and inputs.turn_of is not None
    n, u = replay.features.shape[:2]
    seen = rows.image_index >= 0
    fits = jnp.sum(seen, axis=1) <= u
    rank = jnp.cumsum(informative & fits) - 1
    taken = informative & fits & (rank < n)
    oldest = jnp.argsort(replay.step, stable=True)
    target = jnp.where(taken, oldest[jnp.clip(rank, 0, n - 1)], n)  # n: nowhere

    def put(kept: Array, fresh: Array) -> Array:
        return kept.at[target].set(fresh.astype(kept.dtype), mode="drop")

    local = jnp.where(seen, jnp.cumsum(seen, axis=1) - 1, -1)
    block = jnp.zeros((rows.tokens.shape[0], u, features.shape[1]), features.dtype)
    own = jnp.where(seen, local, u)
    block = jax.vmap(lambda out, at, x: out.at[at].set(x, mode="drop"))(block, own, features[rows.image_index])
    kept = jax.tree.map(put, replay.rows, dataclasses.replace(rows, image_index=local))
    new = Replay(
        rows=kept,
        turn_of=put(replay.turn_of, inputs.turn_of),
        logp_old=put(replay.logp_old, inputs.logp_old),
        logp_ref=put(replay.logp_ref, inputs.logp_ref),
        logp_sampler=put(replay.logp_sampler, inputs.logp_sampler),
        features=put(replay.features, block),
        advantage=put(replay.advantage, inputs.advantages),
        step=put(replay.step, jnp.full(informative.shape, step)),
    )
    return new, {"skipped/replay_rows": jnp.sum(informative & ~fits).astype(jnp.float32)}


def _check_shapes(rows: TokenBatch, inputs: GRPOInputs, features: Array, replay: Replay, informative: Array) -> None:
    """AssertionError that names what does not fit the rows or the buffer."""
    chex.assert_rank(informative, 1, custom_message="informative bool[B]")
    length = replay.turn_of.shape[1]
    tokens = [rows.tokens, rows.image_index, inputs.policy]
    tokens += [x for x in (inputs.logp_old, inputs.logp_ref, inputs.logp_sampler, inputs.turn_of) if x is not None]
    names = "rows, logp_old, logp_ref, logp_sampler, turn_of [B, T], T that of the buffer"
    chex.assert_shape(tokens, (informative.shape[0], length), custom_message=names)
    chex.assert_shape(features, (None, replay.features.shape[-1]), custom_message="features f[F, D], D the buffer's")
