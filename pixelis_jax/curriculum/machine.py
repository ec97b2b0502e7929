"""The curriculum's state machine, pure: the same metrics give the same stages, also after a resume.

`update(curriculum, state, metrics, step)` is called after every step with that step's metrics, or at evaluations only,
where a step has none. Order of its checks:
  1. cooldown after a rollback, or fewer than `state.wait` steps since the last change: nothing is decided (measurements
     go on);
  2. `MaxSteps` of the stage reached: advance;
  3. at an evaluation (every `state.interval` steps): measure; rollback if the entry metric fell or a failure condition
     holds; else, from `min_steps` on, advance if an exit condition holds.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pixelis_jax.curriculum.stagnation import stagnates
from pixelis_jax.metrics.windows import LARGEST, mean
from pixelis_jax.types import UserError


@dataclasses.dataclass(frozen=True)
class Threshold:
    """The mean of the last `patience` evaluations compares with `value`, at `consecutive` evaluations in a row."""

    metric: str
    value: float
    comparison: str = ">"
    patience: int = 1
    consecutive: int = 1

    def holds(self, history: Sequence[float]) -> bool:
        return _in_a_row(
            history, self.patience, self.consecutive, lambda w: _compare(mean(w) or 0.0, self.comparison, self.value)
        )

    def needs(self) -> int:
        """Evaluations that it looks at."""
        return self.patience + self.consecutive - 1


@dataclasses.dataclass(frozen=True)
class Slope:
    """Stagnation: the metric rises by less than `value` per evaluation, judged against its own noise.

    One-sided: a metric that falls stagnates too. The least-squares slope is that of the latest evaluations, at least
    `patience` and as many as its standard error asks for, at most `window`; see `stagnation.stagnates`.
    """

    metric: str
    value: float = 0.001
    patience: int = 5
    window: int = 64

    def holds(self, history: Sequence[float], overlap: int = 1) -> bool:
        """`overlap`: evaluations that a value of the metric covers, where it is a moving average."""
        return stagnates(history, self.value, least=self.patience, most=self.window, overlap=overlap)

    def needs(self) -> int:
        """Evaluations that it looks at."""
        return self.window


@dataclasses.dataclass(frozen=True)
class Fall:
    """The mean of the last `patience` evaluations lies more than `value` below the metric's value at stage entry."""

    metric: str
    value: float
    patience: int = 1

    def holds(self, history: Sequence[float], entry: float | None) -> bool:
        if entry is None or len(history) < self.patience:
            return False
        return (mean(history[-self.patience :]) or 0.0) < entry - self.value

    def needs(self) -> int:
        """Evaluations that it looks at."""
        return self.patience


@dataclasses.dataclass(frozen=True)
class AllOf:
    """Every one of the conditions holds."""

    conditions: tuple[Threshold | Slope | Fall, ...]


@dataclasses.dataclass(frozen=True)
class MaxSteps:
    """The stage has lasted `steps` training steps. Looked at every step, whatever the evaluation interval."""

    steps: int


