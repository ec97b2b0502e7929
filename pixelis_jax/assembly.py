"""From a config to the parts of a job: models, optimizers, samplers, rewards, curricula. No loop stands here."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict
from tokenizers import Tokenizer

from pixelis_jax import adapters, curriculum, hosts, parallel, tiny, tools
from pixelis_jax.algorithms.advantages import check_group_size
from pixelis_jax.algorithms.grpo import GRPOConfig
from pixelis_jax.algorithms.replay import ReplayConfig
from pixelis_jax.config import to_json
from pixelis_jax.curriculum import Curriculum
from pixelis_jax.data.demonstrations import DemonstrationConfig
from pixelis_jax.data.pixelsearch import assets
from pixelis_jax.data.prompts import Prompts, Scenes, open_questions, prompt_tokens
from pixelis_jax.data.synthesis.samples import SynthesisConfig
from pixelis_jax.evaluation import OPENINGS, Evaluator
from pixelis_jax.metrics import windows
from pixelis_jax.models import image_processor, peft
from pixelis_jax.models import lora as loras
from pixelis_jax.models import policy as policies
from pixelis_jax.models.config import VisionBase
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.lora import LoraConfig
from pixelis_jax.models.policy import Policy
from pixelis_jax.models.processor import Processor
from pixelis_jax.models.vlm import VLM
from pixelis_jax.reading import ReadingConfig
from pixelis_jax.rewards import orchestrator
from pixelis_jax.rewards.orchestrator import RewardConfig, check_weights
from pixelis_jax.rewards.task import MajorityVote, TaskReward, UserFunction, Verified
from pixelis_jax.rewards.verifiers import verify
from pixelis_jax.rollout import RolloutConfig, SamplingConfig
from pixelis_jax.tools.base import Tool, View, schemas
from pixelis_jax.train_step import RLConfig, SFTConfig
from pixelis_jax.types import Task, UserError

PyTree = Any
# Metrics of a single step that a curriculum may watch, beside the moving averages.
STEP_METRICS = frozenset({"success_rate", "coherence", "reward", "rapr", "kl", "entropy", "grpo/filtering_rate"})
_DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def budgets(config: ConfigDict) -> tuple[PixelBudget, PixelBudget]:
    """(overview, crop) pixel budgets of a config."""
    image = config.image
    return PixelBudget(image.min_pixels, image.max_pixels), PixelBudget(image.crop_min_pixels, image.crop_max_pixels)


def tools_of(config: ConfigDict) -> dict[str, Tool]:
    """The visual operations of a job. Raises UserError where one can't run here."""
    return tools.select(config.tools.names)


def mesh_shape(config: ConfigDict) -> parallel.MeshShape:
    """Devices an axis."""
    return parallel.MeshShape(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)


def mesh_of(config: ConfigDict) -> jax.sharding.Mesh:
    """The mesh over all devices."""
    return parallel.make_mesh(mesh_shape(config))


def lora_config(config: ConfigDict) -> LoraConfig:
    """Shape of the adapter."""
    return LoraConfig(**dict(config.lora) | {"targets": tuple(config.lora.targets)})


def dtype_of(config: ConfigDict) -> Any:
    """Type of the base weights and of the activations."""
    if config.model.dtype not in _DTYPES:
        raise UserError(f"model.dtype {config.model.dtype!r} is unknown; use one of {', '.join(_DTYPES)}")
    return _DTYPES[config.model.dtype]


def quantize_of(config: ConfigDict) -> str:
    """One of `quantized.KINDS` for the frozen weights; "" where they stay as they are."""
    return "" if config.model.quantize == "none" else str(config.model.quantize)


def load_policy(config: ConfigDict) -> Policy:
    """The base model of a config on its mesh."""
    overview, crop = budgets(config)
    return policies.load(
        config.model.name,
        mesh=mesh_of(config),
        dtype=dtype_of(config),
        quantize=quantize_of(config),
        lora_scale=lora_config(config).scale,
        overview=overview,
        crop=crop,
        coordinates=config.image.coordinates,
    )


