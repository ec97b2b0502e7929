"""A job's compiled functions as abstract calls: what `plan` compiles for devices that need not be there."""

import dataclasses
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from pixelis_jax import assembly, parallel, train_step
from pixelis_jax.data import buckets
from pixelis_jax.data.demonstrations import DemonstrationBatch
from pixelis_jax.models import families, image_processor, policy, quantized, shapes
from pixelis_jax.models import lora as loras
from pixelis_jax.models.config import ModelConfig, VisionBase
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.rows import power_bucket
from pixelis_jax.models.vlm import VLM
from pixelis_jax.rollout.collate import trajectory_batch
from pixelis_jax.rollout.engine import Engine
from pixelis_jax.train_step import TrainState
from pixelis_jax.types import ImageBatch, TokenBatch, TrajectoryBatch, UserError

PyTree = Any
PROMPT_TEXT_TOKENS = 512  # of the system prompt with the tools and the question; the images come on top
# What the TPU's compiler says of a program that does not fit, its arguments included: "(40.00G) exceeds available HBM"
# or, in earlier versions, "Used 30.55G of 15.48G hbm".
_USED = re.compile(r"(?:\(|Used )([\d.]+)([KMGT]?)(?:\) exceeds available HBM| of [\d.]+[KMGT]? hbm)")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_COLLECTIVE = re.compile(r"= \S+ (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


@dataclasses.dataclass(frozen=True)
class Program:
    """What a compiled function needs of each device, in bytes, its share of the work, and collectives by kind.

    Of one that the compiler `refused` for its size nothing but the arguments and what it told is known; `is_least`: it
    told nothing, and the function needs at least its arguments.
    """

    name: str
    arguments: int
    cache: int  # the part of the arguments that is the KV cache
    outputs: int  # beyond the arguments that are reused for them
    temporaries: int
    flops: float
    collectives: Counter[str]
    compile_s: float
    refused: bool = False
    is_least: bool = False

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries

    def fits(self, usable: float) -> bool:
        """Whether a device that gives programs `usable` bytes can run it."""
        return not self.refused and self.total <= usable


@dataclasses.dataclass(frozen=True)
class Source:
    """A function to compile: `lower()` traces it. `held` are its arguments; `cache` as in Program."""

    name: str
    lower: Callable[[], Any]
    held: PyTree = ()
    cache: int = 0

    @property
    def arguments(self) -> int:
        """Bytes a device that the arguments take: less than that the function can't do with."""
        return sum(map(_bytes_a_device, jax.tree.leaves(self.held)))


def notes(config: ConfigDict, mesh: Mesh) -> list[str]:
    """What does not divide by the mesh, as a job says it when it starts."""
    model = model_config(config.model.name)
    params, kv_heads = policy.abstract_params(VLM(model)), model.text.num_key_value_heads
    return parallel.notes(mesh, params, kv_heads=kv_heads, rows=assembly.rows_at_a_time(config))


@dataclasses.dataclass(frozen=True)
class _Parts:
    """A job's model and weights as abstract arrays on a mesh."""

    config: ConfigDict
    mesh: Mesh
    model: VLM
    params: PyTree
    adapter: PyTree

    @property
    def base(self) -> dict[str, PyTree]:
        """What is frozen."""
        return {"params": self.params}

    @property
    def vision(self) -> VisionBase:
        """Shape of the vision tower."""
        return self.model.config.need_vision()

    def images(self, count: int, budget: PixelBudget) -> ImageBatch:
        """ImageBatch of `count` images within a pixel budget."""
        shape = (count, image_processor.window_bucket(budget, self.vision), self.vision.window_patches)
        made = ImageBatch(
            _array((*shape, self.vision.patch_dim), jnp.uint8), _array((*shape, 2), jnp.int32), _array(shape, bool)
        )
        return parallel.abstract(made, parallel.batch_shardings(self.mesh, made))

    def state(self, tx: optax.GradientTransformation, **options: Any) -> TrainState:
        """TrainState at step 0, laid out as the job lays it out."""
        made = jax.eval_shape(lambda: train_step.init_state({"lora": self.adapter}, tx, **options))
        return parallel.placed(self.mesh, made)

    def optimizer(self) -> optax.GradientTransformation:
        """The job's optimizer."""
        settings = self.config.optimizer
        return assembly.make_optimizer(settings, assembly.make_schedule(settings, self.config.total_steps))


def _parts(config: ConfigDict, mesh: Mesh) -> _Parts:
    shape = assembly.lora_config(config)
    model = VLM(model_config(config.model.name), dtype=assembly.dtype_of(config), lora_scale=shape.scale, remat=True)
    params = policy.abstract_params(model)
    if kind := assembly.quantize_of(config):
        params = jax.eval_shape(lambda p: quantized.quantize(p, kind), params)
    params = parallel.placed(mesh, params)
    adapter = parallel.placed(mesh, jax.eval_shape(lambda: loras.init(jax.random.key(0), params, shape)))
    return _Parts(config, mesh, model, params, adapter)


def sources(config: ConfigDict, mesh: Mesh) -> Iterator[Source]:
    """The functions of a step, in the order in which it calls them; of SFT, those of an evaluation first."""
    parts = _parts(config, mesh)
    if config.job == "rft":
        yield from _rollout(parts, prompts=config.rollout.prompts, group=config.rollout.group_size)
    else:
        yield from _rollout(parts, prompts=config.eval.batch, group=1)
    yield STEPS[config.job](parts)


def _rollout(parts: _Parts, *, prompts: int, group: int) -> Iterator[Source]:
    """What a rollout of `group` dialogues for each of `prompts` calls: encoding of crops, prefill, decoding."""
    config, mesh, model, vision = parts.config, parts.mesh, parts.model, parts.vision
    variables, rows = parts.base | {"lora": parts.adapter}, prompts * group
    overview, crop = assembly.budgets(config)
    crops = parts.images(rows, crop)
    sampling = assembly.rollout_config(config).sampling
    pack = mesh.shape["tensor"] == 1
    engine = Engine(model, sampling, end_of_turn=model.config.eos_token_id, pack=pack, mesh=mesh)
    yield Source(f"encode {rows} crops", lambda: engine.encode.lower(parts.base, crops), (parts.base, crops))

    prompt = PROMPT_TEXT_TOKENS + overview.max_pixels // vision.factor**2
    prompt = min(prompt, config.sampling.context_tokens)
    first_rows = prompts * image_processor.rows_per_image(image_processor.window_bucket(overview, vision), vision)
    table = _array((first_rows, parts.model.config.feature_width), model.dtype, mesh)
    tokens = parallel.abstract(_tokens(prompts, prompt), parallel.batch_shardings(mesh, _tokens(prompts, prompt)))

    def prefill() -> Any:
        return engine.prefill.lower(variables, tokens, table, repeat=group)

    yield Source(f"prefill {prompts} x {prompt} tokens", prefill, (variables, tokens, table))
    state = jax.eval_shape(lambda v, r, t: engine.prefill(v, r, t, repeat=group), variables, tokens, table)
    state = parallel.abstract(state, parallel.state_shardings(mesh, state))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    keys, active = (parallel.abstract(x, parallel.batch_shardings(mesh, x)) for x in (keys, _array((rows,), bool)))
    yield Source(
        f"decode {rows} rows",
        lambda: engine.generate.lower(variables, state, keys, active),
        (variables, state, keys, active),
        cache=sum(_bytes_a_device(x) for x in jax.tree.leaves(state.cache)),
    )


def abstract_state(config: ConfigDict, mesh: Mesh) -> TrainState:
    """The training state of a job as it lies on the mesh at step 0."""
    parts = _parts(config, mesh)
    return STATES[config.job](parts, parts.optimizer())


def _rl_config(parts: _Parts) -> train_step.RLConfig:
    config = parts.config
    # A user's own questions may show several pictures; they are not read here, so a row is taken to be full of them.
    pictures = config.sampling.context_tokens if config.data.path else 1
    return assembly.rl_config(config, replay=assembly.replay_config(config, parts.vision, pictures=pictures))


def _rl_state(parts: _Parts, tx: optax.GradientTransformation) -> TrainState:
    rl = _rl_config(parts)
    return parts.state(tx, **jax.eval_shape(lambda: train_step.rl_parts(jax.random.key(0), rl, parts.model)))


def _sft_state(parts: _Parts, tx: optax.GradientTransformation) -> TrainState:
    return parts.state(tx, averaged=assembly.sft_config(parts.config).average_after is not None)


def _rl_step(parts: _Parts) -> Source:
    """A GRPO update on full rollouts."""
    config, mesh, model = parts.config, parts.mesh, parts.model
    prompts, rows = config.rollout.prompts, config.rollout.prompts * config.rollout.group_size
    overview, crop = assembly.budgets(config)
    rl, tx = _rl_config(parts), parts.optimizer()
    trained = _rl_state(parts, tx)
    step = train_step.RLStep(model, tx, rl)
    table = _array((assembly.table_rows(config, parts.vision), parts.model.config.feature_width), model.dtype, mesh)
    batch = dataclasses.replace(_batch(config, mesh, rows), features=table)
    if loras.touches_vision(parts.adapter):  # the tower is trained through: a full rollout's images, not features
        seen = parts.images(prompts, overview), parts.images(power_bucket(rows) * (config.sampling.max_turns - 1), crop)
        batch = dataclasses.replace(batch, features=None, images=seen)
    weights = assembly.reward_curriculum(config).stages[-1].weights  # all components
    return Source(
        f"step {rows} x {config.sampling.context_tokens} tokens",
        lambda: step.train_step.jitted(trained).lower(trained, parts.base, parts.adapter, batch, weights=weights),
        (trained, parts.base, parts.adapter, batch),
    )


def _sft_step(parts: _Parts) -> Source:
    """A supervised update on the longest rows, each with as many crops as a dialogue and its tokens have room for."""
    none: Any = None
    config, mesh, tx = parts.config, parts.mesh, parts.optimizer()
    settings, length = assembly.sft_config(config), config.data.row_tokens
    multiple = mesh.shape["data"] * mesh.shape["fsdp"] * settings.micro_batches
    rows = buckets.rows_of(length, batch_tokens=config.data.batch_tokens, multiple=multiple)
    overview, crop = assembly.budgets(config)
    shown, returned = (budget.max_pixels // parts.vision.factor**2 for budget in (overview, crop))
    if length < shown + returned:
        raise UserError(
            f"data.row_tokens {length} has no room for a picture of {shown} tokens and a tool's of {returned}; raise it"
        )
    crops = max(1, min(config.sampling.max_turns - 1, (length - PROMPT_TEXT_TOKENS - shown) // returned))
    plain = DemonstrationBatch(
        _tokens(rows, length), _array((rows, length), bool), _array((rows, length), jnp.float32), none, none
    )
    plain = parallel.abstract(plain, parallel.batch_shardings(mesh, plain))
    batch = dataclasses.replace(plain, overview=parts.images(rows, overview), crops=parts.images(rows * crops, crop))
    trained = _sft_state(parts, tx)
    step = train_step.make_sft_step(parts.model, tx, settings)
    return Source(
        f"step {rows} x {length} tokens, {1 + crops} images each",
        lambda: step.jitted(trained).lower(trained, parts.base, batch),
        (trained, parts.base, batch),
    )


STEPS = {"rft": _rl_step, "sft": _sft_step}
STATES = {"rft": _rl_state, "sft": _sft_state, "habit": _sft_state}


def _batch(config: ConfigDict, mesh: Mesh, rows: int) -> TrajectoryBatch:
    """The abstract TrajectoryBatch of a step, but for its image features."""
    sampling = config.sampling
    no_features: Any = None
    none = np.zeros(0, np.float32)
    empty: Any = trajectory_batch(
        [], no_features, none, length=sampling.context_tokens, calls=sampling.max_turns, pad=0
    )
    full = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), empty)
    return parallel.abstract(full, parallel.batch_shardings(mesh, full))


def _bytes_a_device(x: Any) -> int:
    shape = x.shape if x.sharding is None else x.sharding.shard_shape(x.shape)
    return int(math.prod(shape)) * int(x.dtype.itemsize)


def compile_ahead(source: Source) -> Program:
    """Compiles a function, and what that says of it: also that it is too large for the devices."""
    begin = time.perf_counter()
    lowered = source.lower()
    try:
        compiled = lowered.compile()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _refused(source, str(error), time.perf_counter() - begin)
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    cost = cost[0] if isinstance(cost, list) else cost
    return Program(
        source.name,
        arguments=memory.argument_size_in_bytes,
        cache=source.cache,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        flops=float(cost.get("flops", 0.0)),
        collectives=Counter(_COLLECTIVE.findall(compiled.as_text())),
        compile_s=time.perf_counter() - begin,
    )


def _refused(source: Source, text: str, compile_s: float) -> Program:
    """What is known of a function whose compiler ended with `text`."""
    told = _USED.search(text)
    held = source.arguments
    used = int(float(told[1]) * _UNITS[told[2]]) if told else held
    return Program(
        source.name,
        arguments=held,
        cache=source.cache,
        outputs=0,
        temporaries=max(0, used - held),
        flops=0.0,
        collectives=Counter(),
        compile_s=compile_s,
        refused=True,
        is_least=not told,
    )


def model_config(name: str) -> ModelConfig:
    """Of a checkpoint's directory, of which only config.json is read, or of a published shape."""
    if name in shapes.SHAPES and not Path(name).is_dir():
        return shapes.shape(name)
    return families.from_json(policy.resolve(name) / "config.json")


def _array(shape: tuple[int, ...], dtype: Any, mesh: Mesh | None = None) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=None if mesh is None else parallel.replicated(mesh))


def _tokens(rows: int, length: int) -> TokenBatch:
    numbers, flags = _array((rows, length), jnp.int32), _array((rows, length), bool)
    return TokenBatch(numbers, flags, flags, _array((rows, 3, length), jnp.int32), numbers)
