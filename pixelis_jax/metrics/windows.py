"""Moving averages over training steps, as a pure state that goes into the checkpoint.

A window of length n holds the last n training steps. A step without a value (None, NaN, infinite) keeps its place and
counts for nothing: [.5, none, .8] has mean .65 and count 2.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LARGEST = 1e100  # a metric beyond it has diverged: it counts as absent, and sums over a window stay finite
DEFAULT_LENGTHS: dict[str, tuple[int, ...]] = {
    "success_rate": (100,),
    "coherence": (100,),
    "reward": (500,),
    "reward_final": (100,),
}
LOGGED_AS = {"reward_final": "reward/final/raw"}  # metrics whose averages go by a shorter name than they


@dataclasses.dataclass(frozen=True)
class Windows:
    """`lengths` maps a metric to its windows' lengths in steps; `history` holds its last max(lengths) values."""

    lengths: Mapping[str, tuple[int, ...]]
    history: Mapping[str, tuple[float | None, ...]]


def init(lengths: Mapping[str, Iterable[int]] | None = None) -> Windows:
    """Empty windows. Raises ValueError for a length below 1 or a metric without lengths."""
    chosen = {name: tuple(sorted(n)) for name, n in (DEFAULT_LENGTHS if lengths is None else lengths).items()}
    for name, n in chosen.items():
        if not n or n[0] < 1:
            raise ValueError(f"windows of {name!r}: {list(n)} must be lengths of 1 step or more")
    return Windows(lengths=chosen, history={name: () for name in chosen})


def update(state: Windows, values: Mapping[str, float | None]) -> Windows:
    """The windows one training step later; metrics that have no window are ignored, missing ones are absent values."""
    history = {
        name: (*state.history[name], _finite_or_none(values.get(LOGGED_AS.get(name, name))))[-state.lengths[name][-1] :]
        for name in state.lengths
    }
    return dataclasses.replace(state, history=history)


def averages(state: Windows) -> dict[str, float | None]:
    """`{metric}_ma{n}` and `{metric}_slope{n}` of every window, and `combined_score_ma{n}`.

    combined_score = success_rate_ma * (1 + coherence_ma) / 2, where both have a window of length n. None where there is
    no value (for a slope: fewer than two).
    """
    out: dict[str, float | None] = {}
    for name, lengths in state.lengths.items():
        for n in lengths:
            window = state.history[name][-n:]
            out[f"{name}_ma{n}"] = mean(window)
            out[f"{name}_slope{n}"] = slope(window)
    both = set(state.lengths.get("success_rate", ())) & set(state.lengths.get("coherence", ()))
    for n in sorted(both):
        success, coherence = out[f"success_rate_ma{n}"], out[f"coherence_ma{n}"]
        absent = success is None or coherence is None
        out[f"combined_score_ma{n}"] = None if absent else success * (1 + coherence) / 2  # type: ignore[operator]
    return out


def names(lengths: Mapping[str, Iterable[int]]) -> frozenset[str]:
    """All names that `averages` will ever give for these lengths: what a curriculum condition may refer to."""
    return frozenset(averages(init(lengths)))


def count(values: Sequence[float | None]) -> int:
    """How many steps of a window have a value."""
    return sum(v is not None for v in values)


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are there; None where there are none."""
    present = [v for v in values if v is not None]
    return math.fsum(present) / len(present) if present else None


def slope(values: Sequence[float | None]) -> float | None:
    """Least-squares slope per step over the values that are there, at their own steps; None with fewer than two."""
    points = [(float(t), v) for t, v in enumerate(values) if v is not None]
    if len(points) < 2:
        return None
    centre_t = math.fsum(t for t, _ in points) / len(points)
    centre_v = math.fsum(v for _, v in points) / len(points)
    return math.fsum((t - centre_t) * (v - centre_v) for t, v in points) / math.fsum(
        (t - centre_t) ** 2 for t, _ in points
    )


def to_json(state: Windows) -> dict[str, Any]:
    """JSON values; `from_json` gives back an equal state."""
    return {
        "lengths": {name: list(n) for name, n in state.lengths.items()},
        "history": {name: list(v) for name, v in state.history.items()},
    }


def from_json(data: Mapping[str, Any]) -> Windows:
    """The state that `to_json` wrote."""
    return Windows(
        lengths={name: tuple(n) for name, n in data["lengths"].items()},
        history={name: tuple(v) for name, v in data["history"].items()},
    )


def _finite_or_none(value: float | None) -> float | None:
    if value is None:
        return None
    value = float(value)
    return value if abs(value) < LARGEST else None
