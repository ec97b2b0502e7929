"""Training jobs. The loops below are the documentation; each line is one named call."""

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from pixelis_jax import parallel, tiny, train_step
from pixelis_jax.data import demonstrations
from pixelis_jax.data.demonstrations import DemonstrationConfig
from pixelis_jax.evaluation import EvalConfig, Evaluator
from pixelis_jax.metrics.writer import MetricWriter
from pixelis_jax.models import policy as policies
from pixelis_jax.models import weights
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.policy import Policy
from pixelis_jax.models.processor import Processor
from pixelis_jax.models.qwen2_5_vl import Qwen2_5_VL
from pixelis_jax.rollout import RolloutConfig, SamplingConfig
from pixelis_jax.tools import TOOLS
from pixelis_jax.tools.base import schemas

PyTree = Any


def pretrain(config: ml_collections.ConfigDict, workdir: Path) -> None:
    """Make a model directory from nothing: tokenizer, config, and weights trained on oracle demonstrations."""
    policy = new_policy(config)
    tx = make_optimizer(config.optimizer, config.total_steps)
    state = train_step.init_state({"params": policy.params}, tx)
    step_fn = train_step.make_sft_step(policy.model, tx, micro_batches=config.optimizer.micro_batches)
    batches = demonstrations.batches(
        demonstration_config(config), policy.processor, schemas(TOOLS), start=0, stop=config.total_steps, workers=config.data.workers
    )
    writer = MetricWriter(workdir)
    evaluator = make_evaluator(config, policy)
    started = time.monotonic()
    waited, before = 0.0, time.monotonic()
    for step, batch in enumerate(batches, start=1):
        waited += time.monotonic() - before
        state, metrics = step_fn(state, {}, parallel.put_batch(policy.mesh, batch))
        if step % config.log_every_steps == 0 or step == config.total_steps:
            scalars = {k: float(v) for k, v in jax.device_get(metrics).items()}
            writer.write_scalars(step, scalars)
            writer.flush()
            print(f"waited {waited:.1f}s", end=" ")
            print(step, f"{time.monotonic() - started:.0f}s", {k: round(v, 4) for k, v in scalars.items()}, flush=True)
        if step % config.eval.every_steps == 0 or step == config.total_steps:
            trained = policies.with_params(policy, state.trainable["params"])
            evaluator.policy = trained
            for mode in ("tools_on", "tools_off", "forced_direct", "greedy") if step == config.total_steps else ("tools_on",):
                print(step, mode, evaluator(mode, lora=None).record(), flush=True)
            save_model(config, trained, workdir / "model")
        before = time.monotonic()
    writer.close()


def new_policy(config: ml_collections.ConfigDict) -> Policy:
    """A policy with fresh weights and a tokenizer trained on the task's own text, or the one of `model.init_from`."""
    if config.model.init_from:
        overview, crop = budgets(config)
        return policies.load(config.model.init_from, overview=overview, crop=crop)
    tokenizer = tiny.make_tokenizer(config.seed, schemas(TOOLS))
    sizes = {k: config.model[k] for k in ("width", "layers", "vision_width", "vision_depth")}
    model_config = tiny.make_config(tokenizer, **sizes)
    overview, crop = budgets(config)
    model = Qwen2_5_VL(model_config)
    mesh = parallel.make_mesh(parallel.MeshShape())
    shardings = parallel.param_shardings(mesh, policies.abstract_params(model))
    params = jax.jit(lambda: policies.init_params(model, config.seed), out_shardings=shardings)()
    return Policy(model, params, Processor(model_config, tokenizer, overview=overview, crop=crop), mesh, "new", "")


def save_model(config: ml_collections.ConfigDict, policy: Policy, directory: Path) -> None:
    """Write the whole model directory; weights in half precision, which is how it is shipped."""
    tiny.write_directory(directory, policy.processor.tokenizer, policy.model.config, overview=policy.processor.overview)
    weights.save(directory, policy.params, config=policy.model.config, dtype=jnp.float16)


def budgets(config: ml_collections.ConfigDict) -> tuple[PixelBudget, PixelBudget]:
    """(overview, crop) pixel budgets of a config."""
    image = config.image
    return PixelBudget(image.min_pixels, image.max_pixels), PixelBudget(image.crop_min_pixels, image.crop_max_pixels)


def demonstration_config(config: ml_collections.ConfigDict) -> DemonstrationConfig:
    data = {k: v for k, v in config.data.items() if k != "workers"}
    return DemonstrationConfig(seed=config.seed, **data)


def make_evaluator(config: ml_collections.ConfigDict, policy: Policy) -> Evaluator:
    sampling = SamplingConfig(max_new_tokens=config.sampling.max_new_tokens, context_tokens=config.sampling.context_tokens)
    rollout = RolloutConfig(sampling=sampling, max_turns=config.sampling.max_turns)
    return Evaluator(policy, EvalConfig(config.seed, config.eval.scenes, config.eval.batch), rollout, tools=TOOLS)


def make_optimizer(config: ml_collections.ConfigDict, total_steps: int) -> optax.GradientTransformation:
    """AdamW with warm-up and cosine decay to a tenth."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, config.warmup_steps, total_steps, 0.1 * config.learning_rate
    )
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(schedule, b2=config.beta2, weight_decay=config.weight_decay),
    )
