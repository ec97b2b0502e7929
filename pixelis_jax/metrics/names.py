"""All metric names, with unit and meaning: the one table that the writer's users, the docs and the dashboard read.

`{op}` in a name stands for each operation of `OPS` in lower case, `{component}` for each reward component, `{turn}`
for an assistant turn, `{task}` for a task type, `{group}` for that or a category of difficulty, `{part}` for what a
curriculum weighs, `{stage}` for its stage, `{window}` for a number of training steps, `{source}` for a smoothed metric.
Rows with `bitwise` False depend on the machine's speed and go to `perf.jsonl`; all others are bitwise the same after a
kill and a resume, and go to `metrics.jsonl`.
"""

import dataclasses
import re

COMPONENTS = ("final", "coherence", "curiosity", "penalty", "total")


@dataclasses.dataclass(frozen=True)
class Metric:
    """One row of the table: `unit` is "1" for a plain number, "share" for 0..1."""

    name: str
    unit: str
    meaning: str
    bitwise: bool = True


TABLE: tuple[Metric, ...] = (
    # optimisation
    Metric("loss", "1", "loss of the update, divided once over the whole optimizer window"),
    Metric("loss/weight", "1", "denominator of the loss: trained tokens, or rows for per-row aggregation"),
    Metric("grad_norm", "1", "global norm of the gradient before clipping"),
    Metric("learning_rate", "1", "learning rate by the schedule, which a skipped update does not move"),
    Metric("update/skipped", "count", "updates left out so far: nothing to train or a gradient that is not finite"),
    Metric("sft/nll", "nat", "mean negative log-prob of the trained tokens"),
    Metric("sft/answer_prob", "share", "mean probability of the tokens between the answer tags"),
    Metric("data/rows", "count", "dialogues of the step, of this process"),
    Metric("data/row_tokens", "token", "length that the step's rows are padded to"),
    Metric("data/tokens", "token", "tokens of the step without padding"),
    Metric("data/policy_tokens", "token", "tokens of the step that are trained on"),
    Metric("data/padding_share", "share", "padding among the tokens of the step"),
    Metric("pretrain/reading_loss", "nat", "auxiliary loss: the character in each vision token of a chart"),
    Metric("pretrain/reading_accuracy", "share", "vision tokens with a character that were read right"),
    Metric("correction/weight", "1", "mean sampler-to-trainer importance weight"),
    # policy
    Metric("kl", "nat", "k3 estimate of KL(policy || reference), mean over policy tokens"),
    Metric("kl/beta", "1", "adaptive KL coefficient, as the step used it"),
    Metric("entropy", "nat", "entropy of the policy, mean over policy tokens"),
    Metric("clip_fraction", "share", "policy tokens whose ratio was clipped"),
    Metric("ratio/mean", "1", "mean of exp(logp - logp_old) over policy tokens"),
    Metric("ratio/max", "1", "largest exp(logp - logp_old)"),
    Metric("sampler_trainer_logprob_diff/mean", "nat", "mean |sampler log-prob - trainer log-prob|"),
    Metric("sampler_trainer_logprob_diff/max", "nat", "largest |sampler log-prob - trainer log-prob|"),
    Metric("sampler_trainer_logprob_diff/turn_{turn}/mean", "nat", "the same mean within one assistant turn"),
    Metric("sampler_trainer_logprob_diff/turn_{turn}/max", "nat", "the same maximum within one assistant turn"),
    # rewards and advantages
    Metric("reward/{component}/raw", "1", "reward component as measured, mean over scored rows"),
    Metric("reward/{component}/normalised", "1", "reward component after normalisation"),
    Metric("reward/{component}/weighted", "1", "what the component adds to the total"),
    Metric("reward/kl", "1", "what the KL takes off the total, where algorithm.kl_place is reward"),
    Metric("reward/overlong", "1", "what length takes off the total"),
    Metric("grpo/filtering_rate", "share", "samples with |advantage| above filtering_threshold"),
    Metric("grpo/uniform_group_share", "share", "groups whose total reward does not differ (loss 0 by design)"),
    Metric("replay_share", "share", "rows of the batch that earlier ones took the place of"),
    Metric("replay/age", "step", "mean age of these"),
    Metric("replay/kept", "count", "rows in the replay buffer before the step"),
    Metric("skipped/replay_rows", "count", "informative rows not kept: the buffer has no room for all their images"),
    Metric("dynamics/forward_loss", "1", "curiosity: forward model's error on the rollout's transitions"),
    Metric("dynamics/inverse_loss", "1", "curiosity: inverse model's loss on the rollout's transitions"),
    # rollout and tools
    Metric("rollout/sampled", "count", "dialogues of the step, those too that dynamic sampling did not choose"),
    Metric("rollout/length_tokens/{statistic}", "token", "policy tokens of a trajectory, over all rows"),
    Metric("rollout/turns/{statistic}", "turn", "assistant turns of a trajectory, over all rows"),
    Metric("rollout/clipped_share", "share", "rows cut by a token limit"),
    Metric("rollout/over_turn_share", "share", "rows that hit the turn, context or image budget"),
    Metric("rapr", "share", "rate of pixel-space reasoning: rollouts with at least one visual operation"),
    Metric("visual_op_ratio", "share", "visual operations among all actions"),
    Metric("tool/{op}/calls", "count", "calls of the operation in the step's rollouts"),
    Metric("tool/{op}/errors", "count", "calls that gave an error observation"),
    Metric("tool/nondeterministic", "count", "calls cut at the time limit; a repetition may differ from there on"),
    Metric("tool/unrepaired_error_rate", "share", "rollouts whose last visual operation failed and was not repeated"),
    Metric("tool/parse_failures", "count", "turns that the strict parser refused"),
    Metric("loop_rate", "share", "rollouts that repeat one call with the same arguments"),
    Metric("exploration_efficiency", "share", "distinct (operation, arguments) among the visual operations"),
    Metric("penalty/{violation}", "count", "tool misuse of one kind in the step's rollouts"),
    # success and its history
    Metric("success_rate", "share", "rollouts with a right answer, over all rows that a reward applies to"),
    Metric("success_rate/{task}", "share", "the same within one task type"),
    Metric("coherence", "1", "mean raw coherence reward of the step"),
    Metric("reward", "1", "mean total reward of the step"),
    Metric(
        "{source}_ma{window}",
        "1",
        "mean over the last training steps that had a value, of success_rate, coherence,"
        " reward and reward_final (reward/final/raw)",
    ),
    Metric("{source}_slope{window}", "1/step", "least-squares slope over the same steps"),
    Metric("combined_score_ma{window}", "share", "success_rate_ma * (1 + coherence_ma) / 2"),
    # held-out evaluation while training
    Metric("eval/accuracy", "share", "held-out CoTA questions with a right answer, greedy"),
    Metric("eval/accuracy/{group}", "share", "the same within one category of difficulty, or one task type"),
    Metric("eval/accuracy_on/{stage}", "share", "the same on a curriculum stage's mix of categories"),
    Metric("eval/rapr", "share", "held-out dialogues with at least one visual operation"),
    Metric("eval/valid_calls", "share", "turns without an answer that were a call and ran without error"),
    # curriculum
    Metric("curriculum/stage", "index", "current stage, from 0"),
    Metric("curriculum/weight/{part}", "1", "weight of a reward component, or share of a category, in this stage"),
    Metric("curriculum/transitions", "count", "stage changes so far, rollbacks included"),
    # left out
    Metric("skipped/{reason}", "count", "what was left out of the step for one reason; nothing is dropped uncounted"),
    # perf.jsonl
    Metric("seconds/{phase}", "s", "wall-clock time of one phase of the step", bitwise=False),
    Metric("tool/{op}/seconds", "s", "time that calls of the operation took, all together", bitwise=False),
    Metric("tokens_per_s", "token/s", "policy tokens of the step by its wall-clock time", bitwise=False),
    Metric("memory/host_peak_mib", "MiB", "peak resident memory of the process", bitwise=False),
    Metric("memory/device_peak_mib", "MiB", "peak memory of the first device, where it is known", bitwise=False),
)


def find(name: str) -> Metric | None:
    """The row that a logged name belongs to: the one with the longest literal part, None for an unknown name."""
    rows = [row for row in TABLE if re.fullmatch(_pattern(row.name), name)]
    return max(rows, key=lambda row: len(re.sub(r"\{\w+\}", "", row.name)), default=None)


def _pattern(name: str) -> str:
    """A family's name as a regular expression: turns and windows are numbers, other parts are words."""
    parts = re.split(r"(\{\w+\})", name)
    fills = {"{turn}": r"\d+", "{window}": r"\d+", "{component}": "|".join(COMPONENTS)}
    return "".join(f"(?:{fills.get(p, r'[A-Za-z0-9_]+')})" if p.startswith("{") else re.escape(p) for p in parts)
