"""Answer verification on the host: a task's gold answer against the text between the answer tags -> a score in 0..1."""

import difflib
import math
import re
from collections.abc import Callable

from pixelis_jax.types import Task, UserError

RELAXED_TOLERANCE = 0.05  # relative; ChartQA's relaxed accuracy (arXiv:2203.10244)
ANLS_THRESHOLD = 0.5  # on the normalised distance (arXiv:1905.13648)
SLACK = 1e-9  # relative; a bound that is met exactly in decimals must be met in binary too

_NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?(e[+-]?\d+)?", re.ASCII)
_LETTER = re.compile(r"(?:option\s+)?\(?([a-z])(?:[).:]\s*(.*))?", re.ASCII)


def normalise(text: str) -> str:
    """Lower case, no space at the ends, single spaces inside."""
    return " ".join(text.lower().split())


def vote_of(task: Task, answer: str) -> str:
    """What an answer says, as answers of one task are compared: the letter of the choice that it names, else itself."""
    index = _choice_index(task, answer) if task.choices else None
    return normalise(answer) if index is None else chr(ord("a") + index)


def verify(task: Task, answer: str | None) -> float:
    """Score of `answer` in 0..1 by the task's `answer_type`; 0 where there is no answer.

    choice, exact and numeric give 1 or 0, relaxed too; anls and iou give partial credit, or 1 or 0 at `task.tolerance`
    where that is set. A task's own answer always scores 1, which loaders may use as a check. Further accepted answers
    stand in `task.metadata["answers"]`; the best one counts.
    Raises UserError for an unknown answer type or a gold answer that is not of its type.
    """
    if task.answer_type not in VERIFIERS:
        near = difflib.get_close_matches(task.answer_type, VERIFIERS, 1)
        hint = near[0] if near else ", ".join(VERIFIERS)
        raise UserError(f"task {task.task_id}: answer_type '{task.answer_type}' is unknown; use {hint}")
    if answer is None:
        return 0.0
    golds = (task.answer, *task.metadata.get("answers", ()))
    return max(VERIFIERS[task.answer_type](task, str(gold), answer) for gold in golds)


def exact(task: Task, gold: str, answer: str) -> float:
    """1 where both are equal after normalisation and without one full stop or pair of quotes around."""
    del task
    return float(_bare(gold) == _bare(answer))


def choice(task: Task, gold: str, answer: str) -> float:
    """1 where both name the same choice: its letter (`B`, `(b)`, `B. a cat`, `option B`) or its whole text."""
    expected = _choice_index(task, gold)
    if expected is None:
        raise UserError(
            f"task {task.task_id}: answer '{gold}' names none of its choices; give a letter or a choice's text"
        )
    return float(_choice_index(task, answer) == expected)


def numeric(task: Task, gold: str, answer: str) -> float:
    """1 where |p - g| <= task.tolerance (absolute)."""
    expected = _gold_number(task, gold)
    return float(any(abs(p - g) <= task.tolerance + SLACK * max(1.0, abs(g)) for p, g in _readings(answer, *expected)))


def relaxed(task: Task, gold: str, answer: str) -> float:
    """1 where |p - g| / |g| <= tolerance (.05 unless the task sets one); g = 0 must be met exactly; text as `exact`."""
    expected = parse_number(gold)
    if expected is None:
        return exact(task, gold, answer)
    bound = (task.tolerance or RELAXED_TOLERANCE) + SLACK
    return float(any(p == g if g == 0 else abs(p - g) / abs(g) <= bound for p, g in _readings(answer, *expected)))


def anls(task: Task, gold: str, answer: str) -> float:
    """1 - NL where NL = Levenshtein / longer length (strings normalised) is below .5, else 0; empty/empty is 1."""
    return _partial(task, anls_score(answer, gold))


