"""Held-out accuracy on CoTA samples, by difficulty and task type: the policy answers, with its tools."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pixelis_jax import hosts
from pixelis_jax.data.corpus import Corpus
from pixelis_jax.evaluation import Outcome, outcomes_of
from pixelis_jax.models.policy import Policy
from pixelis_jax.rollout.engine import Engine, SamplingConfig
from pixelis_jax.rollout.sample import RolloutConfig, Sampler
from pixelis_jax.tools.base import Tool
from pixelis_jax.types import Task, Trajectory, UserError

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

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self)

    def on(self, mix: Mapping[str, float]) -> float:
        """Accuracy on a mix of categories; NaN where one of them has no question."""
        shares = {name: share for name, share in mix.items() if share > 0}
        return sum(share * self.by_category.get(name, (float("nan"), 0))[0] for name, share in shares.items())


def split_questions(corpus: Corpus, *, validation: int, test: int) -> tuple[list[int], list[int]]:
    """(numbers of about `validation` samples, of about `test` others), the categories in equal parts in both.

    A category with too few samples gives both their share of what it has. Neighbours in a file are alike, so the
    samples are taken from all over it.
    """
    names = [name for name in corpus.categories if len(corpus.numbers(name))]
    found: tuple[list[int], list[int]] = ([], [])
    for name in names:
        numbers = corpus.numbers(name)
        first, second = (-(-count // len(names)) for count in (validation, test))
        if first + second > len(numbers):
            first = max(1, len(numbers) * first // (first + second))
        order = np.random.Generator(np.random.Philox(key=len(numbers))).permutation(len(numbers))
        found[0].extend(sorted(int(n) for n in numbers[order[:first]]))
        found[1].extend(sorted(int(n) for n in numbers[order[first : first + second]]))
    if not found[1]:
        raise UserError(f"{corpus.root}: too few held-out samples ({len(corpus)}); raise data.held_out_share")
    return found


class HeldOut:
    """Evaluates adapters of one policy on chosen samples; compiled functions are shared between calls."""

    def __init__(
        self, policy: Policy, corpus: Corpus, numbers: Sequence[int], rollout: RolloutConfig, tools: Mapping[str, Tool]
    ) -> None:
        self.policy, self.corpus, self.rollout, self.tools = policy, corpus, rollout, tools
        self.share = hosts.share(policy.mesh)
        # Films and stills apart: a batch is as wide as its longest prompt.
        self.numbers = sorted((int(n) for n in numbers), key=lambda n: corpus.task_types[n] == "temporal_tracking")
        self._engines: dict[SamplingConfig, Engine] = {}

    def engine(self, sampling: SamplingConfig) -> Engine:
        """The compiled engine for a sampling configuration, made once."""
        if sampling not in self._engines:
            self._engines[sampling] = Engine.of(self.policy, sampling)
        return self._engines[sampling]

    def __call__(
        self,
        lora: PyTree | None,
        *,
        batch: int,
        greedy: bool = True,
        tools_on: bool = True,
        progress: Callable[[int], None] = lambda count: None,
        seen: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> Accuracy:
        """Answers every question once; `progress` hears of each batch, `seen` of each of this process's dialogues."""
        sampling = self.rollout.sampling
        sampling = dataclasses.replace(sampling, temperature=0.0) if greedy else sampling
        config = dataclasses.replace(self.rollout, sampling=sampling, group_size=1, tools_on=tools_on)
        sampler = Sampler(self.policy, config, tools=self.tools, engine=self.engine(sampling))
        own = self.share.of(batch, "eval.batch")
        outcomes: list[Outcome] = []
        for start in range(0, len(self.numbers), batch):
            # The last batch is filled up with its last question, which is counted once.
            numbers = [self.numbers[min(start + i, len(self.numbers) - 1)] for i in own]
            rollout = sampler([self._task(n) for n in numbers], lora=lora, seed=0, step=0)
            for i, trajectory in zip(own, rollout.trajectories, strict=True):
                if start + i < len(self.numbers):
                    seen(trajectory)
            done = outcomes_of(rollout.trajectories, self.share)[: len(self.numbers) - start]
            outcomes += done
            progress(len(done))
        return summarise(outcomes)

    def _task(self, number: int) -> Task:
        return self.corpus.task(number)


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
    )
