"""Selective sample replay on numbers that can be followed by hand: 4 rows of 5 tokens, a buffer of 3."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resolved import resolved

from pixelis_jax import assembly
from pixelis_jax.algorithms import replay as replaying
from pixelis_jax.algorithms.grpo import GRPOInputs
from pixelis_jax.algorithms.replay import ReplayConfig
from pixelis_jax.types import TokenBatch

B, T, D = 4, 5, 2
CONFIG = ReplayConfig(size=3, ratio=0.5, alpha=1.0, max_age=10, tokens=T, image_tokens=2)
# The table of a step: row i is [i, -i]. Row b of the batch sees the entries 2 b and 2 b + 1 at its tokens 1 and 3.
TABLE = np.stack([np.arange(8.0), -np.arange(8.0)], axis=1).astype(np.float32)


def rows(first=0):
    """Token t of row b is first + 10 b + t."""
    tokens = first + 10 * np.arange(B)[:, None] + np.arange(T)
    image = np.full((B, T), -1)
    image[:, 1], image[:, 3] = 2 * np.arange(B), 2 * np.arange(B) + 1
    flags = np.tile(np.arange(T) != 4, (B, 1))
    positions = np.tile(tokens[:, None], (1, 3, 1))
    return TokenBatch(*map(jnp.asarray, (tokens, flags, flags & (np.arange(T) == 2), positions, image)))


def inputs(advantages, first=0.0):
    per_token = first - 0.1 * np.arange(B)[:, None] - 0.01 * np.arange(T)
    old, reference, sampler = (jnp.float32(per_token - k) for k in (1, 2, 3))
    return GRPOInputs(
        policy=rows().policy,
        advantages=jnp.float32(advantages),
        included=jnp.ones(B, bool),
        logp_old=old,
        logp_ref=reference,
        logp_sampler=sampler,
        turn_of=jnp.zeros((B, T), jnp.int32),
    )


def kept(advantages, *, step=0, replay=None, first=0):
    replay = replaying.init(CONFIG, width=D, dtype=jnp.float32) if replay is None else replay
    informative = jnp.abs(jnp.float32(advantages)) > 0.01
    replay, _ = replaying.insert(
        replay, rows(first), inputs(advantages), jnp.asarray(TABLE), informative=informative, step=jnp.int32(step)
    )
    return replay


def spliced(replay, advantages, *, step=1, config=CONFIG, key=0):
    informative = jnp.abs(jnp.float32(advantages)) > 0.01
    return replaying.splice(
        rows(100),
        inputs(advantages),
        jnp.asarray(TABLE) + 50,
        replay,
        informative=informative,
        key=jax.random.key(key),
        step=jnp.int32(step),
        config=config,
    )


def test_informative_rows_are_kept_whole_with_what_they_saw():
    found = kept([0, 0.5, 0, -1.5])
    assert found.step.tolist() == [0, 0, -1] and found.advantage.tolist() == [0.5, -1.5, 0]
    assert found.rows.tokens[:2].tolist() == [[10, 11, 12, 13, 14], [30, 31, 32, 33, 34]]
    assert found.rows.image_index[1].tolist() == [-1, 0, -1, 1, -1]
    assert found.features[1].tolist() == [[6, -6], [7, -7]]
    np.testing.assert_allclose(found.logp_old[1], -1.3 - 0.01 * np.arange(T), rtol=1e-6)


def test_the_oldest_make_room_and_of_too_many_the_first_stay():
    found = kept([1, 0, 0, 2], step=4)
    found = kept([0, 3, 0, 0], step=5, replay=found, first=100)
    assert sorted(found.step.tolist()) == [4, 4, 5]
    found = kept([4, 0, 0, 0], step=6, replay=found, first=200)
    assert sorted(found.step.tolist()) == [4, 5, 6] and sorted(found.advantage.tolist()) == [2, 3, 4]
    found = kept([5, 6, 7, 8], step=7, replay=found)
    assert sorted(found.advantage.tolist()) == [5, 6, 7]


def shown(index, *, room, advantages=(1.0,) * B, size=3):
    """(tokens of kept rows -> image features that they come back with, number left out): rows that see `index`."""
    config = dataclasses.replace(CONFIG, image_tokens=room, size=size, ratio=1.0)
    own = dataclasses.replace(rows(), image_index=jnp.asarray(index))
    informative = jnp.abs(jnp.float32(advantages)) > 0.01
    buffer, counts = replaying.insert(
        replaying.init(config, width=D, dtype=jnp.float32),
        own,
        inputs(advantages),
        jnp.asarray(TABLE),
        informative=informative,
        step=jnp.int32(0),
    )
    out, _, table, _ = spliced(buffer, [0] * B, config=config)
    table = np.asarray(table)
    back = {}
    for tokens, places in zip(np.asarray(out.tokens), np.asarray(out.image_index), strict=True):
        if tokens[0] < 100:  # not a fresh one
            assert places.max() < len(table)  # XLA would clip it to the last row, and say nothing
            back[int(tokens[0]) // 10] = table[places[places >= 0], 0].tolist()
    return back, int(counts["skipped/replay_rows"])


def test_a_row_with_more_image_tokens_than_room_is_left_out_whole():
    """Of three image tokens, with room for two, the third one would be another row's, or none."""
    index = np.full((B, T), -1)
    index[0, :3], index[1, :3], index[2, 1:3] = (4, 5, 6), (1, 2, 3), (7, 0)
    assert shown(index, room=2) == ({2: [7, 0], 3: []}, 2)
    assert shown(index, room=3) == ({0: [4, 5, 6], 1: [1, 2, 3], 2: [7, 0]}, 0)
    # Only what would have been kept is counted, and it takes no other row's place.
    assert shown(index, room=2, advantages=(0, 1, 1, 1)) == ({2: [7, 0], 3: []}, 1)
    assert shown(index, room=2, size=1) == ({2: [7, 0]}, 2)


