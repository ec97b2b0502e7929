"""Does a noisy metric still improve? One-sided, and judged against the metric's own noise.

A line is fitted by least squares to the latest n evaluations, with n growing from `least` until the slope's standard
error is small against the improvement that is asked for. Then the metric stagnates if the slope is below that
improvement; a metric that falls stagnates too. A series that stays too noisy for `most` evaluations never does.

Neighbouring moving averages share steps, so their noise is correlated: averages over m evaluations have the
autocorrelation 1 - k / m at lag k. The series decides on m, helped by what the caller expects: of OVERLAPS and that,
the largest whose restricted likelihood is close to the best. The standard error is then that of the least-squares
slope under this correlation, with the residual variance divided by its expectation.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

OVERLAPS = (1, 2, 3, 4, 6, 8)  # evaluations that one moving average may cover
DOUBT = 0.5  # nat of likelihood by which a larger overlap may lie below the best and still be taken
TRUST = 2.0  # the same for the overlap that is expected
PRECISION = 1.3  # largest standard error of a slope that is judged, in units of the improvement asked for
Z = 2.326  # 99 % quantile of the normal distribution: few values make a standard error uncertain, so it is enlarged


def stagnates(history: Sequence[float], improvement: float, *, least: int, most: int, overlap: int = 1) -> bool:
    """Whether the latest values rise by less than `improvement` a step; False while that can't be told.

    `least` (at least 3) and `most` bound the number of values that are looked at; `overlap` is the number of
    evaluations that each value should cover, as a moving average. Exactly flat values stagnate as soon as there are
    `least` of them.
    """
    values = np.asarray(history[-most:], float)
    least = max(least, 3)
    if len(values) < least:
        return False
    overlap = likely_overlap(values, overlap)
    slopes, squares = _lines(values)
    for n in range(least, len(values) + 1):
        fit = _fit(n, overlap)
        if math.sqrt(squares[n - 1] * fit.variance) * fit.enlarged <= PRECISION * improvement:
            return bool(slopes[n - 1] < improvement)
    return False


def _lines(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(slope, residual sum of squares) of the least-squares line through the latest 1, 2, ... values."""
    latest = values[::-1] - values[-1]
    n = np.arange(1.0, len(values) + 1)
    ago = np.arange(len(values)) - 0.0
    mean_ago, mean = (n - 1) / 2, np.cumsum(latest) / n
    spread = n * (n * n - 1) / 12  # of the times
    shared = np.cumsum(ago * latest) - n * mean_ago * mean
    slope = shared / np.maximum(spread, 1.0)
    return -slope, np.maximum(np.cumsum(latest**2) - n * mean**2 - slope * shared, 0.0)


def likely_overlap(values: np.ndarray, expected: int = 1) -> int:
    """The largest overlap that explains the noise around a line about as well as the best one (DOUBT, TRUST)."""
    likelihood = {}
    for overlap in {*OVERLAPS, expected}:
        fit = _fit(len(values), overlap)
        centred = values - values.mean()
        square = max(float(centred @ fit.precision @ centred), 1e-300)
        likelihood[overlap] = -0.5 * (fit.log_determinant + (len(values) - 2) * math.log(square))
    best = max(likelihood.values())
    near = {overlap: best - value <= (TRUST if overlap == expected else DOUBT) for overlap, value in likelihood.items()}
    return max(overlap for overlap in near if near[overlap])


@dataclasses.dataclass(frozen=True)
class _Fit:
    """What a line through n values with moving-average noise needs, whatever the values are."""

    variance: float  # of the slope, for each unit of the residual sum of squares
    enlarged: float  # quantile of t over that of the normal distribution
    precision: np.ndarray  # f64[n, n]: quadratic form of the restricted likelihood
    log_determinant: float


@functools.cache
def _fit(n: int, overlap: int) -> _Fit:
    x = np.arange(n) - (n - 1) / 2
    lags = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    correlation = np.maximum(0.0, 1.0 - lags / overlap)
    design = np.stack([np.ones(n), x], axis=1)
    slope = x / (x @ x)
    residual = np.eye(n) - design @ np.linalg.pinv(design)
    spread = residual @ correlation
    expected = float(np.trace(spread))  # of the residual sum of squares, over the noise's variance
    degrees = expected**2 / float(np.trace(spread @ spread))  # Satterthwaite
    inverse = np.linalg.inv(correlation)
    information = design.T @ inverse @ design
    precision = inverse - inverse @ design @ np.linalg.solve(information, design.T @ inverse)
    determinant = float(np.linalg.slogdet(correlation)[1] + np.linalg.slogdet(information)[1])
    variance = float(slope @ correlation @ slope) / expected
    return _Fit(variance, _t_over_normal(degrees), precision, determinant)


def _t_over_normal(degrees: float) -> float:
    """99 % quantile of Student's t over that of the normal distribution (Abramowitz and Stegun, 26.7.5)."""
    z2 = Z * Z
    terms = (
        1.0,
        (z2 + 1) / 4,
        (5 * z2**2 + 16 * z2 + 3) / 96,
        (3 * z2**3 + 19 * z2**2 + 17 * z2 - 15) / 384,
    )
    return sum(term / degrees**power for power, term in enumerate(terms))