def new_policy(config: ConfigDict) -> Policy:
    """A policy with fresh weights and a tokenizer trained on the task's own text, or the one of `model.init_from`.

    With `model.new_tokenizer` the weights of `init_from` go on with a tokenizer trained like a fresh one.
    """
    overview, crop = budgets(config)
    mesh = mesh_of(config)
    if config.model.init_from:
        frame = config.image.coordinates
        loaded = policies.load(config.model.init_from, mesh=mesh, overview=overview, crop=crop, coordinates=frame)
        return (
            _with_tokenizer(loaded, new_tokenizer(config, loaded.processor)) if config.model.new_tokenizer else loaded
        )
    tokenizer = new_tokenizer(config)
    sizes = {k: config.model[k] for k in ("width", "layers", "vision_width", "vision_depth")}
    model_config = tiny.make_config(tokenizer, **sizes)
    model = VLM(model_config)
    shardings = parallel.param_shardings(mesh, policies.abstract_params(model))
    params = jax.jit(lambda: policies.init_params(model, config.seed), out_shardings=shardings)()
    processor = Processor(model_config, tokenizer, overview=overview, crop=crop, coordinates=config.image.coordinates)
    return Policy(model, params, processor, mesh, "new", "")


def new_tokenizer(config: ConfigDict, processor: Processor | None = None) -> Tokenizer:
    """Trained on the texts that pretraining sees."""
    cota = synthesis_config(config, processor) if config.cota.samples else None
    return tiny.make_tokenizer(config.seed, schemas(tools_of(config)), cota)


def _with_tokenizer(policy: Policy, tokenizer: Tokenizer) -> Policy:
    """The policy with another vocabulary. Raises UserError where embeddings and output are not tied."""
    old = policy.model.config
    if not old.text.tie_word_embeddings:
        raise UserError(
            f"model.new_tokenizer carries tied embeddings over, and {policy.name} has an lm_head of its own; set"
            " --config.model.new_tokenizer=False"
        )
    vocabulary = dataclasses.replace(old.text, vocab_size=tokenizer.get_vocab_size())
    config = dataclasses.replace(old, text=vocabulary, **tiny.special_tokens(tokenizer))
    rows = tiny.carry_embeddings(policy.host_embeddings, policy.processor.tokenizer, tokenizer)
    model = policy.model.clone(config=config)
    shardings = parallel.param_shardings(policy.mesh, policies.abstract_params(model))
    params = policy.params | {"embed_tokens": jax.device_put(rows, shardings["embed_tokens"])}
    p = policy.processor
    processor = Processor(config, tokenizer, overview=p.overview, crop=p.crop, coordinates=p.coordinates)
    return dataclasses.replace(policy, model=model, params=params, processor=processor)


def synthesis_config(config: ConfigDict, processor: Processor | None = None) -> SynthesisConfig:
    """What CoTA dialogues pretraining generates: those that are trained on, seen as `processor` sees images.

    None stands for that of a fresh model.
    """
    factor = processor.config.need_vision().factor if processor else tiny.FACTOR
    frame = processor.coordinates if processor else config.image.coordinates or "pixels"
    overview, crop = (functools.partial(image_processor.smart_resize, factor=factor, budget=b) for b in budgets(config))
    view = View(overview, crop, frame)
    return SynthesisConfig(config.seed, view, ocr=config.cota.ocr, trap_share=0.0)


def reading_config(config: ConfigDict) -> ReadingConfig:
    """The reading half of pretraining."""
    return ReadingConfig(**config.reading)


