"""The task reward of trajectories: that of the verifiers, of a user's own function, or of a majority's vote.

A trained reward model is to be one more `TaskReward`: from whole trajectories to one number each.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np
from absl import logging

from pixelis_jax.functions import named, shown, told
from pixelis_jax.rewards.columns import bind
from pixelis_jax.rewards.verifiers import agree, success_of
from pixelis_jax.rollout.collate import groups_of
from pixelis_jax.types import Task, Trajectory, Turn, UserError

LARGEST = 1e9  # a score beyond it is none: sums of rewards stay finite in f32


class TaskReward(Protocol):
    """f32[B] of B trajectories; NaN where no reward applies: such a row counts in no group mean and trains nothing.

    `refused` counts the rows of the last call for which no number could be had; `needs_answers` where it can't do
    without the tasks' own.
    """

    refused: int
    needs_answers: bool

    def check(self, task: Task) -> None:
        """Raises UserError for what can be known before the first rollout."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> np.ndarray: ...


class Verified:
    """The verifier that each task names, 0..1; 0 without an answer."""

    refused, needs_answers = 0, True

    def check(self, task: Task) -> None:
        """A task that names no verifier can't be made."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        return np.array([success_of(t) for t in trajectories], np.float32)


class MajorityVote:
    """Test-time RL: without answers, what most samples of a prompt say is taken for right (TTRL, arXiv:2504.16084).

    A row that agrees earns 1, times the majority's share of all samples with `weighted`. Below a share of `least` a
    group gets no reward at all (NaN). Answers are compared as verifiers do (`agree`): a choice may be named by its
    letter or its text, a number be written in several ways. Rows without an answer vote for nothing and earn 0; of
    answers with equal votes the first sample's is taken. A question that is asked twice in a step has two votes:
    prompts differ by their index.
    """

    refused, needs_answers = 0, False

    def __init__(self, *, weighted: bool, least: float) -> None:
        self.weighted, self.least = weighted, least

    def check(self, task: Task) -> None:
        """Any task will do."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        group, scores = groups_of(trajectories), np.zeros(len(trajectories), np.float32)
        for rows in (np.flatnonzero(group == number).tolist() for number in np.unique(group)):
            camps = _camps([trajectories[i] for i in rows])
            largest = max(camps, key=len, default=[])  # of equal ones the first
            share = len(largest) / len(rows)
            worth = (share if self.weighted else 1.0) if share >= self.least and largest else math.nan
            scores[rows] = [worth * (i in largest) for i in range(len(rows))]
        return scores


def _camps(trajectories: Sequence[Trajectory]) -> list[list[int]]:
    """Indices of dialogues whose answers agree with the first of them, in the order of the first."""
    camps: list[list[int]] = []
    for i, t in enumerate(trajectories):
        if t.answer is None:
            continue
        for camp in camps:
            first = trajectories[camp[0]].answer
            if first is not None and agree(t.task, first, t.answer):
                camp.append(i)
                break
        else:
            camps.append([i])
    return camps


class UserFunction:
    """A function of lists, one value a dialogue, that returns as many numbers; None: does not apply.

    It is called by the names of its parameters, in whatever order they stand (see rewards/columns.py): `completions` is
    what the policy wrote, its turns joined by newlines, without what tools returned; `prompts` are the questions. Both
    are texts, not lists of messages. With `**kwargs` it gets all that there is.
    """

    needs_answers = False

    def __init__(self, name: str, columns: Collection[str] = ()) -> None:
        """`columns` are those of the user's data. Raises UserError for a name that is no function, or one with a
        parameter that nothing can fill.
        """
        self.name, self.refused, self._warned = f"rewards.function {name!r}", 0, False
        self.function = named(name, option="rewards.function")
        self.binding = bind(self.function, columns, self.name)

    def check(self, task: Task) -> None:
        """Calls it once, with the task's own answer and without one. Raises UserError for what no batch could mend."""
        asked = [_imagined(task, task.answer), _imagined(task, "")]
        try:
            found = self._call(asked)
        except _NoNumbersError as error:
            raise UserError(f"{self.name} gave {error}; give a list with one number for each completion") from None
        except (Exception, SystemExit) as error:
            kind = (TypeError, KeyError, AttributeError, IndexError)
            hint = "; prompts and completions are texts here, not lists of messages" if isinstance(error, kind) else ""
            raise UserError(f"{self.name} fails on the first training prompt ({told(error)}){hint}") from error
        _check_length(found, asked, self.name)
        for value in found:
            if value is not None and not _is_number(value):
                raise UserError(f"{self.name} gave {shown(value)} on the first training prompt; give numbers, or None")

    def __call__(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        """Where the call raises, rows are asked one by one; those that raise again, or give no number, are refused.

        Why is logged the first time. Raises UserError for a result of another length.
        """
        try:
            found = self._call(trajectories)
        except (Exception, SystemExit):  # whatever a user's function raises: the rows say which of them it is about
            found = [self._one(t) for t in trajectories]
        _check_length(found, trajectories, self.name)
        values = np.array([_number(value) for value in found], np.float32)
        bad = [value for value, v in zip(found, values, strict=True) if value is not None and math.isnan(v)]
        self.refused = len(bad)
        if bad and not self._warned:
            self._warned = True
            why = f"it raised {told(bad[0])}" if isinstance(bad[0], BaseException) else f"it gave {shown(bad[0])}"
            logging.warning("%s: %s; such rows are left out, see skipped/reward in metrics.jsonl", self.name, why)
        return values

    def _call(self, trajectories: Sequence[Trajectory]) -> list[Any]:
        found = self.binding(self.function, trajectories)
        unordered = isinstance(found, str | bytes | Mapping | Set)
        if unordered or not isinstance(found, Iterable) or (isinstance(found, np.ndarray) and not found.ndim):
            raise _NoNumbersError(shown(found))
        return list(found)

    def _one(self, trajectory: Trajectory) -> Any:
        try:
            (found,) = self._call([trajectory])
        except (Exception, SystemExit) as error:  # counted by the caller, as any value that is no number
            return error
        return found


def _check_length(found: Sequence[Any], asked: Sequence[Any], name: str) -> None:
    if len(found) != len(asked):
        raise UserError(f"{name} gave {len(found)} scores for {len(asked)} completions; give one each")


class _NoNumbersError(Exception):
    """A user's function gave something that is no list of numbers in the order of the completions."""


def _is_number(value: Any) -> bool:
    """A real number, also NumPy's, True and False included; a span of time is none."""
    real = bool | int | float | np.bool_ | np.integer | np.floating
    return isinstance(value, real) and not isinstance(value, np.timedelta64)


def _number(value: Any) -> float:
    """A number of at most `LARGEST` as it is, everything else as NaN."""
    good = _is_number(value) and -LARGEST <= value <= LARGEST  # and NaN is not
    return float(value) if good else math.nan


def _imagined(task: Task, answer: str) -> Trajectory:
    """A dialogue of one turn that answers at once."""
    none = np.zeros(0, np.int32)
    return Trajectory(
        task=task,
        sample=0,
        tokens=none,
        policy=none.astype(bool),
        positions=np.zeros((3, 0), np.int32),
        logp=none.astype(np.float32),
        turn_of=none,
        image_index=none,
        turns=(Turn(text=f"<think></think><answer>{answer}</answer>", answer=answer),),
        images=tuple(task.images),
        embeddings=np.zeros((1, 1), np.float32),
        status="answered",
    )
