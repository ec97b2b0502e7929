"""The two curricula: of reward weights (RFT) and of difficulty mixes (SFT), tables of the same machine."""

import dataclasses
from collections.abc import Mapping, Sequence

from pixelis_jax.curriculum.machine import AllOf, Curriculum, Fall, MaxSteps, Rollback, Slope, Stage, Threshold
from pixelis_jax.types import UserError

CATEGORIES: tuple[str, ...] = ("simple", "medium", "hard")
HYSTERESIS = 0.02  # accuracy: by how much less than what advances is called a failure


def reward_curriculum() -> Curriculum:
    """The default reward curriculum: learn the goal, then to be coherent, then to explore."""
    success = "success_rate_ma100"
    return Curriculum(
        stages=(
            Stage(
                "Phase1_Learn_Goal",
                (("final", 1.0), ("coherence", 0.0), ("curiosity", 0.0)),
                exits=(Threshold(success, 0.70), MaxSteps(10_000)),
            ),
            Stage(
                "Phase2_Learn_Coherence",
                (("final", 1.0), ("coherence", 0.1), ("curiosity", 0.0)),
                exits=(Slope("coherence_ma100"), Threshold("combined_score_ma100", 0.65), MaxSteps(20_000)),
                entry_metric=success,
            ),
            Stage(
                "Phase3_Learn_Curiosity",
                (("final", 1.0), ("coherence", 0.1), ("curiosity", 0.05)),
                entry_metric=success,
            ),
        )
    )


@dataclasses.dataclass(frozen=True)
class DifficultyRules:
    """When a difficulty stage is left (spec/data.md, section 5). Steps are training steps, cycles are evaluations."""

    evaluation_frequency: int = 100  # steps
    advancement_interval: int = 500  # steps since the last change
    min_performance: float = 0.6  # held-out accuracy on the stage's mix
    performance_window: int = 3  # evaluations that are averaged
    patience_cycles: int = 2  # consecutive evaluations
    rollback_threshold: float = -0.05  # of accuracy on the previous stage's mix
    rollback_cooldown: int = 1000  # steps
    cooldown_cycles: int = 3
    rollback_factor: float = 2.0  # of the advancement interval


def accuracy_on(stage: str) -> str:
    """Name of the metric: held-out accuracy on a stage's mix of difficulties."""
    return f"eval/accuracy_on/{stage}"


def accuracy_in(category: str) -> str:
    """Name of the metric: held-out accuracy in one category."""
    return f"eval/accuracy/{category}"


def difficulty_curriculum(stages: Sequence[Mapping[str, object]], rules: DifficultyRules) -> Curriculum:
    """Stages {"name", "mix": {category: share}, optional "max_steps"} as a curriculum whose weights are the mix.

    A stage advances when the mean accuracy on its mix over the last window reaches `min_performance` at
    `patience_cycles` consecutive evaluations. It is left backwards when accuracy on the *previous* stage's mix has
    fallen by `rollback_threshold` at as many evaluations, or when mean accuracy on its own mix is both below
    `min_performance` and below what it was at the entry, by HYSTERESIS each. So a harder mix alone, with equal skill,
    is no reason, and a score at the threshold does not swing. Raises UserError for a mix that does not sum to 1.
    """
    made: list[Stage] = []
    for fields in stages:
        name, mix = _mix_of(fields)
        if any(stage.name == name for stage in made):
            raise UserError(f"curriculum stage '{name}' is there twice; names must differ")
        metric = accuracy_on(name)
        learnt = Threshold(metric, rules.min_performance, ">=", rules.performance_window, rules.patience_cycles)
        failed = (
            Threshold(metric, rules.min_performance - HYSTERESIS, "<", rules.performance_window),
            Fall(metric, HYSTERESIS, rules.performance_window),
        )
        most = fields.get("max_steps")
        made.append(
            Stage(
                name,
                mix,
                exits=(learnt, *((MaxSteps(most),) if isinstance(most, int) else ())),
                entry_metric=accuracy_on(made[-1].name) if made else "",
                failures=(AllOf(failed),) if made else (),
            )
        )
    return Curriculum(
        tuple(made),
        rules.evaluation_frequency,
        rules.advancement_interval,
        record=tuple(accuracy_in(category) for category in CATEGORIES),
        rollback=Rollback(
            threshold=abs(rules.rollback_threshold),
            patience=rules.patience_cycles,
            cooldown_steps=rules.rollback_cooldown,
            cooldown_evaluations=rules.cooldown_cycles,
            factor=rules.rollback_factor,
        ),
    )


def _mix_of(fields: Mapping[str, object]) -> tuple[str, tuple[tuple[str, float], ...]]:
    """(name, shares of CATEGORIES) of a stage. Raises UserError."""
    name, mix = fields.get("name"), fields.get("mix")
    where = f"curriculum stage {name!r:.60}"
    unknown = [key for key in fields if key not in ("name", "mix", "max_steps")]
    if not isinstance(name, str) or not name or not isinstance(mix, Mapping) or unknown:
        lacking = "mix" if isinstance(name, str) and name else "name"
        wrong = f"has no field {unknown[0]!r:.40}" if unknown else f"lacks its {lacking}"
        raise UserError(f"{where} {wrong}; its fields are name, mix and max_steps")
    for category, share in mix.items():
        if category not in CATEGORIES:
            raise UserError(f"{where}: mix names {category!r:.40}; categories are {', '.join(CATEGORIES)}")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UserError(f"{where}: {category} is {share!r:.40}; it takes a share from 0 to 1")
    if abs(sum(mix.values()) - 1) > 1e-6:
        raise UserError(f"{where}: its mix sums to {sum(mix.values()):g}; shares must sum to 1")
    most = fields.get("max_steps", 1)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise UserError(f"{where}: max_steps is {most!r:.40}; it takes a whole number of at least 1")
    return name, tuple((category, float(mix.get(category, 0.0))) for category in CATEGORIES)