def starting_adapter(config: ConfigDict, policy: Policy) -> tuple[PyTree, str]:
    """(adapter, where it is from): that of `init_from` (bundled name, PEFT directory or workdir), else a fresh one."""
    shape = lora_config(config)
    if not config.init_from:
        fresh = loras.init(jax.random.fold_in(jax.random.key(config.seed), 1), policy.params, shape)
        _refuse_convolution(config, fresh)
        return parallel.place(policy.mesh, fresh), "a fresh adapter (the base model itself)"
    trained = adapters.read(Path(config.init_from), base_name=config.model.name)
    if trained.lora.rank != shape.rank or not math.isclose(trained.lora.scale, shape.scale, rel_tol=1e-6):
        raise UserError(
            f"init_from={config.init_from}: adapter has rank {trained.lora.rank}, alpha {trained.lora.alpha:g}, rslora"
            f" {trained.lora.rslora}; set lora.rank, lora.alpha and lora.rslora to these (now {shape.rank},"
            f" {shape.alpha:g}, {shape.rslora})"
        )
    wanted = jax.eval_shape(lambda: loras.init(jax.random.key(0), policy.params, shape))
    if loras.layers(wanted) != loras.layers(trained.adapter):
        differing = sorted(loras.layers(wanted) ^ loras.layers(trained.adapter))
        raise UserError(
            f"init_from={config.init_from}: lora.targets {tuple(config.lora.targets)} selects other layers than the"
            f" adapter has, such as {differing[0]}; set lora.targets to {tuple(trained.lora.targets)}"
        )
    return parallel.place(policy.mesh, trained.adapter), f"the adapter {config.init_from} ({trained.origin})"


def _refuse_convolution(config: ConfigDict, adapter: PyTree) -> None:
    """UserError for an adapter on the patch embedding, which could be trained but not written for PEFT."""
    if peft.CONVOLUTION in loras.layers(adapter):
        raise UserError(
            f"lora.targets {tuple(config.lora.targets)} select {peft.CONVOLUTION}, which is a convolution in PEFT; for"
            " the vision tower take 'visual/blocks' and 'visual/.*merger'"
        )


def size_of(adapter: PyTree, policy: Policy) -> str:
    """How much of a model an adapter trains, in words."""
    layers, base = len(loras.layers(adapter)), loras.count(policies.abstract_params(policy.model))
    return f"training {loras.count(adapter):,} adapter parameters in {layers} layers, beside {base:,} frozen ones"


def hashes(policy: Policy, adapter: PyTree) -> dict[str, str]:
    """SHA-256 of what a job reads besides its config: the model, the adapter it starts from, the bundled data."""
    return {"model": policy.sha256, "adapter": tree_sha256(adapter), "data": assets.sha256()}


def rows_at_a_time(config: ConfigDict) -> dict[str, int]:
    """How many rows a job works on at a time, by the fields that say so: they should divide by the mesh."""
    rows = {"eval.batch": config.eval.batch}
    if config.job == "rft":
        rows |= {"rollout.prompts x rollout.group_size": config.rollout.prompts * config.rollout.group_size}
    elif "scenes" in config.get("data", {}):
        rows |= {"data.scenes x data.questions": config.data.scenes * config.data.questions}
    return rows


def mesh_notes(config: ConfigDict, policy: Policy) -> list[str]:
    """What of a job does not divide by its mesh, in lines for the user."""
    kv_heads = policy.model.config.text.num_key_value_heads
    return parallel.notes(policy.mesh, policy.params, kv_heads=kv_heads, rows=rows_at_a_time(config))


def save_adapter(config: ConfigDict, policy: Policy, directory: Path, adapter: PyTree) -> None:
    """An adapter that a job trained, in PEFT's layout, with `pixelis.json` beside it. Every process calls it."""
    adapter = hosts.fetch(adapter)
    if not hosts.first():
        return
    text_only = policy.model.config.vision is None
    peft.save(directory, adapter, lora=lora_config(config), base_name=config.model.name, text_only=text_only)
    adapters.write_settings(directory, to_json(config), origin=f"{directory.name} of a run", base=config.model.name)


def tree_sha256(tree: PyTree) -> str:
    """Digest of the values of a pytree, for `run.json`."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(hosts.fetch(tree)):
        digest.update(leaf.tobytes())
    return digest.hexdigest()


def make_schedule(config: ConfigDict, total_steps: int) -> optax.Schedule:
    """Learning rate of an update, of which `count` were made before: warm-up, then constant or cosine decay.

    Warm-up number n of N has n / N of the peak, so that the first update moves something. Cosine ends at a tenth.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if config.schedule == "constant":
        by_number = optax.join_schedules(
            [optax.linear_schedule(0.0, peak, warmup), optax.constant_schedule(peak)], [warmup]
        )
    elif config.schedule == "cosine":
        if total_steps <= warmup:
            raise UserError(f"optimizer.warmup_steps {warmup} must be below total_steps {total_steps}")
        by_number = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, total_steps, 0.1 * peak)
    else:
        raise UserError(f"optimizer.schedule {config.schedule!r} is unknown; use constant or cosine")
    return lambda count: by_number(count + 1)


