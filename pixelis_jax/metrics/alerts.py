"""Early warning: what usually goes wrong in RL with tools, each told once a run, with what to do.

A pure state of JSON values, so that it goes into the checkpoint and a resumed run does not warn again.
"""

from collections.abc import Mapping
from typing import Any

RECENT = 5  # steps that a level is the mean of
FIRST = 10  # steps before anything is told: a start is noisy
FALLEN = 0.25  # of its highest level: RaPR has collapsed
USED = 0.2  # level of RaPR below which there is nothing to collapse
FAILURES = 3.0  # times the running mean of parse failures a dialogue
SOME_FAILURES = 0.05  # a dialogue; fewer are noise
FAR = 0.5  # nat a token from the reference
UNIFORM = 0.8  # share of groups whose rewards do not differ
ZERO = 1e-6  # a loss below it looks as if nothing was learnt

REMEDIES = {
    "rapr": "raise the weight of curiosity (rewards.curiosity=rapr pays for looking), or lower optimizer.learning_rate",
    "parse_failures": "lower optimizer.learning_rate, raise algorithm.kl_beta, or start from an SFT adapter",
    "kl": "raise algorithm.kl_beta, set algorithm.kl_target, or lower optimizer.learning_rate",
    "uniform_groups": "set rollout.dynamic_batches or rollout.replay_ratio, raise rollout.group_size, or take other"
    " prompts",
}


def init() -> dict[str, Any]:
    """Nothing seen, nothing told."""
    return {"steps": 0, "recent": {}, "highest_rapr": 0.0, "failures": 0.0, "told": [], "now": []}


def update(state: Mapping[str, Any], scalars: Mapping[str, float | None], *, dialogues: int) -> dict[str, Any]:
    """The state one step later; `now` holds the lines to tell. `dialogues` is their number in the step.

    A metric that is absent counts for nothing.
    """
    failures = (scalars.get("tool/parse_failures") or 0.0) / max(1, dialogues)
    values = {
        "rapr": scalars.get("rapr"),
        "parse_failures": failures,
        "kl": scalars.get("kl"),
        "uniform_groups": scalars.get("grpo/uniform_group_share"),
    }
    recent = {
        name: [*state["recent"].get(name, ()), *([] if value is None else [value])][-RECENT:]
        for name, value in values.items()
    }
    level = {name: sum(seen) / len(seen) for name, seen in recent.items() if len(seen) == RECENT}
    steps, usual = state["steps"] + 1, state["failures"]
    highest = max(state["highest_rapr"], level.get("rapr", 0.0))
    wrong: dict[str, str] = {}
    if highest >= USED and level.get("rapr", highest) < FALLEN * highest:
        wrong["rapr"] = f"the policy has stopped looking: {level['rapr']:.2f} of the dialogues, {highest:.2f} before"
    if failures > max(SOME_FAILURES, FAILURES * usual):
        wrong["parse_failures"] = f"{failures:.2f} turns a dialogue can't be parsed, {usual:.2f} on average before"
    if level.get("kl", 0.0) > FAR:
        wrong["kl"] = f"the policy is {level['kl']:.2f} nat a token from where it started"
    if level.get("uniform_groups", 0.0) >= UNIFORM:
        wrong["uniform_groups"] = f"in {level['uniform_groups']:.0%} of the groups all samples earn the same"
    new = {name: words for name, words in wrong.items() if name not in state["told"] and steps > FIRST}
    now = [f"warning: {words}; {REMEDIES[name]}" for name, words in new.items()]
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
        "failures": usual + (failures - usual) / steps,
        "told": [*state["told"], *new],
        "now": now,
    }