def anls_score(answer: str, gold: str) -> float:
    """Average normalised Levenshtein similarity of one pair of strings."""
    a, g = normalise(answer), normalise(gold)
    longest = max(len(a), len(g))
    if longest == 0:
        return 1.0
    if abs(len(a) - len(g)) / longest >= ANLS_THRESHOLD:  # the distance is at least the difference of the lengths
        return 0.0
    distance = levenshtein(a, g) / longest
    return 1.0 - distance if distance < ANLS_THRESHOLD else 0.0


def iou(task: Task, gold: str, answer: str) -> float:
    """Intersection over union of two boxes `x1, y1, x2, y2`; 0 for text that is not a box or has no area."""
    expected = parse_box(gold)
    if expected is None:
        raise UserError(
            f"task {task.task_id}: answer '{gold}' is not a box; write [x1, y1, x2, y2] with x1 < x2 and y1 < y2"
        )
    found = parse_box(answer)
    return 0.0 if found is None else _partial(task, box_iou(found, expected))


VERIFIERS: dict[str, Callable[[Task, str, str], float]] = {
    "choice": choice,
    "exact": exact,
    "numeric": numeric,
    "relaxed": relaxed,
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


def parse_number(text: str) -> tuple[float, bool] | None:
    """(value, has a percent sign) of a text that is one number, thousands commas allowed; None otherwise."""
    bare = _bare(text)
    percent = bare.endswith("%")
    bare = bare.removesuffix("%").rstrip()
    if not any(c.isdigit() for c in bare) or not _NUMBER.fullmatch(bare):
        return None
    value = float(bare.replace(",", ""))
    return (value, percent) if math.isfinite(value) else None


def parse_box(text: str) -> tuple[float, float, float, float] | None:
    """Four numbers separated by commas, in one pair of brackets or none, with a positive area; None otherwise."""
    parts = text.strip().removeprefix("[").removesuffix("]").split(",")
    numbers = [parse_number(p) for p in parts]
    if len(numbers) != 4 or any(n is None or n[1] for n in numbers):
        return None
    x1, y1, x2, y2 = (n[0] for n in numbers if n is not None)
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def box_iou(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    """Intersection over union of boxes (x1, y1, x2, y2)."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0.0) * max(height, 0.0)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def _partial(task: Task, score: float) -> float:
    return float(score >= task.tolerance - SLACK) if task.tolerance > 0 else score


def _bare(text: str) -> str:
    """Normalised, without a full stop at the end and quotes around, unless nothing else is there."""
    bare = normalise(text)
    stripped = bare.removesuffix(".").strip()
    if len(stripped) > 2 and stripped[0] == stripped[-1] and stripped[0] in "\"'":
        stripped = stripped[1:-1].strip()
    return stripped or bare


def _choice_index(task: Task, text: str) -> int | None:
    """Index of the choice that `text` names. A letter wins over a text; the two must not contradict."""
    texts = [_bare(c) for c in task.choices]
    bare = normalise(text)
    match = _LETTER.fullmatch(bare)
    if match:
        index, rest = ord(match[1]) - ord("a"), _bare(match[2] or "")
        if index < (len(texts) or 26) and (not rest or not texts or rest == texts[index]):
            return index
    return texts.index(_bare(text)) if _bare(text) in texts else None


def _gold_number(task: Task, gold: str) -> tuple[float, bool]:
    expected = parse_number(gold)
    if expected is None:
        raise UserError(
            f"task {task.task_id}: answer '{gold}' is not a number; use answer_type exact or fix the answer"
        )
    return expected


def _readings(answer: str, gold: float, gold_percent: bool) -> list[tuple[float, float]]:
    """(answer, gold) pairs to compare. Where one side alone has a percent sign, 50 and .5 both read as 50 %."""
    found = parse_number(answer)
    if found is None:
        return []
    value, percent = found
    if percent == gold_percent:
        return [(value, gold)]
    return [(value, gold), (value / 100, gold) if percent else (value, gold / 100)]
