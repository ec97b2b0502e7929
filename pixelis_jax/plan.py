"""Does it fit? Compiles a job's functions ahead of time for devices that need not be there.

python -m pixelis_jax.plan --config=configs/rft.py:qwen2_5_vl_7b --topology=cpu:8 --config.mesh.fsdp=8
python -m pixelis_jax.plan --config=configs/sft.py:qwen2_5_vl_7b --topology=v5e:4x4 --config.mesh.fsdp=16

`cpu:N` simulates N devices: shardings and collectives are what N cards would get, but the temporaries are those of the
CPU's compiler, which keeps more in 32 bits. TPU slices (`v5e:4x4`, `v6e:2x4`, `v5p:2x2x2`) need the extra `tpu` and are
compiled by the TPU's own compiler. `model.name` is a checkpoint's directory, of which only config.json is read, or a
published shape, such as qwen2_5_vl_72b. The exit code is 0 where it fits, 1 where it does not, 2 for a wrong argument.
"""

import argparse
import dataclasses
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelis_jax.cli import OK, run_cli

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from ml_collections import ConfigDict


# Memory of a device, GiB, by the first part of a topology's name (vendors' data sheets).
MEMORY_GIB = {"v5e": 16, "v6e": 32, "v5p": 95, "cpu": 80}
NO_FIT = 1  # exit code
RESERVE = 0.92  # of it, what programs can have: the rest goes to the runtime and to fragments
PROMPT_TEXT_TOKENS = 512  # of the system prompt with the tools and the question; the images come on top
_COLLECTIVE = re.compile(r"= \S+ (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


@dataclasses.dataclass(frozen=True)
class Program:
    """What a compiled function needs of each device, in bytes, its share of the work, and collectives by kind."""

    name: str
    arguments: int
    cache: int  # the part of the arguments that is the KV cache
    outputs: int  # beyond the arguments that are reused for them
    temporaries: int
    flops: float
    collectives: Counter[str]
    compile_s: float

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries


@dataclasses.dataclass(frozen=True)
class Source:
    """A function to compile: `lower()` traces it. `cache` as in Program."""

    name: str
    lower: Callable[[], Any]
    cache: int = 0


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """(our arguments, those of the config), see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m pixelis_jax.plan",
        description=(__doc__ or "").partition("\n")[0],
        epilog="Also --config=FILE[:VARIANT] (configs/rft.py or configs/sft.py) and --config.FIELD=VALUE, as for"
        " pixelis_jax.main.",
    )
    parser.add_argument("--topology", default="cpu:1", help="cpu:N, or a TPU slice such as v5e:4x4 (default: cpu:1)")
    parser.add_argument("--memory_gib", type=_gib, help="memory of a device (default: by the topology; cpu: 80)")
    return parser.parse_known_args(arguments)


def _gib(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no size of a memory; give GiB above 0")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles, prints a table, and says whether it fits (0) or which mesh would (1)."""
    args, rest = parse(sys.argv[1:] if arguments is None else arguments)
    kind, count = _topology(args.topology)
    os.environ["JAX_PLATFORMS"] = "cpu"  # before jax is imported; a TPU slice is only described, never opened
    # libtpu would look for a TPU VM's settings, and complain at length that there are none.
    for name, value in (
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("TPU_ACCELERATOR_TYPE", "v5litepod-16"),
        ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),  # no TPU is held, so several plans may be made at once
    ):
        os.environ.setdefault(name, value)
    if kind == "cpu":
        # Nothing will run, so no time goes into machine code; buffers are planned before that.
        flags = f"--xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    from pixelis_jax import config as configs
    from pixelis_jax import limits, parallel
    from pixelis_jax.assembly import mesh_shape

    config, unknown = configs.from_argv(rest)
    _refuse(config, unknown)
    limits.check(config)
    devices = _devices(kind, args.topology, count)
    mesh = parallel.make_mesh(mesh_shape(config), devices)
    memory = args.memory_gib or MEMORY_GIB[kind]
    print(f"{config.model.name} on {args.topology}, mesh {_words(mesh)}, {memory:g} GiB a device")
    for note in _notes(config, mesh):
        print(f"  {note}")
    done = []
    for program in programs(config, mesh):
        done.append(program)
        print(_line(program), flush=True)
    worst = max(done, key=lambda p: p.total)
    if worst.total <= memory * RESERVE * 2**30:
        print(f"fits: {worst.name} needs most, {worst.total / 2**30:.2f} of {memory:g} GiB a device")
        return OK
    usable = f"of {memory:g} GiB programs can have {memory * RESERVE:.4g}"
    print(f"does not fit: {worst.name} needs {worst.total / 2**30:.2f} GiB a device, and {usable}")
    print(_other_mesh(config, mesh, worst.name, memory))
    return NO_FIT


