"""Curiosity rewards, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.rewards.curiosity import CuriosityConfig, icm, rapr
from pixelis_jax.types import UserError


def run_icm(inputs, error, success, **config):
    value = icm(jnp.array(error), inputs.valid, jnp.array(success), inputs, CuriosityConfig(**config))
    return np.asarray(value)


def test_icm_is_scaled_by_failure_and_gated_by_success(batch):
    """Errors .4 and .8, eta .5: mean .3. One of two rollouts of the group is right: .3 * .5 for it, 0 for the other."""
    inputs = batch(["ZOOM_IN", "READ_TEXT"], ["ZOOM_IN", "READ_TEXT"], length=2)
    error = [[0.4, 0.8], [0.4, 0.8]]
    np.testing.assert_allclose(run_icm(inputs, error, [True, False]), [0.15, 0], rtol=1e-6)
    np.testing.assert_allclose(run_icm(inputs, error, [True, False], floor=0.2), [0.15, 0.03], rtol=1e-6)
    assert not run_icm(inputs, error, [True, True]).any()  # solved: novelty serves nothing


def test_icm_is_capped_and_ignores_excluded_rows(batch):
    inputs = batch(["ZOOM_IN"], ["ZOOM_IN"], ["ZOOM_IN"], length=1, excluded=[False, False, True])
    np.testing.assert_allclose(run_icm(inputs, [[9.0], [9.0], [9.0]], [True, False, False]), [0.5, 0, 0])


def test_rapr_by_hand(batch):
    """One of four rollouts looks: rapr .25, bonus .5 * (.3 - .25) = .025; it makes two calls: - .05."""
    inputs = batch(["ZOOM_IN", "READ_TEXT"], [], [], [])
    value = rapr(jnp.array([True, True, False, True]), inputs, CuriosityConfig(kind="rapr"))
    np.testing.assert_allclose(value, [0.025 - 0.05, 0, 0, 0], atol=1e-7)


def test_rapr_decays_with_use_and_pays_only_correct_rollouts(batch):
    inputs = batch(["ZOOM_IN"], ["ZOOM_IN"], [], [])
    config = CuriosityConfig(kind="rapr", rapr_target=0.6)
    right, wrong = jnp.ones(4, bool), jnp.zeros(4, bool)
    np.testing.assert_allclose(rapr(right, inputs, config), [0.05, 0.05, 0, 0], atol=1e-7)
    assert not np.asarray(rapr(wrong, inputs, config)).any()
    paid = rapr(wrong, inputs, CuriosityConfig(kind="rapr", rapr_target=0.6, floor=1.0))
    np.testing.assert_allclose(paid, [0.05, 0.05, 0, 0], atol=1e-7)


def test_a_failed_call_is_no_look(batch):
    inputs = batch([("ZOOM_IN", {"succeeded": False})], [])
    assert not np.asarray(rapr(jnp.ones(2, bool), inputs, CuriosityConfig(kind="rapr"))).any()


def test_unknown_kind():
    with pytest.raises(UserError, match="'rnd'"):
        CuriosityConfig(kind="rnd")
