"""Tables of stages: read from a config's plain values, and checked before anything is trained."""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pixelis_jax.curriculum.machine import (
    AllOf,
    Curriculum,
    Exit,
    MaxSteps,
    Slope,
    Stage,
    Threshold,
    conditions,
)
from pixelis_jax.metrics.windows import LARGEST
from pixelis_jax.types import UserError

LONGER = 4  # a slope must be allowed so many times its least number of evaluations, or noise would hold a stage forever
COMPARISONS: tuple[str, ...] = (">", ">=", "<", "<=")
TYPES: dict[type, str] = {str: "a text", int: "a whole number", float: "a finite number"}
KINDS: dict[str, type] = {"threshold": Threshold, "slope": Slope, "max_steps": MaxSteps}


def validate(curriculum: Curriculum, known_metrics: Iterable[str]) -> None:
    """Raises UserError, with the nearest valid name, for a table that can't do what it says.

    Among them: no stage, a repeated name, weights that are negative, not finite or all 0, a stage without an exit
    before another, a condition on a metric that is never logged, an unknown comparison, counts below 1, max_steps below
    min_steps.
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
    metrics = [c.metric for c in conditions(stage)] + ([stage.entry_metric] if stage.entry_metric else [])
    for metric in metrics:
        if metric not in known:
            raise UserError(f"{where}: metric '{metric}' is never logged{_nearest(metric, known)}")
    for condition in conditions(stage):
        if isinstance(condition, Threshold) and condition.comparison not in COMPARISONS:
            raise UserError(
                f"{where}: comparison '{condition.comparison}' is unknown; use one of {' '.join(COMPARISONS)}"
            )
        counts = {f.name: getattr(condition, f.name) for f in dataclasses.fields(condition) if f.type is int}
        low = {}
        if isinstance(condition, Slope):
            low = {"patience": 3, "window": LONGER * condition.patience}
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
