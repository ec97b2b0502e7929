"""The dynamics model: sizes, what learns when, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pixelis_jax.rewards import dynamics
from pixelis_jax.rewards.dynamics import DynamicsConfig

CONFIG = DynamicsConfig(pretrain_transitions=4)
CALLS = ["ZOOM_IN", "READ_TEXT"]
step = jax.jit(dynamics.score_and_train, static_argnums=2)


@pytest.fixture
def data(batch):
    inputs = batch(CALLS, ["SEGMENT_OBJECT_AT"], cosine=0.4)
    return dynamics.transitions(inputs, inputs.valid)


def changed(before, after):
    return {
        part: not jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), before.params[part], after.params[part]))
        for part in before.params
    }


def test_parameter_counts():
    counts = dynamics.parameter_counts(dynamics.init(jax.random.key(0), CONFIG))
    assert counts["lora"] == 21_504 and counts["base"] == 492_800
    assert 1 - counts["lora"] / counts["base"] == pytest.approx(0.956, abs=5e-4)


def test_action_vector(batch):
    vector = np.asarray(dynamics.action_vectors(batch([("READ_TEXT", {"arguments": (0.1, 0.2, 0.3, 0.4)})])))[0, 0]
    assert vector.shape == (128,) and np.flatnonzero(vector).tolist() == [3, 10, 11, 12, 13]
    np.testing.assert_allclose(vector[10:14], [0.1, 0.2, 0.3, 0.4])


def test_base_learns_first_and_then_only_its_lora(data):
    """Three transitions a step: 0 and 3 are below 4, 6 is not."""
    state = dynamics.init(jax.random.key(0), CONFIG)
    for expected in ("base", "base", "lora"):
        _, new, _ = step(state, data, CONFIG)
        assert changed(state, new) == {"encoder": True, "inverse": True, "base": False, "lora": False, expected: True}
        state = new
    assert int(state.transitions) == 9
    counts = {part: int(opt[0].count) for part, opt in state.opt.items()}
    assert counts == {"encoder": 3, "inverse": 3, "base": 2, "lora": 1}


def test_scores_come_from_before_the_step_and_fall_with_training(data):
    state = dynamics.init(jax.random.key(0), CONFIG)
    first, trained, losses = step(state, data, CONFIG)
    before, (error, _) = dynamics.loss(state.params, data, CONFIG)
    np.testing.assert_allclose(first, error, rtol=1e-5)
    expected = 0.2 * losses["dynamics/forward_loss"] + 0.8 * losses["dynamics/inverse_loss"]
    assert float(before) == pytest.approx(float(expected), rel=1e-5)
    assert float(losses["dynamics/forward_loss"]) == pytest.approx(float(error[data.mask].mean()), rel=1e-5)
    data = data.replace(mask=data.mask.at[1].set(False))  # its transition looks like another's, with another operation
    for _ in range(60):
        _, trained, losses = step(trained, data, CONFIG)
    assert float(losses["dynamics/inverse_loss"]) < 0.1
    assert float(losses["dynamics/forward_loss"]) < 0.5 * float(error[0, :2].mean())


def test_gradients_stop_where_they_should(data):
    """The target phi(s') gives the encoder no gradient; the forward model's input phi(s) does."""
    state = dynamics.init(jax.random.key(0), CONFIG)
    forward_only = DynamicsConfig(beta=1.0)

    def forward_loss(encoder, states):
        changed_data = data.replace(states=states)
        return dynamics.loss(state.params | {"encoder": encoder}, changed_data, forward_only)[0]

    encoder_grad, state_grad = jax.jit(jax.grad(forward_loss, argnums=(0, 1)))(state.params["encoder"], data.states)
    assert float(optax.global_norm(encoder_grad)) > 0 and not np.asarray(state_grad).any()
    features = dynamics.encode(state.params["encoder"], data.states[0, :3])
    np.testing.assert_allclose(jnp.var(features, axis=-1), 1.0, atol=1e-2)


def test_nothing_to_learn_from_changes_nothing(data):
    state = dynamics.init(jax.random.key(0), CONFIG)
    _, new, losses = step(state, data.replace(mask=jnp.zeros_like(data.mask)), CONFIG)
    jax.tree.map(np.testing.assert_array_equal, (new.params, new.opt), (state.params, state.opt))
    assert all(float(x) == 0 for x in losses.values())


def test_states_that_are_not_finite_take_their_transitions_out(batch):
    inputs = batch(CALLS, CALLS, cosine=0.4)
    inputs = inputs.replace(embeddings=inputs.embeddings.at[0, 2].set(jnp.nan))
    data = dynamics.transitions(inputs, inputs.valid)
    assert data.mask[:, :2].tolist() == [[True, False], [True, True]]
    _, new, losses = step(dynamics.init(jax.random.key(0), CONFIG), data, CONFIG)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((new, losses)))
