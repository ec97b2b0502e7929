"""`python -m pixelis_jax.main --config=configs/rft.py [--workdir=DIR] [--config.a.b=v]`: every job.

The same command on the same workdir resumes. The default workdir is `runs/<config name>`. On several hosts the command
is started once a process, with `--distributed` where a cluster tells each its place, else with the three flags that
`jax.distributed.initialize` takes (hosts.py).
"""

import sys
from pathlib import Path

from pixelis_jax.cli import run_cli
from pixelis_jax.types import UserError

USAGE = """usage: python -m pixelis_jax.main --config=configs/NAME.py[:VARIANT] [--workdir=DIR]
                                  [--config.FIELD=VALUE ...] [--distributed]

jobs: configs/rft.py (GRPO with tools, the main one), sft.py, habit.py, pretrain.py, eval.py; `:smoke` is a short
version of each. Fields are listed, each with a comment, in the config file. The same command on the same workdir
resumes.

  --workdir=DIR      where everything is written (default: runs/<config name>)
  --distributed      this is one of the processes of a SLURM, Open MPI, Kubernetes or TPU pod job
  --coordinator_address=HOST:PORT --num_processes=N --process_id=I
                     the same, without such a cluster: where process 0 listens, how many there are, which one this is
  --help             this text
"""
# Flags of their own, and whether each is given a value.
FLAGS = {"workdir": True, "distributed": False, "coordinator_address": True, "num_processes": True, "process_id": True}


def main() -> int:
    """Parse, set up the compile cache, run the job."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(USAGE, end="")
        return 0
    from pixelis_jax import config as configs

    config, rest = configs.from_argv(sys.argv[1:])
    flags = {}
    for argument in rest:
        name, _, value = argument.partition("=")
        if bool(value) is not FLAGS.get(name.removeprefix("--")) or not name.startswith("--"):
            raise UserError(f"argument {argument!r} is unknown; see --help")
        flags[name.removeprefix("--")] = value
    workdir = Path(flags.pop("workdir", "") or default_workdir(sys.argv[1:]))
    from pixelis_jax import hosts
    from pixelis_jax.workdir import FINISHED, Workdir

    folder = Workdir(workdir)
    if folder.finished(config):
        print(f"{workdir}: this job is finished (summary.json); name another --workdir for a new one")
        for source in filter(None, (config.get("init_from"), config.get("data", {}).get("path"))):
            if folder.ended_before(Path(source)):
                print(f"note: {source} was written to since; for what is there now name another --workdir")
        if config.get("checkpoint", {}).get("restore_step", -1) >= 0:
            print(f"checkpoint.restore_step is not looked at; remove {workdir / FINISHED} to go back to that step")
        return 0
    if flags:
        hosts.initialize(flags.get("coordinator_address"), _count(flags, "num_processes"), _count(flags, "process_id"))
    set_up_jax()
    from pixelis_jax import train

    def job() -> None:
        train.run(config, workdir)

    hosts.run(job)
    return 0


def _count(flags: dict[str, str], name: str) -> int | None:
    """A flag's value as a number; None where it is not given."""
    value = flags.get(name)
    if value is not None and not value.isdecimal():
        raise UserError(f"--{name}={value}: give a whole number from 0")
    return None if value is None else int(value)


def default_workdir(arguments: list[str]) -> Path:
    """`runs/<config name>[_variant]`."""
    path = ""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name == "--config":
            path = value if equals else following
    file, _, variant = path.partition(":")
    return Path("runs") / (Path(file).stem + (f"_{variant}" if variant else ""))


def set_up_jax() -> None:
    """The compile cache, on by default: JAX_COMPILATION_CACHE_DIR names another place."""
    import os

    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if not home.startswith("~"):  # a user without a home compiles each time
            jax.config.update("jax_compilation_cache_dir", str(Path(home) / "pixelis_jax" / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # the second is what a missing CUDA plugin gives
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise UserError(
            f"JAX finds no device (JAX_PLATFORMS={asked!r}: {str(error).strip() or type(error).__name__});"
            " install the extra for it (README, GPU and TPU) or set JAX_PLATFORMS=cpu"
        ) from error


if __name__ == "__main__":
    run_cli(main)
