import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis_jax.data.buckets import MULTIPLE, choose_edges, round_up, rows_of


def padded(lengths, edges):
    return sum(min(edge for edge in edges if edge >= n) for n in lengths)


def test_two_edges_by_hand():
    """Lengths 16, 16, 32, 320: edges (32, 320) pad to 3 * 32 + 320 = 416; (16, 320) to 2 * 16 + 2 * 320 = 672."""
    assert choose_edges([16, 16, 32, 320], count=2, limit=320) == (32, 320)
    assert choose_edges([10, 12, 30, 310], count=2, limit=320) == (32, 320)  # the same, rounded up
    assert choose_edges([16, 16, 32, 320], count=3, limit=320) == (16, 32, 320)


def test_the_longest_row_that_is_taken_has_a_bucket():
    assert choose_edges([16, 20], count=4, limit=100) == (16, 32, 100)
    assert choose_edges([16, 200], count=4, limit=100) == (16, 100)  # 200 is never taken
    assert choose_edges([95], count=4, limit=100) == (96, 100) and choose_edges([100], count=4, limit=100) == (100,)
    assert choose_edges([], count=4, limit=100) == (100,)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 12 * MULTIPLE), min_size=1, max_size=12), st.integers(1, 4))
def test_no_other_edges_pad_less(lengths, count):
    limit = round_up(max(lengths))
    edges = choose_edges(lengths, count=count, limit=limit)
    assert list(edges) == sorted(set(edges)) and edges[-1] == limit and len(edges) <= count
    values = sorted({round_up(n) for n in lengths})
    others = itertools.chain.from_iterable(itertools.combinations(values[:-1], k) for k in range(count))
    assert padded(lengths, edges) == min(padded(lengths, (*other, limit)) for other in others)


@pytest.mark.parametrize(
    ("edge", "multiple", "rows"), [(100, 1, 10), (100, 4, 8), (300, 4, 4), (1000, 4, 4), (999, 1, 1), (64, 8, 8)]
)
def test_rows_fill_the_tokens_of_a_step(edge, multiple, rows):
    assert rows_of(edge, batch_tokens=1000, multiple=multiple) == rows