Condition = Threshold | Slope | Fall | AllOf
Exit = Condition | MaxSteps
Decision = tuple[int, str, tuple[str, ...]]  # target stage, cause, metrics behind it


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage. `weights` (reward weights or a difficulty mix) is hashable: a static argument of the train step.

    Any of `exits` advances; any of `failures` rolls back, and so does a fall of `entry_metric` below its entry value.
    """

    name: str
    weights: tuple[tuple[str, float], ...]
    exits: tuple[Exit, ...] = ()
    min_steps: int = 0
    entry_metric: str = ""  # "": no rollback by a fall
    failures: tuple[Condition, ...] = ()


@dataclasses.dataclass(frozen=True)
class Rollback:
    """When a stage is left backwards, and how long nothing is decided afterwards."""

    threshold: float = 0.05  # fall of the entry metric, absolute
    patience: int = 2  # consecutive evaluations
    cooldown_steps: int = 1000
    cooldown_evaluations: int = 0  # counted in the longer interval; the longer of both cooldowns holds
    factor: float = 2.0  # the advancement interval, or without one the evaluation interval, is multiplied by it


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """The table of stages. `rollback` None: stages only advance. `record` names metrics that each change notes."""

    stages: tuple[Stage, ...]
    evaluation_frequency: int = 100  # steps
    advancement_interval: int = 0  # steps since the last change before the next; grows with rollbacks
    record: tuple[str, ...] = ()
    rollback: Rollback | None = dataclasses.field(default_factory=Rollback)


@dataclasses.dataclass(frozen=True)
class Transition:
    """One change of stage: `duration` in steps, `metrics` the values that caused it, `record` others of that step."""

    step: int
    source: str
    target: str
    duration: int
    cause: str  # threshold | slope | all_of | max_steps | rollback | failure
    metrics: tuple[tuple[str, float], ...] = ()
    record: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class State:
    """Everything that is remembered; `to_json` / `from_json` are exact inverses."""

    stage: int = 0
    entered_at: int = 0
    evaluated_at: int = 0
    interval: int = 100
    wait: int = 0
    cooldown_until: int = 0
    entry_value: float | None = None
    entry: tuple[tuple[str, float], ...] = ()  # of each metric that the stage's conditions look at
    falls: int = 0  # consecutive evaluations with the entry metric below its entry value
    history: tuple[tuple[str, tuple[float, ...]], ...] = ()  # values at the evaluations of this stage
    transitions: tuple[Transition, ...] = ()


def init(curriculum: Curriculum, *, step: int = 0) -> State:
    """State at the first stage."""
    return State(
        entered_at=step,
        evaluated_at=step,
        interval=curriculum.evaluation_frequency,
        wait=curriculum.advancement_interval,
    )


def current(curriculum: Curriculum, state: State) -> Stage:
    """The stage that training is in."""
    return curriculum.stages[state.stage]


def update(curriculum: Curriculum, state: State, metrics: Mapping[str, float | None], step: int) -> State:
    """State after `step`. A metric that is absent, not finite or beyond 1e100 at an evaluation is not remembered."""
    due = step - state.evaluated_at >= state.interval
    if due:
        state = _measure(curriculum, state, metrics, step)
    decision = _decide(curriculum, state, step, due)
    return state if decision is None else _move(curriculum, state, metrics, step, decision)


def _decide(curriculum: Curriculum, state: State, step: int, due: bool) -> Decision | None:
    """(target stage, cause, metrics behind it), or None to stay. `due`: this step is an evaluation."""
    duration = step - state.entered_at
    if step < state.cooldown_until or duration < state.wait:
        return None
    stage = current(curriculum, state)
    last = state.stage == len(curriculum.stages) - 1
    if not last and any(isinstance(e, MaxSteps) and duration >= e.steps for e in stage.exits):
        return state.stage + 1, "max_steps", ()
    if due and state.stage > 0 and curriculum.rollback is not None:
        if state.falls >= curriculum.rollback.patience:
            return state.stage - 1, "rollback", (stage.entry_metric,)
        failed = next((c for c in stage.failures if _holds(c, state)), None)
        if failed is not None:
            return state.stage - 1, "failure", _names(failed)
    if due and not last and duration >= stage.min_steps:
        met = next((e for e in stage.exits if not isinstance(e, MaxSteps) and _holds(e, state)), None)
        if met is not None:
            return state.stage + 1, KIND_OF[type(met)], _names(met)
    return None


def _measure(curriculum: Curriculum, state: State, metrics: Mapping[str, float | None], step: int) -> State:
    """Remembers the stage's metrics and counts falls of its entry metric."""
    stage = current(curriculum, state)
    history = dict(state.history)
    for name, length in _lengths(stage).items():
        value = _finite(metrics, name)
        if value is not None:
            history[name] = (*history.get(name, ()), value)[-length:]
    record = _values(metrics, _lengths(stage)) | dict(state.entry)  # what was missing at the entry is noted now
    entry, falls = state.entry_value, state.falls
    value = _finite(metrics, stage.entry_metric)
    if value is not None and curriculum.rollback is not None:
        entry = value if entry is None else entry
        falls = falls + 1 if value < entry - abs(curriculum.rollback.threshold) else 0
    return dataclasses.replace(
        state,
        evaluated_at=step,
        history=tuple(sorted(history.items())),
        entry_value=entry,
        entry=tuple(sorted(record.items())),
        falls=falls,
    )


