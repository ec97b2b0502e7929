"""From trajectories to the arrays of a train step. Strings end here: answers are verified, calls become op ids."""

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jax import Array

from pixelis_jax.models.rows import pad_1d
from pixelis_jax.types import OP_ID, STATE_DIM, Observation, RewardInputs, TokenBatch, Trajectory, TrajectoryBatch

# Statuses of rows that are left out: no reward, no loss, no denominator.
EXCLUDED = ("truncated", "over_turn")


def trajectory_batch(
    trajectories: Sequence[Trajectory],
    features: Array | None,
    scores: np.ndarray,
    *,
    length: int,
    calls: int,
    pad: int,
    first_group: int = 0,
    excluded: Collection[str] = EXCLUDED,
) -> TrajectoryBatch:
    """Rows padded to `length` tokens and `calls` tool calls. Groups are those of `groups_of`, whatever the row order.

    `scores` f32[B] are task rewards, NaN where none applies; rows of an `excluded` status are left out. Groups are
    numbered from `first_group` on, so that parts of one batch share no number. Raises ValueError where a trajectory is
    longer than `length`: rows are never cut.
    """
    return TrajectoryBatch(
        rows=TokenBatch(
            tokens=pad_1d([t.tokens for t in trajectories], length, pad, np.int32),
            valid=pad_1d([np.ones(len(t.tokens), bool) for t in trajectories], length, False, bool),
            policy=pad_1d([t.policy for t in trajectories], length, False, bool),
            positions=_positions(trajectories, length),
            image_index=pad_1d([t.image_index for t in trajectories], length, -1, np.int32),
        ),
        logp_sampler=pad_1d([t.logp for t in trajectories], length, 0.0, np.float32),
        turn_of=pad_1d([t.turn_of for t in trajectories], length, -1, np.int32),
        features=features,
        rewards=reward_inputs(trajectories, scores, calls=calls, first_group=first_group, excluded=excluded),
    )


def padded_length(longest: int, *, limit: int, buckets: int) -> int:
    """Length that rows of at most `longest` tokens are padded to: `limit`, or a smaller of `buckets` equal parts of it.

    Each length in use is compiled once.
    """
    return next(size for part in range(1, buckets + 1) if (size := -(-limit * part // buckets)) >= longest)


def groups_of(trajectories: Sequence[Trajectory], *, first: int = 0) -> np.ndarray:
    """i32[B], the group of each row, numbered from `first` in the order in which groups first appear.

    The samples of one prompt are a group. Its key is `task.index`, which also seeds them: so a question that is asked
    twice in a step makes two groups, though its text, pictures and `task_id` are the same.
    """
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(t.task.index, first + len(numbers)) for t in trajectories], np.int32)


def reward_inputs(
    trajectories: Sequence[Trajectory],
    scores: np.ndarray,
    *,
    calls: int,
    first_group: int = 0,
    excluded: Collection[str] = EXCLUDED,
) -> RewardInputs:
    """What rewards see (numpy). Calls beyond `calls` cannot occur: the turn limit bounds them."""
    b = len(trajectories)
    out: dict[str, Any] = {
        "ops": np.zeros((b, calls), np.int32),
        "arguments": np.zeros((b, calls, 4), np.float32),
        "target_image": np.zeros((b, calls), np.int32),
        "call": np.zeros((b, calls), np.int32),
        "observation": np.zeros((b, calls), np.int32),
        **{name: np.zeros((b, calls), bool) for name in _FLAGS},
        "embeddings": np.zeros((b, calls + 1, STATE_DIM), np.float32),
    }
    for row, trajectory in enumerate(trajectories):
        _fill_calls(out, row, trajectory)
    return RewardInputs(
        **out,
        is_video=np.array([t.task.is_video for t in trajectories], bool),
        score=np.asarray(scores, np.float32),
        answered=np.array([t.answer is not None for t in trajectories], bool),
        excluded=np.array([t.status in excluded for t in trajectories], bool),
        group=groups_of(trajectories, first=first_group),
    )


_FLAGS = ("valid", "succeeded", "out_of_image", "by_object", "thought_after")


def _fill_calls(out: dict[str, Any], row: int, trajectory: Trajectory) -> None:
    """Write one trajectory's calls; the state before call k is the observation that preceded it."""
    states = trajectory.embeddings
    made: dict[str, int] = {}
    seen: dict[str, int] = {}
    out["embeddings"][row, 0] = states[0]
    k = 0
    for i, turn in enumerate(trajectory.turns):
        observation = turn.observation
        if turn.call is None or observation is None:
            continue
        out["ops"][row, k] = OP_ID[turn.call.name]
        if observation.region is not None:
            out["arguments"][row, k] = observation.region
        out["target_image"][row, k] = observation.target_image
        asked = json.dumps([turn.call.name, turn.call.arguments], sort_keys=True, default=str)
        out["call"][row, k] = made.setdefault(asked, len(made))
        out["observation"][row, k] = seen.setdefault(_digest(observation), len(seen))
        later = trajectory.turns[i + 1] if i + 1 < len(trajectory.turns) else None
        flags = (
            True,
            observation.ok,
            observation.out_of_image,
            observation.by_object,
            bool(later and later.thought.strip()),
        )
        for name, value in zip(_FLAGS, flags, strict=True):
            out[name][row, k] = value
        # A last call over the turn limit has no state after it; such rows are excluded.
        out["embeddings"][row, k + 1] = states[min(i + 1, len(states) - 1)]
        k += 1
    out["embeddings"][row, k + 1 :] = out["embeddings"][row, k]


def _digest(observation: Observation) -> str:
    """What was seen. With an image the text does not count: it names the image by a number that rises."""
    image = observation.image
    content = observation.text.encode() if image is None else repr(image.shape).encode() + image.tobytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _positions(trajectories: Sequence[Trajectory], length: int) -> np.ndarray:
    out = np.zeros((len(trajectories), 3, length), np.int32)
    for i, trajectory in enumerate(trajectories):
        out[i, :, : trajectory.positions.shape[1]] = trajectory.positions
    return out
