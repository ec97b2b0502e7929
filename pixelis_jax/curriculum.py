"""Performance-triggered curriculum as a pure state machine: for reward weights and for difficulty mixes alike.

`update(curriculum, state, metrics, step)` is called after every step with that step's metrics. Order of its checks:
  1. cooldown after a rollback: nothing is decided (measurements go on);
  2. `MaxSteps` of the stage reached: advance;
  3. at an evaluation (every `state.interval` steps): measure; rollback if the entry metric fell or a failure condition
     holds; else, from `min_steps` on, advance if an exit condition holds.
No clock, no randomness, no I/O: the same metrics give the same stages after a resume.
"""

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pixelis_jax.metrics.windows import LARGEST, mean, slope
from pixelis_jax.types import UserError

COMPARISONS: tuple[str, ...] = (">", ">=", "<", "<=")


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
    """Plateau: |least-squares slope per evaluation over `window` evaluations| < `value`, `patience` times in a row.

    Two-sided: a metric that falls is not on a plateau.
    """

    metric: str
    value: float = 0.001
    window: int = 5
    patience: int = 5

    def holds(self, history: Sequence[float]) -> bool:
        return _in_a_row(history, self.window, self.patience, lambda w: abs(slope(w) or 0.0) < self.value)

    def needs(self) -> int:
        """Evaluations that it looks at."""
        return self.window + self.patience - 1


@dataclasses.dataclass(frozen=True)
class AllOf:
    """Every one of the conditions holds."""

    conditions: tuple[Threshold | Slope, ...]


@dataclasses.dataclass(frozen=True)
class MaxSteps:
    """The stage has lasted `steps` training steps. Looked at every step, whatever the evaluation interval."""

    steps: int


Condition = Threshold | Slope | AllOf
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
    factor: float = 2.0  # the evaluation interval is multiplied by it


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """The table of stages. `rollback` None: stages only advance."""

    stages: tuple[Stage, ...]
    evaluation_frequency: int = 100  # steps
    rollback: Rollback | None = dataclasses.field(default_factory=Rollback)


@dataclasses.dataclass(frozen=True)
class Transition:
    """One change of stage: `duration` is in steps, `metrics` are the values that caused it."""

    step: int
    source: str
    target: str
    duration: int
    cause: str  # threshold | slope | all_of | max_steps | rollback | failure
    metrics: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class State:
    """Everything that is remembered; `to_json` / `from_json` are exact inverses."""

    stage: int = 0
    entered_at: int = 0
    evaluated_at: int = 0
    interval: int = 100
    cooldown_until: int = 0
    entry_value: float | None = None
    falls: int = 0  # consecutive evaluations with the entry metric below its entry value
    history: tuple[tuple[str, tuple[float, ...]], ...] = ()  # values at the evaluations of this stage
    transitions: tuple[Transition, ...] = ()


def init(curriculum: Curriculum, *, step: int = 0) -> State:
    """State at the first stage."""
    return State(entered_at=step, evaluated_at=step, interval=curriculum.evaluation_frequency)


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
    if step < state.cooldown_until:
        return None
    stage = current(curriculum, state)
    last = state.stage == len(curriculum.stages) - 1
    duration = step - state.entered_at
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
    entry, falls = state.entry_value, state.falls
    value = _finite(metrics, stage.entry_metric)
    if value is not None and curriculum.rollback is not None:
        entry = value if entry is None else entry
        falls = falls + 1 if value < entry - abs(curriculum.rollback.threshold) else 0
    return dataclasses.replace(
        state, evaluated_at=step, history=tuple(sorted(history.items())), entry_value=entry, falls=falls
    )


