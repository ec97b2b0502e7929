"""Dynamic sampling: prompts whose samples all earn the same give their place to fresh prompts.

Source: DAPO, arXiv:2503.14476, section 3.2. A group is asked whether its *task* reward differs, since that is what the
policy is to learn; other reward components differ almost always.
"""

import dataclasses
from collections.abc import Collection, Sequence

import jax.numpy as jnp
import numpy as np

from pixelis_jax import hosts
from pixelis_jax.rollout.sample import Rollout
from pixelis_jax.types import Trajectory

UNIFORM = 1e-6  # rewards of a group that differ by less are equal


def final_rewards(trajectories: Sequence[Trajectory], scores: np.ndarray, *, unrepaired: bool) -> np.ndarray:
    """f32[B]: as `orchestrator.final_reward`, on the host: 0 where the last operation failed, if `unrepaired`."""
    return np.where([unrepaired and _last_failed(t) for t in trajectories], np.float32(0), scores)


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
    return high - low >= UNIFORM


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
