"""Dropout of an adapter's inputs, which only supervised training has; and supervised training of the vision tower."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from one_tool import ZOOM

from pixelis_jax import parallel, train_step
from pixelis_jax.data import demonstrations
from pixelis_jax.data.demonstrations import DemonstrationConfig
from pixelis_jax.models import lora
from pixelis_jax.models.layers import LORA, NOISE, Dense, dropout
from pixelis_jax.tools.base import schemas

TARGETS = ("visual/blocks_.*/qkv", "visual/merger_mlp_2", "language_model/.*/(q|down)_proj")
ROWS = 4


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def test_half_of_the_inputs_at_double_their_value():
    """p = .5: each 3 becomes 0 or 6; p = .2: 0 or 3.75."""
    x = jnp.full((40, 50), 3.0)
    half = np.asarray(dropout(x, keys(4), 0.5))
    assert set(half.ravel().tolist()) == {0.0, 6.0}
    assert abs((half == 0).mean() - 0.5) < 0.05  # 2000 draws: 4.5 deviations
    fifth = np.asarray(dropout(x, keys(4), 0.2))
    assert set(fifth.ravel().tolist()) == {0.0, 3.75} and abs((fifth == 0).mean() - 0.2) < 0.04


def test_its_mean_is_its_input():
    x = jnp.array([[1.0, -2.0, 4.0]])
    mean = np.mean([np.asarray(dropout(x, key[None], 0.5)) for key in keys(2000)], axis=0)
    np.testing.assert_allclose(mean, x, atol=0.1 * 4)


def test_a_row_drops_what_it_drops_alone():
    x = jax.random.normal(jax.random.key(1), (3 * 5, 7))
    whole = dropout(x, keys(3), 0.5)
    for i, key in enumerate(keys(3)):
        np.testing.assert_array_equal(whole[5 * i : 5 * i + 5], dropout(x[5 * i : 5 * i + 5], key[None], 0.5))


def test_only_the_adapters_input_is_dropped():
    """x W stays; what is added is (dropped x) A B."""
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    layer = Dense(5)
    params = layer.init(jax.random.key(1), x)["params"]
    factors = {"a": jax.random.normal(jax.random.key(2), (4, 2)), "b": jax.random.normal(jax.random.key(3), (2, 5))}
    noise = {"keys": keys(2), "rate": 0.5}
    got = layer.apply({"params": params, LORA: factors, NOISE: noise}, x) - layer.apply({"params": params}, x)
    wanted = dropout(x.reshape(6, 4), keys(2), 0.5) @ factors["a"] @ factors["b"]
    np.testing.assert_allclose(got.reshape(6, 5), wanted, atol=1e-5)


def test_noise_has_an_address():
    """Layers and rows differ; a row has the same key in any batch, a layer in any adapter."""
    factors = {"a": jnp.zeros((2, 1)), "b": jnp.zeros((1, 2))}
    both = {"language_model": {"q_proj": factors, "k_proj": factors}}
    key = jax.random.key(7)

    def bits(tree, index):
        made = lora.noise(tree, key=key, rate=0.5, index=jnp.array(index))["language_model"]
        return {name: jax.random.key_data(leaf["keys"]).tolist() for name, leaf in made.items()}

    whole = bits(both, [0, 1, 2])
    assert len({tuple(k) for layer in whole.values() for k in layer}) == 6
    assert bits({"language_model": {"q_proj": factors}}, [2, 0])["q_proj"] == [whole["q_proj"][2], whole["q_proj"][0]]


class Setup:
    """A policy, an adapter of random factors on both towers, one batch; `run` is a step that keeps the gradient."""

    def __init__(self, policy):
        self.policy = policy
        config = DemonstrationConfig(seed=0, scenes=2, questions=ROWS // 2, row_tokens=224)
        made = demonstrations.make_batch(config, policy.processor, schemas(ZOOM), 0)
        self.batch = parallel.put_batch(policy.mesh, made)
        fresh = lora.init(jax.random.key(0), policy.params, lora.LoraConfig(2, targets=TARGETS))
        leaves, tree = jax.tree.flatten(fresh)
        noise = keys(len(leaves), seed=1)
        self.adapter = tree.unflatten([0.1 * jax.random.normal(k, x.shape) for k, x in zip(noise, leaves, strict=True)])
        self.steps = {}

    def step(self, remat=False, **options):
        key = (remat, *options.items())
        if key not in self.steps:
            tx = optax.sgd(1e-2, momentum=0.0)
            model = self.policy.model.clone(remat=remat)
            self.steps[key] = train_step.make_sft_step(model, tx, train_step.SFTConfig(**options)), tx
        return self.steps[key]

    def run(self, adapter=None, at=0, **options):
        """(loss, gradient) at training step `at`."""
        state, metrics = self.step(**options)[0](self.state(adapter, at, **options), self.frozen, self.batch)
        return float(metrics["loss"]), state.opt_state[0].trace["lora"]

    def state(self, adapter=None, at=0, **options):
        adapter = jax.tree.map(jnp.copy, self.adapter if adapter is None else adapter)
        state = train_step.init_state({"lora": adapter}, self.step(**options)[1]).replace(step=jnp.int32(at))
        return jax.device_put(state, parallel.replicated(self.policy.mesh))

    @property
    def frozen(self):
        return {"params": self.policy.params}


@pytest.fixture(scope="module")
def setup(small_policy):
    return Setup(small_policy)


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


def distance(one, other):
    """Largest difference over all leaves, relative to the leaf's size."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


