"""Length buckets: to which lengths rows are padded, so that few shapes are compiled and little is padding."""

import math
from collections.abc import Sequence

import numpy as np

MULTIPLE = 16  # tokens; lengths of rows are multiples of it


def choose_edges(lengths: Sequence[int], *, count: int, limit: int) -> tuple[int, ...]:
    """At most `count` lengths, rising, to which rows of `lengths` tokens are padded with the least padding.

    Found by dynamic programming over the lengths that occur, rounded up to MULTIPLE. `limit`, the longest row that is
    taken at all, comes last, where the lengths end below it.
    """
    values, frequency = np.unique([round_up(n) for n in lengths if n <= limit], return_counts=True)
    if not len(values):
        return (limit,)
    below = np.concatenate([[0], np.cumsum(frequency)])
    # best[k] covers the first k values: (tokens after padding, edges). Each round allows one edge more.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for _ in range(count):
        grown = dict(best)
        for start, (tokens, edges) in best.items():
            for end in range(start + 1, len(values) + 1):
                total = tokens + int(below[end] - below[start]) * int(values[end - 1])
                if end not in grown or total < grown[end][0]:
                    grown[end] = (total, (*edges, int(values[end - 1])))
        best = grown
    edges = tuple(min(edge, limit) for edge in best[len(values)][1])
    return edges if edges[-1] >= limit else (*edges, limit)


def round_up(length: int) -> int:
    """The next multiple of MULTIPLE."""
    return -(-length // MULTIPLE) * MULTIPLE


def rows_of(edge: int, *, batch_tokens: int, multiple: int) -> int:
    """Rows of `edge` tokens a batch, about `batch_tokens` tokens in all and a multiple of `multiple`."""
    return max(1, math.floor(batch_tokens / edge / multiple)) * multiple
