"""From logits to log-probs: temperature, forbidden ids, chunks, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.models import head
from pixelis_jax.models.head import score_logits, score_tokens


def score(logits, targets, *, forbidden=(), temperature=1.0):
    return score_logits(jnp.asarray(logits), jnp.asarray(targets), forbidden=forbidden, temperature=temperature)


def test_temperature_by_hand():
    assert float(score([2.0, 0.0], 0, temperature=0.5).logp) == pytest.approx(-0.01815, abs=1e-5)


def test_entropy_of_a_uniform_distribution_is_log_n():
    np.testing.assert_allclose(score(np.zeros((2, 8)), [0, 0]).entropy, np.log(8), rtol=1e-6)


def test_forbidden_ids_leave_the_distribution():
    logits = np.array([[1.0, 50.0, 0.0]])
    out, alone = score(logits, [0], forbidden=(1,)), score(logits[:, ::2], [0])
    np.testing.assert_allclose([out.logp, out.entropy], [alone.logp, alone.entropy], rtol=1e-6)
    assert float(score(logits, [1], forbidden=(1,)).logp[0]) == 0.0


def test_gradient_is_finite_and_skips_forbidden_logits():
    def total(logits):
        out = score(logits, [1, 2], forbidden=(1,))
        return out.logp.sum() + out.entropy.sum()

    grads = np.asarray(jax.grad(total)(jnp.array([[1.0, 2.0, 3.0], [0.0, 1.0, 2.0]])))
    assert np.isfinite(grads).all() and grads.any()
    assert not grads[:, 1].any()


def test_bf16_logits_are_read_in_fp32():
    logits = jax.random.normal(jax.random.key(0), (4, 64)).astype(jnp.bfloat16)
    half = score(logits, np.arange(4)).logp
    assert half.dtype == jnp.float32
    np.testing.assert_array_equal(half, score(logits.astype(jnp.float32), np.arange(4)).logp)


WANTED = {
    "all": np.ones((6, 5), bool),
    "none": np.zeros((6, 5), bool),
    "scattered": np.arange(30).reshape(6, 5) % 7 < 2,
    "one row": np.arange(6)[:, None] == np.full((6, 5), 4),
}


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
@pytest.mark.parametrize("chunk", [6, 12, 2048])
def test_wanted_tokens_in_chunks_are_what_one_block_gives(monkeypatch, chunk, wanted):
    monkeypatch.setattr(head, "CHUNK_TOKENS", chunk)
    hidden = jax.random.normal(jax.random.key(0), (6, 5, 16))
    targets = jax.random.randint(jax.random.key(1), (6, 5), 0, 16)

    def total(score):
        def run(hidden):
            out = score(hidden)
            return jnp.sum(out.logp * jnp.arange(5) + out.entropy, where=wanted), out

        return jax.jit(jax.value_and_grad(run, has_aux=True))(hidden)

    settings = {"forbidden": (3,), "temperature": 0.7}
    (_, out), grad = total(lambda h: score_tokens(lambda x: 2 * x, h, targets, wanted, **settings))
    (_, block), block_grad = total(lambda h: score_logits(2 * h, targets, **settings))
    for ours, theirs in ((out.logp, block.logp), (out.entropy, block.entropy), (grad, block_grad)):
        theirs = np.where(wanted.reshape(6, 5, *[1] * (theirs.ndim - 2)), theirs, 0.0)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_columns_without_wanted_tokens_cost_no_logits(monkeypatch):
    monkeypatch.setattr(head, "CHUNK_TOKENS", 6)
    called = []

    def to_logits(states):
        jax.debug.callback(lambda: called.append(states.shape))
        return states

    wanted = np.arange(5) >= np.array([3, 4, 5, 5, 3, 5])[:, None]  # two tokens of a row at most
    hidden, targets = jnp.ones((6, 5, 16)), jnp.zeros((6, 5), int)
    jax.block_until_ready(score_tokens(to_logits, hidden, targets, wanted, forbidden=(), temperature=1.0))
    jax.effects_barrier()
    assert called == [(6, 1, 16)] * 2


def test_the_mean_log_prob_is_over_what_may_be_sampled():
    """Logits (ln 1, ln 2, ln 1), the last forbidden: probabilities 1/3 and 2/3, mean log (ln 1/3 + ln 2/3) / 2."""
    logits = jnp.log(jnp.array([[1.0, 2.0, 1.0]]))
    out = head.score_logits(logits, jnp.array([1]), forbidden=(2, 2), temperature=1.0, with_mean=True)
    np.testing.assert_allclose(out.mean_logp, [(np.log(1 / 3) + np.log(2 / 3)) / 2], rtol=1e-6)
    assert head.score_logits(logits, jnp.array([1]), forbidden=(2,), temperature=1.0).mean_logp is None


def test_the_mean_log_prob_in_chunks_is_that_in_one_piece():
    rng = np.random.default_rng(1)
    hidden, matrix = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((2, 9, 4), (4, 7)))
    targets, wanted = jnp.asarray(rng.integers(0, 7, (2, 9))), jnp.asarray(rng.integers(0, 2, (2, 9)), bool)
    options = {"forbidden": (0,), "temperature": 1.0, "with_mean": True}
    out = head.score_tokens(lambda h: h @ matrix, hidden, targets, wanted, **options)
    whole = head.score_logits(hidden @ matrix, targets, **options)
    np.testing.assert_allclose(out.mean_logp, jnp.where(wanted, whole.mean_logp, 0), rtol=1e-5, atol=1e-6)