def _move(
    curriculum: Curriculum, state: State, metrics: Mapping[str, float | None], step: int, decision: Decision
) -> State:
    """State at the start of the stage that was decided on."""
    target, cause, names = decision
    source, new = current(curriculum, state), curriculum.stages[target]
    values = tuple((name, value) for name in names if (value := _finite(metrics, name)) is not None)
    transition = Transition(step, source.name, new.name, step - state.entered_at, cause, values)
    interval, cooldown = state.interval, 0
    if target < state.stage and curriculum.rollback is not None:
        rule = curriculum.rollback
        interval = math.ceil(state.interval * rule.factor)
        cooldown = step + max(rule.cooldown_steps, rule.cooldown_evaluations * interval)
    return State(
        stage=target,
        entered_at=step,
        evaluated_at=step,
        interval=interval,
        cooldown_until=cooldown,
        entry_value=_finite(metrics, new.entry_metric),
        transitions=(*state.transitions, transition),
    )


def _holds(condition: Condition, state: State) -> bool:
    if isinstance(condition, AllOf):
        return all(_holds(c, state) for c in condition.conditions)
    return condition.holds(dict(state.history).get(condition.metric, ()))


def _conditions(stage: Stage) -> list[Threshold | Slope]:
    """The stage's conditions on metrics, exits before failures, each part of an AllOf by itself."""
    found: list[Threshold | Slope] = []
    for condition in (*stage.exits, *stage.failures):
        if isinstance(condition, AllOf):
            found.extend(condition.conditions)
        elif not isinstance(condition, MaxSteps):
            found.append(condition)
    return found


def _lengths(stage: Stage) -> dict[str, int]:
    """How many values of each metric the stage has to remember."""
    lengths: dict[str, int] = {}
    for condition in _conditions(stage):
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


def _finite(metrics: Mapping[str, float | None], name: str) -> float | None:
    value = metrics.get(name) if name else None
    return float(value) if value is not None and abs(value) < LARGEST else None


KIND_OF: dict[type, str] = {Threshold: "threshold", Slope: "slope", AllOf: "all_of", MaxSteps: "max_steps"}
TYPES: dict[type, str] = {str: "a text", int: "a whole number", float: "a finite number"}
KINDS: dict[str, type] = {"threshold": Threshold, "slope": Slope, "max_steps": MaxSteps}


def validate(curriculum: Curriculum, known_metrics: Iterable[str]) -> None:
    """Raises UserError, with the nearest valid name, for a table that can't do what it says.

    Among them: no stage, a repeated name, weights that are negative, not finite or all 0, a stage that is never left, a
    condition on a metric that is never logged, an unknown comparison, counts below 1, max_steps below min_steps.
    """
    known = sorted(known_metrics)
    if not curriculum.stages:
        raise UserError("the curriculum has no stage; give at least one")
    if curriculum.evaluation_frequency < 1:
        raise UserError(f"evaluation_frequency {curriculum.evaluation_frequency} must be 1 step or more")
    names = [stage.name for stage in curriculum.stages]
    for i, stage in enumerate(curriculum.stages):
        if names.count(stage.name) > 1:
            raise UserError(f"curriculum stage '{stage.name}' is there twice; names must differ")
        if not stage.exits and i < len(names) - 1:
            raise UserError(
                f"curriculum stage '{stage.name}' has no exit, so '{names[i + 1]}' is never reached; add one"
            )
        _validate_stage(stage, known)


def _validate_stage(stage: Stage, known: Sequence[str]) -> None:
    where = f"curriculum stage '{stage.name}'"
    for name, value in stage.weights:
        if not (math.isfinite(value) and value >= 0):
            raise UserError(f"{where}: weight '{name}' is {value}; use a number from 0 on")
    if not any(value for _, value in stage.weights):
        raise UserError(f"{where}: all weights are 0; set at least one")
    if stage.min_steps < 0:
        raise UserError(f"{where}: min_steps {stage.min_steps} must be 0 or more")
    metrics = [c.metric for c in _conditions(stage)] + ([stage.entry_metric] if stage.entry_metric else [])
    for metric in metrics:
        if metric not in known:
            raise UserError(f"{where}: metric '{metric}' is never logged{_nearest(metric, known)}")
    for condition in _conditions(stage):
        if isinstance(condition, Threshold) and condition.comparison not in COMPARISONS:
            raise UserError(
                f"{where}: comparison '{condition.comparison}' is unknown; use one of {' '.join(COMPARISONS)}"
            )
        counts = {f.name: getattr(condition, f.name) for f in dataclasses.fields(condition) if f.type is int}
        low = {"window": 2}
        for field, count in counts.items():
            if count < low.get(field, 1):
                raise UserError(f"{where}: {field} {count} of '{condition.metric}' must be {low.get(field, 1)} or more")
    for limit in (e for e in stage.exits if isinstance(e, MaxSteps)):
        if limit.steps < max(stage.min_steps, 1):
            raise UserError(
                f"{where}: max_steps {limit.steps} is below {max(stage.min_steps, 1)}; raise it or lower min_steps"
            )


