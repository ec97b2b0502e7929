"""Early warning: what usually goes wrong in RL with tools, each told once a run, with what to do.

A pure state of JSON values, so that it goes into the checkpoint and a resumed run does not warn again.
"""

from collections.abc import Mapping
from typing import Any

RECENT = 5  # steps that a level is the mean of
FIRST = 10  # steps before anything is told: a start is noisy
FALLEN = 0.25  # of its highest level: RaPR has collapsed
USED = 0.2  # level of RaPR below which there is nothing to collapse
DIALOGUES = 128  # the latest steps with at least so many say how often turns can't be parsed; fewer say little
FAILURES = 3.0  # times the mean of parse failures a dialogue before these
SOME_FAILURES = 0.15  # a dialogue; fewer are no rise
MANY_FAILURES = 0.25  # a dialogue; more are too many, whatever the mean was before
FAR = 0.5  # nat a token from the reference
UNIFORM_SHARE = "grpo/uniform_group_share"
UNIFORM = 0.8  # share of groups whose rewards do not differ
ZERO = 1e-6  # a loss below it looks as if nothing was learnt

REMEDIES = {
    "rapr": "raise the weight of curiosity (rewards.curiosity=rapr pays for looking), or lower optimizer.learning_rate",
    "more_failures": "lower optimizer.learning_rate, raise algorithm.kl_beta, or start from an SFT adapter",
    "many_failures": "start from an SFT adapter (init_from), offer only tools that the model knows (tools.names), or"
    " teach the format (a rewards.function that pays for it)",
    "kl": "raise algorithm.kl_beta, set algorithm.kl_target, or lower optimizer.learning_rate",
    "uniform_groups": "set rollout.dynamic_batches or rollout.replay_ratio, raise rollout.group_size, or take other"
    " prompts",
}


def init() -> dict[str, Any]:
    """Nothing seen, nothing told."""
    return {"steps": 0, "recent": {}, "highest_rapr": 0.0, "parsing": [], "parsed": [0.0, 0], "told": [], "now": []}


def update(
    state: Mapping[str, Any],
    scalars: Mapping[str, float | None],
    *,
    dialogues: int,
    refused: tuple[str, str] = ("", ""),
) -> dict[str, Any]:
    """The state one step later; `now` holds the lines to tell. `dialogues` is their number in the step.

    `refused`: the parser's commonest complaint in the step, and the beginning of a turn that it is about. A metric that
    is absent counts for nothing. A state of an earlier version goes on with what it has.
    """
    state = init() | dict(state)
    values = {"rapr": scalars.get("rapr"), "kl": scalars.get("kl"), "uniform_groups": scalars.get(UNIFORM_SHARE)}
    recent = {
        name: [*state["recent"].get(name, ()), *([] if value is None else [value])][-RECENT:]
        for name, value in values.items()
    }
    level = {name: sum(seen) / len(seen) for name, seen in recent.items() if len(seen) == RECENT}
    parsing, parsed = _count_failures(state, scalars.get("tool/parse_failures"), dialogues)
    steps = state["steps"] + 1
    highest = max(state["highest_rapr"], level.get("rapr", 0.0))
    wrong = _failures(parsing, parsed, refused)
    if highest >= USED and level.get("rapr", highest) < FALLEN * highest:
        wrong["rapr"] = (
            f"the policy has stopped looking: {level['rapr']:.2f} of the dialogues, {highest:.2f} before;"
            f" {REMEDIES['rapr']}"
        )
    if level.get("kl", 0.0) > FAR:
        wrong["kl"] = f"the policy is {level['kl']:.2f} nat a token from where it started; {REMEDIES['kl']}"
    if level.get("uniform_groups", 0.0) >= UNIFORM:
        share = f"in {level['uniform_groups']:.0%} of the groups all samples earn the same"
        wrong["uniform_groups"] = f"{share}; {REMEDIES['uniform_groups']}"
    new = {name: words for name, words in wrong.items() if name not in state["told"] and steps > FIRST}
    now = [f"warning: {words}" for words in new.values()]
    loss, gradient = scalars.get("loss"), scalars.get("grad_norm") or 0.0
    if loss is not None and abs(loss) < ZERO < gradient and "zero_loss" not in state["told"]:
        new["zero_loss"] = ""  # no warning: as it should be
        now.append(
            f"note: the loss is 0 and its gradient is not (norm {gradient:.2g}): the advantages of a group add up to 0,"
            " and so does the loss while the policy is the one that sampled; watch reward and success_rate"
        )
    return {
        "steps": steps,
        "recent": recent,
        "highest_rapr": highest,
        "parsing": parsing,
        "parsed": parsed,
        "told": [*state["told"], *new],
        "now": now,
    }


def _count_failures(
    state: Mapping[str, Any], failures: float | None, dialogues: int
) -> tuple[list[list[float]], list[float]]:
    """([failures, dialogues] of the fewest latest steps with DIALOGUES dialogues, their sums over all steps before)."""
    parsing = [list(step) for step in state["parsing"]]
    parsed = list(state["parsed"])
    if failures is None or dialogues < 1:
        return parsing, parsed
    parsing.append([failures, dialogues])
    while sum(count for _, count in parsing[1:]) >= DIALOGUES:
        oldest = parsing.pop(0)
        parsed = [a + b for a, b in zip(parsed, oldest, strict=True)]
    return parsing, parsed


def _failures(parsing: list[list[float]], parsed: list[float], refused: tuple[str, str]) -> dict[str, str]:
    """What is wrong with how turns can be parsed: far more failures than before, or many from the start."""
    count = sum(dialogues for _, dialogues in parsing)
    if count < DIALOGUES:
        return {}
    now = sum(failures for failures, _ in parsing) / count
    words = f"{now:.2f} turns a dialogue can't be parsed"
    shown = " ({}; as in {!r})".format(*refused) if refused[0] else ""
    usual = parsed[0] / parsed[1] if parsed[1] >= DIALOGUES else None
    if usual is not None and now > max(SOME_FAILURES, FAILURES * usual):
        return {"parse_failures": f"{words}, {usual:.2f} on average before{shown}; {REMEDIES['more_failures']}"}
    if now > MANY_FAILURES:
        return {"parse_failures": f"{words}{shown}; {REMEDIES['many_failures']}"}
    return {}
