"""The task reward of trajectories: that of the verifiers, of a user's own function, or of a majority's vote.

A trained reward model is to be one more `TaskReward`: from whole trajectories to one number each.
"""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from absl import logging

from pixelis_jax.functions import named, shown, told
from pixelis_jax.rewards.verifiers import verify, vote_of
from pixelis_jax.rollout.collate import groups_of
from pixelis_jax.types import Task, Trajectory, Turn, UserError

# f(prompts, completions, **columns) -> one number, or None for "does not apply", a completion
RewardFunction = Callable[..., Sequence[float | None]]
LARGEST = 1e9  # a score beyond it is none: sums of rewards stay finite in f32
# What a function may ask for beside prompts and completions, by the name of its parameter: one value a row.
COLUMNS: dict[str, Callable[[Trajectory], Any]] = {
    "answers": lambda t: t.answer,  # str, None without one
    "ground_truths": lambda t: t.task.answer,
    "task_ids": lambda t: t.task.task_id,
    "task_types": lambda t: t.task.task_type,
    "statuses": lambda t: t.status,
    "calls": lambda t: [turn.call.name for turn in t.turns if turn.call is not None],
    "images": lambda t: [_locked(image) for image in t.images],  # u8[height, width, 3] each, those of the tools too
}


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
        return np.array([success_of(t.task, t.answer) for t in trajectories], np.float32)


class MajorityVote:
    """Test-time RL: without answers, what most samples of a prompt say is taken for right (TTRL, arXiv:2504.16084).

    A row that agrees earns 1, times the majority's share of all samples with `weighted`. Below a share of `least` a
    group gets no reward at all (NaN). Answers are compared by `vote_of`: case and spaces do not count, and a choice may
    be named by its letter or its text. Rows without an answer vote for nothing and earn 0; of answers with equal votes
    the first sample's is taken. A question that is asked twice in a step has two votes: prompts differ by their index.
    """

    refused, needs_answers = 0, False

    def __init__(self, *, weighted: bool, least: float) -> None:
        self.weighted, self.least = weighted, least

    def check(self, task: Task) -> None:
        """Any task will do."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        said = [None if t.answer is None else vote_of(t.task, t.answer) for t in trajectories]
        group, scores = groups_of(trajectories), np.zeros(len(trajectories), np.float32)
        for rows in (np.flatnonzero(group == number) for number in np.unique(group)):
            votes = Counter(said[i] for i in rows if said[i] is not None)
            (label, count), *_ = votes.most_common(1) or [(None, 0)]
            share = count / len(rows)
            worth = (share if self.weighted else 1.0) if share >= self.least and count else math.nan
            scores[rows] = [worth * (said[i] == label) for i in rows]
        return scores


class UserFunction:
    """A function `f(prompts, completions, **columns) -> list[float | None]`; None: does not apply.

    `prompts` are the questions, `completions` what the policy wrote, its turns joined by newlines, without what tools
    returned. Of `COLUMNS` it gets those that it has parameters for, all of them where it takes `**columns`.
    """

    needs_answers = False

    def __init__(self, name: str) -> None:
        """Raises UserError for a name that is no function, or one with a parameter that nothing can fill."""
        self.name, self.refused, self._warned = f"rewards.function {name!r}", 0, False
        self.function = named(name, option="rewards.function")
        self.columns = _columns(self.function, self.name)

    def check(self, task: Task) -> None:
        """Calls it once, with the task's own answer and without one. Raises UserError for what no batch could mend."""
        asked = [_imagined(task, task.answer), _imagined(task, "")]
        try:
            found = self._call(asked)
        except (Exception, SystemExit) as error:
            raise UserError(f"{self.name} fails on the first training prompt ({told(error)})") from error
        _check_length(found, asked, self.name)
        for value in found:
            if value is not None and not isinstance(value, bool | int | float | np.number):
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
        completions = ["\n".join(turn.text for turn in t.turns) for t in trajectories]
        columns = {name: [COLUMNS[name](t) for t in trajectories] for name in self.columns}
        return list(self.function([t.task.question for t in trajectories], completions, **columns))

    def _one(self, trajectory: Trajectory) -> Any:
        try:
            (found,) = self._call([trajectory])
        except (Exception, SystemExit) as error:  # counted by the caller, as any value that is no number
            return error
        return found


def success_of(task: Task, answer: str | None) -> float:
    """The verifier's score; 0 without an answer."""
    return 0.0 if answer is None else verify(task, answer)


def _columns(function: RewardFunction, name: str) -> list[str]:
    """Names of `COLUMNS` that a function takes."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C: it gets the two lists
        return []
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return list(COLUMNS)
    unknown = [p.name for p in parameters[2:] if p.name not in COLUMNS and p.default is p.empty]
    if unknown:
        raise UserError(
            f"{name} takes {unknown[0]!r}, which is unknown; beside prompts and completions there are"
            f" {', '.join(COLUMNS)}"
        )
    return [p.name for p in parameters[2:] if p.name in COLUMNS]


def _check_length(found: Sequence[Any], asked: Sequence[Any], name: str) -> None:
    if len(found) != len(asked):
        raise UserError(f"{name} gave {len(found)} scores for {len(asked)} completions; give one each")


def _number(value: Any) -> float:
    """A number of at most `LARGEST` as it is, everything else as NaN."""
    good = isinstance(value, bool | int | float | np.number) and -LARGEST <= value <= LARGEST  # and NaN is not
    return float(value) if good else math.nan


def _locked(image: np.ndarray) -> np.ndarray:
    """A view that can't be written to: the picture is shown to others after."""
    view = image.view()
    view.flags.writeable = False
    return view


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
