"""Dynamic sampling: prompts whose samples all earn the same give their place to fresh prompts.

Source: DAPO, arXiv:2503.14476, section 3.2. A group is asked whether its *task* reward differs, since that is what the
policy is to learn; other reward components differ almost always.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from pixelis_jax import hosts
from pixelis_jax.rewards.groups import UNIFORM_RANGE
from pixelis_jax.rewards.task import TaskReward
from pixelis_jax.rollout.collate import groups_of
from pixelis_jax.rollout.sample import Rollout
from pixelis_jax.types import ImageBatch, Trajectory


@dataclasses.dataclass(frozen=True)
class Collected(Rollout):
    """A step's rows with what they earn; with dynamic sampling, those that were chosen.

    `sampled` and `earned` are of all dialogues: these, and what their final rewards are (NaN: none applies).
    """

    scores: np.ndarray  # f32[B] task rewards
    left_out: np.ndarray  # bool[B] rows of groups that teach nothing, for which there was no other
    sampled: list[Trajectory]
    earned: np.ndarray
    refused: int  # rows for which the reward function gave no number
    uniform: tuple[int, int] = (0, 0)  # with dynamic sampling: groups that teach nothing, of all groups


@dataclasses.dataclass(frozen=True)
class GroupRules:
    """Groups (see `groups_of`) have `size` rows; rows of an `excluded` status do not count; see `final_rewards`."""

    size: int
    excluded: Collection[str]
    unrepaired: bool


def collected(rollout: Rollout, scores: np.ndarray, *, refused: int = 0, earned: np.ndarray | None = None) -> Collected:
    """A rollout of which all rows are taken."""
    rows, earned = rollout.trajectories, scores if earned is None else earned
    return Collected(*_parts(rollout), scores, np.zeros(len(rows), bool), rows, earned, refused)


def collect(
    ask: Callable[[int], Rollout], reward: TaskReward, rules: GroupRules, *, further: int, share: hosts.Share
) -> Collected:
    """The batch of `ask(0)`; with `further` above 0, groups that teach nothing are replaced by those of ask(1), ...

    At most `further` batches are asked for. Where groups are still missing then, uniform ones stay and are left out.
    Every process calls this with its own rows, and as often as the one that misses most.
    """
    if not further:
        only = ask(0)
        scores = reward(only.trajectories)
        finals = final_rewards(only.trajectories, scores, unrepaired=rules.unrepaired)
        return collected(only, scores, refused=reward.refused, earned=finals)
    rollouts: list[Rollout] = []
    sampled: list[Trajectory] = []
    all_scores, refused, missing = [], 0, 1
    while missing and len(rollouts) <= further:
        rollouts.append(ask(len(rollouts)))
        rows = rollouts[-1].trajectories
        all_scores.append(reward(rows))
        refused += reward.refused
        sampled += rows
        finals = final_rewards(sampled, np.concatenate(all_scores), unrepaired=rules.unrepaired)
        group = groups_of(sampled)
        _check_sizes(group, rules.size)
        teaches = informative(group, finals, counted=[t.status not in rules.excluded for t in sampled])
        wanted = len(rollouts[0].trajectories) // rules.size
        (missing,) = hosts.largest(max(0, wanted - int(teaches.sum())))
    groups = np.sort(np.argsort(~teaches, kind="stable")[:wanted])  # the first that teach, then the first of the others
    order = np.concatenate([np.flatnonzero(group == number) for number in groups])
    source = np.repeat(np.arange(len(rollouts)), [len(r.trajectories) for r in rollouts])  # of each row: its rollout
    starts = np.cumsum([0, *(len(r.trajectories) for r in rollouts)])
    chosen = [(order[source[order] == k] - starts[k]).tolist() for k in range(len(rollouts))]
    merged = rollouts[0] if len(rollouts) == 1 else merge(rollouts, chosen, share)
    left_out = ~teaches[group[order]]
    scores = np.concatenate(all_scores)[order]
    uniform = (int(np.sum(~teaches)), len(teaches))
    return Collected(*_parts(merged), scores, left_out, sampled, finals, refused, uniform)


def _parts(rollout: Rollout) -> tuple[list[Trajectory], Array | None, tuple[ImageBatch, ...] | None]:
    return rollout.trajectories, rollout.features, rollout.images


def final_rewards(trajectories: Sequence[Trajectory], scores: np.ndarray, *, unrepaired: bool) -> np.ndarray:
    """f32[B]: as `orchestrator.final_reward`, on the host: 0 where the last operation failed, if `unrepaired`.

    A score that does not apply (NaN) stays one.
    """
    failed = np.array([unrepaired and _last_failed(t) for t in trajectories], bool)
    return np.where(failed & np.isfinite(scores), np.float32(0), scores)


def _last_failed(trajectory: Trajectory) -> bool:
    seen = [t.observation for t in trajectory.turns if t.call is not None and t.observation is not None]
    return bool(seen) and not seen[-1].ok


def _check_sizes(group: np.ndarray, size: int) -> None:
    """ValueError where a group has not `size` rows: two prompts of a step with one index would be one group."""
    counts = np.bincount(group)
    if (counts != size).any():
        raise ValueError(f"a group has {counts[counts != size][0]} rows, not {size}: two prompts share a task.index")


def informative(group: np.ndarray, finals: np.ndarray, *, counted: Sequence[bool]) -> np.ndarray:
    """bool[P]: which groups have two final rewards that differ, rows aside that are not `counted` or have none."""
    rows = np.asarray(counted, bool) & np.isfinite(finals)
    low, high = np.full(group.max() + 1, np.inf), np.full(group.max() + 1, -np.inf)
    np.minimum.at(low, group[rows], finals[rows])
    np.maximum.at(high, group[rows], finals[rows])
    return high - low >= UNIFORM_RANGE


def merge(rollouts: Sequence[Rollout], chosen: Sequence[Sequence[int]], share: hosts.Share) -> Rollout:
    """The `chosen` rows of each rollout as one, with a feature table of what these rows see.

    Every process gives its own rows; the new table holds what those of the first process see first.
    """
    starts = np.cumsum([0, *(_features(r).shape[0] for r in rollouts)])
    rows = [
        (t, np.where(t.image_index < 0, -1, t.image_index + starts[k]))
        for k, (rollout, numbers) in enumerate(zip(rollouts, chosen, strict=True))
        for t in (rollout.trajectories[i] for i in numbers)
    ]
    own = np.unique(np.concatenate([index[index >= 0] for _, index in rows]) if rows else np.zeros(0, np.int64))
    parts = hosts.gather(share, [own.tolist()])
    first = sum(len(part) for part in parts[: share.index])
    seen = np.concatenate([np.array(part, np.int32) for part in parts])
    table = jnp.concatenate([_features(r) for r in rollouts])
    trajectories = [
        dataclasses.replace(t, image_index=np.where(i < 0, -1, first + np.searchsorted(own, i)).astype(np.int32))
        for t, i in rows
    ]
    return Rollout(trajectories, jnp.take(table, seen if len(seen) else np.zeros(1, np.int32), axis=0), None)


def _features(rollout: Rollout) -> jnp.ndarray:
    assert rollout.features is not None, "images that are trained through can't be picked from a table"
    return rollout.features
