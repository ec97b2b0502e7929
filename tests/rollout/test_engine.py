"""The compiled sampler: cache against full forward, rows on their own, noise by address."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import insistent

from pixelis_jax.models.rows import Row, pad_rows
from pixelis_jax.rollout.engine import Engine, SamplingConfig, row_keys

SAMPLING = SamplingConfig(max_new_tokens=12, context_tokens=64)


def engine_of(policy, **changes):
    return Engine(policy.model, dataclasses.replace(SAMPLING, **changes), end_of_turn=policy.processor.im_end)


@pytest.fixture(scope="module")
def engine(small_policy):
    return engine_of(small_policy)


@pytest.fixture(scope="module")
def greedy(small_policy):
    return engine_of(small_policy, temperature=0.0)


@pytest.fixture(scope="module")
def logits_of(small_policy):
    return jax.jit(lambda *args: small_policy.model.apply(*args, method="forward_logits"))


def prompts(policy, lengths=(7, 11, 5)):
    """Text prompts, the last with a one-token image."""
    generator = np.random.default_rng(4)
    rows = [Row() for _ in lengths]
    for row, n in zip(rows, lengths, strict=True):
        row.append_text(generator.integers(20, 200, n).tolist())
    rows[-1].append_image((1, 1), np.array([0]), placeholder=policy.processor.config.image_token_id)
    return rows


def keys(samples=(0, 0, 0), *, seed=0, step=0, turn=0, tasks=None):
    tasks = range(len(samples)) if tasks is None else tasks
    numbers = [np.array(list(x), np.uint32) for x in (tasks, samples)]
    return row_keys(np.uint32(seed), np.uint32(step), *numbers, np.uint32(turn))


def generate(engine, policy, rows, row_noise, *, params=None, features=None):
    """(host Generated, state after) of one turn from `rows`."""
    variables = {"params": policy.params if params is None else params}
    features = jnp.ones((1, policy.model.config.text.hidden_size)) if features is None else features
    batch = pad_rows(rows, length=16, pad=0)
    state = engine.prefill(variables, batch, features, repeat=1)
    out, state = engine.generate(variables, state, row_noise, jnp.ones(len(rows), bool))
    return jax.device_get(out), state


def said(out, i):
    return out.tokens[i, : out.count[i]].tolist()


def test_prefill_and_decode_give_the_log_probs_of_a_full_forward(engine, small_policy, score):
    rows = prompts(small_policy)
    out, state = generate(engine, small_policy, rows, keys())
    for i, row in enumerate(rows):
        row.append_text(said(out, i), policy=True)
    logp = score({"params": small_policy.params}, pad_rows(rows, length=32, pad=0), jnp.ones((1, 64)))
    for i, row in enumerate(rows):
        policy = np.array(row.policy)
        assert np.abs(logp[i, : len(row)][policy] - out.logp[i, : out.count[i]]).max() < 1e-5
    assert state.length.tolist() == [len(row) for row in rows]
    assert state.position.tolist() == [row.next_position for row in rows]


def test_a_row_samples_the_same_whatever_stands_beside_it(engine, small_policy):
    rows = prompts(small_policy)
    together, _ = generate(engine, small_policy, rows, keys())
    shuffled, _ = generate(engine, small_policy, [rows[2], rows[0], rows[0]], keys(tasks=(2, 0, 7)))
    assert said(shuffled, 0) == said(together, 2)
    assert said(shuffled, 1) == said(together, 0)
    assert said(shuffled, 2) != said(together, 0)  # the same prompt under another address


def test_noise_is_a_matter_of_the_address(engine, small_policy):
    rows = [prompts(small_policy)[0].copy() for _ in range(3)]
    same = {"tasks": (5, 5, 5)}
    base, _ = generate(engine, small_policy, rows, keys((0, 1, 0), **same))
    assert said(base, 0) == said(base, 2) != said(base, 1)
    for other in ({"seed": 1}, {"step": 1}, {"turn": 1}):
        assert said(generate(engine, small_policy, rows, keys((0, 1, 0), **same, **other))[0], 0) != said(base, 0)
    again, _ = generate(engine, small_policy, rows, keys((0, 1, 0), **same))
    np.testing.assert_array_equal(again.tokens, base.tokens)
    np.testing.assert_array_equal(again.logp, base.logp)


def test_keys_of_different_addresses_differ():
    one = jax.random.key_data(keys((0, 1, 2), tasks=(0, 0, 1)))
    assert len({tuple(key) for key in one.tolist()}) == 3


def test_greedy_takes_the_most_likely_token_and_its_log_prob_at_temperature_one(greedy, small_policy, score, logits_of):
    rows = prompts(small_policy)
    out, _ = generate(greedy, small_policy, rows, keys())
    forbidden = small_policy.model.placeholders()
    for i, row in enumerate(rows):
        for token in said(out, i):
            row.append_text([token], policy=True)
    batch = pad_rows(rows, length=32, pad=0)
    variables, features = {"params": small_policy.params}, jnp.ones((1, 64))
    logits = np.array(logits_of(variables, batch, features))
    logits[..., list(forbidden)] = -np.inf
    logp = score(variables, batch, features)
    for i, row in enumerate(rows):
        for t in np.nonzero(row.policy)[0]:
            assert row.tokens[t] == logits[i, t - 1].argmax()
        assert np.abs(logp[i, : len(row)][np.array(row.policy)] - out.logp[i, : out.count[i]]).max() < 1e-5


def test_placeholders_are_never_sampled_though_their_logits_lead(engine, small_policy, logits_of):
    images = small_policy.model.placeholders()
    params, adapter = insistent(small_policy, images)
    batch = pad_rows(prompts(small_policy), length=16, pad=0)
    features = jnp.ones((1, 64))
    variables = {"params": params, "lora": adapter}
    logits = logits_of(variables, batch, features)
    assert set(np.asarray(logits[0, :7]).argmax(-1).tolist()) <= set(images)
    state = engine.prefill(variables, batch, features, repeat=1)
    out, _ = engine.generate(variables, state, keys(), jnp.ones(3, bool))
    assert not np.isin(out.tokens, images).any()
    assert np.isfinite(out.logp).all()


def test_a_full_context_ends_the_turn(small_policy):
    engine = engine_of(small_policy, context_tokens=12)
    out, state = generate(engine, small_policy, prompts(small_policy), keys())
    assert out.count.tolist() == [5, 1, 6]
    assert not out.ended.any()
    assert state.length.tolist() == [12, 12, 12]


def test_inactive_rows_stay_as_they_are(engine, small_policy):
    variables = {"params": small_policy.params}
    state = engine.prefill(variables, pad_rows(prompts(small_policy), length=16, pad=0), jnp.ones((1, 64)), repeat=1)
    before = jax.device_get((state.length, state.hidden, state.cache.keys))
    out, state = engine.generate(variables, state, keys(), jnp.array([True, False, True]))
    assert out.count.tolist()[1] == 0 and not out.tokens[1].any()
    assert int(state.length[1]) == before[0][1]
    np.testing.assert_array_equal(state.hidden[1], before[1][1])
    np.testing.assert_array_equal(state.cache.keys[0][1], before[2][0][1])


def test_the_sampled_end_of_turn_carries_its_log_prob(engine, small_policy):
    end = small_policy.processor.im_end
    params, adapter = insistent(small_policy, [end])
    variables = {"params": params, "lora": adapter}
    state = engine.prefill(variables, pad_rows(prompts(small_policy), length=16, pad=0), jnp.ones((1, 64)), repeat=1)
    out, state = engine.generate(variables, state, keys(), jnp.ones(3, bool))
    assert out.count.tolist() == [1, 1, 1] and out.ended.all()
    assert out.tokens[:, 0].tolist() == [end] * 3
    assert (np.abs(out.logp[:, 0]) < 1e-3).all() and not out.logp[:, 1:].any()
    assert state.length.tolist() == [8, 12, 7]  # the end-of-turn token itself is in the cache


def test_any_of_several_tokens_ends_a_turn(small_policy):
    end, pad = small_policy.processor.im_end, small_policy.processor.pad
    params, adapter = insistent(small_policy, [pad])
    engine = Engine(small_policy.model, SAMPLING, end_of_turn=(end, pad))
    variables = {"params": params, "lora": adapter}
    state = engine.prefill(variables, pad_rows(prompts(small_policy), length=16, pad=0), jnp.ones((1, 64)), repeat=1)
    out, _ = engine.generate(variables, state, keys(), jnp.ones(3, bool))
    assert out.tokens[:, 0].tolist() == [pad] * 3 and out.count.tolist() == [1, 1, 1] and out.ended.all()


def test_repeat_gives_each_prompt_to_neighbouring_rows(engine, small_policy):
    variables = {"params": small_policy.params}
    batch = pad_rows(prompts(small_policy), length=16, pad=0)
    once, twice = (engine.prefill(variables, batch, jnp.ones((1, 64)), repeat=n) for n in (1, 2))
    assert twice.length.tolist() == [7, 7, 11, 11, 6, 6]
    np.testing.assert_array_equal(twice.hidden, np.repeat(once.hidden, 2, axis=0))