def learning_rate(schedule: optax.Schedule, step: int, skipped: float) -> float:
    """The rate of training step `step` (from 1), of which `skipped` so far made no update."""
    return float(schedule(max(step - 1 - int(skipped), 0)))


def make_optimizer(config: ConfigDict, schedule: optax.Schedule) -> optax.GradientTransformation:
    """AdamW on gradients clipped to a global norm; 0: not clipped."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        optax.adamw(schedule, b2=config.beta2, weight_decay=config.weight_decay),
    )


def sft_config(config: ConfigDict) -> SFTConfig:
    """The static half of the supervised step."""
    dropout = config.lora.dropout if "lora" in config else 0.0
    share = config.optimizer.get("average_share", 0.0)
    return SFTConfig(
        micro_batches=config.optimizer.micro_batches,
        dropout=dropout,
        smoothing=config.optimizer.get("label_smoothing", 0.0),
        average_after=int(config.total_steps * (1 - share)) if share else None,
        seed=config.seed,
    )


def demonstration_config(config: ConfigDict, own: hosts.Share) -> DemonstrationConfig:
    """What a supervised batch holds, and which of its scenes this process draws."""
    data = {k: v for k, v in config.data.items() if k != "workers"}
    return DemonstrationConfig(seed=config.seed, part=own.of(config.data.scenes, "data.scenes"), **data)


def rollout_config(config: ConfigDict, *, group_size: int = 1) -> RolloutConfig:
    """Budgets of a dialogue."""
    sampling = config.sampling
    return RolloutConfig(
        sampling=SamplingConfig(sampling.temperature, sampling.max_new_tokens, sampling.context_tokens),
        group_size=group_size,
        max_turns=sampling.max_turns,
        tool_workers=config.tools.workers,
        tool_time_limit_s=config.tools.time_limit_s,
    )


def make_prompts(config: ConfigDict, policy: Policy) -> Prompts:
    """What is asked: PixelSearch's questions, or those of the folder `data.path`. Raises UserError for a bad folder."""
    data, evaluation = config.get("data", {}), config.eval
    if not data.get("path"):
        kinds = tuple(config.rollout.kinds if config.job == "rft" else evaluation.kinds)
        return Scenes(config.seed, kinds, tuple(evaluation.kinds), evaluation.scenes)
    shown = schemas(tools_of(config))
    opening = max(len(policy.processor.encode(text)) for text in OPENINGS)  # of evaluations that force a look, or none

    def check(task: Task) -> str:
        verify(task, task.answer)  # raises where the answer is not of its type
        tokens, context = prompt_tokens(task, policy.processor, shown) + opening, config.sampling.context_tokens
        told = f"task {task.task_id}: its prompt has {tokens} tokens with what may open an answer"
        too_long = f"{told}, and sampling.context_tokens is {context}"
        return too_long if tokens >= context else ""

    return open_questions(
        data.path,
        data.held_out_path,
        data.held_out_share,
        seed=config.seed,
        held_out_count=evaluation.scenes,
        check=check,
        train=config.job == "rft",
    )


def make_evaluator(config: ConfigDict, policy: Policy, prompts: Prompts) -> Evaluator:
    """Held-out evaluation of the policy."""
    settings = {"seed": config.seed, "batch": config.eval.batch, "tools": tools_of(config)}
    return Evaluator(policy, prompts, rollout_config(config), **settings)


def table_rows(config: ConfigDict, vision: VisionBase | None) -> int:
    """Feature rows of a rollout in which every prompt has one image and every turn but the last returns one."""
    if vision is None:
        return int(config.sampling.max_turns)  # a zero row a turn, in place of images
    overview, crop = (
        image_processor.rows_per_image(image_processor.window_bucket(budget, vision), vision)
        for budget in budgets(config)
    )
    return config.rollout.prompts * (overview + config.rollout.group_size * (config.sampling.max_turns - 1) * crop)


