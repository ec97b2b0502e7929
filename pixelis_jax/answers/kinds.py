"""Of what kind an answer is, and whether two answers of one question agree."""

from collections.abc import Sequence

from pixelis_jax.answers import boxes, choices, expressions, numbers
from pixelis_jax.answers import text as texts

ANSWER_TYPES: tuple[str, ...] = ("choice", "exact", "numeric", "relaxed", "anls", "iou", "math")


def kind_of(answer: str, options: Sequence[str] = ()) -> str:
    """The answer type of a gold answer: "choice", "iou", "numeric", "math", or "exact" for all that is none of them.

    Four rising numbers are a box where brackets or marks stand around them; "1, 2, 3, 4" may be a sequence.
    """
    if options and choices.indices_of(answer, options):
        return "choice"
    if any(c in answer for c in "[({<") and boxes.parse(answer) is not None:
        return "iou"
    if numbers.parse(answer) is not None:
        return "numeric"
    return "math" if expressions.looks_like_math(answer) else "exact"


def agree(a: str, b: str, options: Sequence[str] = ()) -> bool:
    """Whether two answers say the same: the same choices, number, box, expression or text."""
    one, other = choices.indices_of(a, options), choices.indices_of(b, options)
    if options and (one or other):
        return one == other
    first, second = numbers.parse(a), numbers.parse(b)
    if first is not None and second is not None:
        return numbers.equal(first, second)
    if texts.same(a, b):
        return True
    box, another = boxes.parse(a), boxes.parse(b)
    if box is not None or another is not None:
        return box == another
    return (expressions.looks_like_math(a) or expressions.looks_like_math(b)) and expressions.equal(a, b)
