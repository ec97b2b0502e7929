"""Answer verification on the host: a task's gold answer against the text between the answer tags -> a score in 0..1.

How texts, numbers, boxes, choices and expressions are read is in `pixelis_jax.answers`: gold and said answers go
through the same. The rules are in docs/cota.md, "How answers are compared".
"""

import difflib
from collections.abc import Callable, Sequence
from fractions import Fraction

from pixelis_jax.answers import boxes, choices, expressions, frames, kinds, numbers
from pixelis_jax.answers import text as texts
from pixelis_jax.answers.boxes import Size
from pixelis_jax.answers.choices import NEEDS_ALL
from pixelis_jax.answers.numbers import Number
from pixelis_jax.types import Task, Trajectory, UserError

RELAXED_TOLERANCE = 0.05  # relative; ChartQA's relaxed accuracy (arXiv:2203.10244)
ANLS_THRESHOLD = 0.5  # on the normalised distance (arXiv:1905.13648)
SLACK = 1e-9  # a bound that is met exactly in decimals must be met in binary too


def success_of(trajectory: Trajectory) -> float:
    """The verifier's score of what a dialogue came to; 0 without an answer."""
    return verify(trajectory.task, trajectory.answer, shown=trajectory.shown_sizes)


def verify(task: Task, answer: str | None, *, shown: Sequence[Size] = ()) -> float:
    """Score of `answer` in 0..1 by the task's `answer_type`; 0 where there is no answer.

    choice, exact, numeric, math and relaxed give 1 or 0; anls and iou give partial credit, or 1 or 0 at
    `task.tolerance` where that is set. A task's own answer always scores 1, which loaders may use as a check. Further
    accepted answers stand in `task.metadata["answers"]`; the best one counts. `shown` are the frames, one a picture of
    the task, that a box in `answer` stands in (see answers/frames.py); without them it stands in the frame of the gold.
    Raises UserError for an unknown answer type or a gold answer that is not of its type.
    """
    if task.answer_type not in VERIFIERS:
        near = difflib.get_close_matches(task.answer_type, VERIFIERS, 1)
        hint = near[0] if near else ", ".join(VERIFIERS)
        raise UserError(f"task {task.task_id}: answer_type '{task.answer_type}' is unknown; use {hint}")
    if answer is None:
        return 0.0
    if task.answer_type == "iou" and shown:
        answer = in_gold_frame(task, answer, shown)
    return VERIFIERS[task.answer_type](task, golds_of(task), answer)


def golds_of(task: Task) -> tuple[str, ...]:
    """All accepted answers, the task's own first."""
    return (task.answer, *map(str, task.metadata.get("answers", ())))


def agree(task: Task, a: str, b: str) -> bool:
    """Whether two answers of one task say the same, whatever is right: what a vote counts."""
    return kinds.agree(a, b, task.choices)


def in_gold_frame(task: Task, answer: str, shown: Sequence[Size]) -> str:
    """What a policy said, in the frame of the gold box."""
    index, gold = _gold_frame(task, len(shown))
    return frames.to_frame(answer, shown[index], gold)


def in_policy_frame(task: Task, shown: Sequence[Size]) -> str:
    """The gold answer as the policy would say it: a box in the frame of its calls, all else as it is."""
    if task.answer_type != "iou" or not shown:
        return task.answer
    index, gold = _gold_frame(task, len(shown))
    return frames.to_frame(task.answer, gold, shown[index])


def exact(task: Task, golds: Sequence[str], answer: str) -> float:
    """1 where both are the same text, normalised and without what wraps them.

    With `task.metadata[NEEDS_ALL]` both list the same parts, in any order.
    """
    if task.metadata.get(NEEDS_ALL):
        return float(any(texts.items(gold) == texts.items(answer) for gold in golds))
    return float(any(texts.same(gold, answer) for gold in golds))


def choice(task: Task, golds: Sequence[str], answer: str) -> float:
    """1 where the answer names accepted choices only: by letter, by text, or both where they agree; equal ones too.

    With `task.metadata[NEEDS_ALL]` it must name each of them.
    """
    accepted: set[int] = set()
    for gold in golds:
        named = choices.indices_of(gold, task.choices)
        if not named:
            raise UserError(
                f"task {task.task_id}: answer '{gold}' names none of its choices; give a letter or a choice's text"
            )
        accepted |= named
    said = choices.indices_of(answer, task.choices)
    return float(said == accepted if task.metadata.get(NEEDS_ALL) else bool(said) and said <= accepted)


