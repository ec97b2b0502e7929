"""Token-mean cross-entropy: masks, weights, smoothing and any split into micro-batches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pixelis_jax.algorithms.sft import sft_loss
from pixelis_jax.update import accumulate, update


def mean(logp, policy, **options):
    (total, weight), _ = sft_loss(jnp.array(logp), jnp.array(policy), **options)
    return float(total / weight)


def test_mask_is_not_off_by_one():
    """[P, P, P, R, R] with losses 9, 9, 1, 3 for the tokens 1..4: mean 2 over the two response tokens."""
    assert mean([[jnp.nan, -9.0, -9.0, -1.0, -3.0]], [[False, False, False, True, True]]) == 2.0


def test_accumulation_weighs_tokens_and_not_micro_batches():
    """Lengths 2 and 8 with per-token loss 1 and 0: 0.2, in one micro-batch or two."""
    logp = jnp.stack([jnp.full(8, -1.0), jnp.zeros(8)])
    policy = jnp.arange(8)[None] < jnp.array([[2], [8]])

    def loss(scale, micro):
        return sft_loss(scale * micro[0], micro[1])

    for count in (1, 2):
        _, total, weight, _ = accumulate(loss, jnp.float32(1), (logp, policy), micro_batches=count)
        assert float(total / weight) == pytest.approx(0.2)


def test_weights():
    assert mean([[-1.0, -3.0]], [[True, True]], weights=jnp.array([[3.0, 1.0]])) == 1.5
    assert mean([[-1.0, -3.0]], [[True, False]], weights=jnp.array([[2.0, jnp.nan]])) == 1.0


def test_smoothing():
    options = {"smoothing": 0.1, "mean_logp": jnp.array([[-5.0, jnp.nan]])}
    assert mean([[-1.0, 0.0]], [[True, False]], **options) == pytest.approx(0.9 + 0.5)
    with pytest.raises(ValueError, match="mean_logp"):
        sft_loss(jnp.zeros((1, 2)), jnp.ones((1, 2), bool), smoothing=0.1)


def test_a_fully_masked_batch_is_skipped_and_not_a_loss_of_zero():
    tx = optax.adam(0.1)
    params = jnp.float32(1)
    batch = (jnp.ones((2, 3)), jnp.zeros((2, 3), bool))
    new, opt, metrics = update(
        lambda p, b: sft_loss(p * b[0], b[1]), params, tx.init(params), batch, tx=tx, micro_batches=2
    )
    assert float(new) == 1 and int(opt[0].count) == 0
    assert float(metrics["update/skipped"]) == 1 and float(metrics["loss/weight"]) == 0
    assert np.isnan(metrics["sft/nll"])  # absent, and not a measured 0
    assert all(np.isfinite(v) for k, v in metrics.items() if k != "sft/nll")


def test_masked_positions_never_matter():
    """Prompt and tool tokens at +-50 or NaN: loss and gradient bit-identical."""
    policy = jnp.array([[False, True, True, False, True]])
    logp, weights = jnp.array([[0.0, -1.0, -2.0, 0.0, -0.5]]), jnp.array([[1.0, 2.0, 1.0, 1.0, 0.5]])

    def run(fill):
        options = {"weights": jnp.where(policy, weights, fill), "smoothing": 0.1}
        mean_logp = jnp.where(policy, logp * 3, fill)
        loss = jax.value_and_grad(lambda x: sft_loss(x, policy, mean_logp=mean_logp, **options)[0][0])
        return loss(jnp.where(policy, logp, fill))

    for fill in (50.0, -50.0, jnp.nan):
        jax.tree.map(np.testing.assert_array_equal, run(fill), run(0.0))
