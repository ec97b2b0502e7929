"""A random model directory with a real tokenizer, and a workdir with a checkpoint of an adapter for it."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp

from pixelis_jax import tiny
from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.models import lora, policy, weights
from pixelis_jax.models import tokenizer as bpe
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.lora import LoraConfig
from pixelis_jax.models.vlm import VLM

LORA = LoraConfig(rank=2, alpha=6.0)
SETTINGS = {
    "image": {"min_pixels": 3136, "max_pixels": 12544, "crop_min_pixels": 1568, "crop_max_pixels": 4703},
    "sampling": {"max_new_tokens": 6, "context_tokens": 512, "max_turns": 2},
}
PRECISION = {"dtype": "float32", "quantize": "none"}
TOOLS = {"names": ["ZOOM_IN"]}


def write_model(directory: Path, *, dtype=jnp.float32, settings=None) -> Path:
    """pixelis-tiny's architecture in the smallest: random weights, a tokenizer of bytes and a few words."""
    tokenizer = bpe.train(["which digit is inside the blue square? {7}"], vocab_size=300)
    config = tiny.make_config(tokenizer, width=64, layers=2, vision_width=64, vision_depth=2)
    tiny.write_directory(directory, tokenizer, config, overview=PixelBudget(3136, 12544), settings=settings)
    params = policy.init_params(VLM(config), 0)
    weights.save(directory, params, config=config, dtype=dtype)
    return directory


def random_adapter(model: Path, config: LoraConfig = LORA) -> dict:
    """Both factors random, so that the adapter does something."""
    params = policy.abstract_params(policy.load(str(model)).model)
    adapter = lora.init(jax.random.key(1), params, config)
    leaves, tree = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    return jax.tree.unflatten(tree, [jax.random.normal(k, x.shape) * 0.05 for k, x in zip(keys, leaves, strict=True)])


def write_workdir(directory: Path, model: Path, *, steps: tuple[int, ...] = (3, 5)) -> Path:
    """Checkpoints of a LoRA run; the adapter of step s is the random one times s."""
    adapter = random_adapter(model)
    with Checkpoints(directory) as checkpoints:
        for step in steps:
            trainable = {"lora": jax.tree.map(lambda x, s=step: x * s, adapter)}
            optimizer = (jnp.zeros(3), {"mu": trainable})
            checkpoints.save(
                step, {"step": jnp.int32(step), "trainable": trainable, "opt_state": optimizer}, {"n": step}
            )
    config = {
        "job": "rft",
        "model": {"name": str(model), **PRECISION},
        "tools": TOOLS,
        "lora": {"rank": LORA.rank, "alpha": LORA.alpha, "targets": list(LORA.targets)},
        **SETTINGS,
    }
    hashes = {"model": policy.content_hash(model)}
    run = {"version": 1, "config": config, "seed": 0, "versions": {}, "commit": None, "devices": {}, "hashes": hashes}
    (directory / "run.json").write_text(json.dumps(run))
    return directory