HALF = {"dropout": 0.5, "seed": 3}


def test_the_loss_and_the_gradient_depend_on_seed_and_step_alone(setup):
    plain, dropped = setup.run(), setup.run(**HALF)
    assert abs(plain[0] - dropped[0]) > 1e-4 and distance(plain[1], dropped[1]) > 0.1
    again = setup.run(**HALF)
    assert again[0] == dropped[0] and bits(again[1]) == bits(dropped[1])
    later, first = setup.run(at=1, **HALF), setup.run(at=0)
    assert later[0] != dropped[0] and distance(later[1], dropped[1]) > 0.1
    assert first[0] == plain[0] and setup.run(at=1)[0] == plain[0]  # without dropout the step does not matter


def test_without_dropout_nothing_is_drawn(setup):
    def text(**options):
        state = setup.state(**options)
        return setup.step(**options)[0].jitted(state).lower(state, setup.frozen, setup.batch).as_text()

    assert "threefry" not in text() and "threefry" in text(**HALF)


def test_the_split_changes_nothing(setup):
    """Rows of a scene share its overview and may lie in different parts; each drops what it drops in one batch."""
    one, four = setup.run(**HALF), setup.run(micro_batches=4, **HALF)
    assert one[0] == pytest.approx(four[0], rel=1e-6) and distance(one[1], four[1]) < 1e-4


def test_recomputed_layers_drop_what_they_dropped(setup):
    one, recomputed = setup.run(**HALF), setup.run(remat=True, **HALF)
    assert one[0] == pytest.approx(recomputed[0], rel=1e-6) and distance(one[1], recomputed[1]) < 1e-4


def test_the_towers_gradient_is_the_slope_of_the_loss(setup):
    """Central differences along a random direction of the vision tower's factors."""
    _, gradient = setup.run()
    leaves, tree = jax.tree.flatten(setup.adapter["visual"])
    noise = keys(len(leaves), seed=5)
    direction = tree.unflatten([jax.random.normal(k, x.shape) for k, x in zip(noise, leaves, strict=True)])
    # Along the gradient too, or most of a random direction would not matter.
    direction = jax.tree.map(
        lambda d, g: 0.1 * d + g / optax.global_norm(gradient["visual"]), direction, gradient["visual"]
    )
    size = 3e-3

    def loss(sign):
        moved = jax.tree.map(lambda x, d: x + sign * size * d, setup.adapter["visual"], direction)
        return setup.run(setup.adapter | {"visual": moved})[0]

    slope = (loss(1) - loss(-1)) / (2 * size)
    products = jax.tree.map(lambda g, d: float(jnp.sum(g * d)), gradient["visual"], direction)
    assert slope == pytest.approx(sum(jax.tree.leaves(products)), rel=0.02)
    assert abs(slope) > 1e-2


def test_steps_move_the_adapter_and_nothing_else(setup):
    """After three steps the base is bitwise what it was, and every one of the 14 factors has moved."""
    before = bits(setup.frozen)
    state = setup.state(**HALF)
    for _ in range(3):
        state, metrics = setup.step(**HALF)[0](state, setup.frozen, setup.batch)
        assert metrics["update/skipped"] == 0
    assert bits(setup.frozen) == before
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), state.trainable["lora"], setup.adapter)
    assert jax.tree.leaves(moved) == [True] * 14
