"""The compiled train steps: supervised (`make_sft_step`) and RL (`score`, `update`, and both as `train_step`).

All are pure: (state, batch) -> (state, metrics), jitted, the state donated. The frozen base and the reference adapter are
arguments that are not donated, so rollout and training share one copy.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import Array

from pixelis_jax import update as updates
from pixelis_jax.algorithms import advantages as advantage
from pixelis_jax.algorithms import grpo, sft
from pixelis_jax.data.demonstrations import DemonstrationBatch
from pixelis_jax.masked import safe_divide
from pixelis_jax.models.qwen2_5_vl import Qwen2_5_VL
from pixelis_jax.update import Stats

PyTree = Any


@struct.dataclass
class TrainState:
    """What training changes: `trainable` is {"params": ...} or {"lora": ...}."""

    step: Array  # i32[] optimizer steps taken
    trainable: PyTree
    opt_state: optax.OptState


def init_state(trainable: PyTree, tx: optax.GradientTransformation) -> TrainState:
    return TrainState(jnp.zeros((), jnp.int32), trainable, tx.init(trainable))


SftStep = Callable[[TrainState, PyTree, DemonstrationBatch], tuple[TrainState, dict[str, Array]]]


def demonstration_features(model: Qwen2_5_VL, variables: PyTree, batch: DemonstrationBatch) -> Array:
    """Feature table of a batch: overviews first, then crops."""
    parts = [model.apply(variables, images, method="encode_images") for images in (batch.overview, batch.crops)]
    return jnp.concatenate(parts)


def make_sft_step(model: Qwen2_5_VL, tx: optax.GradientTransformation, *, micro_batches: int) -> SftStep:
    """Token-mean cross-entropy step. The vision tower is trained exactly where `trainable` holds "params"."""

    def step(state: TrainState, frozen: PyTree, batch: DemonstrationBatch) -> tuple[TrainState, dict[str, Array]]:
        trains_vision = "params" in state.trainable
        if trains_vision and micro_batches != 1:
            raise ValueError("full training needs micro_batches=1: images are shared between rows")
        fixed = None if trains_vision else demonstration_features(model, frozen, batch)

        def loss(trainable: PyTree, part: PyTree) -> tuple[tuple[Array, Array], Stats]:
            rows, weights = part
            variables = frozen | trainable
            features = demonstration_features(model, variables, batch) if fixed is None else fixed
            out = model.apply(variables, rows, features, method="score")
            total, stats = sft.sft_loss(out.logp, rows.policy, weights=weights)
            return total, Stats(means=stats.means | _answer_stats(out.logp, rows.policy, weights), maxima=stats.maxima)

        trainable, opt_state, metrics = updates.update(
            loss, state.trainable, state.opt_state, (batch.rows, batch.weights), tx=tx, micro_batches=micro_batches
        )
        return TrainState(state.step + 1, trainable, opt_state), metrics

    return jax.jit(step, donate_argnums=0)


def _answer_stats(logp: Array, policy: Array, weights: Array) -> dict[str, tuple[Array, Array]]:
    """Mean probability of the up-weighted tokens: those between the answer tags."""
    answer = policy & (weights > 1.0)
    return {"sft/answer_prob": (jnp.sum(jnp.exp(logp) * answer), jnp.sum(answer, dtype=jnp.float32))}
