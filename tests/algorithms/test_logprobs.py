"""Token log-probs at a temperature, with ids that can't be sampled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.algorithms.logprobs import mean_logprob, token_logprobs
from pixelis_jax.types import UserError


def test_temperature_by_hand():
    logp, _ = token_logprobs(jnp.array([2.0, 0.0]), jnp.array(0), temperature=0.5)
    assert float(logp) == pytest.approx(-0.01815, abs=1e-5)


def test_entropy_of_a_uniform_distribution_is_log_n():
    _, entropy = token_logprobs(jnp.zeros((2, 8)), jnp.zeros(2, jnp.int32))
    np.testing.assert_allclose(entropy, np.log(8), rtol=1e-6)


def test_forbidden_ids_leave_the_distribution():
    logits = jnp.array([[1.0, 50.0, 0.0]])
    forbidden = jnp.array([False, True, False])
    logp, entropy = token_logprobs(logits, jnp.array([0]), forbidden=forbidden)
    alone, alone_entropy = token_logprobs(logits[:, ::2], jnp.array([0]))
    np.testing.assert_allclose([logp, entropy], [alone, alone_entropy], rtol=1e-6)
    masked, _ = token_logprobs(logits, jnp.array([1]), forbidden=forbidden)
    assert float(masked[0]) == 0.0


def test_gradient_is_finite_and_skips_forbidden_logits():
    forbidden = jnp.array([False, True, False])
    grads = jax.grad(lambda x: sum(y.sum() for y in token_logprobs(x, jnp.array([1, 2]), forbidden=forbidden)))(
        jnp.array([[1.0, 2.0, 3.0], [0.0, 1.0, 2.0]])
    )
    assert np.isfinite(grads).all() and not np.asarray(grads)[:, 1].any() and not np.asarray(grads)[0].sum() > 1e-6


def test_bf16_logits_are_read_in_fp32():
    logits = jax.random.normal(jax.random.key(0), (4, 64)).astype(jnp.bfloat16)
    targets = jnp.arange(4)
    half = token_logprobs(logits, targets)[0]
    assert half.dtype == jnp.float32
    np.testing.assert_array_equal(half, token_logprobs(logits.astype(jnp.float32), targets)[0])


def test_mean_logprob_is_the_mean_of_permitted_ones():
    logits = jnp.array([1.0, 9.0, 0.0])
    forbidden = jnp.array([False, True, False])
    expected = jax.nn.log_softmax(jnp.array([1.0, 0.0])).mean()
    assert float(mean_logprob(logits, forbidden=forbidden)) == pytest.approx(float(expected))


def test_zero_temperature_is_refused():
    with pytest.raises(UserError, match="temperature 0"):
        token_logprobs(jnp.zeros(3), jnp.array(0), temperature=0.0)