def _move(
    curriculum: Curriculum, state: State, metrics: Mapping[str, float | None], step: int, decision: Decision
) -> State:
    """State at the start of the stage that was decided on."""
    target, cause, names = decision
    source, new = current(curriculum, state), curriculum.stages[target]
    values, noted = (tuple(_values(metrics, wanted).items()) for wanted in (names, curriculum.record))
    transition = Transition(step, source.name, new.name, step - state.entered_at, cause, values, noted)
    interval, wait, cooldown = state.interval, state.wait, 0
    if target < state.stage and curriculum.rollback is not None:
        rule = curriculum.rollback
        if curriculum.advancement_interval:
            wait = math.ceil(wait * rule.factor)
        else:
            interval = math.ceil(interval * rule.factor)
        cooldown = step + max(rule.cooldown_steps, rule.cooldown_evaluations * interval)
    return State(
        stage=target,
        entered_at=step,
        evaluated_at=step,
        interval=interval,
        wait=wait,
        cooldown_until=cooldown,
        entry_value=_finite(metrics, new.entry_metric),
        entry=tuple(sorted(_values(metrics, _lengths(new)).items())),
        transitions=(*state.transitions, transition),
    )


def _holds(condition: Condition, state: State) -> bool:
    if isinstance(condition, AllOf):
        return all(_holds(c, state) for c in condition.conditions)
    history = dict(state.history).get(condition.metric, ())
    if isinstance(condition, Fall):
        return condition.holds(history, dict(state.entry).get(condition.metric))
    if isinstance(condition, Slope):
        return condition.holds(history, _overlap(condition.metric, state.interval))
    return condition.holds(history)


def _overlap(metric: str, interval: int) -> int:
    """Evaluations that one value of `metric` covers: of a moving average `{name}_ma{steps}` its steps / interval."""
    steps = re.search(r"_ma(\d+)$", metric)
    return max(1, math.ceil(int(steps[1]) / interval)) if steps else 1


def conditions(stage: Stage) -> list[Threshold | Slope | Fall]:
    """The stage's conditions on metrics, exits before failures, each part of an AllOf by itself."""
    found: list[Threshold | Slope | Fall] = []
    for condition in (*stage.exits, *stage.failures):
        if isinstance(condition, AllOf):
            found.extend(condition.conditions)
        elif not isinstance(condition, MaxSteps):
            found.append(condition)
    return found


def _lengths(stage: Stage) -> dict[str, int]:
    """How many values of each metric the stage has to remember."""
    lengths: dict[str, int] = {}
    for condition in conditions(stage):
        lengths[condition.metric] = max(lengths.get(condition.metric, 0), condition.needs())
    return lengths


def _names(condition: Condition) -> tuple[str, ...]:
    return tuple(c.metric for c in condition.conditions) if isinstance(condition, AllOf) else (condition.metric,)


def _in_a_row(history: Sequence[float], window: int, times: int, test: Callable[[Sequence[float]], bool]) -> bool:
    """`test` holds for the last `times` windows of `window` values; False while there are not enough values."""
    if len(history) < window + times - 1:
        return False
    ends = range(len(history) - times + 1, len(history) + 1)
    return all(test(history[end - window : end]) for end in ends)


def _compare(value: float, comparison: str, bound: float) -> bool:
    if comparison in (">", ">="):
        return value > bound or (comparison == ">=" and value == bound)
    return value < bound or (comparison == "<=" and value == bound)


def _values(metrics: Mapping[str, float | None], names: Iterable[str]) -> dict[str, float]:
    """Those of the named metrics that are there."""
    return {name: value for name in names if (value := _finite(metrics, name)) is not None}


def _finite(metrics: Mapping[str, float | None], name: str) -> float | None:
    value = metrics.get(name) if name else None
    return float(value) if value is not None and abs(value) < LARGEST else None


KIND_OF: dict[type, str] = {
    Threshold: "threshold",
    Slope: "slope",
    AllOf: "all_of",
    Fall: "fall",
    MaxSteps: "max_steps",
}


def to_json(state: State) -> dict[str, Any]:
    """Plain values for `json.dumps`; floats keep every bit."""
    fields = dataclasses.asdict(state)
    return fields | {"history": {name: list(values) for name, values in state.history}}


def from_json(fields: Mapping[str, Any]) -> State:
    """The state that `to_json` wrote. Raises UserError for fields that are missing or unknown."""
    expected = {f.name for f in dataclasses.fields(State)}
    if set(fields) != expected:
        wrong = ", ".join(sorted(expected ^ set(fields)))
        raise UserError(
            f"curriculum state does not fit this version (fields: {wrong}); resume with the version that wrote it"
        )
    values = dict(fields)
    values["history"] = tuple((name, tuple(row)) for name, row in sorted(fields["history"].items()))
    values["entry"] = tuple((name, value) for name, value in fields["entry"])
    values["transitions"] = tuple(
        Transition(**t | {name: tuple((key, value) for key, value in t[name]) for name in ("metrics", "record")})
        for t in fields["transitions"]
    )
    return State(**values)
