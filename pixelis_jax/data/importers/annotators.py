"""Answers of several people to one question, as VQAv2, TextVQA, OK-VQA, A-OKVQA and VizWiz have them.

The answer is what most of them say. Others are accepted where at least three say it, as VQA's accuracy has it
(arXiv:1505.00468): but no yes beside no, and nothing that says there is no answer.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pixelis_jax.answers import text as texts
from pixelis_jax.data.importers.base import Place, Refusal, is_number, quoted

ENOUGH = 3  # people
FEW = 5  # texts: a shorter list is one of alternatives, also where one comes twice
NO_ANSWER = frozenset({"unanswerable", "unsuitable", "unsuitable image", "not answerable", "i don't know"})
_YES_NO = frozenset({"yes", "no"})
_TEXTS, _COUNTS = ("answer", "text", "value", "raw_answer"), ("count", "votes", "num", "frequency")


def votes(value: Any) -> Counter[str] | None:
    """How often each answer of a list is given; None where it is no list of people's answers.

    One is a list of objects with an answer each, or of texts of which some come again.
    """
    if not isinstance(value, list) or len(value) < 2:
        return None
    found: Counter[str] = Counter()
    for item in value:
        if isinstance(item, Mapping):
            name = next((name for name in _TEXTS if isinstance(item.get(name), str)), "")
            count = next((item[name] for name in _COUNTS if is_number(item.get(name))), 1)
            text = item.get(name)
        else:
            text, count = item, 1
        if not isinstance(text, str) or not text.strip() or count != int(count) or count < 0:
            return None
        if count:
            found[text.strip()] += int(count)
    if not any(isinstance(item, Mapping) for item in value) and (len(value) < FEW or max(found.values()) == 1):
        return None
    return found


def accepted(found: Counter[str], place: Place, field: str) -> list[str]:
    """The accepted answers, the most frequent first. Raises Refusal for as many yes as no, and for counts of 0."""
    if not found:
        raise Refusal(place.where, field, "each of its answers has the count 0")
    merged: dict[str, Counter[str]] = {}
    for text, count in found.items():
        merged.setdefault(texts.key(text), Counter())[text] += count
    ranked = sorted(merged.values(), key=lambda spellings: -spellings.total())
    counts = [spellings.total() for spellings in ranked]
    names = [spellings.most_common(1)[0][0] for spellings in ranked]
    keys = [texts.key(name) for name in names]
    first = [key for key, count in zip(keys, counts, strict=True) if count == counts[0]]
    if {*first} >= _YES_NO:
        raise Refusal(place.where, field, "as many people say yes as no", quoted(dict(zip(names, counts, strict=True))))
    if keys[0] in _YES_NO | NO_ANSWER:
        return names[:1]
    enough = min(ENOUGH, counts[0])  # as many as the first, where that has fewer
    more = zip(names[1:], keys[1:], counts[1:], strict=True)
    return [names[0], *(name for name, key, count in more if count >= enough and key not in NO_ANSWER)]
