"""The GRPO family as one loss: clipped (GRPO/DAPO), CISPO, GSPO and SAPO surrogates with five aggregations.

Sources: GRPO arXiv:2402.03300; DAPO arXiv:2503.14476 (token mean, clip-higher); Dr. GRPO arXiv:2503.20783; two-sided
clip (delta) arXiv:2505.07291; CISPO arXiv:2506.13585; GSPO arXiv:2507.18071; LUSPO "Length-Unbiased Sequence Policy
Optimization" (2026); SAPO arXiv:2511.20347; importance weights between sampler and trainer: Yao et al., "Your efficient
RL framework secretly brings you off-policy RL training" (2025).
"""

import dataclasses
import difflib
import math

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from pixelis_jax.algorithms.agreement import sampler_trainer_difference
from pixelis_jax.algorithms.kl import ESTIMATORS, MAX_LOG_RATIO, kl_estimate
from pixelis_jax.masked import masked_max, masked_mean, masked_sum, safe_divide
from pixelis_jax.types import UserError
from pixelis_jax.update import Stats

CHOICES: dict[str, tuple[str, ...]] = {
    "loss": ("clip", "cispo", "gspo", "sapo"),
    "aggregation": ("auto", "grpo", "dapo", "dr_grpo", "bnpo", "luspo"),
    "kl_estimator": ESTIMATORS,
    "kl_place": ("loss", "reward"),
    "correction": ("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}


@dataclasses.dataclass(frozen=True)
class GRPOConfig:
    """Settings of the loss, checked at construction (UserError names the field and the nearest valid value)."""

    loss: str = "clip"  # surrogate: clip | cispo | gspo | sapo
    aggregation: str = "auto"  # auto = dapo, and grpo for gspo
    e_low: float = 0.2  # ratio clipped below 1 - e_low
    e_high: float = 0.28  # and above 1 + e_high (clip-higher)
    delta: float | None = None  # upper bound of the unclipped ratio where A < 0; None: no bound
    cispo_cap: float = 5.0  # upper bound of CISPO's ratio
    sapo_tau_positive: float = 1.0  # SAPO temperature for A > 0
    sapo_tau_negative: float = 1.05  # and for A <= 0
    kl_beta: float = 0.001  # weight of the KL term; 0 turns it off
    kl_estimator: str = "k3"
    kl_place: str = "loss"  # loss, or reward (then the caller adds kl.kl_reward to the totals)
    entropy_bonus: float = 0.0  # weight of the mean token entropy
    correction: str = "none"  # sampler-to-trainer importance weight
    correction_cap: float = 3.0
    max_completion: int = 0  # tokens; the constant L of dr_grpo
    log_turns: int = 0  # turns with their own sampler-trainer difference

    def __post_init__(self) -> None:
        for field, valid in CHOICES.items():
            _check_choice(field, getattr(self, field), valid)
        _check_numbers(self)
        if self.loss == "gspo" and self.aggregation not in ("auto", "grpo", "luspo"):
            raise UserError(f"aggregation '{self.aggregation}' does not fit loss 'gspo'; use auto, grpo or luspo")
        if self.aggregation == "dr_grpo" and self.max_completion < 1:
            raise UserError(f"max_completion {self.max_completion} must be the completion limit in tokens for dr_grpo")
        if self.kl_estimator == "k1" and self.kl_place == "loss" and self.kl_beta > 0:
            raise UserError("kl_estimator 'k1' has no useful gradient in the loss; use k2 or k3, or kl_place 'reward'")

    @property
    def resolved_aggregation(self) -> str:
        return ("grpo" if self.loss == "gspo" else "dapo") if self.aggregation == "auto" else self.aggregation


def _check_choice(field: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        near = difflib.get_close_matches(str(value), valid, 1)
        hint = f"did you mean '{near[0]}'?" if near else "choose one of " + ", ".join(valid)
        raise UserError(f"{field} '{value}' is unknown; {hint}")


def _check_numbers(config: GRPOConfig) -> None:
    """Ranges of the numeric fields; NaN fails every one of them."""
    positive = ("e_high", "cispo_cap", "sapo_tau_positive", "sapo_tau_negative", "correction_cap")
    for field in (*positive, "e_low", "kl_beta", "entropy_bonus"):
        value = getattr(config, field)
        good = math.isfinite(value) and (value > 0 if field in positive else value >= 0)
        if not good:
            raise UserError(f"{field} {value} must be {'above 0' if field in positive else '0 or more'}")
    if config.e_low >= 1:
        raise UserError(f"e_low {config.e_low} must be below 1: the ratio is clipped at 1 - e_low")
    if config.delta is not None and not config.delta > 1 + config.e_high:
        raise UserError(
            f"delta {config.delta} must be above 1 + e_high = {1 + config.e_high:g}, or none (0 in a config)"
        )


@struct.dataclass
class GRPOInputs:
    """What the loss reads besides the current log-probs. Log-probs are at the sampling temperature."""

    policy: Array  # bool[B, T] tokens sampled by the policy
    advantages: Array  # f32[B]
    included: Array  # bool[B] False: no loss, no KL, no denominator
    logp_old: Array | None = None  # f32[B, T] trainer's at rollout time; None: the current ones
    logp_ref: Array | None = None  # f32[B, T] reference policy; None only with kl_beta 0 or kl_place reward
    logp_sampler: Array | None = None  # f32[B, T]; None: no difference is logged
    turn_of: Array | None = None  # i32[B, T]; with config.log_turns
    kl_beta: Array | None = None  # f32[B] the adaptive coefficient, the same in every row; None: config.kl_beta


def grpo_loss(logp: Array, entropy: Array, inputs: GRPOInputs, config: GRPOConfig) -> tuple[tuple[Array, Array], Stats]:
    """((sum, weight), stats) of the surrogate, KL and entropy terms of one micro-batch.

    Per token, with q the (token or sequence) ratio exp(logp - logp_old):
      clip, gspo  u = -min(min(q, delta) A, clip(q, 1 - e_low, 1 + e_high) A)
      cispo       u = -sg(min(q, cap)) A logp
      sapo        u = -(4 / tau) sigmoid(tau (q - 1)) A
    then l = w u + beta kl - bonus * entropy with w the sampler correction, summed by the aggregation (see `aggregate`).
    Shapes: logp, entropy f32[B, T]. What stands under a false mask (NaN too) changes neither loss nor gradient.
    Raises ValueError where a term needs log-probs that are not given.
    """
    _check_shapes(logp, entropy, inputs)
    mask = inputs.policy & inputs.included[:, None]
    logp, entropy = jnp.where(mask, logp, 0.0), jnp.where(mask, entropy, 0.0)
    old = jax.lax.stop_gradient(logp if inputs.logp_old is None else jnp.where(mask, inputs.logp_old, 0.0))
    advantages = jnp.where(inputs.included, inputs.advantages, 0.0)[:, None]
    log_ratio = jnp.clip(logp - old, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    if config.loss == "gspo":
        log_ratio = jnp.broadcast_to(masked_mean(log_ratio, mask, axis=1)[:, None], logp.shape)
    ratio = jnp.exp(log_ratio)
    losses, clipped = surrogate(ratio, logp, advantages, config)
    stats = _ratio_stats(ratio, clipped, entropy, mask)
    if inputs.logp_sampler is not None:
        sampler = jnp.where(mask, inputs.logp_sampler, 0.0)
        difference = sampler_trainer_difference(old, sampler, mask, inputs.turn_of, turns=config.log_turns)
        stats = Stats(means=stats.means | difference.means, maxima=stats.maxima | difference.maxima)
        if config.correction != "none":
            weight = sampler_correction(old, sampler, mask, config)
            losses = losses * weight
            stats.means["correction/weight"] = (masked_sum(weight, mask), jnp.sum(mask, dtype=jnp.float32))
    elif config.correction != "none":
        raise ValueError(f"correction '{config.correction}' needs logp_sampler")
    if inputs.logp_ref is not None:
        reference = jnp.where(mask, inputs.logp_ref, 0.0)
        stats.means["kl"] = (masked_sum(kl_estimate(logp, reference), mask), jnp.sum(mask, dtype=jnp.float32))
        if config.kl_place == "loss":
            beta = config.kl_beta if inputs.kl_beta is None else inputs.kl_beta[:, None]
            losses = losses + beta * kl_estimate(logp, reference, config.kl_estimator)
    elif config.kl_place == "loss" and (config.kl_beta > 0 or inputs.kl_beta is not None):
        raise ValueError("a KL term in the loss needs logp_ref")
    if config.entropy_bonus:
        losses = losses - config.entropy_bonus * entropy
    return aggregate(losses, mask, inputs.included, config), stats


def _check_shapes(logp: Array, entropy: Array, inputs: GRPOInputs) -> None:
    """AssertionError that names the inputs of which one has another shape than the policy mask."""
    chex.assert_rank(inputs.policy, 2, custom_message="inputs.policy bool[B, T]")
    tokens = [logp, entropy, inputs.logp_old, inputs.logp_ref, inputs.logp_sampler, inputs.turn_of]
    names = "logp, entropy, logp_old, logp_ref, logp_sampler, turn_of [B, T] like inputs.policy"
    chex.assert_shape([x for x in tokens if x is not None], inputs.policy.shape, custom_message=names)
    rows = [x for x in (inputs.advantages, inputs.included, inputs.kl_beta) if x is not None]
    chex.assert_shape(rows, inputs.policy.shape[:1], custom_message="advantages, included, kl_beta [B]")


def surrogate(ratio: Array, logp: Array, advantages: Array, config: GRPOConfig) -> tuple[Array, Array]:
    """(u f32[B, T], clipped bool[B, T]): the policy term of each token and whether its gradient was cut by the clip."""
    chex.assert_equal_shape([ratio, logp], custom_message="ratio, logp f32[B, T]")
    chex.assert_rank(advantages, ratio.ndim, custom_message="advantages f32[B, 1]")
    if config.loss == "cispo":
        weight = jax.lax.stop_gradient(jnp.minimum(ratio, config.cispo_cap))
        return -weight * advantages * logp, ratio > config.cispo_cap
    if config.loss == "sapo":
        tau = jnp.where(advantages > 0, config.sapo_tau_positive, config.sapo_tau_negative)
        return -(4.0 / tau) * jax.nn.sigmoid(tau * (ratio - 1.0)) * advantages, jnp.zeros_like(ratio, bool)
    bounded = ratio if config.delta is None else jnp.minimum(ratio, config.delta)
    held = jnp.clip(ratio, 1.0 - config.e_low, 1.0 + config.e_high)
    clipped = ((ratio < 1.0 - config.e_low) & (advantages < 0)) | ((ratio > 1.0 + config.e_high) & (advantages > 0))
    return -jnp.minimum(bounded * advantages, held * advantages), clipped


def sampler_correction(logp_old: Array, logp_sampler: Array, mask: Array, config: GRPOConfig) -> Array:
    """Importance weight exp(logp_old - logp_sampler) of each token, or of its sequence (the product). f32[B, T].

    `truncate` holds it at the cap; `mask` sets it to 0 above the cap. No gradient; the denominators do not change.
    """
    chex.assert_rank(mask, 2, custom_message="mask bool[B, T]")
    chex.assert_shape([logp_old, logp_sampler], mask.shape, custom_message="logp_old, logp_sampler f32[B, T] like mask")
    log_weight = jnp.where(mask, logp_old - logp_sampler, 0.0)
    if config.correction.startswith("sequence"):
        log_weight = jnp.broadcast_to(jnp.sum(log_weight, axis=1, keepdims=True), mask.shape)
    weight = jnp.exp(jnp.clip(log_weight, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    cap = config.correction_cap
    held = jnp.minimum(weight, cap) if config.correction.endswith("truncate") else jnp.where(weight > cap, 0.0, weight)
    return jax.lax.stop_gradient(held)


def aggregate(losses: Array, mask: Array, included: Array, config: GRPOConfig) -> tuple[Array, Array]:
    """(sum, weight) such that sum over all micro-batches / weight over all micro-batches is the loss.

      grpo     (1 / B) sum_i sum_t m l / n_i        dapo   sum m l / N
      dr_grpo  sum m l / (B L)                      luspo  (1 / B) sum_i sum_t m l
      bnpo     dapo inside each micro-batch, then the mean over micro-batches (parity only: it depends on the split)
    n_i policy tokens of row i, N = sum n_i, B included rows, L max_completion. Shapes: losses f32[B, T]; mask
    bool[B, T]; included bool[B].
    """
    chex.assert_rank(losses, 2, custom_message="losses f32[B, T]")
    chex.assert_shape(mask, losses.shape, custom_message="mask bool[B, T] like losses")
    chex.assert_shape(included, losses.shape[:1], custom_message="included bool[B]")
    kind = config.resolved_aggregation
    total, tokens = masked_sum(losses, mask), jnp.sum(mask, dtype=jnp.float32)
    rows = jnp.sum(included, dtype=jnp.float32)
    if kind == "dapo":
        return total, tokens
    if kind == "grpo":
        return jnp.sum(masked_mean(losses, mask, axis=1)), rows
    if kind == "dr_grpo":
        return total, rows * config.max_completion
    if kind == "luspo":
        return total, rows
    return safe_divide(total, tokens), (tokens > 0).astype(jnp.float32)


def _ratio_stats(ratio: Array, clipped: Array, entropy: Array, mask: Array) -> Stats:
    """Token means over the mask (a sequence ratio counts once a token) and the largest ratio."""
    count = jnp.sum(mask, dtype=jnp.float32)
    ratio, entropy = jax.lax.stop_gradient(ratio), jax.lax.stop_gradient(entropy)
    means = {
        "ratio/mean": (masked_sum(ratio, mask), count),
        "clip_fraction": (masked_sum(clipped.astype(jnp.float32), mask), count),
        "entropy": (masked_sum(entropy, mask), count),
    }
    return Stats(means=means, maxima={"ratio/max": masked_max(ratio, mask)})
