"""All rewards of a batch and their total. Components are vmapped here and only here."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from pixelis_jax.rewards import calls, curiosity, dynamics, moments
from pixelis_jax.rewards.coherence import CoherenceConfig, coherence
from pixelis_jax.rewards.curiosity import CuriosityConfig
from pixelis_jax.rewards.dynamics import DynamicsConfig, DynamicsState
from pixelis_jax.rewards.groups import group_normalise
from pixelis_jax.rewards.moments import Moments
from pixelis_jax.rewards.penalty import PenaltyConfig, penalty
from pixelis_jax.types import OP_ID, OPS, RewardInputs, UserError

COMPONENTS: tuple[str, ...] = ("final", "coherence", "curiosity")
NORMS: tuple[str, ...] = ("none", "group", "running")
COHERENCE: tuple[str, ...] = ("standard", "pixelis_v2")
LARGEST_WEIGHT = 1e9  # sums of weighted rewards stay finite in f32
Weights = tuple[tuple[str, float], ...]


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """Settings of all components and of their combination; hashable, so it can be a static argument."""

    norm: str = "none"  # none | group | running
    clip: float = 10.0  # the total is held in +- clip
    window: int = 1000  # samples of the running moments
    warmup: int = 10  # samples before the running z-score is used
    unrepaired: bool = True  # a right answer behind a call that failed is worth nothing
    curiosity: CuriosityConfig = dataclasses.field(default_factory=CuriosityConfig)
    coherence: CoherenceConfig = dataclasses.field(default_factory=CoherenceConfig)
    penalty: PenaltyConfig = dataclasses.field(default_factory=PenaltyConfig)

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise UserError(f"reward norm '{self.norm}' is unknown; choose one of {', '.join(NORMS)}")


@struct.dataclass
class RewardState:
    """What rewards remember between steps; part of the checkpoint. `dynamics` is None unless the curiosity is icm."""

    moments: dict[str, Moments]
    dynamics: DynamicsState | None = None


@struct.dataclass
class Scores:
    """Rewards of a batch. Excluded rows are 0 everywhere but in `violations`, which are counted in all rows.

    The dicts hold final, coherence, curiosity, penalty and total: as measured, after normalisation, and as added to the
    total (total/weighted is the clipped total itself).
    """

    total: Array  # f32[B]
    raw: dict[str, Array]  # f32[B] each
    normalised: dict[str, Array]
    weighted: dict[str, Array]
    violations: dict[str, Array]  # f32[B] counts; `not_finite` are components that were replaced by 0
    included: Array  # bool[B] not excluded, and the verifier's score is a number (NaN: no reward applies)
    losses: dict[str, Array]  # f32[] of the dynamics model; empty without one


PIXELIS_V2_WEIGHTS: Weights = (("final", 1.0), ("coherence", 0.2), ("curiosity", 0.3))


def pixelis_v2() -> RewardConfig:
    """The combination of the earlier system, for comparison (with PIXELIS_V2_WEIGHTS)."""
    return RewardConfig(norm="running", coherence=coherence_config("pixelis_v2"))


def from_fields(rewards: Mapping[str, Any], fees: Mapping[str, Any]) -> RewardConfig:
    """The settings that the groups `rewards` and `penalty` of a config hold."""
    curiosity = CuriosityConfig(
        kind=rewards["curiosity"],
        eta=rewards["curiosity_eta"],
        cap=rewards["curiosity_cap"],
        floor=rewards["curiosity_floor"],
        success_threshold=rewards["success_threshold"],
        dynamics=DynamicsConfig(pretrain_transitions=rewards["dynamics_transitions"]),
        rapr_target=rewards["rapr_target"],
        rapr_operations=rewards["rapr_operations"],
        rapr_alpha=rewards["rapr_alpha"],
        rapr_beta=rewards["rapr_beta"],
    )
    fields = {name: f"max_{name.lower()}" for name in OPS}
    maxima = tuple((OP_ID[name], fees[field]) for name, field in fields.items() if field in fees)  # others: free
    return RewardConfig(
        norm=rewards["norm"],
        clip=rewards["clip"],
        window=rewards["norm_window"],
        warmup=rewards["norm_warmup"],
        unrepaired=rewards["unrepaired_rule"],
        curiosity=curiosity,
        coherence=coherence_config(rewards["coherence"]),
        penalty=PenaltyConfig(fees["base"], fees["track_on_still"], fees["out_of_image"], maxima),
    )


def coherence_config(name: str) -> CoherenceConfig:
    """The terms of one of `COHERENCE`."""
    base = CoherenceConfig()
    pair = (OP_ID["GET_PROPERTIES"], OP_ID["SEGMENT_OBJECT_AT"])
    return dataclasses.replace(base, bad_pairs=(*base.bad_pairs, pair)) if name == "pixelis_v2" else base


def init(key: Array, config: RewardConfig) -> RewardState:
    """State before the first step."""
    model = dynamics.init(key, config.curiosity.dynamics) if config.curiosity.kind == "icm" else None
    return RewardState(moments={name: moments.init() for name in COMPONENTS}, dynamics=model)


def check_weights(weights: Weights, *, curiosity: str = "icm") -> dict[str, float]:
    """The weights by name, 0 for components that are not named.

    Raises UserError for an unknown or repeated name, a weight that is no number from 0 to LARGEST_WEIGHT, or no weight
    above 0 of a component that earns anything, which curiosity of kind `none` does not.
    """
    found: dict[str, float] = {}
    for name, value in weights:
        if name not in COMPONENTS:
            near = difflib.get_close_matches(str(name), COMPONENTS, 1)
            raise UserError(f"reward weight '{name}' is unknown; use {near[0] if near else ', '.join(COMPONENTS)}")
        if name in found:
            raise UserError(f"reward weight '{name}' is given twice; keep one")
        if not isinstance(value, int | float) or not 0 <= value <= LARGEST_WEIGHT:  # NaN is in no interval
            raise UserError(f"reward weight '{name}' is {value!r:.60}; use a number from 0 to {LARGEST_WEIGHT:g}")
        found[name] = float(value)
    if not any(found.values()):
        raise UserError("all reward weights are 0; set at least one of " + ", ".join(COMPONENTS))
    if curiosity == "none" and not any(value for name, value in found.items() if name != "curiosity"):
        raise UserError("all reward weights but curiosity's are 0 and its kind is none; set another one or its kind")
    return {name: found.get(name, 0.0) for name in COMPONENTS}


def score(
    inputs: RewardInputs, state: RewardState, *, config: RewardConfig, weights: Weights
) -> tuple[Scores, RewardState]:
    """(scores, state after the step): total = clip(sum_k w_k norm(c_k) + penalty, -clip, clip).

    `config` and `weights` are static. A zero weight takes a component out of the total only: it is still measured and
    the dynamics model still trained. Moments and the dynamics model are those from before the batch. A component that
    is not finite reads as 0 and is counted. Raises UserError as `check_weights`.
    """
    factors = check_weights(weights)
    included = ~inputs.excluded & jnp.isfinite(inputs.score)
    measured, new_dynamics, losses = _components(inputs, state, config)
    finite = {name: jnp.isfinite(value) for name, value in measured.items()}
    raw = {name: jnp.where(included & finite[name], value, 0.0) for name, value in measured.items()}
    fee, violations = jax.vmap(lambda row: penalty(row, config.penalty))(inputs)
    broken = sum(((~ok).astype(jnp.float32) for ok in finite.values()), jnp.zeros(included.shape))
    violations["not_finite"] = jnp.where(inputs.excluded, 0.0, broken)
    violations["unrepaired_error"] = jax.vmap(calls.last_failed)(inputs).astype(jnp.float32)
    fee = jnp.where(included, fee, 0.0)

    normalised = {name: _normalise(name, raw[name], inputs.group, included, state, config) for name in COMPONENTS}
    weighted = {name: factors[name] * normalised[name] if factors[name] else jnp.zeros_like(fee) for name in COMPONENTS}
    plain = sum((factors[name] * raw[name] for name in COMPONENTS), fee)
    total_normalised = sum(weighted.values(), fee)
    total = jnp.clip(total_normalised, -config.clip, config.clip)
    new_moments = {
        name: moments.update(state.moments[name], raw[name], included & finite[name], window=config.window)
        for name in COMPONENTS
    }
    scores = Scores(
        total=total,
        raw=raw | {"penalty": fee, "total": plain},
        normalised=normalised | {"penalty": fee, "total": total_normalised},
        weighted=weighted | {"penalty": fee, "total": total},
        violations=violations,
        included=included,
        losses=losses,
    )
    return scores, RewardState(moments=new_moments, dynamics=new_dynamics)


def final_reward(inputs: RewardInputs, *, unrepaired: bool = True) -> Array:
    """f32[B]: the task reward, and 0 where the last visual operation failed and was never repaired.

    Without `unrepaired` an error that is ignored costs nothing, and a policy learns to ignore errors.
    """
    return jnp.where(jax.vmap(calls.last_failed)(inputs), 0.0, inputs.score) if unrepaired else inputs.score


def overlong(tokens: Array, start: int, end: int) -> Array:
    """Soft overlong penalty: 0 up to `start` policy tokens, then linear to -1 at `end` (arXiv:2503.14476, eq. 13).

    i32[B] -> f32[B]. Of 6 tokens between 4 and 8: -.5.
    """
    return -jnp.clip((tokens - start) / (end - start), 0.0, 1.0)


def _components(
    inputs: RewardInputs, state: RewardState, config: RewardConfig
) -> tuple[dict[str, Array], DynamicsState | None, dict[str, Array]]:
    """(component name -> f32[B], dynamics state after training, its losses)."""
    final = final_reward(inputs, unrepaired=config.unrepaired)
    success = ~inputs.excluded & (final >= config.curiosity.success_threshold)
    new = state.dynamics
    losses: dict[str, Array] = {}
    if config.curiosity.kind == "icm":
        if state.dynamics is None:
            raise ValueError("curiosity kind 'icm' needs a state made with it")
        counted = jax.vmap(calls.distinct_transitions)(inputs) & ~inputs.excluded[:, None]
        data = dynamics.transitions(inputs, counted)
        error, new, losses = dynamics.score_and_train(state.dynamics, data, config.curiosity.dynamics)
        bonus = curiosity.icm(error, data.mask, success, inputs, config.curiosity)
    elif config.curiosity.kind == "rapr":
        bonus = curiosity.rapr(success, inputs, config.curiosity)
    else:
        bonus = jnp.zeros_like(final)
    tidy = jax.vmap(lambda row: coherence(row, config.coherence))(inputs)
    return {"final": final, "coherence": tidy, "curiosity": bonus}, new, losses


def _normalise(
    name: str, values: Array, group: Array, included: Array, state: RewardState, config: RewardConfig
) -> Array:
    if config.norm == "group":
        return group_normalise(values, group, included)
    if config.norm == "running":
        return jnp.where(included, moments.standardise(state.moments[name], values, warmup=config.warmup), 0.0)
    return values
