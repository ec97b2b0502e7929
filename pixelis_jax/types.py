"""Data that crosses module borders: host records (frozen dataclasses) and device pytrees (flax.struct).

Letters used for shapes in the whole package: B batch rows, G group size, T tokens, K tool calls, D width, H heads,
V vocabulary, N patches, M images, W attention windows an image, L patches a window, F image feature rows.

Alignment used everywhere: an array `[B, T]` of log-probs, losses or masks holds at `t` what belongs to *token t itself*
(its log-prob given the tokens before it), so position 0 is never trained. No shifted copies are stored.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from flax import struct

# A leaf of a pytree below: a jax.Array, or the numpy array that the host makes it from (parallel.put_batch moves it).
Array = Any

# Visual operations in a fixed order: the index is the op id seen by rewards and the one-hot position in the action
# vector. THINK is a step of a CoTA trajectory and not a tool; it keeps the last place.
OPS: tuple[str, ...] = ("ZOOM_IN", "SEGMENT_OBJECT_AT", "GET_PROPERTIES", "READ_TEXT", "TRACK_OBJECT", "THINK")
OP_ID: dict[str, int] = {name: i for i, name in enumerate(OPS)}

STATE_DIM = 768  # width of the state embedding that curiosity and coherence read


class UserError(Exception):
    """Bad input from the user: `main` prints the message as one line and exits 2, without a traceback."""


@dataclasses.dataclass(frozen=True)
class Task:
    """One question about one or more images, with its verifiable answer.

    `index` is the task's address: with the seed and the step it determines all randomness spent on it.
    `images` are u8[height, width, 3] at original resolution; `answer_type` chooses the verifier.
    """

    task_id: str
    index: int
    task_type: str
    question: str
    images: tuple[np.ndarray, ...]
    answer: str
    answer_type: str = "exact"
    needs_look: bool = False
    is_video: bool = False
    choices: tuple[str, ...] = ()
    tolerance: float = 0.0
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A parsed call: `name` is a registered tool, `arguments` are JSON values of the declared types."""

    name: str
    arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Observation:
    """What a call returned: text for the `<tool_response>` turn and, where the tool makes one, a new image.

    `ok` is False for every error (the text then says what was wrong). `image` is u8[height, width, 3] before the
    processor's resize. `region` is the call's place on its target image as (centre x, centre y, width, height), each
    relative to the image in 0..1; a point has zero size; None where the call names no place. `data` is what the tool
    measured, as JSON values; a tool that gives it has it in `text` too, as far as the policy is told.
    """

    text: str
    ok: bool = True
    image: np.ndarray | None = None
    region: tuple[float, float, float, float] | None = None
    target_image: int = 1
    out_of_image: bool = False
    by_object: bool = False
    data: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Turn:
    """One assistant message and what followed it. Exactly one of `call`, `answer`, `error` is set.

    `text` is the decoded message without its end-of-turn token; `error` is the parser's complaint.
    """

    text: str
    thought: str = ""
    call: ToolCall | None = None
    answer: str | None = None
    error: str | None = None
    observation: Observation | None = None


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One whole rollout on the host. Arrays have length T, the number of tokens of this trajectory (no padding).

    `policy[t]` marks tokens sampled by the policy; `logp[t]` is the sampler's log-prob there and 0 elsewhere;
    `image_index[t]` is -1 for text, else the flat row of the rollout's image feature table.
    `shown_sizes[i]` is the frame of the boxes that the policy says about the task's image `i`: the (height, width) that
    x and y are relative to, (1000, 1000) for thousandths; empty where that is not known.
    `status` is one of "answered", "over_turn" (turn, context or image budget hit), "truncated" (a turn was cut).
    """

    task: Task
    sample: int
    tokens: np.ndarray  # i32[T]
    policy: np.ndarray  # bool[T]
    positions: np.ndarray  # i32[3, T]
    logp: np.ndarray  # f32[T]
    turn_of: np.ndarray  # i32[T], the assistant turn that sampled the token, -1 elsewhere
    image_index: np.ndarray  # i32[T]
    turns: tuple[Turn, ...]
    images: tuple[np.ndarray, ...]  # originals first, then what the tools returned
    embeddings: np.ndarray  # f32[number of observations, STATE_DIM]
    status: str
    shown_sizes: tuple[tuple[int, int], ...] = ()

    @property
    def answer(self) -> str | None:
        return self.turns[-1].answer if self.turns else None


@struct.dataclass
class RewardInputs:
    """What rewards see of trajectories: numbers only. Leading axis B here; a component sees one row under vmap."""

    ops: Array  # i32[B, K] index into OPS
    arguments: Array  # f32[B, K, 4] Observation.region, zeros where None
    target_image: Array  # i32[B, K]
    call: Array  # i32[B, K] equal numbers = the same operation with the same arguments within the trajectory
    observation: Array  # i32[B, K] equal numbers = the same result: byte-equal images, or equal texts without one
    valid: Array  # bool[B, K] a call stands here
    succeeded: Array  # bool[B, K]
    out_of_image: Array  # bool[B, K]
    by_object: Array  # bool[B, K] the call named an object id
    thought_after: Array  # bool[B, K]
    embeddings: Array  # f32[B, K+1, STATE_DIM] the state before the first call and after each
    is_video: Array  # bool[B]
    score: Array  # f32[B] the verifier's 0..1, before the unrepaired-error rule
    answered: Array  # bool[B]
    excluded: Array  # bool[B] truncated, over-turn or failed: no reward, no loss, no denominator
    group: Array  # i32[B] prompt group, 0..number of groups - 1, rows in any order


@struct.dataclass
class ImageBatch:
    """Images as the vision tower reads them, windows first (see models/vision.py).

    A patch is the flattened (channel, frame, row, column) block of the Hugging Face processor, in raw 0..255 values;
    normalisation happens on the device. Patches of one attention window are contiguous and padded to L.
    """

    patches: Array  # u8[M, W, L, channels * frames * patch * patch]
    coords: Array  # i32[M, W, L, 2] (row, column) of the patch in its frame
    valid: Array  # bool[M, W, L]


@struct.dataclass
class TokenBatch:
    """Padded token rows with both masks. `valid`: not padding. `policy`: trained or sampled by the policy."""

    tokens: Array  # i32[B, T]
    valid: Array  # bool[B, T]
    policy: Array  # bool[B, T]
    positions: Array  # i32[B, 3, T] M-RoPE (time, height, width)
    image_index: Array  # i32[B, T] row of the flat feature table, -1 for text


@struct.dataclass
class TrajectoryBatch:
    """What the RL train step takes: token rows, the sampler's log-probs, image features and reward inputs.

    With an adapter on the vision tower the features are each policy's own and are trained through: then `features` is
    None and `images` holds what they are made from, in the order of the feature table.
    """

    rows: TokenBatch
    logp_sampler: Array  # f32[B, T]
    turn_of: Array  # i32[B, T]
    features: Array | None  # f32[F, D] merged vision tokens of the frozen tower (D times 1 + levels with deepstack)
    rewards: RewardInputs
    images: tuple[ImageBatch, ...] | None = None

    @property
    def seen(self) -> Array | tuple[ImageBatch, ...]:
        """Where the rows' image features come from."""
        return self.features if self.images is None else self.images