def rl_config(config: ConfigDict, *, replay: ReplayConfig | None = None) -> RLConfig:
    """Static settings of the RL step, checked; `replay` is that of `replay_config`."""
    check_group_size(config.rollout.group_size)
    rewards, loss = config.rewards, config.algorithm
    named = {field.name for field in dataclasses.fields(GRPOConfig)}
    settings = {name: value for name, value in loss.items() if name in named}
    settings |= {
        "delta": loss.delta or None,
        "correction": "none" if loss.correction == "auto" else loss.correction,
        "max_completion": config.sampling.max_turns * config.sampling.max_new_tokens,
        "log_turns": config.sampling.max_turns,
    }
    return RLConfig(
        rewards=reward_config(config),
        loss=GRPOConfig(**settings),
        advantage_scale=loss.advantage_scale,
        filtering_threshold=loss.filtering_threshold,
        temperature=config.sampling.temperature,
        micro_batches=config.optimizer.micro_batches,
        updates_per_rollout=loss.updates_per_rollout,
        kl_target=loss.kl_target,
        kl_horizon=loss.kl_horizon,
        overlong=(rewards.overlong_from, rewards.overlong_to) if rewards.overlong_to else None,
        replay=replay,
        seed=config.seed,
    )


def replay_config(config: ConfigDict, vision: VisionBase | None, *, pictures: int) -> ReplayConfig | None:
    """The replay buffer, None without one. A row has room for `pictures` of a question and one of each later turn."""
    rollout, sampling = config.rollout, config.sampling
    if not rollout.replay_ratio:
        return None
    overview, crop = (budget.max_pixels // vision.factor**2 if vision else 0 for budget in budgets(config))
    images = pictures * overview + (sampling.max_turns - 1) * crop
    return ReplayConfig(
        size=rollout.replay_size,
        ratio=rollout.replay_ratio,
        alpha=rollout.replay_alpha,
        max_age=rollout.replay_max_age,
        tokens=sampling.context_tokens,
        image_tokens=max(1, min(sampling.context_tokens, images)),
    )


def reward_config(config: ConfigDict) -> RewardConfig:
    """Components of the reward, and how they are combined."""
    return orchestrator.from_fields(config.rewards, config.penalty)


def task_reward(config: ConfigDict, columns: Collection[str] = ()) -> TaskReward:
    """The verifier of each task, the user's function, or the majority's vote. `columns` are the data's own."""
    rewards = config.rewards
    if rewards.majority:
        return MajorityVote(weighted=rewards.majority == "weighted", least=rewards.majority_share)
    return UserFunction(rewards.function, columns) if rewards.function else Verified()


def excluded_statuses(config: ConfigDict) -> tuple[str, ...]:
    """Of rows that are left out of an update."""
    masks = {"truncated": config.algorithm.mask_truncated, "over_turn": config.algorithm.mask_over_turn}
    return tuple(status for status, masked in masks.items() if masked)


def window_lengths(config: ConfigDict) -> dict[str, tuple[int, ...]]:
    """Lengths of the moving averages: those that are always logged, and the curriculum's own."""
    own = tuple(config.curriculum.windows)
    return {name: tuple(sorted({*lengths, *own})) for name, lengths in windows.DEFAULT_LENGTHS.items()}


def reward_curriculum(config: ConfigDict) -> Curriculum:
    """The curriculum of a config, validated against the metrics that will be logged."""
    table = config.curriculum
    stages = tuple(curriculum.stage_from_config(stage) for stage in table.stages)
    for stage in stages:
        check_weights(stage.weights, curiosity=config.rewards.curiosity)
    rollback = curriculum.Rollback(
        threshold=abs(table.rollback_threshold),
        patience=table.rollback_patience,
        cooldown_steps=table.rollback_cooldown_steps,
        factor=table.rollback_factor,
    )
    made = Curriculum(stages, table.evaluation_frequency, rollback=rollback)
    curriculum.validate(made, windows.names(window_lengths(config)) | STEP_METRICS)
    return made


def replace_correction(config: RLConfig, correction: str) -> RLConfig:
    """The same settings with a sampler-to-trainer importance weight."""
    return dataclasses.replace(config, loss=dataclasses.replace(config.loss, correction=correction))
