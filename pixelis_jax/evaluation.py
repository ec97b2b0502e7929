"""Held-out success of a policy, by question kind and by mode."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pixelis_jax import hosts
from pixelis_jax.data.prompts import Prompts
from pixelis_jax.models.policy import Policy
from pixelis_jax.rewards.verifiers import success_of
from pixelis_jax.rollout.engine import Engine, SamplingConfig
from pixelis_jax.rollout.sample import RolloutConfig, Sampler
from pixelis_jax.tools import grammar
from pixelis_jax.tools.base import Tool
from pixelis_jax.types import Task, Trajectory

PyTree = Any

# What opens the first turn where looking or not looking is forced: the policy goes on from there.
FORCED_ZOOM = '<think>I need a closer look.</think><tool_call>{"name": "ZOOM_IN", "arguments": {"bbox_2d": ['
FORCED_DIRECT = "<think>I can see it.</think><answer>"

OPENINGS = (FORCED_ZOOM, FORCED_DIRECT)

MODES: dict[str, dict[str, Any]] = {
    "tools_on": {},
    "tools_off": {"tools_on": False},
    "forced_direct": {"prefix": FORCED_DIRECT},
    "forced_zoom": {"prefix": FORCED_ZOOM},
    "greedy": {"greedy": True},
}
UNFORCED = ("tools_on", "greedy")  # in the others a dialogue without an answer is no surprise
MANY_UNANSWERED = 0.25  # share of the questions from which it is said
EXAMPLE = 200  # characters of a refused turn that are kept
# Why a dialogue of this status has no answer, where the parser refused none of its turns.
STATUSES = {
    "truncated": "a turn was cut at sampling.max_new_tokens or context_tokens",
    "over_turn": "the dialogue ended at sampling.max_turns or context_tokens",
}


@dataclasses.dataclass(frozen=True)
class Unanswered:
    """How many dialogues (0..1) came to no answer, the commonest reason, and a turn that shows it ("": none does)."""

    share: float
    reason: str
    example: str

    def line(self) -> str:
        """One line for the user; "" where the share is small."""
        if self.share <= MANY_UNANSWERED:
            return ""
        shown = f", as in {self.example!r}" if self.example else ""
        return f"{self.share:.0%} of the questions got no answer; the commonest reason: {self.reason}{shown}"


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """Shares in 0..1. `success`: of the questions that need a look; `by_kind`: (success, count) of each kind."""

    success: float
    rapr: float
    by_kind: dict[str, tuple[float, int]]
    valid_calls: float  # of all turns that gave no answer, the share that was a call and ran without error
    statuses: dict[str, int]
    unanswered: Unanswered

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Questions:
    """Asks a policy questions, `batch` at a time; compiled functions are kept between calls."""

    def __init__(self, policy: Policy, *, batch: int, tools: Mapping[str, Tool]) -> None:
        self.policy, self.batch, self.tools = policy, batch, tools
        self.share = hosts.share(policy.mesh)
        self._own = self.share.of(batch, "eval.batch")
        self._engines: dict[SamplingConfig, Engine] = {}

    def engine(self, sampling: SamplingConfig) -> Engine:
        """The compiled engine for a sampling configuration, made once."""
        if sampling not in self._engines:
            self._engines[sampling] = Engine.of(self.policy, sampling)
        return self._engines[sampling]

    def ask(
        self,
        task_of: Callable[[int], Task],
        count: int,
        config: RolloutConfig,
        *,
        lora: PyTree | None,
        seed: int,
        progress: Callable[[int], None] | None = None,
        seen: Callable[[Trajectory], None] | None = None,
    ) -> "list[Outcome]":
        """What comes of questions 0 .. count - 1; `progress` hears of each batch, `seen` of this process's dialogues.

        The last batch is filled up with questions behind the last, so that all have one compiled shape: `task_of` is
        asked for these too, and they are not counted.
        """
        sampler = Sampler(self.policy, config, tools=self.tools, engine=self.engine(config.sampling))
        outcomes: list[Outcome] = []
        for start in range(0, count, self.batch):
            rollout = sampler([task_of(start + i) for i in self._own], lora=lora, seed=seed, step=0)
            for i, trajectory in zip(self._own, rollout.trajectories, strict=True):
                if seen is not None and start + i < count:
                    seen(trajectory)
            done = outcomes_of(rollout.trajectories, self.share)[: count - start]
            outcomes += done
            if progress is not None:
                progress(len(done))
        return outcomes


class Evaluator:
    """Evaluates adapters of one policy on held-out prompts; compiled functions are shared between modes."""

    def __init__(
        self,
        policy: Policy,
        prompts: Prompts,
        rollout: RolloutConfig,
        *,
        seed: int,
        batch: int,
        tools: Mapping[str, Tool],
    ) -> None:
        self.prompts, self.rollout, self.seed = prompts, rollout, seed
        self.questions = Questions(policy, batch=batch, tools=tools)

    def engine(self, sampling: SamplingConfig) -> Engine:
        """The compiled engine for a sampling configuration, made once."""
        return self.questions.engine(sampling)

    def __call__(self, mode: str, *, lora: PyTree | None, progress: Callable[[int], None] | None = None) -> EvalResult:
        """Ask all questions once in `mode` (a key of MODES); `progress` hears of each batch, in questions."""
        options = dict(MODES[mode])
        sampling = self.rollout.sampling
        if options.pop("greedy", False):
            sampling = dataclasses.replace(sampling, temperature=0.0)
        config = dataclasses.replace(self.rollout, sampling=sampling, group_size=1, **options)
        outcomes = self.questions.ask(
            self.prompts.held_out,
            self.prompts.held_out_count,
            config,
            lora=lora,
            seed=self.seed,
            progress=progress,
        )
        return summarise(outcomes)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What metrics on the host count of a trajectory: JSON values, so that processes can tell each other theirs."""

    kind: str
    task_type: str
    needs_look: bool
    status: str
    score: float  # the verifier's; 0 without an answer
    tokens: int  # sampled by the policy
    turns: int
    calls: int
    good_calls: int  # ran without error
    other_turns: int  # gave no answer
    parse_failures: int
    refusal: str = ""  # the parser's complaint about the last turn that it refused
    refused_text: str = ""  # the beginning of that turn
    refused_tags: bool = False  # it has the tag of an answer or of a call

    @classmethod
    def of(cls, trajectory: Trajectory) -> "Outcome":
        task, turns = trajectory.task, trajectory.turns
        made = [t for t in turns if t.call is not None]
        refused = next((t for t in reversed(turns) if t.error is not None), None)
        return cls(
            kind=str(task.metadata.get("kind", task.task_type)),
            task_type=task.task_type,
            needs_look=bool(task.needs_look),
            status=trajectory.status,
            score=success_of(trajectory),
            tokens=int(trajectory.policy.sum()),
            turns=len(turns),
            calls=len(made),
            good_calls=sum(t.observation is not None and t.observation.ok for t in made),
            other_turns=sum(t.answer is None for t in turns),
            parse_failures=sum(t.error is not None for t in turns if t.observation),
            refusal=refused.error or "" if refused else "",
            refused_text=refused.text[:EXAMPLE] if refused else "",
            refused_tags=refused is not None and grammar.has_tags(refused.text),
        )


