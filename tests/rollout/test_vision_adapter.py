"""An adapter on the vision tower: sampled with, trained through, and measured against its own reference."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rl_batch
from flax import traverse_util
from resolved import resolved
from rl_batch import GOAL
from scripted import ANSWER, LOOK, Script

from pixelis_jax import assembly, parallel
from pixelis_jax.dynamic import collected
from pixelis_jax.models import lora
from pixelis_jax.online import Online
from pixelis_jax.rewards.task import Verified
from pixelis_jax.train_step import RLStep

CONFIG = lora.LoraConfig(2, 2.0, ("visual/blocks_.*/(qkv|down_proj)", "visual/merger_mlp_0", "layers_1/mlp/up_proj"))
WRONG = ANSWER.replace("7", "4")


@pytest.fixture(scope="module")
def adapter(small_policy):
    """Both factors random, so that it does something; on 5 layers of the tower and one of the decoder."""
    made = lora.init(jax.random.key(0), small_policy.params, CONFIG)
    leaves, tree = jax.tree.flatten(made)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    made = tree.unflatten([0.2 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])
    return jax.device_put(made, parallel.replicated(small_policy.mesh))


@pytest.fixture(scope="module")
def tasks(task):
    return [task(0, (140, 190)), task(1, (100, 60))]


@pytest.fixture(scope="module")
def adapted(small_policy, adapter):
    """A script that is said by the adapted policy."""
    script = Script(small_policy)
    return lambda tasks, turns, **options: script(tasks, turns, lora=adapter, group_size=2, **options)


@pytest.fixture(scope="module")
def rollout(adapted, tasks):
    """Two groups of two: two looks, one look, an answer at once, and one look again; two answers are wrong."""
    first, second = LOOK % (4, 8, 40, 50), LOOK % (0, 0, 30, 20)
    turns = [[first, second, ANSWER], [second, WRONG], [WRONG], [first, ANSWER]]
    return adapted(tasks, turns)


def batch_of(policy, rollout):
    """As the job makes it."""
    config = resolved("configs/rft.py:smoke")
    config.sampling.context_tokens = 320
    job = types.SimpleNamespace(
        config=config, policy=policy, _prompts=range(2), excluded=assembly.excluded_statuses(config)
    )
    return Online.verify(job, collected(rollout, Verified()(rollout.trajectories)))


@pytest.fixture(scope="module")
def batch(small_policy, rollout):
    return batch_of(small_policy, rollout)


class Steps:
    """RL steps of one model; the update leaves the gradient in the optimizer's state."""

    def __init__(self, policy):
        self.policy = policy
        self.frozen = {"params": policy.params}
        self.made = {}

    def __call__(self, name="adapter", **options) -> RLStep:
        if name not in self.made:
            tx = optax.sgd(1e-2, momentum=0.0)
            self.made[name] = RLStep(self.policy.model, tx, rl_batch.rl_config(**options))
        return self.made[name]

    def state(self, adapter):
        step = self()
        return rl_batch.first_state(self.policy.mesh, step.config, step.tx, adapter)

    def gradient(self, step, trainable, scored, images):
        state = dataclasses.replace(
            self.state({}), trainable=jax.tree.map(jnp.copy, trainable), opt_state=step.tx.init(trainable)
        )
        frozen = {} if "params" in trainable else self.frozen
        return step.update(state, frozen, scored, images)[0].opt_state[0].trace


@pytest.fixture(scope="module")
def steps(small_policy):
    return Steps(small_policy)


def without_tower(adapter):
    return adapter | {"visual": jax.tree.map(jnp.zeros_like, adapter["visual"])}


def seen_tokens(batch):
    """bool[B, T] sampled tokens; every row here has an image."""
    return np.asarray(batch.rows.policy)


def test_the_rollout_looked_and_kept_its_images(rollout, batch):
    assert [t.status for t in rollout.trajectories] == ["answered"] * 4
    assert [len(t.images) for t in rollout.trajectories] == [3, 2, 1, 2]
    assert rollout.features is None and batch.features is None
    # Two overviews, then room for four crops in each of the two turns that may bring some.
    assert [images.valid.shape[0] for images in batch.images] == [2, 4, 4]


def test_sampler_and_trainer_agree(steps, adapter, batch):
    logp = steps().logp(steps.frozen, adapter, batch)
    mine = seen_tokens(batch)
    assert np.abs(np.asarray(logp) - np.asarray(batch.logp_sampler))[mine].max() < 1e-4
    other = steps().logp(steps.frozen, without_tower(adapter), batch)
    assert np.abs(np.asarray(logp) - np.asarray(other))[mine].max() > 1e-2  # the tower's part matters


