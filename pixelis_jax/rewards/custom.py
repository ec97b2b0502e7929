"""A user's own task reward: a Python function named in the config, called on the host with the texts of a batch."""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pixelis_jax.types import UserError

# f(prompts, completions, **columns) -> one number, or None for "does not apply", a completion
RewardFunction = Callable[..., Sequence[float | None]]


def load(name: str) -> RewardFunction:
    """The function that `package.module:function` names. Raises UserError where there is none."""
    module_name, _, function_name = name.partition(":")
    if not (module_name and function_name):
        raise UserError(f"reward function '{name}' must be written package.module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"reward function '{name}': module '{module_name}' can't be imported ({error})") from error
    function = vars(module).get(function_name)
    if not callable(function):
        raise UserError(f"reward function '{name}': '{module_name}' has no function '{function_name}'")
    return function


def evaluate(
    function: RewardFunction,
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> np.ndarray:
    """f32[B] scores for RewardInputs.score; NaN where the function gave None: such a row counts in no group mean.

    `columns` are lists of one value a row, passed by name. Raises UserError for a result of another length or kind.
    """
    columns = columns or {}
    called = f"reward function '{getattr(function, '__qualname__', function)}'"
    for name, values in columns.items():
        if len(values) != len(completions):
            raise UserError(f"{called}: column '{name}' has {len(values)} values for {len(completions)} completions")
    scores = list(function(prompts, completions, **columns))
    if len(scores) != len(completions):
        raise UserError(f"{called} gave {len(scores)} scores for {len(completions)} completions; give one each")
    for i, score in enumerate(scores):
        if score is not None and not (isinstance(score, int | float | np.number) and math.isfinite(score)):
            raise UserError(f"{called} gave {score!r} for completion {i}; give a finite number or None")
    return np.array([math.nan if score is None else float(score) for score in scores], np.float32)