def _topology(text: str) -> tuple[str, int]:
    """(kind, number of devices) of `cpu:8` or `v5e:4x4`."""
    from pixelis_jax.types import UserError

    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", text)
    if match is None or match[1] not in MEMORY_GIB:
        raise UserError(
            f"--topology={text}: use cpu:N, or one of {', '.join(MEMORY_GIB)} with a shape, such as v5e:4x4"
        )
    count = 1
    for part in match[2].split("x"):
        count *= int(part)
    if not 1 <= count <= 4096:
        raise UserError(f"--topology={text} has {count} devices; from 1 to 4096 can be planned for")
    return match[1], count


def _devices(kind: str, topology: str, count: int) -> list[Any]:
    import jax

    from pixelis_jax.types import UserError

    if kind == "cpu":
        if len(jax.devices()) < count:
            raise UserError(f"--topology={topology}: jax was imported before with {len(jax.devices())} device(s)")
        return jax.devices()[:count]
    from jax.experimental import topologies

    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices)
    except Exception as error:  # libtpu missing or an unknown slice: several kinds
        raise UserError(
            f"--topology={topology}: {' '.join(str(error).split())[:200]}; install the extra: pip install -e '.[tpu]'"
        ) from None


def _refuse(config: "ConfigDict", unknown: list[str]) -> None:
    from pixelis_jax.types import UserError

    if unknown:
        raise UserError(f"argument {unknown[0]!r} is unknown; see --help")
    if config.job not in _STEPS:
        raise UserError(f"only configs/rft.py and configs/sft.py can be planned for, not the job {config.job!r}")


def _notes(config: "ConfigDict", mesh: "Mesh") -> list[str]:
    """What does not divide by the mesh, as a job says it when it starts."""
    from pixelis_jax import parallel
    from pixelis_jax.models import policy
    from pixelis_jax.models.vlm import VLM

    model = _model_config(config.model.name)
    rows = {"eval.batch": config.eval.batch}
    if config.job == "rft":
        rows |= {"rollout.prompts x rollout.group_size": config.rollout.prompts * config.rollout.group_size}
    params = policy.abstract_params(VLM(model))
    return parallel.notes(mesh, params, kv_heads=model.text.num_key_value_heads, rows=rows)


def programs(config: "ConfigDict", mesh: "Mesh") -> Iterator[Program]:
    """The compiled functions of a step, in the order in which it calls them; of SFT, those of an evaluation first."""
    yield from map(_compile, _sources(config, mesh))


