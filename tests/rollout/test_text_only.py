"""A model without a vision tower through loading, rollout, the RL step and export; images are refused."""

import dataclasses
import json

import jax
import numpy as np
import optax
import pytest
import rl_batch
import small_model
from scripted import ANSWER, LOOK, Script, token_batch

from pixelis_jax import adapters, export, parallel
from pixelis_jax.models import families, peft, weights
from pixelis_jax.models import policy as policies
from pixelis_jax.models.config import ModelConfig, TextConfig
from pixelis_jax.models.vlm import VLM
from pixelis_jax.rewards.task import Verified
from pixelis_jax.rollout.collate import trajectory_batch
from pixelis_jax.train_step import RLStep
from pixelis_jax.types import UserError

LENGTH = 320


@pytest.fixture(scope="module")
def directory(small_tokenizer, tmp_path_factory):
    """A random qwen3 checkpoint with the tokenizer of the other tests and no preprocessor."""
    directory = tmp_path_factory.mktemp("qwen3")
    text = TextConfig(
        vocab_size=small_tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, attention_bias=False, qk_norm=True,
        mrope_section=None, rope_theta=1e4,
    )  # fmt: skip
    end, pad = (small_tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>"))
    config = ModelConfig(None, text, -1, -1, -1, -1, pad, end, "qwen3")
    small_tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps(families.to_json(config)))
    weights.save(directory, policies.init_params(VLM(config), 3), config=config)
    return directory


@pytest.fixture(scope="module")
def policy(directory):
    return policies.load(str(directory), mesh=parallel.make_mesh(parallel.MeshShape(), jax.devices()[:1]))


@pytest.fixture(scope="module")
def rollout(policy, task):
    """Four rows of two tasks: looks that fail, as there is no image, and answers."""
    look = LOOK % (4, 8, 40, 50)
    turns = [[look, ANSWER], [ANSWER], [look, look, ANSWER], ["just text", ANSWER]]
    return Script(policy)([task(0), task(1)], turns, group_size=2)


def test_a_call_finds_no_image_and_the_dialogue_goes_on(rollout):
    first = rollout.trajectories[0]
    assert first.status == "answered" and first.images == ()
    assert not first.turns[0].observation.ok and "error" in first.turns[0].observation.text
    assert all((t.image_index == -1).all() for t in rollout.trajectories)
    # Three turns were begun, each with a table of one zero row.
    assert rollout.features.shape == (3, 64) and not np.asarray(rollout.features).any()


def test_sampler_and_trainer_agree(policy, rollout):
    rows = token_batch(rollout.trajectories, pad=policy.processor.pad)
    logp = jax.jit(lambda *args: policy.model.apply(*args, method="score").logp)(
        {"params": policy.params}, rows, rollout.features
    )
    for i, trajectory in enumerate(rollout.trajectories):
        ours = np.asarray(logp)[i, : len(trajectory.tokens)][trajectory.policy]
        assert np.abs(ours - trajectory.logp[trajectory.policy]).max() < 1e-5


def test_a_step_trains_the_adapter(policy, rollout):
    adapter = rl_batch.make_adapter(policy.params)
    rows = rollout.trajectories
    batch = trajectory_batch(rows, None, Verified()(rows), length=LENGTH, calls=3, pad=policy.processor.pad)
    scores = dataclasses.replace(batch.rewards, score=np.array([1, 0, 0, 1], np.float32))
    batch = parallel.put_batch(policy.mesh, dataclasses.replace(batch, rewards=scores))
    step = RLStep(policy.model, optax.sgd(0.1), rl_batch.rl_config())
    state = rl_batch.first_state(policy.mesh, step.config, step.tx, adapter)
    before = jax.device_get(state.trainable["lora"])
    reference = jax.device_put(adapter, parallel.replicated(policy.mesh))
    batch = dataclasses.replace(batch, features=rollout.features)
    state, metrics, *_ = step.train_step(state, {"params": policy.params}, reference, batch, weights=rl_batch.GOAL)
    moved = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - b).max()), state.trainable["lora"], before)
    assert all(np.isfinite(x) for x in jax.tree.leaves(jax.device_get(metrics)))
    assert max(jax.tree.leaves(moved)) > 0


def test_an_image_is_refused_in_one_line(policy, task):
    with pytest.raises(UserError, match=r"an image for a text-only model .*'qwen3'.*tasks without images") as error:
        Script(policy)([task(0), task(1, (60, 90))], [[ANSWER], [ANSWER]])
    assert "\n" not in str(error.value)


def test_export_writes_what_transformers_and_peft_call_the_layers(directory, tmp_path):
    workdir = small_model.write_workdir(tmp_path / "rft", directory)
    for to in ("peft", "merged"):
        export.main([f"--workdir={workdir}", f"--to={to}", f"--out={tmp_path / to}"])
    modules = json.loads((tmp_path / "peft" / peft.CONFIG).read_text())["target_modules"]
    assert modules[0] == "model.layers.0.mlp.down_proj"
    trained = adapters.read(tmp_path / "peft")
    wanted = jax.tree.map(lambda x: np.asarray(x * 5), small_model.random_adapter(directory))
    jax.tree.map(np.testing.assert_array_equal, trained.adapter, wanted)
    assert policies.load(str(tmp_path / "merged")).model.config.model_type == "qwen3"


def test_peft_gives_our_logits(directory, policy, tmp_path):
    torch = pytest.importorskip("torch", reason="parity with torch: pip install -e .[parity]")
    reference_peft = pytest.importorskip("peft", reason="parity with torch: pip install -e .[parity]")
    from transformers import AutoModelForCausalLM

    adapter = small_model.random_adapter(directory)
    peft.save(tmp_path, adapter, lora=small_model.LORA, base_name=str(directory), text_only=True)
    plain = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    theirs = reference_peft.PeftModel.from_pretrained(plain, tmp_path).eval()
    tokens = np.arange(30, 50)[None]
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(tokens)).logits.numpy()
    model = policies.load(str(directory), mesh=policy.mesh, lora_scale=small_model.LORA.scale).model
    rows = token_batch([_Tokens(tokens[0])], pad=0, multiple=1)
    variables = {"params": policy.params, "lora": adapter}
    ours = model.apply(variables, rows, np.zeros((1, 64), np.float32), method="forward_logits")
    assert np.abs(np.asarray(ours) - expected).max() < 1e-4


class _Tokens:
    """The parts of a trajectory that make a row."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.policy = np.zeros(len(tokens), bool)
        self.image_index = np.full(len(tokens), -1)
        self.positions = np.tile(np.arange(len(tokens)), (3, 1))
