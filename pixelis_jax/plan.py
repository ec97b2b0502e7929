"""Does it fit? Compiles a job's functions ahead of time for devices that need not be there.

python -m pixelis_jax.plan --config=configs/rft.py:qwen2_5_vl_7b --topology=cpu:8 --config.mesh.fsdp=8
python -m pixelis_jax.plan --config=configs/sft.py:qwen2_5_vl_7b --topology=v5e:4x4 --config.mesh.fsdp=16

`cpu:N` simulates N devices: shardings and collectives are what N cards would get, but the temporaries are those of the
CPU's compiler, which keeps more in 32 bits. TPU slices (`v5e:4x4`, `v6e:2x4`, `v5p:2x2x2`) need the extra `tpu` and are
compiled by the TPU's own compiler. `model.name` is a checkpoint's directory, of which only config.json is read, or a
published shape, such as qwen2_5_vl_72b. The exit code is 0 where it fits, 1 where it does not, 2 for a wrong argument.
"""

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pixelis_jax.cli import OK, run_cli

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from ml_collections import ConfigDict

    from pixelis_jax.programs import Program

# Memory of a device, GiB, by the first part of a topology's name (vendors' data sheets).
MEMORY_GIB = {"v5e": 16, "v6e": 32, "v5p": 95, "cpu": 80}
NO_FIT = 1  # exit code
HOST_REMEDY = "planning itself needs more memory than this machine has: plan on a larger one, or for fewer devices"
RESERVE = 0.92  # of it, what programs can have: the rest goes to the runtime and to fragments


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
    from pixelis_jax import as_trained, limits, parallel, programs
    from pixelis_jax import config as configs
    from pixelis_jax.assembly import mesh_shape

    config, unknown = configs.from_argv(rest)
    _refuse(config, unknown)
    config = as_trained.resolve(config).config
    limits.check(config)
    devices = _devices(kind, args.topology, count)
    mesh = parallel.make_mesh(mesh_shape(config), devices)
    memory = args.memory_gib or MEMORY_GIB[kind]
    print(f"{config.model.name} on {args.topology}, mesh {_words(mesh)}, {memory:g} GiB a device")
    for note in programs.notes(config, mesh):
        print(f"  {note}")
    done = []
    for source in programs.sources(config, mesh):
        done.append(programs.compile_ahead(source))
        print(_line(done[-1]), flush=True)
    usable = memory * RESERVE * 2**30
    if all(program.fits(usable) for program in done):
        most = max(done, key=lambda p: p.total)
        print(f"fits: {most.name} needs most, {most.total / 2**30:.2f} of {memory:g} GiB a device")
        return OK
    worst = max((p for p in done if not p.fits(usable)), key=lambda p: p.total)
    print(_no_fit(worst, memory))
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
    from pixelis_jax.programs import STEPS
    from pixelis_jax.types import UserError

    if unknown:
        raise UserError(f"argument {unknown[0]!r} is unknown; see --help")
    if config.job not in STEPS:
        raise UserError(f"only configs/rft.py and configs/sft.py can be planned for, not the job {config.job!r}")


def _no_fit(program: "Program", memory: float) -> str:
    """By how much a program is too large, in words."""
    needed, usable = program.total / 2**30, memory * RESERVE
    least = "at least " if program.is_least else ""
    beyond = f", {least}{needed - usable:.2f} GiB too much" if needed > usable else ": the compiler refuses it"
    had = f"of {memory:g} GiB programs can have {usable:.4g}"
    return f"does not fit: {program.name} needs {least}{needed:.2f} GiB a device, and {had}{beyond}"


def _other_mesh(config: "ConfigDict", mesh: "Mesh", program: str, memory: float) -> str:
    """The nearest mesh of as many devices in which all programs fit, in words; `program` is the one that does not."""
    from pixelis_jax import parallel

    devices = list(mesh.devices.flat)
    smallest: tuple[float, str] | None = None
    for shape in parallel.neighbours(mesh):
        other = parallel.make_mesh(shape, devices)
        needed, fits = _needed(config, other, program, memory)
        if fits:
            return f"the nearest mesh that fits: {_words(other)}, {needed:.2f} GiB a device"
        smallest = min(smallest or (needed, _words(other)), (needed, _words(other)))
    best = f"; {smallest[1]} comes nearest with {smallest[0]:.2f} GiB" if smallest else ""
    return (
        f"no mesh of {len(devices)} device(s) fits{best}; take more devices, raise optimizer.micro_batches, or lower"
        " sampling.context_tokens, or the rows: rollout.prompts, rollout.group_size, data.batch_tokens, eval.batch"
    )


def _needed(config: "ConfigDict", mesh: "Mesh", program: str, memory: float) -> tuple[float, bool]:
    """(GiB a device of the largest program on a mesh, whether all fit); `program` is tried first, and up to a misfit.

    Where the arguments alone are too large, nothing is compiled.
    """
    from pixelis_jax import programs

    largest, usable = 0.0, memory * RESERVE * 2**30
    for source in sorted(programs.sources(config, mesh), key=lambda source: source.name != program):
        if source.arguments > usable:
            return source.arguments / 2**30, False
        done = programs.compile_ahead(source)
        largest = max(largest, done.total / 2**30)
        if not done.fits(usable):
            return largest, False
    return largest, True


def _words(mesh: "Mesh") -> str:
    return ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items())


def _line(p: "Program") -> str:
    sizes = {"arguments": p.arguments, "of which KV cache": p.cache, "outputs": p.outputs, "temporaries": p.temporaries}
    parts = (f"{name} {size / 2**30:.2f}" for name, size in sizes.items() if p.cache or "cache" not in name)
    if p.refused:
        told = "more than there is" if p.is_least else f"{p.total / 2**30:.2f} GiB"
        return f"  {p.name}: the compiler refuses it: {told} (arguments {p.arguments / 2**30:.2f})"
    moved = ", ".join(f"{count} {kind}" for kind, count in sorted(p.collectives.items())) or "no collectives"
    return f"  {p.name}: {p.total / 2**30:.2f} GiB ({', '.join(parts)}), {p.flops / 1e12:.2f} TFLOP, {moved}"


if __name__ == "__main__":
    run_cli(main, memory_remedy=HOST_REMEDY)