def outcomes_of(trajectories: Sequence[Trajectory], share: hosts.Share) -> list[Outcome]:
    """What came of the trajectories of all processes, in the order of the rows."""
    own = [dataclasses.asdict(Outcome.of(t)) for t in trajectories]
    return [Outcome(**record) for record in hosts.gather(share, own)]


def unanswered(outcomes: Sequence[Outcome]) -> Unanswered:
    """The share of dialogues without an answer, and why most of these have none."""
    without = [o for o in outcomes if o.status != "answered"]
    reasons = Counter(o.refusal or STATUSES[o.status] for o in without)
    if not without:
        return Unanswered(0.0, "", "")
    (reason, _), *_ = reasons.most_common(1)
    example = next((o.refused_text for o in without if o.refusal == reason), "")
    return Unanswered(len(without) / len(outcomes), reason, example)


def summarise(outcomes: Sequence[Outcome]) -> EvalResult:
    """Shares over trajectories; a trajectory without an answer is a failure."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    look, used, calls, good = [], [], 0, 0
    statuses: dict[str, int] = defaultdict(int)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome.score)
        statuses[outcome.status] += 1
        calls += outcome.other_turns
        good += outcome.good_calls
        used.append(bool(outcome.calls))
        if outcome.needs_look:
            look.append(outcome.score)
    return EvalResult(
        success=_mean(look),
        rapr=_mean(used),
        by_kind={k: (_mean(v), len(v)) for k, v in sorted(by_kind.items())},
        valid_calls=good / calls if calls else 0.0,
        statuses=dict(sorted(statuses.items())),
        unanswered=unanswered(outcomes),
    )


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else 0.0


def evaluate_modes(
    evaluator: Evaluator,
    modes: Sequence[str],
    lora: PyTree | None,
    say: Callable[[str], None],
    *,
    label: str = "eval",
    progress: Callable[[int], None] | None = None,
) -> dict[str, EvalResult]:
    """Results by mode, each said in one line as it comes; `progress` hears of each batch, in scenes."""
    results = {}
    for mode in modes:
        result = evaluator(mode, lora=lora, progress=progress)
        kinds = ", ".join(f"{kind} {share:.2f}" for kind, (share, _) in result.by_kind.items())
        counted = evaluator.prompts.counted
        say(f"{label}, {mode}: success {result.success:.3f} {counted}, rapr {result.rapr:.2f} ({kinds})")
        if mode in UNFORCED and (line := result.unanswered.line()):
            say(f"{label}, {mode}: {line}")
        results[mode] = result
    return results
