"""A user's own function, by the name that a field or an option gives."""

import importlib
from collections.abc import Callable
from typing import Any

from pixelis_jax.types import UserError


def named(name: str, *, option: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; UserError, beginning with `option`, where there is none."""
    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name):
        raise UserError(f"{option}={name} must be written package.module:function")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module does
        raise UserError(f"{option}={name}: module {module_name} can't be imported ({told(error)})") from error
    function = vars(module).get(function_name)
    if not callable(function):
        raise UserError(f"{option}={name}: {module_name} has no function {function_name}")
    return function


def shown(value: Any) -> str:
    """What a user's function gave, in at most 60 characters; its type where it can't be written."""
    try:
        return repr(value)[:60]
    except Exception:  # a number of more digits than Python writes, or a `__repr__` of the user's own
        return f"a value of type {type(value).__name__}"


def told(error: BaseException) -> str:
    """Kind and message of an error of the user's own, on one short line."""
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:  # a `__str__` that fails too
        return type(error).__name__
