"""What a user's reward function may ask for, and how its parameters are filled: by their names.

The names are those of `COLUMNS`, then columns of the user's own data, then the `ALIASES` that other trainers use.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from pixelis_jax.rewards.verifiers import in_policy_frame
from pixelis_jax.types import Trajectory, UserError

Column = Callable[[Trajectory], Any]


def _locked(image: np.ndarray) -> np.ndarray:
    """A view that can't be written to: the picture is shown to others after."""
    view = image.view()
    view.flags.writeable = False
    return view


def _gold(trajectory: Trajectory) -> str:
    return in_policy_frame(trajectory.task, trajectory.shown_sizes)


COLUMNS: dict[str, Column] = {
    "prompts": lambda t: t.task.question,
    "completions": lambda t: "\n".join(turn.text for turn in t.turns),
    "answers": lambda t: t.answer,  # what the policy said between the tags; None without
    "ground_truths": _gold,  # a box in the frame of the policy's coordinates
    "choices": lambda t: list(t.task.choices),
    "task_ids": lambda t: t.task.task_id,
    "task_types": lambda t: t.task.task_type,
    "statuses": lambda t: t.status,
    "calls": lambda t: [turn.call.name for turn in t.turns if turn.call is not None],
    "images": lambda t: [_locked(image) for image in t.images],  # u8[height, width, 3] each, those of the tools too
    "completion_ids": lambda t: t.tokens[t.policy].tolist(),  # the sampled ones
}
# The right answer, as TRL's and others' examples call it. `answers` is what the policy said.
ALIASES: tuple[str, ...] = ("solution", "solutions", "answer", "ground_truth", "target")


@dataclasses.dataclass(frozen=True)
class Binding:
    """How a function is called: columns by position (of parameters that have no name to a caller), and by name."""

    positional: tuple[Column, ...]
    named: dict[str, Column]

    def __call__(self, function: Callable[..., Any], trajectories: Sequence[Trajectory]) -> Any:
        columns = [[column(t) for t in trajectories] for column in self.positional]
        return function(*columns, **{name: [column(t) for t in trajectories] for name, column in self.named.items()})


def bind(function: Callable[..., Any], columns: Collection[str], name: str) -> Binding:
    """The binding of a function, whose data has these `columns`; errors begin with `name`.

    Raises UserError for a parameter without a default whose name is none of those that there are.
    """
    known = {alias: _gold for alias in ALIASES} | {c: _of_data(c) for c in columns} | COLUMNS
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C and without a signature
        parameters = []
    kinds = {parameter.kind for parameter in parameters}
    if kinds <= {inspect.Parameter.VAR_POSITIONAL}:  # nothing has a name
        return Binding((COLUMNS["prompts"], COLUMNS["completions"]), {})
    for parameter in parameters:
        named = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if named and parameter.default is parameter.empty and parameter.name not in known:
            raise UserError(_unknown(name, parameter.name, columns))
    leading = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    positional = [known[p.name] for p in itertools.takewhile(lambda p: p.name in known, leading)]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        wanted = set(known)
    else:
        wanted = {p.name for p in parameters if p.name in known and p.kind is not p.VAR_POSITIONAL}
    wanted -= {p.name for p in leading}
    return Binding(tuple(positional), {n: column for n, column in known.items() if n in wanted})


def _of_data(name: str) -> Column:
    """None where a sample lacks it."""
    return lambda t: t.task.metadata.get("columns", {}).get(name)


def _unknown(name: str, parameter: str, columns: Collection[str]) -> str:
    own = ", ".join(sorted(set(columns) - set(COLUMNS)))
    data = f"; of the data {own}" if own else "; the data has no columns of its own"
    return (
        f"{name} takes {parameter!r}, which is unknown; there are {', '.join(COLUMNS)}{data}; for the right answer also"
        f" {', '.join(ALIASES)}"
    )
