"""The accepted answers that a field of a record holds, as texts without what wraps them."""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from pixelis_jax.answers import boxes
from pixelis_jax.answers import text as texts
from pixelis_jax.data.importers import annotators, answer_types, gold_texts
from pixelis_jax.data.importers.base import Context, Place, Refusal, cut_out, is_number, quoted

# What a boolean in the place of an answer accepts.
SAME_AS_BOOLEAN = {True: ("yes", "true"), False: ("no", "false")}
LONGEST = 10_000  # characters of an answer or a choice; comparing them takes time that grows with the square


def tagged(text: str) -> str | None:
    """What the last <answer>...</answer> holds; None without one."""
    _, found = cut_out(text, "answer")
    return found[-1].strip() if found else None


def plain(value: Any, place: Place, field: str) -> list[str]:
    """Accepted answers as strings, the first one the answer: of a string, a number, a box, or a list. Raises Refusal.

    A list of numbers of more than one is one answer (a box, a point); of several people's answers what most say is the
    first (see annotators.py); of a solution its result (see gold_texts.py).
    """
    if isinstance(value, bool):
        return [*SAME_AS_BOOLEAN[value]]
    if (people := annotators.votes(value)) is not None:
        value = annotators.accepted(people, place, field)
    value = _unpacked(value) if not isinstance(value, str) or len(value) <= LONGEST else value
    if isinstance(value, Mapping) and boxes.four(value) is not None and not {*boxes.NAMES} - {"box_2d"} & {*value}:
        return [json.dumps(value)]  # its names say what the numbers are
    box = None if isinstance(value, str) else boxes.four(value)
    if box is not None:
        value = [int(number) if number.is_integer() else number for number in box]
    if isinstance(value, list) and value and all(isinstance(item, list) and _are_numbers(item) for item in value):
        return [json.dumps(value)]
    if isinstance(value, list) and len(value) > 1 and all(is_number(item) for item in value):
        return [json.dumps(value)]
    answers = []
    for item in value if isinstance(value, list) else [value]:
        if is_number(item):
            answers.append(json.dumps(item))
        elif isinstance(item, str) and item.strip():
            parts, _ = gold_texts.parts(gold_texts.inside(item, place, field))
            answers += [bare(refuse_long(part, place, field)) for part in parts]
        else:
            empty = item is None or (isinstance(item, str) and not item.strip())
            reason = "missing or empty" if empty else "must be a text, a finite number or a list of them"
            raise Refusal(place.where, field, reason, "" if empty else quoted(item))
    if not answers or not all(answers):
        raise Refusal(place.where, field, "missing or empty")
    return list(dict.fromkeys(answers))


def _are_numbers(items: list[Any]) -> bool:
    return len(items) > 1 and all(is_number(item) for item in items)


def refuse_long(text: str, place: Place, field: str) -> str:
    """An answer or a choice, if it is not too long to be one. Raises Refusal."""
    if len(text) > LONGEST:
        raise Refusal(place.where, field, f"longer than {LONGEST} characters", f"{len(text)}")
    return text


def _unpacked(value: Any) -> Any:
    """The answers of a text that spells a list of texts, of {"text": [...]}, and of [{"answer": ...}, ...]."""
    if isinstance(value, str) and value.strip().startswith("[") and value.strip().endswith("]"):
        try:
            found = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return value
        return found if isinstance(found, list) and found and all(isinstance(item, str) for item in found) else value
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        return value["text"]
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        named = [item.get("answer", item.get("text")) for item in value]
        return value if None in named else named
    return value


def bare(answer: str) -> str:
    r"""An answer without what wraps it: `\boxed{}`, quotes, `$..$`, `**`, a full stop; "" for an empty box."""
    found = texts.unwrap(answer)
    return "" if re.fullmatch(r"\\(?:boxed|fbox)\s*\{\s*\}", found) else found


def needs_all(value: Any, question: str, answer_type: Any) -> bool:
    """Whether the answers in a field are the parts of one: joined by <AND>, or a list where all are asked for."""
    if isinstance(value, str):
        return gold_texts.parts(value)[1]
    several = isinstance(value, list) and len(value) > 1 and all(isinstance(item, str) for item in value)
    return several and annotators.votes(value) is None and answer_types.wants_all(question, answer_type)


def note_lists(value: Any, context: Context) -> None:
    """Counts answers that are lists, with how they were read."""
    if annotators.votes(value):
        context.notes["answers of several people: what most say, and what three say, is accepted"] += 1
    elif isinstance(value, list) and len(value) > 1 and all(isinstance(item, str) for item in value):
        context.notes["answers that are lists: any of their items is right"] += 1