def _nearest(name: str, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(valid), 1)
    return f"; did you mean '{near[0]}'?" if near else "; use the name of a logged metric"


def stage_from_config(fields: Mapping[str, Any]) -> Stage:
    """A stage from plain values: `weights` as a dict, `exits` as dicts that `exit_from_config` takes.

    Raises UserError for a field that is unknown, missing or of another type.
    """
    where = f"curriculum stage {fields.get('name', '?')!r:.60}"
    values = dict(fields)
    weights = values.get("weights", {})
    if not isinstance(weights, Mapping):
        raise UserError(f"{where}: weights is {weights!r:.60}; it takes a dict such as {{'final': 1.0}}")
    for name, weight in weights.items():
        _check_type(f"{where}: a name in weights", name, str)
        _check_type(f"{where}: weight {name!r}", weight, float)
    if "weights" in values:
        values["weights"] = tuple(sorted(weights.items()))
    exits = _dicts(f"{where}: exits", values.get("exits", ()))
    made: Stage = _make(Stage, values | {"exits": tuple(exit_from_config(e) for e in exits)}, where)
    return made


def exit_from_config(fields: Mapping[str, Any]) -> Exit:
    """An exit from plain values such as {"kind": "threshold", "metric": "success_rate_ma100", "value": .7}.

    {"kind": "all_of", "conditions": [...]} joins several. Raises UserError for an unknown kind and for a field that is
    unknown, missing or of another type.
    """
    values = dict(fields)
    kind = values.pop("kind", "")
    _check_type("curriculum exit kind", kind, str)
    if kind == "all_of":
        conditions = _dicts("curriculum exit 'all_of': conditions", values.pop("conditions", ()))
        parts = tuple(exit_from_config(part) for part in conditions)
        if not parts or values or any(isinstance(part, MaxSteps | AllOf) for part in parts):
            raise UserError("curriculum exit 'all_of' takes only `conditions`, a list of threshold and slope exits")
        return AllOf(tuple(part for part in parts if isinstance(part, Threshold | Slope)))
    if kind not in KINDS:
        raise UserError(f"curriculum exit kind '{kind}' is unknown{_nearest(kind, (*KINDS, 'all_of'))}")
    made: Exit = _make(KINDS[kind], values, f"curriculum exit '{kind}'")
    return made


def _make(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """`kind(**values)`, its plain fields checked by their types."""
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name != "failures"}  # these come from code only
    unknown = next((name for name in values if name not in fields), None)
    missing = next((n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in values), None)
    if unknown is not None or missing is not None:
        wrong = f"lacks the field {missing!r}" if unknown is None else f"has no field {unknown!r}"
        raise UserError(f"{where} {wrong}; its fields are {', '.join(fields)}")
    for name, value in values.items():
        if fields[name].type in TYPES:
            _check_type(f"{where}: {name}", value, fields[name].type)
    return kind(**values)


def _check_type(what: str, value: object, kind: Any) -> None:
    taken = int | float if kind is float else kind
    if isinstance(value, bool) or not isinstance(value, taken) or (kind is float and not abs(value) < LARGEST):
        raise UserError(f"{what} is {value!r:.60}; it takes {TYPES[kind]}")


def _dicts(what: str, value: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, Mapping) for entry in value):
        raise UserError(f"{what} is {value!r:.60}; it takes a list of dicts, such as ({{'kind': 'max_steps', ...}},)")
    return value


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
    values["transitions"] = tuple(
        Transition(**{**t, "metrics": tuple((name, value) for name, value in t["metrics"])})
        for t in fields["transitions"]
    )
    return State(**values)
