"""One optimizer update from any loss: the split never matters, nothing trainable changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pixelis_jax import assembly
from pixelis_jax import config as configs
from pixelis_jax.update import Stats, Through, accumulate, split_micro_batches, update


def squared(params, batch):
    """Weighted squared error; rows with weight 0 are masked out."""
    x, y, weight = batch
    error = jnp.where(weight > 0, x @ params["w"] - y, 0.0)
    total = jnp.sum(weight)
    stats = Stats(means={"error": (jnp.sum(weight * error), total)}, maxima={"worst": jnp.max(jnp.abs(error))})
    return (jnp.sum(weight * error**2), total), stats


def problem():
    rng = jax.random.split(jax.random.key(0), 2)
    x, y = jax.random.normal(rng[0], (8, 3)), jax.random.normal(rng[1], (8,))
    return {"w": jnp.ones(3)}, (x, y, jnp.array([1.0, 0, 2, 1, 0, 0, 1, 3]))


def test_any_split_gives_one_gradient():
    params, batch = problem()
    (total, weight), stats = squared(params, batch)
    mean, whole = float(total / weight), stats.reduce()
    direct = jax.grad(lambda p: jnp.divide(*squared(p, batch)[0]))(params)
    for count in (1, 2, 4, 8):
        grads, total, weight, stats = accumulate(squared, params, batch, micro_batches=count)
        np.testing.assert_allclose(grads["w"], direct["w"], rtol=1e-5)
        assert float(weight) == 8 and float(total / weight) == pytest.approx(mean)
        for name, value in stats.reduce().items():
            np.testing.assert_allclose(value, whole[name], rtol=1e-5)


def test_what_all_rows_share_is_made_once_and_differentiated_through():
    """Of x (w^2 w) + b, where w^2 is shared: b is in the loss alone, w in both."""
    params, batch = problem()
    params |= {"b": jnp.float32(0.3)}
    made = []

    def make(params):
        made.append(1)
        return params["w"] ** 2

    def loss(params, part, shared):
        x, y, weight = part
        return squared({"w": shared * params["w"]}, (x, y - params["b"], weight))

    def direct(params):
        return jnp.divide(*loss(params, batch, make(params))[0])

    wanted = jax.grad(direct)(params)
    for count in (1, 2, 4, 8):
        made.clear()
        grads, *_ = accumulate(Through(make, loss), params, batch, micro_batches=count)
        assert len(made) == 1
        for name in params:
            np.testing.assert_allclose(grads[name], wanted[name], rtol=1e-4)


def test_update_is_the_optimizer_on_that_gradient():
    params, batch = problem()
    tx = optax.sgd(0.1)
    new, _, metrics = update(squared, params, tx.init(params), batch, tx=tx, micro_batches=4)
    grads = accumulate(squared, params, batch, micro_batches=1)[0]
    np.testing.assert_allclose(new["w"], params["w"] - 0.1 * grads["w"], rtol=1e-5)
    assert float(metrics["update/skipped"]) == 0
    assert float(metrics["grad_norm"]) == pytest.approx(float(optax.global_norm(grads)), rel=1e-5)


@pytest.mark.parametrize("fault", ["nothing trainable", "not finite"])
def test_bad_steps_change_nothing(fault):
    params, (x, y, weight) = problem()
    batch = (x, y, jnp.zeros(8)) if fault == "nothing trainable" else (x * jnp.inf, y, weight)
    tx = optax.adam(0.1)
    state = tx.init(params)
    new, new_state, metrics = update(squared, params, state, batch, tx=tx, micro_batches=2)
    jax.tree.map(np.testing.assert_array_equal, (new, new_state), (params, state))
    assert float(metrics["update/skipped"]) == 1


def test_stats_of_two_windows_do_not_mix():
    """Windows of 1 then 3 report 1, 3; merged they are weighed by their weights."""
    first = Stats(means={"a": (jnp.float32(1), jnp.float32(1))}, maxima={"m": jnp.float32(1)})
    second = Stats(means={"a": (jnp.float32(9), jnp.float32(3))}, maxima={"m": jnp.float32(4)})
    assert [float(s.reduce()["a"]) for s in (first, second)] == [1, 3]
    assert {k: float(v) for k, v in first.merge(second).reduce().items()} == {"a": 2.5, "m": 4.0}


def test_split_refuses_a_remainder():
    with pytest.raises(ValueError, match="does not split"):
        split_micro_batches({"x": jnp.zeros((6, 2))}, 4)


def test_a_clip_norm_of_0_clips_nothing():
    """Gradients of norm 5 and .5: AdamW on them as they are, and not on zeros."""
    settings = configs.load("configs/rft.py:smoke").optimizer
    params, moved = {"w": jnp.zeros(2)}, {}
    for norm in (0.0, 1.0, 10.0):
        settings.clip_norm = norm
        tx = assembly.make_optimizer(settings, optax.constant_schedule(0.1))
        state, w = tx.init(params), params
        for gradient in ([3.0, 4.0], [0.3, 0.4]):
            changes, state = tx.update({"w": jnp.array(gradient)}, state, w)
            w = optax.apply_updates(w, changes)
        moved[norm] = np.asarray(w["w"])
    np.testing.assert_array_equal(moved[0.0], moved[10.0])
    assert abs(moved[0.0]).min() > 0.1 and abs(moved[0.0] - moved[1.0]).max() > 1e-4
