"""Which of a question's choices an answer names: by letter, by text, or by both where they agree."""

import re
from collections.abc import Sequence
from typing import Any

from pixelis_jax.answers import numbers
from pixelis_jax.answers import text as texts

NEEDS_ALL = "needs_all"  # in metadata of a question: one accepted choice is not enough, all must be named
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ANNOUNCED = re.compile(
    r"(?:(?:so|therefore|thus|hence)\b\s*,?\s*)?"
    r"(?:(?:the|my)\s+)?(?:(?:final|correct|right|best)\s+)?(?:answer|option|choice|letter)\s*(?:is\b\s*)?[:=]?\s*(?:(?:option|choice|letter)\s+)?"
    r"|(?:(?:所以|因此|故)\s*[,，]?\s*)?(?:正确|最终)?(?:答案|选项|选择|选)\s*(?:是|为|选)?\s*[:：]?\s*(?:选项)?\s*",
    re.IGNORECASE,
)
_SAYS = re.compile(r"(?:\bis|[:=：是为])\s*$", re.IGNORECASE)  # "Option 2" may mean the second: no text follows it
_CONFIRMED = re.compile(r"\s+is\s+(?:the\s+)?(?:correct|right|best)(?:\s+(?:answer|option|choice|one))?$")
_LETTER = re.compile(
    r"[(\[{<【]?\s*([a-z])\s*(?:\.?[)\]}>】][.:]?|[.:)、!]|[,-](?=\s)|(?=[=|]))?(?:\s+|$|(?=[=|]))", re.ASCII
)
_ARTICLE = re.compile(r"(?:an?|[Tt]he|An)\s+(\S.*)")  # "A red" may be the letter of the first choice
_SIGNS = re.compile(r"^(?:-?>|=>|[-:=|])\s*")
_BRACKETED = re.compile(r"[(\[](.*)[)\]]")
_TIGHT = re.compile(r"[(\[]?([a-z])[.:)\]、]+(?=\S)", re.ASCII)  # "b.red"
_TRAILING = re.compile(r"(.*\S)\s*\(\s*([a-z])\s*\)", re.ASCII)
_RUN = re.compile(r"[A-Z]{2,26}", re.ASCII)
_BETWEEN = re.compile(r"\s*(?:[,;/&+\n]|\band\b|\bor\b)\s*|\s+")
_LISTED = re.compile(r"[\[\]()\"'{}]")


def index_of(text: str, choices: Sequence[str]) -> int | None:
    """The choice that `text` names: of equal ones its letter's, or the first; None where it names none, or several.

    A letter and a text that contradict each other name none. Without choices any letter counts.
    """
    found = _one(text, choices)
    return None if found is None else found[0]


def indices_of(answer: Any, choices: Sequence[str]) -> frozenset[int]:
    """All choices that an answer names, those equal to a named one too: "B, C", "BC", "B and C", ["B", "C"], a text.

    Empty where any part of it names none.
    """
    if isinstance(answer, list | tuple):
        parts = [indices_of(str(item), choices) for item in answer]
        return frozenset().union(*parts) if parts and all(parts) else frozenset()
    one = _one(str(answer), choices)
    if one is not None and (choices or not _several(str(answer), choices)):
        return _with_equals(one, choices)
    named = _several(str(answer), choices)
    return _with_equals(named, choices) if named else frozenset()


def _one(text: str, choices: Sequence[str], *, announced: bool = False) -> list[int] | None:
    """Indices of the one choice that a text names: several only for choices with the same text."""
    said = _key(text)
    keys = [_key(choice) for choice in choices]
    letter = _by_letter(said, keys)
    if letter is not None:
        return [letter]
    number = numbers.parse(text)
    if found := [i for i, key in enumerate(keys) if key == said and _unit(choices[i]) == _unit(text)]:
        return found
    bare = texts.unwrap(text)
    if not announced and (match := _ANNOUNCED.match(bare)) and _SAYS.search(match[0]):
        return _one(bare[match.end() :], choices, announced=True)
    if number is None:
        article = _ARTICLE.fullmatch(texts.normalise(texts.unwrap(text), fold=False))
        return [i for i, key in enumerate(keys) if key == _key(article[1])] or None if article else None
    values = [numbers.parse(choice) for choice in choices]
    found = [i for i, value in enumerate(values) if value is not None and numbers.equal(number, value)]
    return found if found and len({keys[i] for i in found}) == 1 else None


def _by_letter(said: str, keys: Sequence[str]) -> int | None:
    """The choice whose letter stands in front (or in brackets behind), if what follows is nothing or its text."""
    said = _CONFIRMED.sub("", said)
    starts = {0, match.end() if (match := _ANNOUNCED.match(said)) else 0}
    for start in starts:
        rest = said[start:].strip()
        for letter, other in _letters_of(rest):
            index = ord(letter) - ord("a")
            if index < (len(keys) or 26) and (not other or not keys or other == keys[index]):
                return index
    return None


def _letters_of(said: str) -> list[tuple[str, str]]:
    """(letter, what stands beside it) readings of a text."""
    found = []
    for pattern in (_LETTER, _TIGHT):
        if match := pattern.match(said):
            rest = said[match.end() :].strip()
            bracketed = _BRACKETED.fullmatch(rest)
            found.append((match[1], _key(bracketed[1] if bracketed else _SIGNS.sub("", rest))))
    if match := _TRAILING.fullmatch(said):
        found.append((match[2], _key(match[1])))
    return found


def _several(text: str, choices: Sequence[str]) -> list[int]:
    """Indices that a list of letters, or of letters with texts, names; empty where a part names none."""
    bare = _LISTED.sub("", texts.unwrap(texts.normalise_marks(text)).replace("*", "")).strip()
    if match := _ANNOUNCED.match(bare.lower()):
        bare = bare[match.end() :]
    count = len(choices) or 26
    letters = list(bare) if _RUN.fullmatch(bare) else [part for part in _BETWEEN.split(bare) if part]
    letters = [letter.rstrip(".:") for letter in letters]
    if len(letters) > 1 and all(len(letter) == 1 and letter.upper() in LETTERS[:count] for letter in letters):
        indices = [LETTERS.index(letter.upper()) for letter in letters]
        return indices if len(set(indices)) == len(indices) else []
    for separator in ("\n", ";", ","):
        parts = [part for part in texts.unwrap(text).split(separator) if part.strip()]
        ones = [index_of(part, choices) for part in parts] if len(parts) > 1 else []
        if ones and None not in ones:
            return [one for one in ones if one is not None]
    return []


def _with_equals(indices: Sequence[int], choices: Sequence[str]) -> frozenset[int]:
    keys = [_key(choice) for choice in choices]
    named = {(keys[i], _unit(choices[i])) for i in indices if i < len(keys)}
    return frozenset(indices) | {i for i, key in enumerate(keys) if (key, _unit(choices[i])) in named}


def _unit(text: str) -> str:
    """The unit of a number, which case may decide: "5 mW" and "5 MW" are two choices."""
    number = numbers.parse(text)
    return number.unit if number else ""


def _key(text: str) -> str:
    """As texts are compared, without emphasis inside: "**B.** a circle"."""
    return texts.key(texts.unwrap(text).replace("**", ""))