@given(st.data())
def test_whatever_rows_see_they_see_it_again_or_are_not_kept(data):
    """Pictures between texts, several in a row, a feature seen twice, none at all, in any order of the table."""
    cell = st.one_of(st.just(-1), st.integers(0, len(TABLE) - 1))
    index = np.array(data.draw(st.lists(st.lists(cell, min_size=T, max_size=T), min_size=B, max_size=B)))
    room = data.draw(st.integers(1, T))
    back, left_out = shown(index, room=room)
    seen = [index[b][index[b] >= 0].tolist() for b in range(B)]
    fits = [b for b in range(B) if len(seen[b]) <= room]
    assert left_out == B - len(fits)
    assert back == {b: [float(i) for i in seen[b]] for b in fits[:3]}


@pytest.mark.parametrize(
    ("pictures", "factor", "fields", "room"),
    [
        (1, 28, {}, 16 + 2 * 16),  # 112 x 112 px in tokens of 28 x 28, and two crops
        (2, 28, {}, 2 * 16 + 2 * 16),
        (3, 28, {}, 3 * 16 + 2 * 16),  # three frames of a film
        (9, 28, {}, 152),  # the context has no more
        (1, 32, {}, 12 + 2 * 12),  # Qwen3-VL
        (2, 28, {"max_turns": 1}, 2 * 16),  # no call is answered
        (4, 0, {}, 1),  # a text-only model has no image tokens; an array of size 0 could not be saved
    ],
)
def test_room_is_for_the_questions_pictures_and_a_crop_a_turn(pictures, factor, fields, room):
    config = resolved("configs/rft.py")
    config.rollout.replay_ratio = 0.5
    config.sampling.update(fields)
    vision = types.SimpleNamespace(factor=factor) if factor else None
    made = assembly.replay_config(config, vision, pictures=pictures)
    assert (made.image_tokens, made.tokens) == (room, 152)


def test_the_memory_of_a_buffer():
    """3 rows: 5 tokens of 9 numbers (M-RoPE positions are 3 of them) and 2 flags; 2 features of 2 f32; 2 numbers."""
    assert replaying.bytes_of(CONFIG, width=D, dtype=jnp.float32) == 3 * (5 * (4 * 9 + 2) + 2 * 2 * 4 + 2 * 4)
    assert replaying.bytes_of(CONFIG, width=D, dtype=jnp.bfloat16) == 3 * (5 * (4 * 9 + 2) + 2 * 2 * 2 + 2 * 4)


