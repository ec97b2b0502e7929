"""Weights arranged for decoding give what they give apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from pixelis_jax.models import lora, packing
from pixelis_jax.models.lora import LoraConfig

ADAPTED = LoraConfig(rank=2, alpha=4.0)


@pytest.fixture(scope="module")
def forward(ours):
    """Logits of one case under variables; scale 2."""
    model = ours.model.clone(lora_scale=ADAPTED.scale)
    rows, images = reference.token_batch("one_image")
    features = model.apply(ours.variables, images, method="encode_images")
    return jax.jit(lambda variables: model.apply(variables, rows, features, method="forward_logits"))


@pytest.fixture
def adapter(ours):
    leaves, tree = jax.tree.flatten(lora.init(jax.random.key(0), ours.variables["params"], ADAPTED))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return tree.unflatten([0.05 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])


def test_with_an_adapter(ours, forward, adapter):
    variables = ours.variables | {"lora": adapter}
    apart = forward(variables)
    assert np.abs(apart - forward(ours.variables)).max() > 1e-2
    packed = packing.pack(variables, jnp.float32)
    layer = packed["packed"]["language_model"]["layers_0"]
    assert {name: set(layer[name]) for name in layer} == {
        "self_attn": {"q_proj", "o_proj"},
        "mlp": {"gate_proj", "down_proj"},
    }
    np.testing.assert_allclose(forward(packed), apart, atol=2e-5)
    assert packed["lora"] == {}


def test_without_an_adapter_only_the_attention_is_packed(ours, forward):
    packed = packing.pack(ours.variables, jnp.float32)
    assert set(packed["packed"]["language_model"]["layers_2"]) == {"self_attn"}
    np.testing.assert_allclose(forward(packed), forward(ours.variables), atol=2e-5)


def test_a_half_adapted_group_stays_apart(ours, forward, adapter):
    layers = adapter["language_model"]
    del layers["layers_1"]["self_attn"]["v_proj"], layers["layers_2"]["mlp"]["up_proj"]
    variables = ours.variables | {"lora": adapter}
    packed = packing.pack(variables, jnp.float32)
    found = packed["packed"]["language_model"]
    assert set(found["layers_1"]["self_attn"]) == {"o_proj"} and set(found["layers_2"]["mlp"]) == {"down_proj"}
    assert set(packed["lora"]["language_model"]["layers_2"]["mlp"]) == {"gate_proj"}
    np.testing.assert_allclose(forward(packed), forward(variables), atol=2e-5)


def test_factors_stand_side_by_side_and_on_the_diagonal():
    """By hand: rank 1, features 2, 2 and 1, of an input of 512 in two chunks."""
    layers = (("q_proj", 0, 2), ("k_proj", 1, 2), ("v_proj", 2, 1))
    adapter = {name: {"a": jnp.full((512, 1), i), "b": jnp.full((1, width), i)} for name, i, width in layers}
    params = {name: {"kernel": jnp.full((512, width), 10 + i)} for name, i, width in layers}
    params["o_proj"] = {"kernel": jnp.ones((2, 512))}
    mlp = {"down_proj": {"a": jnp.arange(512.0).reshape(512, 1), "b": jnp.ones((1, 3))}}
    kernels = {name: {"kernel": jnp.ones((512, 3))} for name in ("gate_proj", "up_proj", "down_proj")}
    packed = packing.pack(
        {
            "params": {"language_model": {"layers_0": {"self_attn": params, "mlp": kernels}}},
            "lora": {"language_model": {"layers_0": {"self_attn": adapter, "mlp": mlp}}},
        },
        jnp.float32,
    )["packed"]["language_model"]["layers_0"]
    attention = packed["self_attn"]["q_proj"]
    np.testing.assert_array_equal(attention["kernel"], [[10, 10, 11, 11, 12, 0, 1, 2]] * 512)
    np.testing.assert_array_equal(attention["b"], [[0, 0, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 2]])
    assert packed["mlp"]["down_proj"]["a"].shape == (2, 256, 1) and "kernel" not in packed["mlp"]["down_proj"]
    np.testing.assert_array_equal(packed["mlp"]["down_proj"]["a"].ravel(), np.arange(512))
