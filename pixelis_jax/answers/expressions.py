r"""Expressions that mean the same: `\frac{1}{2}` and `\dfrac12`, `3 \sqrt{2}` and `3\sqrt2`, by math-verify.

The library (huggingface/Math-Verify, with sympy) is imported at the first expression. Its own time limits use signals,
which work in the main thread alone, so they are off; work is bounded by what is given to it instead: `MAX_CHARACTERS`,
the digits that powers and factorials would make, and `MAX_CALLS` function calls. What is beyond these, or raises, is
unequal; the first of each kind is logged.
"""

import functools
import inspect
import logging
import math
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from pixelis_jax.answers import numbers
from pixelis_jax.answers import text as texts

MAX_CHARACTERS = 400
MAX_DIGITS = 2000  # that a power or a factorial may have
MAX_NESTING = 20  # brackets in each other
MAX_CALLS = 4_000_000  # a few seconds; most take a tenth of it

_log = logging.getLogger(__name__)
_lock = threading.Lock()  # the parser's tables and sympy's caches are shared
failures: Counter[str] = Counter()  # comparisons given up, by reason

_COMMAND = re.compile(
    r"\\(?:[dtc]?frac|sqrt|pi|theta|alpha|beta|gamma|phi|lambda|mu|sigma|omega|infty|pm|mp|le|ge|leq|geq|neq|"
    r"ne|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|exp|sum|int|prod|lim|binom|left|right|begin|angle|cup|"
    r"cap|in|emptyset|mathbb|overline|vec|\{)(?![a-zA-Z])|\bsqrt\s*\("
)
_ADDRESS = re.compile(r"://|\bwww\.|@\w|\.(?:com|org|net|gov|edu|io|cn|de)\b", re.IGNORECASE)
_POWER = re.compile(r"[\w)}\]]\s*\^\s*[\w({+-]")
_SIGN = re.compile("[√∛π∞±≤≥≠∪∩∈∅]")
_EQUATION = re.compile(r"[a-zA-Z]\s*(?:_\{?\w\}?)?\s*=\s*[-+(\d\\].*")
_POLYNOMIAL = re.compile(r"[-+]?(?:\d*\s*[a-z]|\d+)(?:\s*[-+*/]\s*(?:\d*[a-z]|\d+))+")
_COEFFICIENT = re.compile(r"\d[a-z]")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s'-]+[^\W\d_]+)*\.?")
_LONG_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_FUNCTIONS = frozenset("sqrt frac arcsin arccos arctan sinh cosh tanh begin end infty".split())
_SIGNS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "π": r"\pi ", "∞": r"\infty ", "±": r"\pm ", "≤": r"\le ", "≥": r"\ge ",
          "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "×": r"\times ", "÷": r"\div ",
          "·": r"\cdot ", "⋅": r"\cdot ", "−": "-", "–": "-", "θ": r"\theta ", "α": r"\alpha "}  # fmt: skip
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_LOWER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_ROOT = re.compile(r"(\\sqrt(?:\[3\])?)\s*(\d+|[a-z])(?![\w.])|(?<![\\a-zA-Z])sqrt\s*\(([^()]*)\)")
_STARS = re.compile(r"\*\*\s*(-?\d+(?![\d.]))?")  # x**10


class TooMuchError(BaseException):
    """The bound on function calls is reached. No Exception: libraries catch these and go on."""


def looks_like_math(text: str) -> bool:
    r"""Whether a text is an expression, not a word, a plain number, or a code such as "A-12" or "3/4/2020"."""
    bare = texts.unwrap(text)
    if (
        _ADDRESS.search(bare)
        or len(bare) > MAX_CHARACTERS
        or numbers.parse(text) is not None
        or _has_words(_without_commands(bare))
    ):
        return False
    if _COMMAND.search(bare) or _POWER.search(bare) or _EQUATION.fullmatch(bare):
        return True
    if _RAISED.search(bare) or _SIGN.search(bare):
        return bool(re.search(r"[\w)]", bare))
    return bool(_POLYNOMIAL.fullmatch(bare) and _COEFFICIENT.search(bare))


def equal(gold: str, said: str) -> bool:
    """Whether two expressions mean the same. Words are compared as text, plain numbers as numbers."""
    one, other = numbers.parse(gold), numbers.parse(said)
    if one is not None and other is not None:
        return numbers.equal(other, one)
    if texts.same(gold, said):
        return True
    a, b = _latex(gold), _latex(said)
    if not a or not b or _has_words(_without_commands(a)) or _has_words(_without_commands(b)):
        return False
    return _equal(a, b)


@functools.lru_cache(4096)
def _equal(a: str, b: str) -> bool:
    for side in (a, b):
        if len(side) > MAX_CHARACTERS:
            return _give_up(f"longer than {MAX_CHARACTERS} characters")
        if nesting(side) > MAX_NESTING:
            return _give_up("nested too deep")
        if not digits(side) <= MAX_DIGITS:
            return _give_up("its powers make too large a number")
    try:
        with _lock:
            library = _library()
            return _bounded(lambda: _verified(library, a, b))
    except TooMuchError:
        return _give_up("takes too long")
    except Exception as error:
        return _give_up(f"{type(error).__name__} in math-verify")


