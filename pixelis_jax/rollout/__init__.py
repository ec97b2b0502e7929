"""Rollouts: what the policy says, what the tools answer, and the arrays that training reads."""

from pixelis_jax.rollout.engine import SamplingConfig
from pixelis_jax.rollout.sample import Rollout, RolloutConfig, Sampler, sample

__all__ = ["Rollout", "RolloutConfig", "Sampler", "SamplingConfig", "sample"]
