"""Why dialogues of a training step teach nothing, and what helps: in words for the user."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from pixelis_jax.evaluation import Outcome

FORMAT = (
    "teach the format: start from an SFT adapter (init_from), or set algorithm.mask_over_turn=False, which counts such"
    " a dialogue as a wrong answer, with a rewards.function that pays for the tags"
)
MANY = 0.5  # share of a step's rows from which it is said that they are left out


def why_unanswered(outcomes: Sequence[Outcome], config: ConfigDict) -> str:
    """How the dialogues without an answer ended, the commonest way first, and what helps against that one."""
    sampling = config.sampling
    turn = f"sampling.max_new_tokens={sampling.max_new_tokens} or context_tokens={sampling.context_tokens}"
    dialogue = f"sampling.max_turns={sampling.max_turns} or context_tokens={sampling.context_tokens}"
    ways = {
        "cut": (f"were cut in a turn, at {turn}", "raise these, or take a model that ends its turns"),
        "untagged": ("wrote no answer tag and no tool call", FORMAT),
        "refused": (
            "wrote turns that can't be parsed",
            FORMAT,
        ),
        "looking": (f"were still calling tools at {dialogue}", "raise these"),
    }
    without = [o for o in outcomes if o.status != "answered"]
    if commonest_complaint([o for o in without if _way(o) == "refused"])[0].startswith("there is no tool"):
        ways["refused"] = (ways["refused"][0], f"offer the tools that the model calls (tools.names), or {FORMAT}")
    counts = Counter(map(_way, without)).most_common()
    words = [f"{count} {ways[way][0]}{_complaint([o for o in without if _way(o) == way])}" for way, count in counts]
    return f"{', '.join(words)}; {ways[counts[0][0]][1]}" if counts else ""


def _way(outcome: Outcome) -> str:
    """How a dialogue without an answer ended."""
    if outcome.status == "truncated":
        return "cut"
    if not outcome.refusal:
        return "looking"
    return "refused" if outcome.refused_tags else "untagged"


def _complaint(outcomes: Sequence[Outcome]) -> str:
    """The parser's commonest complaint about dialogues that ended alike and a turn that it is about, "" without one."""
    complaint, example = commonest_complaint(outcomes)
    if not complaint:
        return ""
    return (
        f" (as in {example!r})"
        if outcomes[0].status == "truncated"
        else f" (the parser: {complaint}; as in {example!r})"
    )


def commonest_complaint(outcomes: Sequence[Outcome]) -> tuple[str, str]:
    """(the parser's commonest complaint, the beginning of a turn that it is about); empty where it had none."""
    complaints = Counter(o.refusal for o in outcomes if o.refusal)
    if not complaints:
        return "", ""
    complaint = complaints.most_common(1)[0][0]
    return complaint, next(o.refused_text for o in outcomes if o.refusal == complaint)


def first_step_lines(
    scalars: Mapping[str, float | None], outcomes: Sequence[Outcome], config: ConfigDict, *, excluded: Sequence[str]
) -> list[str]:
    """What the first step says about those to come, in lines: rows that are left out, groups that teach nothing."""
    lines = []
    rows, group = config.rollout.prompts * config.rollout.group_size, config.rollout.group_size
    left = scalars.get("skipped/excluded_rows") or 0.0
    if left > MANY * rows:
        lines.append(
            f"warning: {left:.0f} of {rows} dialogues are left out of the update: {_why(outcomes, config, excluded)}"
        )
    rate = scalars.get("success_rate")
    if rate is not None and not math.isnan(rate) and left < rows:
        expected, uniform = rate**group + (1 - rate) ** group, scalars.get("grpo/uniform_group_share")
        words = (
            f"note: {rate:.0%} of the dialogues are right, so at least {expected:.0%} of the groups of {group} are"
            " expected to be all right or all wrong (p^G + (1-p)^G), which teaches nothing"
        )
        if uniform is not None:
            words += f"; in this step the rewards of {uniform:.0%} do not differ"
        if expected > MANY:
            words += "; rollout.dynamic_batches replaces such groups, a larger rollout.group_size makes them rarer"
        lines.append(words)
    return lines


def _why(outcomes: Sequence[Outcome], config: ConfigDict, excluded: Sequence[str]) -> str:
    """Why rows are left out: they came to no answer, or no reward applies to them."""
    if any(o.status in excluded for o in outcomes):
        return why_unanswered([o for o in outcomes if o.status in excluded], config)
    source = "rewards.function" if config.rewards.function else "rewards.majority_share"
    return f"no reward applies to them; see {source}"