@functools.cache
def _library() -> Any:
    """math-verify, warm: what the first comparison loads and caches must not count as its work."""
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limits are off
    for gold, said in (("x^2+2x+1", "(x+1)^2"), (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"), ("(1,2)", "(1, 2]")):
        _verified(math_verify, gold, said)
    return math_verify


def _verified(library: Any, gold: str, said: str) -> bool:
    config = [library.LatexExtractionConfig()]
    sides = []
    for side in (gold, said):
        found = library.parse(f"${side}$", extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None)
        if not found:
            return False
        sides.append(found)
    return bool(library.verify(*sides, timeout_seconds=None))


def _bounded(run: Callable[[], bool]) -> bool:
    """Runs with a bound on function calls, of Python's and of C's; without one where somebody profiles."""
    if sys.getprofile() is not None:
        return run()
    left = MAX_CALLS

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        left -= 1
        # Not where a generator is being closed: there Python drops an exception, and this function with it.
        if left < 0 and event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            raise TooMuchError

    sys.setprofile(count)
    try:
        return run()
    finally:
        sys.setprofile(None)


def _give_up(reason: str) -> bool:
    if not failures[reason]:
        _log.warning("an expression is not compared (%s); it counts as unequal", reason)
    failures[reason] += 1
    return False


def nesting(text: str) -> int:
    """How deep brackets stand in each other, at most."""
    depth = deepest = 0
    for sign in text:
        depth = max(0, depth + (sign in "([{") - (sign in ")]}"))
        deepest = max(deepest, depth)
    return deepest


def digits(text: str) -> float:
    """A bound on the decimal digits of any number that the powers and factorials of a text make; inf beyond floats."""
    text = text.replace("**", "^")
    if text.count("!") > 2 or "!!" in text or re.search(r"[)}]\s*!", text):
        return math.inf
    for argument in re.findall(r"(\d+)\s*!", text):
        if len(argument) > 3 or int(argument) > 500:
            return math.inf
    if re.search(r"\\binom|\\choose", text) and any(len(number) > 3 for number in re.findall(r"\d+", text)):
        return math.inf
    return _digits(text)


def _digits(text: str) -> float:
    base, largest = 0.0, 0.0
    at = 0
    outside = []
    while at < len(text):
        if text[at] != "^":
            outside.append(text[at])
            at += 1
            continue
        exponent, at = _group(text, at + 1)
        inner = _digits(exponent)
        largest = max(largest, 10.0**inner if inner < 300 else math.inf)
    bare = re.sub(r"\\[a-zA-Z]+", "a", "".join(outside))
    for number in re.findall(r"\d+", bare):
        base += math.log10(int(number[:300]) + 1) + max(0, len(number) - 300)
    base += 0.5 * len(re.findall(r"[a-zA-Z]", bare))
    return base * max(1.0, largest)


def _group(text: str, at: int) -> tuple[str, int]:
    """(an exponent, where it ends): a group in braces or brackets, or the run of characters up to the next operator."""
    while at < len(text) and text[at] in " +-":
        at += 1
    if at < len(text) and text[at] in "{(":
        depth, start = 0, at
        while at < len(text):
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(text[at], 0)
            at += 1
            if depth == 0:
                break
        inside = text[start + 1 : at - 1]
    else:
        match = re.compile(r"\\?\w[\w.]*").match(text, at)
        inside = match[0] if match else ""
        at += len(inside)
    if text[at : at + 1] == "^":  # towers are read from the right
        further, at = _group(text, at + 1)
        inside = f"{inside}^{{{further}}}"
    return inside, max(at, 1)


def _latex(text: str) -> str:
    r"""An answer as LaTeX without its wrapping: roots, raised digits and signs of Unicode as commands; "" for none."""
    bare = texts.unwrap(text)
    if len(bare) > MAX_CHARACTERS or "$" in bare:
        return ""
    bare = _RAISED.sub(lambda m: "^{" + m[0].translate(_LOWER) + "}", bare)
    bare = _STARS.sub(lambda m: f"^{{{m[1]}}}" if m[1] else "^", bare)
    for sign, command in _SIGNS.items():
        bare = bare.replace(sign, command)
    bare = "".join(c for c in bare if c.isascii())
    return _ROOT.sub(lambda m: f"{m[1]}{{{m[2]}}}" if m[1] else rf"\sqrt{{{m[3]}}}", bare).strip()


def _without_commands(text: str) -> str:
    return re.sub(r"\\(?:begin|end)\{[a-zA-Z]*\*?\}|\\[a-zA-Z]+", " ", text)


def _has_words(text: str) -> bool:
    """Whether a text is words alone, or holds a long one: their letters are no product of variables."""
    bare = text.strip()
    if len(bare) > 1 and _WORDS.fullmatch(bare):
        return True
    return any(word.lower() not in _FUNCTIONS for word in _LONG_WORD.findall(bare))