@dataclasses.dataclass(frozen=True)
class _Parts:
    """A job's model and weights as abstract arrays on a mesh."""

    config: "ConfigDict"
    mesh: "Mesh"
    model: Any
    params: Any
    adapter: Any

    @property
    def base(self) -> dict[str, Any]:
        return {"params": self.params}

    @property
    def vision(self) -> Any:
        return self.model.config.need_vision()

    def images(self, count: int, budget: Any) -> Any:
        """ImageBatch of `count` images within a pixel budget."""
        import jax.numpy as jnp

        from pixelis_jax import parallel
        from pixelis_jax.models import image_processor
        from pixelis_jax.types import ImageBatch

        shape = (count, image_processor.window_bucket(budget, self.vision), self.vision.window_patches)
        made = ImageBatch(
            _array((*shape, self.vision.patch_dim), jnp.uint8), _array((*shape, 2), jnp.int32), _array(shape, bool)
        )
        return parallel.abstract(made, parallel.batch_shardings(self.mesh, made))

    def state(self, tx: Any, **options: Any) -> Any:
        """TrainState at step 0, the same on every device."""
        import jax

        from pixelis_jax import parallel, train_step

        made = jax.eval_shape(lambda: train_step.init_state({"lora": self.adapter}, tx, **options))
        return parallel.abstract(made, jax.tree.map(lambda _: parallel.replicated(self.mesh), made))

    def optimizer(self) -> Any:
        """The job's optimizer."""
        from pixelis_jax import assembly

        settings = self.config.optimizer
        return assembly.make_optimizer(settings, assembly.make_schedule(settings, self.config.total_steps))


def _parts(config: "ConfigDict", mesh: "Mesh") -> _Parts:
    import jax

    from pixelis_jax import assembly, parallel
    from pixelis_jax.models import lora as loras
    from pixelis_jax.models import policy, quantized
    from pixelis_jax.models.vlm import VLM

    shape = assembly.lora_config(config)
    model = VLM(_model_config(config.model.name), dtype=assembly.dtype_of(config), lora_scale=shape.scale, remat=True)
    params = policy.abstract_params(model)
    if config.model.quantize:
        params = jax.eval_shape(lambda p: quantized.quantize(p, config.model.quantize), params)
    params = parallel.abstract(params, parallel.param_shardings(mesh, params))
    adapter = jax.eval_shape(lambda: loras.init(jax.random.key(0), params, shape))
    adapter = parallel.abstract(adapter, jax.tree.map(lambda _: parallel.replicated(mesh), adapter))
    return _Parts(config, mesh, model, params, adapter)


def _sources(config: "ConfigDict", mesh: "Mesh") -> Iterator[Source]:
    parts = _parts(config, mesh)
    if config.job == "rft":
        yield from _rollout(parts, prompts=config.rollout.prompts, group=config.rollout.group_size)
    else:
        yield from _rollout(parts, prompts=config.eval.batch, group=1)
    yield _STEPS[config.job](parts)


def _rollout(parts: _Parts, *, prompts: int, group: int) -> Iterator[Source]:
    """What a rollout of `group` dialogues for each of `prompts` calls: encoding of crops, prefill, decoding."""
    import jax

    from pixelis_jax import assembly, parallel
    from pixelis_jax.models import image_processor
    from pixelis_jax.rollout.engine import Engine

    config, mesh, model, vision = parts.config, parts.mesh, parts.model, parts.vision
    variables, rows = parts.base | {"lora": parts.adapter}, prompts * group
    overview, crop = assembly.budgets(config)
    crops = parts.images(rows, crop)
    sampling = assembly.rollout_config(config).sampling
    pack = mesh.shape["tensor"] == 1
    engine = Engine(model, sampling, end_of_turn=model.config.eos_token_id, pack=pack, mesh=mesh)
    yield Source(f"encode {rows} crops", lambda: engine.encode.lower(parts.base, crops))

    prompt = PROMPT_TEXT_TOKENS + overview.max_pixels // vision.factor**2
    prompt = min(prompt, config.sampling.context_tokens)
    first_rows = prompts * image_processor.rows_per_image(image_processor.window_bucket(overview, vision), vision)
    table = _array((first_rows, _feature_width(parts)), model.dtype, mesh)
    tokens = parallel.abstract(_tokens(prompts, prompt), parallel.batch_shardings(mesh, _tokens(prompts, prompt)))

    def prefill() -> Any:
        return engine.prefill.lower(variables, tokens, table, repeat=group)

    yield Source(f"prefill {prompts} x {prompt} tokens", prefill)
    state = jax.eval_shape(lambda v, r, t: engine.prefill(v, r, t, repeat=group), variables, tokens, table)
    state = parallel.abstract(state, parallel.state_shardings(mesh, state))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    keys, active = (parallel.abstract(x, parallel.batch_shardings(mesh, x)) for x in (keys, _array((rows,), bool)))
    yield Source(
        f"decode {rows} rows",
        lambda: engine.generate.lower(variables, state, keys, active),
        cache=sum(_bytes_a_device(x) for x in jax.tree.leaves(state.cache)),
    )


