r"""The answer inside a text that holds more: a solution that ends in `#### 5`, `<CONCLUSION>`, thoughts, JSON, prose.

What is not surely one answer is refused: two different `\boxed{}` in one text.
"""

import json
import re
from collections.abc import Mapping

from pixelis_jax.answers import text as texts
from pixelis_jax.data.importers.base import Place, Refusal, cut_out, is_number, quoted

_HASHES = re.compile(r"(?:^|\n|\s)####[ \t]*(\S[^\n]*)\s*$")  # GSM8K
_CONCLUSIONS = ("CONCLUSION", "conclusion")
_TAGS = ("answer", "ANSWER", *_CONCLUSIONS, "final_answer")
_THOUGHTS = ("think", "thinking", "thought", "reasoning", "THINK")
_FINAL = re.compile(
    r"(?:^|[\n.!?。]\s{0,9})(?:#{1,6}\s{0,3})?(\*\*|__)?(?:(?:so|thus|hence|therefore)\s?,?\s{1,3})?(?:the\s{1,3})?"
    r"(?:final |correct )?answer"
    r"(?:\s{0,3}[:：]\s{0,3}(?(1)\1)|(?(1)\1\s{0,3}[:：]|(?!))|\s{1,3}is\s{0,3}:?\s)\s{0,9}(\S[^\n]{0,400}?)\s{0,9}$",
    re.IGNORECASE,
)
_AND, _OR = (re.compile(rf"\s*</?{word}/?>\s*", re.IGNORECASE) for word in ("AND", "OR"))
_NAMES = ("answer", "final_answer", "ground_truth", "label", "value", "result")
LONGEST = 120  # characters of what follows "the answer is": more is an explanation


def inside(text: str, place: Place, field: str) -> str:
    """The one answer in a gold text; the text itself where it is no more than that. Raises Refusal."""
    found = text
    for tag in _THOUGHTS:
        without, thoughts = cut_out(found, tag)
        found = without.strip() if thoughts and without.strip() else found
    if json_answer := _of_json(found):
        return json_answer
    for tag in _TAGS:
        _, tagged = cut_out(found, tag)
        if tagged:
            return tagged[-1].strip()
    boxed = [texts.key(part) for _, _, part in texts.boxes_in(found)]
    if len({*boxed}) > 1 and not _is_list_of_boxes(found):
        raise Refusal(place.where, field, r"several \boxed{}; leave the one that is the answer", quoted(found))
    if len(boxed) > 1 and len({*boxed}) == 1:
        return next(part for _, _, part in texts.boxes_in(found))
    final = None if boxed else concluded(found)
    if final is None and (hashes := _HASHES.search(found)):
        return hashes[1].strip()
    return final[1] if final else found


def concluded(text: str) -> tuple[str, str] | None:
    """(what stands in front, answer) of a text that ends in <CONCLUSION>, in `#### 5` or in "The answer is 5"."""
    for tag in _CONCLUSIONS:
        before, tagged = cut_out(text, tag)
        if tagged and tagged[-1].strip():
            return before.strip(), tagged[-1].strip()
    if hashes := _HASHES.search(text):
        return text[: hashes.start()].strip(), hashes[1].strip()
    final = _FINAL.search(text.rstrip())
    if final and len(final[2]) <= LONGEST and texts.unwrap(final[2]):
        return (text.strip() if text[: final.start()].strip() else ""), final[2]
    return None


def parts(text: str) -> tuple[list[str], bool]:
    """(the answers that `<OR>` or `<AND>` join in a text, whether all are needed)."""
    for sign, needs_all in ((_AND, True), (_OR, False)):
        found = [part.strip() for part in sign.split(text)]
        if len(found) > 1 and all(found):
            return found, needs_all
    return [text], False


def _of_json(text: str) -> str:
    """The answer of a text that is a JSON object with one; "" for all else."""
    if not text.strip().startswith("{"):
        return ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    named = [value[name] for name in _NAMES if name in value] if isinstance(value, Mapping) else []
    if len(named) != 1 or not (isinstance(named[0], str) or is_number(named[0])):
        return ""
    return named[0] if isinstance(named[0], str) else json.dumps(named[0])


def _is_list_of_boxes(text: str) -> bool:
    """Whether a text is boxes alone, joined by commas or "and": several values of one answer."""
    rest = text
    for start, end, _ in reversed([*texts.boxes_in(text)]):
        rest = rest[:start] + rest[end:]
    return not re.sub(r"\b(?:and|or)\b|[\s,;$.]", "", rest)
