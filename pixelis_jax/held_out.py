"""Held-out accuracy on CoTA samples, by difficulty and task type: the policy answers, with its tools."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pixelis_jax.data.corpus import Corpus
from pixelis_jax.evaluation import Outcome, Questions, Unanswered, unanswered
from pixelis_jax.rewards.verifiers import verify
from pixelis_jax.rollout.sample import RolloutConfig
from pixelis_jax.types import Trajectory, UserError

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """Shares of right answers, with their counts. A question without an answer is a wrong one."""

    overall: float
    by_category: dict[str, tuple[float, int]]
    by_task: dict[str, tuple[float, int]]
    rapr: float
    valid_calls: float
    statuses: dict[str, int]
    unanswered: Unanswered

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self)

    def on(self, mix: Mapping[str, float]) -> float:
        """Accuracy on a mix of categories; NaN where one of them has no question."""
        shares = {name: share for name, share in mix.items() if share > 0}
        return sum(share * self.by_category.get(name, (float("nan"), 0))[0] for name, share in shares.items())


@dataclasses.dataclass(frozen=True)
class Split:
    """Numbers of the questions asked while training, and of those for the end; how many had a bad picture or answer."""

    validation: list[int]
    test: list[int]
    unreadable: int


def split_questions(corpus: Corpus, *, validation: int, test: int) -> Split:
    """About `validation` samples and about `test` others, the categories in equal parts in both.

    A category with too few samples gives both their share of what it has. Neighbours in a file are alike, so the
    samples are taken from all over it. Their pictures are opened and their answers read, so that none ends a job
    later on. Raises UserError where none is left for the end.
    """
    names = [name for name in corpus.categories if len(corpus.numbers(name))]
    found, bad = Split([], [], 0), 0
    for name in names:
        numbers = corpus.numbers(name)
        first, second = (-(-count // len(names)) for count in (validation, test))
        order = np.random.Generator(np.random.Philox(key=len(numbers))).permutation(len(numbers))
        good: list[int] = []
        for number in numbers[order]:
            if len(good) == first + second:
                break
            if _is_readable(corpus, int(number)):
                good.append(int(number))
            else:
                bad += 1
        if len(good) < first + second:
            first = max(1, len(good) * first // (first + second))
        found.validation.extend(sorted(good[:first]))
        found.test.extend(sorted(good[first:]))
    if not found.test:
        raise UserError(
            f"{corpus.name}: {len(corpus)} held-out samples, {bad} of them with a bad picture or answer, are too few;"
            " raise data.held_out_share"
        )
    return dataclasses.replace(found, unreadable=bad)


def _is_readable(corpus: Corpus, number: int) -> bool:
    """Whether its pictures can be opened, and its answer is of its type."""
    try:
        task = corpus.task(number)
        verify(task, task.answer)
    except UserError:
        return False
    return True


class HeldOut:
    """Chosen samples of a corpus, asked with greedy decoding."""

    def __init__(self, questions: Questions, corpus: Corpus, numbers: Sequence[int], rollout: RolloutConfig) -> None:
        self.questions, self.corpus, self.rollout = questions, corpus, rollout
        # Films and stills apart: a batch is as wide as its longest prompt.
        self.numbers = sorted(numbers, key=lambda n: corpus.task_types[n] == "temporal_tracking")

    def __call__(
        self,
        lora: PyTree | None,
        *,
        tools_on: bool = True,
        progress: Callable[[int], None] | None = None,
        seen: Callable[[Trajectory], None] | None = None,
    ) -> Accuracy:
        """Asks every question once; `progress` hears of each batch, `seen` of each of this process's dialogues."""
        sampling = dataclasses.replace(self.rollout.sampling, temperature=0.0)
        config = dataclasses.replace(self.rollout, sampling=sampling, group_size=1, tools_on=tools_on)
        last = len(self.numbers) - 1
        outcomes = self.questions.ask(
            lambda i: self.corpus.task(self.numbers[min(i, last)]),
            len(self.numbers),
            config,
            lora=lora,
            seed=0,
            progress=progress,
            seen=seen,
        )
        return summarise(outcomes)


def summarise(outcomes: Sequence[Outcome]) -> Accuracy:
    """Shares over dialogues; `kind` of an outcome is its category of difficulty."""
    groups: dict[str, dict[str, list[float]]] = {"kind": defaultdict(list), "task_type": defaultdict(list)}
    statuses: dict[str, int] = defaultdict(int)
    for outcome in outcomes:
        groups["kind"][outcome.kind].append(outcome.score)
        groups["task_type"][outcome.task_type].append(outcome.score)
        statuses[outcome.status] += 1
    scores = [o.score for o in outcomes]
    calls = sum(o.other_turns for o in outcomes)
    return Accuracy(
        overall=sum(scores) / len(scores) if scores else float("nan"),
        by_category={k: (sum(v) / len(v), len(v)) for k, v in sorted(groups["kind"].items())},
        by_task={k: (sum(v) / len(v), len(v)) for k, v in sorted(groups["task_type"].items())},
        rapr=sum(bool(o.calls) for o in outcomes) / len(outcomes) if outcomes else 0.0,
        valid_calls=sum(o.good_calls for o in outcomes) / calls if calls else 0.0,
        statuses=dict(sorted(statuses.items())),
        unanswered=unanswered(outcomes),
    )
