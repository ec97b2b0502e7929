"""Performance-triggered curriculum: one state machine for reward weights and for difficulty mixes."""

from pixelis_jax.curriculum.machine import (
    AllOf,
    Curriculum,
    Fall,
    MaxSteps,
    Rollback,
    Slope,
    Stage,
    State,
    Threshold,
    Transition,
    current,
    from_json,
    init,
    to_json,
    update,
)
from pixelis_jax.curriculum.presets import DifficultyRules, difficulty_curriculum, reward_curriculum
from pixelis_jax.curriculum.table import exit_from_config, stage_from_config, validate

__all__ = [
    "AllOf",
    "Curriculum",
    "DifficultyRules",
    "Fall",
    "MaxSteps",
    "Rollback",
    "Slope",
    "Stage",
    "State",
    "Threshold",
    "Transition",
    "current",
    "difficulty_curriculum",
    "exit_from_config",
    "from_json",
    "init",
    "reward_curriculum",
    "stage_from_config",
    "to_json",
    "update",
    "validate",
]
