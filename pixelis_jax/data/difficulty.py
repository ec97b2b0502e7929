"""How hard a CoTA sample is: a number from 0.1 to 1 of its steps, operations, thoughts, mistakes and task type.

score = clip(0.30 T + 0.25 O + 0.20 R + 0.15 E + 0.10 K, 0.1, 1). The parts are explained where they are computed.
"""

import dataclasses
import math
import re
from collections.abc import Hashable, Sequence
from typing import Any

from pixelis_jax.data.cota import Sample, Step

VERSION = "1"  # of the formula; written beside scores

OPERATION_WEIGHTS: dict[str, float] = {
    "TRACK_OBJECT": 3.0,
    "SEGMENT_OBJECT_AT": 3.0,
    "GET_PROPERTIES": 2.0,
    "ZOOM_IN": 2.0,
    "READ_TEXT": 1.0,
    "THINK": 0.5,
}
SAMPLE_TYPE_ERRORS: dict[str, float] = {
    "positive": 0.0,
    "outcome_negative": 0.10,
    "self_correction": 0.15,
    "trap_perceptual": 0.20,
    "trap_logical": 0.25,
}
TASK_TYPE_DIFFICULTY: dict[str, float] = {
    "temporal_tracking": 1.0,
    "geometric_comparison": 0.8,
    "spatial_reasoning": 0.7,
    "relationship_detection": 0.6,
    "attribute_recognition": 0.5,
    "object_counting": 0.4,
    "text_extraction": 0.3,
}
UNKNOWN_TASK_TYPE = 0.5
CORRECTION_PHRASES = ("doesn't seem right", "let me try", "actually", "wait", "correction")
_CORRECTION = re.compile(rf"\b(?:{'|'.join(map(re.escape, CORRECTION_PHRASES))})\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Difficulty:
    """The five parts, each 0..1, named T, O, R, E and K in the formula."""

    length: float  # T
    operations: float  # O
    reasoning: float  # R
    errors: float  # E
    task: float  # K

    @property
    def total(self) -> float:
        """The score, 0.1..1."""
        weighted = (
            0.30 * self.length + 0.25 * self.operations + 0.20 * self.reasoning + 0.15 * self.errors + 0.10 * self.task
        )
        return min(max(weighted, 0.1), 1.0)


def score(sample: Sample) -> Difficulty:
    """The difficulty of a sample. Steps are counted as they stand, those with `loss` False too.

    A recognised step is one whose action has a weight: the five operations and THINK.
    """
    steps = sample.trajectory
    return Difficulty(
        length=length_part(len(steps)),
        operations=operations_part(steps),
        reasoning=reasoning_part(steps),
        errors=errors_part(sample),
        task=TASK_TYPE_DIFFICULTY.get(sample.task_type, UNKNOWN_TASK_TYPE),
    )


def length_part(steps: int) -> float:
    """T = 0.1 for L < 2 steps, else min(1, ln(L + 1) / ln 16): 1 from 15 steps on."""
    return 0.1 if steps < 2 else min(1.0, math.log(steps + 1) / math.log(16))


def operations_part(steps: Sequence[Step]) -> float:
    """O = min(1, sum of weights / (3 n) + 0.2 unique / n) over the n recognised steps; 0.3 where there is none.

    `unique` is the number of different recognised actions; THINK is one of them.
    """
    actions = _recognised(steps)
    n = len(actions)
    if not n:
        return 0.3
    base = sum(OPERATION_WEIGHTS[action] for action in actions) / (3 * n)
    return min(1.0, base + 0.2 * len(set(actions)) / n)


def reasoning_part(steps: Sequence[Step]) -> float:
    """R of q = THINK steps / all steps: 1 for 0.2 <= q <= 0.6, q / 0.2 below, 1 - 0.3 (q - 0.6) / 0.4 above.

    0 without steps. Both borders are exact: a fifth and three fifths are rounded as 0.2 and 0.6 are.
    """
    if not steps:
        return 0.0
    q = sum(step.action == "THINK" for step in steps) / len(steps)
    if q < 0.2:
        return q / 0.2
    return 1.0 if q <= 0.6 else 1.0 - 0.3 * (q - 0.6) / 0.4


def errors_part(sample: Sample) -> float:
    """E = min(1, 0.3 if corrected + 0.2 runs + 0.2 repeated points + the sample type's own).

    Corrected: the thought of any step, an operation's too, has a correction phrase as whole words in any case; more
    phrases add nothing. Runs: the positions of the sequence of recognised actions (others are passed over) that end
    three equal ones, so four equal ones are two. Repeated points: the SEGMENT_OBJECT_AT steps whose point an earlier
    one had, whichever image they name, so the same point three times is two.
    """
    actions = _recognised(sample.trajectory)
    corrected = any(isinstance(step.thought, str) and _CORRECTION.search(step.thought) for step in sample.trajectory)
    runs = sum(actions[i - 2] == actions[i - 1] == actions[i] for i in range(2, len(actions)))
    points = [_point(step.parameters.get("point")) for step in sample.trajectory if step.action == "SEGMENT_OBJECT_AT"]
    given = [point for point in points if point is not None]
    repeated = len(given) - len(set(given))
    own = SAMPLE_TYPE_ERRORS.get(sample.sample_type, 0.0)
    return min(1.0, 0.3 * corrected + 0.2 * (runs + repeated) + own)


def _recognised(steps: Sequence[Step]) -> list[str]:
    return [step.action for step in steps if step.action in OPERATION_WEIGHTS]


def _point(value: Any) -> Hashable | None:
    """A point that can be compared; None for what is none, in a sample that was not validated."""
    good = isinstance(value, list | tuple) and all(isinstance(item, int | float) for item in value)
    return tuple(value) if good else None
