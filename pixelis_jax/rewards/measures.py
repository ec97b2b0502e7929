"""Metrics of rewards and tool use from the same arrays, as Stats (names: metrics/names.py)."""

import jax
import jax.numpy as jnp

from pixelis_jax.masked import masked_sum
from pixelis_jax.rewards import calls
from pixelis_jax.rewards.orchestrator import Scores
from pixelis_jax.types import OPS, RewardInputs
from pixelis_jax.update import Stats


def reward_stats(scores: Scores, inputs: RewardInputs, *, success_threshold: float = 0.5) -> Stats:
    """Means over the included rows of every component (raw, normalised, weighted), and the share of right answers.

    The share is over all rows that a reward applies to: one that was cut off or went in circles is a failure, or a
    policy that rarely comes to an answer would look good.
    """
    count = jnp.sum(scores.included, dtype=jnp.float32)
    values = {f"reward/{name}/raw": x for name, x in scores.raw.items()}
    values |= {f"reward/{name}/normalised": x for name, x in scores.normalised.items()}
    values |= {f"reward/{name}/weighted": x for name, x in scores.weighted.items()}
    values |= {
        "coherence": scores.raw["coherence"],
        "reward": scores.total,
    }
    means = {name: (masked_sum(x, scores.included), count) for name, x in values.items()}
    right = scores.included & (scores.raw["final"] >= success_threshold)
    applies = jnp.isfinite(inputs.score)
    means["success_rate"] = (jnp.sum(right, dtype=jnp.float32), jnp.sum(applies, dtype=jnp.float32))
    one = jnp.float32(1)
    return Stats(means=means | {name: (value, one) for name, value in scores.losses.items()})


def tool_stats(inputs: RewardInputs) -> Stats:
    """How operations are used, over all rows, excluded ones too (a run that is cut off loops as well).

    rapr: rollouts with a visual operation. loop_rate: rollouts that repeat a call. exploration_efficiency: distinct
    (operation, arguments) among the calls. tool/unrepaired_error_rate: rollouts whose last call failed.
    """
    again = jax.vmap(calls.repeated)(inputs)
    rows = jnp.float32(inputs.valid.shape[0])
    made = jnp.sum(inputs.valid, dtype=jnp.float32)
    means = {
        "rapr": (jnp.sum(jnp.any(inputs.valid, axis=1), dtype=jnp.float32), rows),
        "loop_rate": (jnp.sum(jnp.any(again, axis=1), dtype=jnp.float32), rows),
        "exploration_efficiency": (jnp.sum(inputs.valid & ~again, dtype=jnp.float32), made),
        "tool/unrepaired_error_rate": (jnp.sum(jax.vmap(calls.last_failed)(inputs), dtype=jnp.float32), rows),
    }
    return Stats(means=means)


def violation_counts(scores: Scores) -> dict[str, jax.Array]:
    """penalty/<violation>: how often each kind of tool misuse was seen in the batch, f32[] each."""
    return {f"penalty/{name}": jnp.sum(x) for name, x in scores.violations.items() if name != "unrepaired_error"}


def tool_counts(inputs: RewardInputs) -> dict[str, jax.Array]:
    """tool/<op>/calls and tool/<op>/errors of the batch, f32[] each."""
    counts = {}
    for op, name in enumerate(OPS[:-1]):
        here = inputs.valid & (inputs.ops == op)
        counts[f"tool/{name.lower()}/calls"] = jnp.sum(here, dtype=jnp.float32)
        counts[f"tool/{name.lower()}/errors"] = jnp.sum(here & ~inputs.succeeded, dtype=jnp.float32)
    return counts