def numeric(task: Task, golds: Sequence[str], answer: str) -> float:
    """1 where |p - g| <= task.tolerance (absolute); of two whole numbers exactly."""
    expected = [_gold_number(task, gold) for gold in golds]
    said = numbers.parse(answer)
    return float(said is not None and any(numbers.equal(said, gold, tolerance=task.tolerance) for gold in expected))


def relaxed(task: Task, golds: Sequence[str], answer: str) -> float:
    """1 where |p - g| / |g| <= tolerance (.05 unless the task sets one); g = 0 must be met exactly; text as `exact`."""
    return max(_relaxed(task, gold, answer) for gold in golds)


def math(task: Task, golds: Sequence[str], answer: str) -> float:
    """1 where both expressions mean the same."""
    del task
    return float(any(expressions.equal(gold, answer) for gold in golds))


def anls(task: Task, golds: Sequence[str], answer: str) -> float:
    """1 - NL where NL = Levenshtein / longer length (texts as for `exact`) is below .5, else 0; empty/empty is 1."""
    return _partial(task, max(anls_score(answer, gold) for gold in golds))


def anls_score(answer: str, gold: str) -> float:
    """Average normalised Levenshtein similarity of one pair of strings."""
    a, g = texts.key(answer), texts.key(gold)
    longest = max(len(a), len(g))
    if longest == 0:
        return 1.0
    if abs(len(a) - len(g)) / longest >= ANLS_THRESHOLD:  # the distance is at least the difference of the lengths
        return 0.0
    distance = levenshtein(a, g) / longest
    return 1.0 - distance if distance < ANLS_THRESHOLD else 0.0


def iou(task: Task, golds: Sequence[str], answer: str) -> float:
    """Intersection over union of two boxes `x1, y1, x2, y2` in one frame; 0 for text that is not a box."""
    expected = [_gold_box(task, gold) for gold in golds]
    said = boxes.parse(answer)
    return 0.0 if said is None else _partial(task, max(boxes.iou(said, gold) for gold in expected))


VERIFIERS: dict[str, Callable[[Task, Sequence[str], str], float]] = {
    "choice": choice,
    "exact": exact,
    "numeric": numeric,
    "relaxed": relaxed,
    "math": math,
    "anls": anls,
    "iou": iou,
}


def levenshtein(a: str, b: str) -> int:
    """Least number of insertions, deletions and substitutions that turn `a` into `b`."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def _partial(task: Task, score: float) -> float:
    return float(score >= task.tolerance - SLACK) if task.tolerance > 0 else score


def _relaxed(task: Task, gold: str, answer: str) -> float:
    expected, said = numbers.parse(gold), numbers.parse(answer)
    if expected is None:
        return exact(task, (gold,), answer)
    bound = Fraction(str(task.tolerance or RELAXED_TOLERANCE))
    pairs = numbers.readings(said, expected) if said is not None else []
    return float(any(p == g if g == 0 else abs(p - g) <= bound * abs(g) for p, g in pairs))


def _gold_number(task: Task, gold: str) -> Number:
    expected = numbers.parse(gold)
    if expected is None:
        raise UserError(
            f"task {task.task_id}: answer '{gold}' is not a number; use answer_type exact or fix the answer"
        )
    return expected


def _gold_box(task: Task, gold: str) -> boxes.Box:
    expected = boxes.parse(gold)
    if expected is None:
        raise UserError(
            f"task {task.task_id}: answer '{gold}' is not a box; write [x1, y1, x2, y2] with x1 < x2 and y1 < y2"
        )
    return expected


def _gold_frame(task: Task, count: int) -> tuple[int, Size]:
    """(index of the picture, frame of its gold box) of a task that was shown with `count` pictures."""
    sizes = [image.shape[:2] for image in task.images[:count]]
    try:
        return frames.gold_frame(task.metadata, sizes)
    except UserError as error:
        raise UserError(f"task {task.task_id}: {error}") from None
