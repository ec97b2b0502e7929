"""How soon a stage ends by stagnation, and how often too soon: simulated series, one table.

python -m benchmarks.stagnation [--series=1000]
"""

import argparse
import statistics
from collections.abc import Iterator

import numpy as np

from pixelis_jax.curriculum import Slope

RISES = (0.0, -0.002, 0.005)  # of the metric, per evaluation
LENGTH = 20  # evaluations of a series that rises


def series(seed: int, *, rise: float, deviation: float, overlap: int = 1) -> Iterator[np.ndarray]:
    """Endless series of 48 values: a line and noise, which is a moving average over `overlap` evaluations."""
    rng = np.random.default_rng(seed)
    while True:
        noise = rng.normal(size=48 + overlap - 1) * deviation * overlap**0.5
        yield np.convolve(noise, np.ones(overlap) / overlap, mode="valid") + rise * np.arange(48)


def ends_at(rule: Slope, values: np.ndarray, *, overlap: int = 1, longest: int = 48) -> int:
    """The evaluation at which the rule first holds; longest + 1 if it does not."""
    history = tuple(map(float, values))
    return next((n for n in range(1, longest + 1) if rule.holds(history[:n], overlap)), longest + 1)


def main() -> None:
    """Prints the table of docs/algorithms.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=1000, help="of each kind")
    count = parser.parse_args().series
    rule = Slope("any")
    print("| noise | flat: median | falling by .002: median | rising by .005: ended within 20 |")
    print("|---|---|---|---|")
    rows = [(f"independent, sd {sd:g}", sd, 1, 1) for sd in (0, 0.004, 0.01, 0.02)]
    for known in (4, 1):
        told = "from the metric's name" if known == 4 else "found in the series"
        rows += [(f"average over 4 evaluations ({told}), sd {sd:g}", sd, 4, known) for sd in (0.005, 0.01)]
    for label, deviation, overlap, known in rows:
        cells = []
        for rise in RISES:
            drawn = series(0, rise=rise, deviation=deviation, overlap=overlap)
            longest = LENGTH if rise > 0 else 48
            ends = [ends_at(rule, next(drawn), overlap=known, longest=longest) for _ in range(count)]
            early = sum(end <= LENGTH for end in ends) / count
            cells.append(f"{early:.1%}" if rise > 0 else f"{statistics.median(ends):g}")
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
