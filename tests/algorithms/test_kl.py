"""KL estimators and the adaptive coefficient, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.algorithms.kl import adapt_beta, kl_estimate, kl_reward
from pixelis_jax.models.head import score_logits
from pixelis_jax.types import UserError


def test_estimators_by_hand():
    logp, ref = jnp.array([-1.0]), jnp.array([-1.5])
    assert float(kl_estimate(logp, ref, "k1")[0]) == pytest.approx(0.5)
    assert float(kl_estimate(logp, ref, "k2")[0]) == pytest.approx(0.125)
    assert float(kl_estimate(logp, ref, "k3")[0]) == pytest.approx(0.10653, abs=1e-5)
    assert np.isfinite(kl_estimate(jnp.array([-200.0]), jnp.array([0.0]))[0])
    with pytest.raises(UserError, match="'k4'"):
        kl_estimate(logp, ref, "k4")


def test_reference_without_the_starting_adapter_shows():
    """Base logits [1, 0], starting adapter's [2, 0]: k3 is 0 against the start and .0163 against the base (token 0)."""
    start, base = (
        score_logits(jnp.array([[x, 0.0]]), jnp.array([0]), forbidden=(), temperature=1.0).logp for x in (2.0, 1.0)
    )
    assert float(kl_estimate(start, start)[0]) == 0.0
    assert float(kl_estimate(start, base)[0]) == pytest.approx(0.0163, abs=1e-4)


def test_kl_in_the_reward_skips_tool_tokens():
    policy = jnp.array([[True, False, False, True]])
    logp, ref = jnp.zeros((1, 4)), jnp.array([[-1.0, jnp.nan, 50.0, -1.0]])
    assert float(kl_reward(logp, ref, policy, beta=1.0, kind="k1")[0]) == -2.0


def test_adaptive_coefficient():
    beta = jnp.float32(0.1)
    assert float(adapt_beta(beta, jnp.float32(0.2), target=0.1, rate=0.5)) == pytest.approx(0.11)
    assert float(adapt_beta(beta, jnp.float32(0.0), target=0.1, rate=0.5)) == pytest.approx(0.09)
    assert float(adapt_beta(beta, jnp.float32(0.1), target=0.1, rate=0.5)) == pytest.approx(0.1)
    assert float(adapt_beta(beta, jnp.float32(jnp.nan), target=0.1, rate=0.5)) == pytest.approx(0.1)