def test_uninformative_rows_give_their_places_to_kept_ones():
    """Row 0 and 2 teach nothing; the buffer has two rows, and half of the batch may be replaced."""
    buffer = kept([0, 0.5, 0, -1.5])
    out, numbers, table, metrics = spliced(buffer, [0, 1, 0, 2])
    assert metrics["replay_share"] == 0.5 and metrics["replay/age"] == 1 and metrics["replay/kept"] == 2
    assert sorted(np.asarray(numbers.advantages).tolist()) == [-1.5, 0.5, 1, 2]
    assert out.tokens[1].tolist() == [110, 111, 112, 113, 114] and numbers.advantages[1] == 1
    for place in (0, 2):
        source = {0.5: 1, -1.5: 3}[float(numbers.advantages[place])]
        assert out.tokens[place].tolist() == (10 * source + np.arange(T)).tolist()
        seen = table[out.image_index[place][np.array([1, 3])]]
        assert seen.tolist() == TABLE[2 * source : 2 * source + 2].tolist()
        np.testing.assert_allclose(numbers.logp_ref[place], -2 - 0.1 * source - 0.01 * np.arange(T), rtol=1e-6)
        assert numbers.included[place]
    fresh = table[out.image_index[3][np.array([1, 3])]]
    assert fresh.tolist() == (TABLE[6:8] + 50).tolist()


@pytest.mark.parametrize(
    ("advantages", "step", "ratio", "share"),
    [
        ([1, 1, 1, 1], 1, 0.5, 0.0),  # nothing to replace
        ([0, 0, 0, 0], 1, 0.25, 0.25),  # the share that may be replaced
        ([0, 0, 0, 0], 1, 0.9, 0.5),  # what the buffer has
        ([0, 0, 0, 0], 10, 0.5, 0.5),  # as old as may be
        ([0, 0, 0, 0], 11, 0.5, 0.0),  # too old
    ],
)
def test_how_much_is_replaced(advantages, step, ratio, share):
    config = dataclasses.replace(CONFIG, ratio=ratio)
    *_, metrics = spliced(kept([0, 0.5, 0, -1.5]), advantages, step=step, config=config)
    assert metrics["replay_share"] == share and np.isnan(metrics["replay/age"]) == (share == 0)


def test_an_empty_buffer_changes_nothing():
    empty = replaying.init(CONFIG, width=D, dtype=jnp.float32)
    out, numbers, table, _ = spliced(empty, [0, 1, 0, 2])
    assert jax.tree.all(
        jax.tree.map(lambda a, b: bool((a == b).all()), (out, numbers), (rows(100), inputs([0, 1, 0, 2])))
    )
    assert table[:8].tolist() == (TABLE + 50).tolist()


@pytest.mark.parametrize(("alpha", "share"), [(0.0, 0.5), (1.0, 0.75), (2.0, 0.9)])
def test_rows_are_drawn_by_the_size_of_their_advantage(alpha, share):
    """|A| of .5 and 1.5: the larger comes first in 1.5^a / (1.5^a + .5^a) of the draws."""
    config = dataclasses.replace(CONFIG, alpha=alpha)
    buffer = kept([0, 0.5, 0, -1.5])
    keys = jax.random.split(jax.random.key(3), 4000)
    places, real = jax.vmap(lambda key: replaying.draw(buffer, key, jnp.int32(1), config, count=1))(keys)
    assert bool((real == 1).all())
    assert np.mean(np.asarray(places[:, 0]) == 1) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 4000))


def test_the_same_address_draws_the_same_rows():
    buffer = kept([1, 2, 0, 3])
    draws = [np.asarray(replaying.draw(buffer, jax.random.key(k), jnp.int32(1), CONFIG, count=2)[0]) for k in range(9)]
    assert all(len(set(places.tolist())) == 2 for places in draws)  # without replacement
    assert len({tuple(places.tolist()) for places in draws}) > 1
    again = replaying.draw(buffer, jax.random.key(0), jnp.int32(1), CONFIG, count=2)[0]
    assert again.tolist() == draws[0].tolist()
