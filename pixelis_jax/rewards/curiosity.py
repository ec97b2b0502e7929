"""Curiosity reward: prediction error of a dynamics model, or the rate of pixel-space reasoning (rapr)."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from pixelis_jax.masked import masked_mean
from pixelis_jax.rewards.dynamics import DynamicsConfig
from pixelis_jax.rewards.groups import group_statistics
from pixelis_jax.types import RewardInputs, UserError

KINDS: tuple[str, ...] = ("icm", "rapr", "none")


@dataclasses.dataclass(frozen=True)
class CuriosityConfig:
    """Which curiosity, and its constants. Raises UserError for an unknown kind."""

    kind: str = "icm"
    eta: float = 0.5  # scale of the prediction error
    cap: float = 1.0  # upper bound of one transition's reward
    floor: float = 0.0  # share of the reward that a wrong answer keeps
    success_threshold: float = 0.5  # a final reward from here on is a success
    dynamics: DynamicsConfig = dataclasses.field(default_factory=DynamicsConfig)
    rapr_target: float = 0.3  # H
    rapr_operations: int = 1  # N
    rapr_alpha: float = 0.5
    rapr_beta: float = 0.05

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"curiosity kind '{self.kind}' is unknown; choose one of {', '.join(KINDS)}")


def icm(error: Array, counted: Array, success: Array, inputs: RewardInputs, config: CuriosityConfig) -> Array:
    """f32[B]: mean over distinct transitions of min(eta * error, cap), times (1 - group success rate), times the gate.

    Novelty pays only where it serves the task: nothing where the group has solved it, and only `floor` to a wrong
    answer. Shapes: error f32[B, K] squared prediction error; counted bool[B, K] the distinct transitions that
    succeeded; success bool[B].
    """
    novelty = masked_mean(jnp.minimum(config.eta * error, config.cap), counted, axis=1)
    rate = group_statistics(success.astype(jnp.float32), inputs.group, ~inputs.excluded).mean
    return novelty * (1.0 - rate) * jnp.where(success, 1.0, config.floor)


def rapr(success: Array, inputs: RewardInputs, config: CuriosityConfig) -> Array:
    """f32[B]: alpha max(H - rapr, 0) times the gate where an operation is used, minus beta max(n - N, 0) for any.

    rapr is the share of the group's rollouts with at least one operation, n the rollout's operations; only a rollout
    with one that succeeded is paid, and only `floor` of it where the answer is wrong.
    Source: Pixel Reasoner, arXiv:2505.15966, section 3.
    """
    uses = jnp.any(inputs.valid & inputs.succeeded, axis=1)
    tried = jnp.any(inputs.valid, axis=1)
    rate = group_statistics(tried.astype(jnp.float32), inputs.group, ~inputs.excluded).mean
    gate = jnp.where(success, 1.0, config.floor)
    bonus = jnp.where(uses, config.rapr_alpha * jnp.maximum(config.rapr_target - rate, 0.0), 0.0) * gate
    extra = jnp.maximum(jnp.sum(inputs.valid, axis=1) - config.rapr_operations, 0)
    return bonus - config.rapr_beta * extra