def _feature_width(parts: _Parts) -> int:
    """Width of an image's features: wider than the decoder with deepstack."""
    import jax

    from pixelis_jax import assembly
    from pixelis_jax.models import vlm

    image = parts.images(1, assembly.budgets(parts.config)[1])
    return int(jax.eval_shape(lambda v, i: vlm.encode_images(parts.model, v, i), parts.base, image).shape[-1])


def _rl_step(parts: _Parts) -> Source:
    """A GRPO update on full rollouts."""
    import jax

    from pixelis_jax import assembly, train_step
    from pixelis_jax.models import lora as loras
    from pixelis_jax.models.rows import power_bucket
    from pixelis_jax.rewards import orchestrator

    config, mesh, model = parts.config, parts.mesh, parts.model
    prompts, rows = config.rollout.prompts, config.rollout.prompts * config.rollout.group_size
    overview, crop = assembly.budgets(config)
    rl, tx = assembly.rl_config(config), parts.optimizer()
    rewards = jax.eval_shape(lambda: orchestrator.init(jax.random.key(0), rl.rewards))
    trained = parts.state(tx, rewards=rewards)
    step = train_step.RLStep(model, tx, rl)
    table = _array((assembly.table_rows(config, parts.vision), _feature_width(parts)), model.dtype, mesh)
    batch = dataclasses.replace(_batch(config, mesh, rows), features=table)
    if loras.touches_vision(parts.adapter):  # the tower is trained through: a full rollout's images, not features
        seen = parts.images(prompts, overview), parts.images(power_bucket(rows) * (config.sampling.max_turns - 1), crop)
        batch = dataclasses.replace(batch, features=None, images=seen)
    weights = assembly.reward_curriculum(config).stages[-1].weights  # all components
    return Source(
        f"step {rows} x {config.sampling.context_tokens} tokens",
        lambda: step.train_step.jitted(trained).lower(trained, parts.base, parts.adapter, batch, weights=weights),
    )


def _sft_step(parts: _Parts) -> Source:
    """A supervised update on the longest rows, each with as many crops as a dialogue and its tokens have room for."""
    import jax.numpy as jnp

    from pixelis_jax import assembly, parallel, train_step
    from pixelis_jax.data import buckets
    from pixelis_jax.data.demonstrations import DemonstrationBatch

    none: Any = None
    config, mesh, tx = parts.config, parts.mesh, parts.optimizer()
    settings, length = assembly.sft_config(config), config.data.row_tokens
    multiple = mesh.shape["data"] * mesh.shape["fsdp"] * settings.micro_batches
    rows = buckets.rows_of(length, batch_tokens=config.data.batch_tokens, multiple=multiple)
    overview, crop = assembly.budgets(config)
    left = length - PROMPT_TEXT_TOKENS - overview.max_pixels // parts.vision.factor**2
    crops = max(1, min(config.sampling.max_turns - 1, left // (crop.max_pixels // parts.vision.factor**2)))
    plain = DemonstrationBatch(
        _tokens(rows, length), _array((rows, length), bool), _array((rows, length), jnp.float32), none, none
    )
    plain = parallel.abstract(plain, parallel.batch_shardings(mesh, plain))
    batch = dataclasses.replace(plain, overview=parts.images(rows, overview), crops=parts.images(rows * crops, crop))
    trained = parts.state(tx, averaged=settings.average_after is not None)
    step = train_step.make_sft_step(parts.model, tx, settings)
    return Source(
        f"step {rows} x {length} tokens, {1 + crops} images each",
        lambda: step.jitted(trained).lower(trained, parts.base, batch),
    )


_STEPS = {"rft": _rl_step, "sft": _sft_step}


def _batch(config: "ConfigDict", mesh: "Mesh", rows: int) -> Any:
    """The abstract TrajectoryBatch of a step, but for its image features."""
    import jax

    from pixelis_jax import parallel
    from pixelis_jax.rollout.collate import trajectory_batch

    sampling = config.sampling
    no_features: Any = None
    empty: Any = trajectory_batch(
        [], no_features, lambda *_: 0.0, length=sampling.context_tokens, calls=sampling.max_turns, pad=0
    )
    full = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), empty)
    return parallel.abstract(full, parallel.batch_shardings(mesh, full))


