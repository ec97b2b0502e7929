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
    """Groups are `size` neighbouring rows; rows of an `excluded` status do not count; see `final_rewards`."""

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
    all_scores, all_finals, good = [], [], []
    refused, missing = 0, 1
    while missing and len(rollouts) <= further:
        rollouts.append(ask(len(rollouts)))
        rows = rollouts[-1].trajectories
        all_scores.append(reward(rows))
        refused += reward.refused
        all_finals.append(final_rewards(rows, all_scores[-1], unrepaired=rules.unrepaired))
        good.append(informative(rows, all_finals[-1], group_size=rules.size, excluded=rules.excluded))
        wanted = len(good[0])
        (missing,) = hosts.largest(max(0, wanted - int(np.concatenate(good).sum())))
    teaches = np.concatenate(good)
    groups = np.sort(np.argsort(~teaches, kind="stable")[:wanted])  # the first that teach, then the first of the others
    order = (groups[:, None] * rules.size + np.arange(rules.size)).ravel()
    batch = wanted * rules.size
    chosen = [(order[order // batch == k] - k * batch).tolist() for k in range(len(rollouts))]
    merged = rollouts[0] if len(rollouts) == 1 else merge(rollouts, chosen, share)
    sampled = [t for r in rollouts for t in r.trajectories]
    left_out = ~teaches[order // rules.size]
    scores, finals = np.concatenate(all_scores)[order], np.concatenate(all_finals)
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


def informative(
    trajectories: Sequence[Trajectory], finals: np.ndarray, *, group_size: int, excluded: Collection[str]
) -> np.ndarray:
    """bool[P]: which groups of `group_size` neighbouring rows have two rewards that differ, excluded rows aside."""
    counted = np.array([t.status not in excluded for t in trajectories]) & np.isfinite(finals)
    low = np.where(counted, finals, np.inf).reshape(-1, group_size).min(axis=1)
    high = np.where(counted, finals, -np.inf).reshape(-1, group_size).max(axis=1)
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
