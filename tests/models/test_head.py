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


def test_chunks_give_what_one_block_gives(monkeypatch):
    hidden = jax.random.normal(jax.random.key(0), (6, 5, 16))
    targets = jax.random.randint(jax.random.key(1), (6, 5), 0, 16)
    whole = score_tokens(lambda x: 2 * x, hidden, targets, forbidden=(3,), temperature=0.7)
    monkeypatch.setattr(head, "CHUNK_TOKENS", 10)
    parts = score_tokens(lambda x: 2 * x, hidden, targets, forbidden=(3,), temperature=0.7)
    np.testing.assert_allclose(parts.logp, whole.logp, rtol=1e-6)
    np.testing.assert_allclose(parts.entropy, whole.entropy, rtol=1e-6)