def _bytes_a_device(x: Any) -> int:
    return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize


def _compile(source: Source) -> Program:
    begin = time.perf_counter()
    compiled = source.lower().compile()
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


def _other_mesh(config: "ConfigDict", mesh: "Mesh", program: str, memory: float) -> str:
    """The nearest mesh of as many devices in which the largest program fits, in words."""
    from pixelis_jax import parallel

    devices = list(mesh.devices.flat)
    smallest: tuple[float, str] | None = None
    for shape in parallel.neighbours(mesh):
        other = parallel.make_mesh(shape, devices)
        source = next(source for source in _sources(config, other) if source.name == program)
        needed = _compile(source).total / 2**30
        if needed <= memory * RESERVE:
            return f"the nearest mesh that fits: {_words(other)}, {needed:.2f} GiB a device"
        smallest = min(smallest or (needed, _words(other)), (needed, _words(other)))
    best = f"; {smallest[1]} comes nearest with {smallest[0]:.2f} GiB" if smallest else ""
    return (
        f"no mesh of {len(devices)} device(s) fits{best}; take more devices, raise optimizer.micro_batches, or lower"
        " sampling.context_tokens, or the rows: rollout.prompts, rollout.group_size, data.batch_tokens, eval.batch"
    )


def _model_config(name: str) -> Any:
    from pixelis_jax.models import families, policy, shapes

    if name in shapes.SHAPES and not Path(name).is_dir():
        return shapes.shape(name)
    return families.from_json(policy.resolve(name) / "config.json")


def _array(shape: tuple[int, ...], dtype: Any, mesh: "Mesh | None" = None) -> Any:
    import jax

    from pixelis_jax import parallel

    return jax.ShapeDtypeStruct(shape, dtype, sharding=None if mesh is None else parallel.replicated(mesh))


def _tokens(rows: int, length: int) -> Any:
    import jax.numpy as jnp

    from pixelis_jax.types import TokenBatch

    numbers, flags = _array((rows, length), jnp.int32), _array((rows, length), bool)
    return TokenBatch(numbers, flags, flags, _array((rows, 3, length), jnp.int32), numbers)


def _words(mesh: "Mesh") -> str:
    return ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())


def _line(p: Program) -> str:
    sizes = {"arguments": p.arguments, "of which KV cache": p.cache, "outputs": p.outputs, "temporaries": p.temporaries}
    parts = (f"{name} {size / 2**30:.2f}" for name, size in sizes.items() if p.cache or "cache" not in name)
    moved = ", ".join(f"{count} {kind}" for kind, count in sorted(p.collectives.items())) or "no collectives"
    return f"  {p.name}: {p.total / 2**30:.2f} GiB ({', '.join(parts)}), {p.flops / 1e12:.2f} TFLOP, {moved}"


if __name__ == "__main__":
    run_cli(main)
