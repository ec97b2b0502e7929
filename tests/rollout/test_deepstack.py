"""A model whose images also enter later decoder layers: the multi-turn rollout and the trainer see the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import ANSWER, LOOK, Script, token_batch

from pixelis_jax import parallel
from pixelis_jax.models import lora, vlm
from pixelis_jax.models import policy as policies
from pixelis_jax.models.config import ModelConfig, Qwen3VisionConfig, TextConfig
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.policy import Policy
from pixelis_jax.models.processor import Processor
from pixelis_jax.models.vlm import VLM
from pixelis_jax.train_step import feature_table
from pixelis_jax.types import STATE_DIM

WIDTH, LEVELS = 64, 2


@pytest.fixture(scope="module")
def policy(small_tokenizer) -> Policy:
    """Qwen3-VL in small, every leaf random."""
    vision = Qwen3VisionConfig(
        depth=3, hidden_size=64, intermediate_size=96, num_heads=2, out_hidden_size=WIDTH, num_position_embeddings=16,
        deepstack_visual_indexes=(0, 1),
    )  # fmt: skip
    text = TextConfig(
        vocab_size=small_tokenizer.get_vocab_size(), hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, attention_bias=False, qk_norm=True, rope_theta=1e4,
        mrope_section=(6, 5, 5), mrope_interleaved=True,
    )  # fmt: skip
    names = ("image_pad", "video_pad", "vision_start", "vision_end", "endoftext", "im_end")
    ids = [small_tokenizer.token_to_id(f"<|{name}|>") for name in names]
    config = ModelConfig(vision, text, *ids, "qwen3_vl")
    model, generator = VLM(config), np.random.default_rng(5)
    params = jax.tree.map(
        lambda x: np.asarray(x + 0.1 * generator.standard_normal(x.shape), np.float32),
        jax.jit(lambda: policies.init_params(model, 0))(),
    )
    mesh = parallel.make_mesh(parallel.MeshShape(data=1), jax.devices()[:1])
    params = jax.device_put(params, parallel.param_shardings(mesh, params))
    budget = PixelBudget(32 * 32, 64 * 96)
    return Policy(model, params, Processor(config, small_tokenizer, overview=budget, crop=budget), mesh, "small", "")


@pytest.fixture(scope="module")
def rollout(policy, task):
    look = LOOK % (4, 8, 40, 50)
    tasks = [task(0, (140, 190)), task(1), task(2, (60, 90), (90, 60))]
    return Script(policy)(tasks, [[look, look, ANSWER], [ANSWER], [look, ANSWER]])


def test_boxes_are_in_thousandths(policy, rollout):
    """[4, 8, 40, 50] of 1000 is that share of the 140 x 190 px of the original, and the prompt says so."""
    first = rollout.trajectories[0]
    region = first.turns[0].observation.region
    x1, x2, y1, y2 = round(0.004 * 190), round(0.04 * 190), round(0.008 * 140), round(0.05 * 140)
    np.testing.assert_allclose(region, [(x1 + x2) / 380, (y1 + y2) / 280, (x2 - x1) / 190, (y2 - y1) / 140])
    assert "Coordinates go from 0 to 1000" in policy.processor.decode(first.tokens.tolist())


def test_the_table_holds_what_each_level_adds(rollout):
    assert rollout.features.shape[1] == WIDTH * (1 + LEVELS)
    first = rollout.trajectories[0]
    assert first.turns[0].observation.ok and len(first.images) == 3
    assert first.embeddings.shape == (3, STATE_DIM)
    used = np.asarray(rollout.features)[first.image_index[first.image_index >= 0]]
    assert all(np.abs(part).max() > 0 for part in np.split(used, 1 + LEVELS, axis=1))


def test_an_adapter_on_every_merger_is_trained_through(policy, task):
    """The rollout's images under the adapter give the sampler's log-probs, and it has a gradient."""
    made = lora.init(jax.random.key(0), policy.params, lora.LoraConfig(2, targets=("visual/.*merger", "visual/.*qkv")))
    leaves, tree = jax.tree.flatten(made)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    adapter = tree.unflatten([0.2 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)])
    assert {name.split("/")[1] for name in lora.layers(adapter)} == {
        "merger", "deepstack_merger_list_0", "deepstack_merger_list_1", "blocks_0", "blocks_1", "blocks_2"
    }  # fmt: skip
    done = Script(policy)([task(0, (140, 190)), task(1, (60, 90))], [[LOOK % (4, 8, 40, 50), ANSWER]] * 2, lora=adapter)
    rows = token_batch(done.trajectories, pad=policy.processor.pad)

    @jax.jit
    def mean(adapter):
        variables = {"params": policy.params, "lora": adapter}
        logp = vlm.score(policy.model, variables, rows, feature_table(policy.model, variables, done.images)).logp
        return jnp.sum(logp * rows.policy) / rows.policy.sum(), logp

    (_, logp), gradient = jax.value_and_grad(mean, has_aux=True)(adapter)
    for i, trajectory in enumerate(done.trajectories):
        n, mine = len(trajectory.tokens), trajectory.policy
        assert np.abs(np.asarray(logp)[i, :n][mine] - trajectory.logp[mine]).max() < 1e-5
    # What the second level adds behind the last of two decoder layers, no other token reads.
    unread = gradient["visual"].pop("deepstack_merger_list_1")
    assert max(float(np.abs(x).max()) for x in jax.tree.leaves(unread)) == 0.0
    assert min(float(np.abs(x).max()) for x in jax.tree.leaves(gradient)) > 1e-7


def test_sampler_and_trainer_agree(policy, rollout):
    rows = token_batch(rollout.trajectories, pad=policy.processor.pad)
    score = jax.jit(lambda *args: policy.model.apply(*args, method="score").logp)
    variables = {"params": policy.params}
    logp = np.asarray(score(variables, rows, rollout.features))
    without = np.asarray(score(variables, rows, rollout.features.at[:, WIDTH:].set(0.0)))
    for i, trajectory in enumerate(rollout.trajectories):
        n, mine = len(trajectory.tokens), trajectory.policy
        assert np.abs(logp[i, :n][mine] - trajectory.logp[mine]).max() < 1e-5
    assert np.abs(without - logp)[0].max() > 1e-3  # the levels matter
