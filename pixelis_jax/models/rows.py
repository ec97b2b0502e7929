"""Token rows on the host: built piece by piece with M-RoPE positions, then padded into one TokenBatch."""

from collections.abc import Sequence

import numpy as np

from pixelis_jax.types import TokenBatch


class Row:
    """One growing token sequence. Every append keeps ids, masks, positions and image rows in step.

    Text advances the three M-RoPE axes together. An image of rows x columns merged tokens starting at position p takes
    time p, height p + row, width p + column, and the next text position is p + max(rows, columns) (arXiv:2409.12191,
    section 2.1). The frames of a video are such images whose times also go on (arXiv:2502.13923, section 2.1.2).
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.policy: list[bool] = []
        self.image_index: list[int] = []
        self.logp: list[float] = []
        self.turn_of: list[int] = []
        self.answer: list[bool] = []
        self.next_position = 0
        self._positions: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def append_text(
        self,
        ids: Sequence[int],
        *,
        policy: bool = False,
        logp: Sequence[float] | None = None,
        turn: int = -1,
        answer: Sequence[bool] | None = None,
    ) -> None:
        """Add text tokens; `policy` tokens carry the sampler's `logp`, their assistant `turn`, and `answer` marks."""
        n = len(ids)
        self._extend(ids, image_index=[-1] * n, positions=np.tile(np.arange(n) + self.next_position, (3, 1)))
        self.policy += [policy] * n
        self.logp += [0.0] * n if logp is None else list(logp)
        self.turn_of += [turn] * n
        self.answer += [False] * n if answer is None else list(answer)
        self.next_position += n

    def append_image(self, grid: tuple[int, int], feature_rows: np.ndarray, *, placeholder: int) -> None:
        """Add an image of `grid` (rows, columns) merged tokens; `feature_rows` i32[rows * columns] are its rows."""
        self.append_video((1, *grid), feature_rows, placeholder=placeholder, time_step=0.0)

    def append_video(
        self, grid: tuple[int, int, int], feature_rows: np.ndarray, *, placeholder: int, time_step: float
    ) -> None:
        """Add `grid` (frames, rows, columns) merged tokens, whose times p + floor(i time_step) count `frames` i.

        What follows begins one behind the largest position of all axes, as the model was trained; `transformers` 5
        leaves the time out of this, so that text after a long video would stand inside of it.
        """
        frames, rows, columns = grid
        n = frames * rows * columns
        times = np.floor(np.arange(frames, dtype=np.float32) * np.float32(time_step)).astype(int)
        axes = np.meshgrid(times, np.arange(rows), np.arange(columns), indexing="ij")
        positions = np.stack([axis.ravel() for axis in axes])
        self._extend([placeholder] * n, image_index=feature_rows.tolist(), positions=positions + self.next_position)
        self.policy += [False] * n
        self.logp += [0.0] * n
        self.turn_of += [-1] * n
        self.answer += [False] * n
        self.next_position += int(positions.max()) + 1

    def extend(self, piece: "Row", *, image_offset: int = 0) -> None:
        """Add a piece built from this row's `next_position`; its image rows move by `image_offset`."""
        for name in ("tokens", "policy", "logp", "turn_of", "answer"):
            getattr(self, name).extend(getattr(piece, name))
        self.image_index += [i if i < 0 else i + image_offset for i in piece.image_index]
        self._positions += piece._positions
        self.next_position = piece.next_position

    def copy(self) -> "Row":
        """An independent row with the same content."""
        new = Row()
        new.extend(self)
        return new

    def positions(self) -> np.ndarray:
        """i32[3, T]."""
        if not self._positions:
            return np.zeros((3, 0), np.int32)
        return np.concatenate(self._positions, axis=1).astype(np.int32)

    def _extend(self, ids: Sequence[int], *, image_index: list[int], positions: np.ndarray) -> None:
        self.tokens += list(ids)
        self.image_index += image_index
        self._positions.append(positions)


def pad_1d(
    parts: Sequence[Sequence[int] | Sequence[float] | np.ndarray], length: int, fill: float, dtype: type
) -> np.ndarray:
    """Right-pad sequences to [B, length]. Raises ValueError where one is longer: rows are never cut."""
    out: np.ndarray = np.full((len(parts), length), fill, dtype)
    for i, part in enumerate(parts):
        if len(part) > length:
            raise ValueError(f"row {i} has {len(part)} tokens, the bucket {length}")
        out[i, : len(part)] = part
    return out


def pad_rows(rows: Sequence[Row], *, length: int, pad: int) -> TokenBatch:
    """Right-padded TokenBatch (numpy) of `length` tokens. Raises ValueError where a row is longer."""
    tokens = pad_1d([r.tokens for r in rows], length, pad, np.int32)
    positions = np.zeros((len(rows), 3, length), np.int32)
    for i, row in enumerate(rows):
        positions[i, :, : len(row)] = row.positions()
    return TokenBatch(
        tokens=tokens,
        valid=pad_1d([np.ones(len(r), bool) for r in rows], length, False, bool),
        policy=pad_1d([r.policy for r in rows], length, False, bool),
        positions=positions,
        image_index=pad_1d([r.image_index for r in rows], length, -1, np.int32),
    )


def bucket(n: int, *, multiple: int) -> int:
    """`n` rounded up to a multiple, at least one."""
    return max(1, -(-n // multiple)) * multiple


def power_bucket(n: int) -> int:
    """`n` rounded up to a power of two, at least 1."""
    return 1 << max(0, n - 1).bit_length()
