"""Base weights in 8 and 4 bits: how far from the matrix, what memory, and a training step on them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rl_batch
import small_model

from pixelis_jax.models import packing, policy, quantized, vlm
from pixelis_jax.train_step import RLStep
from pixelis_jax.types import UserError

# Half the widest gap between neighbouring nf4 values on [-1, 1] (QLoRA, appendix E): (1 - 0.6962) / 2 at the lower end.
NF4_HALF_GAP = (1 - 0.6961928) / 2
KERNEL = "language_model/layers_0/mlp/up_proj/kernel"


def matrix(rows=256, columns=24):
    return jax.random.normal(jax.random.key(0), (rows, columns)) * jnp.linspace(0.1, 3, columns)


def quantized_matrix(w, kind):
    tree = {"language_model": {"layers_0": {"mlp": {"up_proj": {"kernel": w}}}}}
    return quantized.quantize(tree, kind)["language_model"]["layers_0"]["mlp"]["up_proj"]["kernel"]


def test_int8_is_within_half_a_step_of_each_output_scale():
    w = matrix()
    got = quantized_matrix(w, "int8")
    assert got.qvalue.dtype == jnp.int8 and got.scale.shape == (1, 24)
    step = np.abs(w).max(axis=0) / 127.5
    error = np.abs(quantized.dequantize(got, jnp.float32) - w)
    assert (error <= step * 0.5001 + 1e-6).all() and error.max() > 0


def test_nf4_is_within_half_a_gap_of_each_block_scale():
    w = matrix()
    got = quantized_matrix(w, "nf4")
    assert got.scale.shape == (4, 24)
    largest = np.abs(np.asarray(w)).reshape(4, 64, 24).max(axis=1)
    error = np.abs(quantized.dequantize(got, jnp.float32) - w).reshape(4, 64, 24)
    assert (error <= largest[:, None] * NF4_HALF_GAP * 1.0001).all() and error.max() > 0


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("kind", quantized.KINDS)
def test_the_product_is_that_of_the_matrix_it_stands_for(kind, width):
    x, kernel = jax.random.normal(jax.random.key(1), (5, width)), quantized_matrix(matrix(width), kind)
    wanted = x @ quantized.dequantize(kernel, jnp.float32)
    np.testing.assert_allclose(quantized.product(x, kernel, jnp.float32), wanted, rtol=1e-4, atol=1e-4)


def test_nf4_refuses_inputs_that_its_blocks_do_not_fit():
    with pytest.raises(UserError, match="up_proj/kernel has 100 inputs, no multiple of 64; use int8"):
        quantized_matrix(jnp.ones((100, 8)), "nf4")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return small_model.write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("kind", quantized.KINDS)
def test_loading_quantizes_the_decoders_kernels_and_nothing_else(directory, kind):
    plain, found = policy.load(str(directory)), policy.load(str(directory), quantize=kind)
    wanted = quantized.quantize(plain.params, kind)
    jax.tree.map(np.testing.assert_array_equal, found.params, wanted)
    chosen = [
        jax.tree_util.keystr(p)
        for p, x in jax.tree_util.tree_leaves_with_path(found.params)
        if x.dtype in (jnp.int8, jnp.uint4)
    ]
    assert len(chosen) == 2 * 7 and all("language_model" in name and "kernel" in name for name in chosen)
    jax.tree.map(np.testing.assert_array_equal, found.params["visual"], plain.params["visual"])
    planned = jax.eval_shape(lambda p: quantized.quantize(p, kind), policy.abstract_params(plain.model))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), found.params) == jax.tree.map(
        lambda x: (x.shape, x.dtype), planned
    )


class Trained:
    """One RL step of a small policy on a quantized base."""

    def __init__(self, small_policy, kind):
        params = quantized.quantize(small_policy.params, kind)
        self.policy = policy.with_params(small_policy, params)
        self.batch = rl_batch.trajectory_batch(self.policy)
        self.adapter = jax.device_put(rl_batch.make_adapter(small_policy.params))
        self.step = RLStep(self.policy.model, optax.sgd(0.1), rl_batch.rl_config())

    def run(self):
        state = rl_batch.first_state(self.policy.mesh, self.step.config, self.step.tx, self.adapter)
        return self.step.train_step(
            state, {"params": self.policy.params}, self.adapter, self.batch, weights=rl_batch.GOAL
        )


@pytest.mark.parametrize("kind", quantized.KINDS)
def test_an_adapter_trains_on_a_quantized_base(small_policy, kind):
    trained = Trained(small_policy, kind)
    before = jax.tree.map(np.array, trained.policy.params)
    state, metrics, _ = trained.run()
    assert float(metrics["ratio/mean"]) == 1.0 and float(metrics["kl"]) == 0.0
    assert float(metrics["grad_norm"]) > 0 and float(metrics["update/skipped"]) == 0
    jax.tree.map(np.testing.assert_array_equal, trained.policy.params, before)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), state.trainable["lora"], trained.adapter)
    assert max(jax.tree.leaves(moved)) > 0


def test_more_bits_are_closer_and_packing_changes_nothing(small_policy):
    batch = rl_batch.trajectory_batch(small_policy)

    @jax.jit
    def logp(variables):
        return vlm.score(small_policy.model, variables, batch.rows, batch.features).logp

    base = {"params": small_policy.params}
    exact, found = logp(base), {k: {"params": quantized.quantize(small_policy.params, k)} for k in quantized.KINDS}
    error = {kind: np.abs(logp(variables) - exact).mean() for kind, variables in found.items()}
    assert 0 < error["int8"] < error["nf4"] / 4
    for variables in found.values():
        np.testing.assert_allclose(logp(packing.pack(variables, jnp.float32)), logp(variables), atol=1e-4)