def test_blackened_pixels_change_every_log_prob(steps, adapter, batch):
    """Of the policy, of what it was, and of a reference: all are this function at some adapter."""
    dark = [dataclasses.replace(images, patches=jnp.zeros_like(images.patches)) for images in batch.images]
    for chosen in (adapter, without_tower(adapter)):
        light = steps().logp(steps.frozen, chosen, batch)
        changed = steps().logp(steps.frozen, chosen, dataclasses.replace(batch, images=tuple(dark)))
        assert (np.abs(np.asarray(light) - np.asarray(changed))[seen_tokens(batch)] > 1e-6).all()


def test_state_embeddings_are_those_of_the_base(small_policy, script, rollout, tasks):
    turns = [[turn.text for turn in t.turns] for t in rollout.trajectories]
    plain = script(tasks, turns, group_size=2)
    assert plain.images is None and plain.features is not None
    for one, other in zip(rollout.trajectories, plain.trajectories, strict=True):
        np.testing.assert_array_equal(one.embeddings, other.embeddings)
        assert (one.logp != other.logp).any()


def test_a_rollout_that_ends_early_has_the_same_shapes(small_policy, adapted, tasks, batch):
    short = adapted(tasks, [[ANSWER]] * 4, max_turns=3)
    made = batch_of(small_policy, short)
    assert [x.shape for x in jax.tree.leaves(made.images)] == [x.shape for x in jax.tree.leaves(batch.images)]


def test_at_step_0_the_ratio_is_1_and_the_kl_to_the_starting_adapter_0(steps, adapter, batch):
    state = steps.state(adapter)
    _, metrics, _ = steps().train_step(state, steps.frozen, adapter, batch, weights=GOAL)
    assert metrics["ratio/mean"] == 1.0 and metrics["ratio/max"] == 1.0 and metrics["kl"] == 0.0
    assert metrics["sampler_trainer_logprob_diff/max"] < 1e-4
    other = without_tower(adapter)  # encodes the images by itself
    _, metrics, _ = steps().train_step(steps.state(adapter), steps.frozen, other, batch, weights=GOAL)
    assert metrics["kl"] > 1e-4


@pytest.fixture(scope="module")
def scored(steps, adapter, batch):
    """Scored against another policy, so that the KL has a gradient too."""
    reference = without_tower(adapter)
    return steps().score(steps.state(adapter), steps.frozen, reference, batch, weights=GOAL)[0]


@pytest.fixture(scope="module")
def gradient(steps, adapter, batch):
    """Of a whole step."""
    reference = without_tower(adapter)
    state, *_ = steps().train_step(steps.state(adapter), steps.frozen, reference, batch, weights=GOAL)
    return state.opt_state[0].trace["lora"]


def test_the_gradient_is_that_of_the_merged_weights(steps, adapter, batch, scored, gradient):
    """W + A B: dA = dW B^T and dB = A^T dW, in the tower and in the decoder."""
    merged = lora.merge(steps.policy.params, adapter, 1.0)
    of_weights = traverse_util.flatten_dict(
        steps.gradient(steps("merged"), {"params": merged}, scored, batch.images)["params"], sep="/"
    )
    found, factors = (traverse_util.flatten_dict(x, sep="/") for x in (gradient, adapter))
    assert len(found) == 12 and sum(name.startswith("visual/") for name in found) == 10
    for layer in lora.layers(adapter):
        kernel = of_weights[f"{layer}/kernel"]
        for name, wanted in (("a", kernel @ factors[f"{layer}/b"].T), ("b", factors[f"{layer}/a"].T @ kernel)):
            assert np.abs(wanted).max() > 1e-5
            assert np.abs(found[f"{layer}/{name}"] - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_the_gradient_does_not_depend_on_the_split(steps, adapter, batch, scored, gradient):
    """Rows of a group share the overview's features, and lie in different parts here."""
    split = steps.gradient(steps("split", micro_batches=4), {"lora": adapter}, scored, batch.images)["lora"]
    for one, four in zip(jax.tree.leaves(gradient), jax.tree.leaves(split), strict=True):
        assert np.abs(one - four).max() < 1e-4 * np.abs(one).max()


def test_steps_move_the_adapter_and_nothing_else(steps, adapter, batch):
    """After three steps base and reference are bitwise what they were, and each of the 12 factors has moved."""
    before = [np.asarray(x).tobytes() for x in jax.tree.leaves((steps.frozen, adapter))]
    state = steps.state(adapter)
    for _ in range(3):
        state, metrics, _ = steps().train_step(state, steps.frozen, adapter, batch, weights=GOAL)
        assert metrics["update/skipped"] == 0
    assert [np.asarray(x).tobytes() for x in jax.tree.leaves((steps.frozen, adapter))] == before
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), state.trainable["lora"], adapter)
    assert jax.tree.leaves(moved) == [True] * 12
