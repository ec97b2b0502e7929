"""Kinds of values that the commands' options take; each says in one line what is wrong with a value."""

import argparse
from pathlib import Path


def path(text: str) -> Path:
    """A path; an empty one is an unset variable of a script, and not the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a path")
    return Path(text)


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share from 0 to 1")
    return value


def count(text: str) -> int:
    """A whole number from 1."""
    return _number(text, 1)


def natural(text: str) -> int:
    """A whole number from 0."""
    return _number(text, 0)


def _number(text: str, low: int) -> int:
    if not text.isdecimal() or not low <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {low}")
    return int(text)
