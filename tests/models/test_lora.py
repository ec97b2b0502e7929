import jax
import numpy as np
import pytest
import reference

from pixelis_jax.models import lora
from pixelis_jax.models.lora import LoraConfig
from pixelis_jax.types import UserError

EVERYWHERE = LoraConfig(rank=2, alpha=4.0, targets=(r"language_model/.*_proj", r"visual/.*"))


@pytest.fixture(scope="module")
def forward(ours):
    """Logits of one case with features made under the same variables; scale 2."""
    model = ours.model.clone(lora_scale=EVERYWHERE.scale)
    rows, images = reference.token_batch("one_image")

    @jax.jit
    def logits(variables):
        features = model.apply(variables, images, method="encode_images")
        return model.apply(variables, rows, features, method="forward_logits")

    return logits


def adapter_of(ours, *, random):
    adapter = lora.init(jax.random.key(0), ours.variables["params"], EVERYWHERE)
    if not random:
        return adapter
    leaves, tree = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return tree.unflatten([0.05 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])


def test_a_new_adapter_changes_nothing(ours, forward):
    base, adapted = forward(ours.variables), forward(ours.variables | {"lora": adapter_of(ours, random=False)})
    np.testing.assert_array_equal(base, adapted)


def test_merged_weights_are_the_adapters_forward(ours, forward):
    adapter = adapter_of(ours, random=True)
    merged = lora.merge(ours.variables["params"], adapter, EVERYWHERE.scale)
    adapted = forward(ours.variables | {"lora": adapter})
    assert np.abs(adapted - forward(ours.variables)).max() > 1e-2
    np.testing.assert_allclose(forward({"params": merged}), adapted, atol=1e-4)


def test_shapes_and_count(ours):
    """Default targets: seven projections a layer. q of 64x64 at rank 8 has 8 * (64 + 64) parameters."""
    adapter = lora.init(jax.random.key(0), ours.variables["params"], LoraConfig())
    assert set(adapter) == {"language_model"} and len(adapter["language_model"]) == 3
    layer = adapter["language_model"]["layers_0"]
    assert lora.count(layer["self_attn"]["q_proj"]) == 1024
    # q, k, v, o: 64+64, 64+32, 64+32, 64+64; gate, up, down: 3 x (64+80).
    assert lora.count(adapter) == 3 * 8 * (128 + 96 + 96 + 128 + 3 * 144)
    assert np.abs(layer["mlp"]["down_proj"]["a"]).max() <= 1 / np.sqrt(80)
    assert not layer["mlp"]["down_proj"]["b"].any()


def test_layers_start_from_different_noise(ours):
    adapter = lora.init(jax.random.key(0), ours.variables["params"], LoraConfig())
    a = [adapter["language_model"][f"layers_{i}"]["self_attn"]["q_proj"]["a"] for i in range(2)]
    assert (a[0] != a[1]).all()


def test_an_unknown_target_is_refused_with_the_names_that_exist(ours):
    with pytest.raises(UserError, match=r"'qq_proj' matches no linear layer; layers are named .*down_proj.*q_proj"):
        lora.init(jax.random.key(0), ours.variables["params"], LoraConfig(targets=("q_proj", "qq_proj")))
    with pytest.raises(UserError, match="rank 0"):
        lora.init(jax.random.key(0), ours.variables["params"], LoraConfig(rank=0))


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (("q_proj", "("), r"'\(' is no regular expression \(missing \).*name layers, such as"),
        (("a{99999999999}",), "is no regular expression"),
        ((3,), "3 is no regular expression"),
        ((), "lora.targets is empty; name some layers, which are .*q_proj"),
    ],
)
def test_targets_that_are_no_patterns_are_refused(ours, targets, words):
    with pytest.raises(UserError, match=words):
        lora.init(jax.random.key(0), ours.variables["params"], LoraConfig(targets=targets))
