"""`python -m pixelis_jax.main --config=configs/rft.py [--workdir=DIR] [--config.a.b=v]`: every job.

The same command on the same workdir resumes. The default workdir is `runs/<config name>`.
"""

import sys
from pathlib import Path

from pixelis_jax.cli import run_cli
from pixelis_jax.types import UserError

USAGE = """usage: python -m pixelis_jax.main --config=configs/NAME.py[:VARIANT] [--workdir=DIR]
                                  [--config.FIELD=VALUE ...]

jobs: configs/rft.py (GRPO with tools, the main one), sft.py, pretrain.py, eval.py; `:smoke` is a seconds-long version
of each. Fields are listed, each with a comment, in the config file. The same command on the same workdir resumes.

  --workdir=DIR      where everything is written (default: runs/<config name>)
  --help             this text
"""


def main() -> int:
    """Parse, set up the compile cache, run the job."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(USAGE, end="")
        return 0
    from pixelis_jax import config as configs

    config, rest = configs.from_argv(sys.argv[1:])
    workdir = None
    for argument in rest:
        name, _, value = argument.partition("=")
        if name != "--workdir" or not value:
            raise UserError(f"argument {argument!r} is unknown; see --help")
        workdir = Path(value)
    workdir = workdir or default_workdir(sys.argv[1:])
    from pixelis_jax.workdir import Workdir

    if Workdir(workdir).finished(config):
        print(f"{workdir}: this job is finished (summary.json); name another --workdir for a new one")
        return 0
    set_up_jax()
    from pixelis_jax import train

    train.run(config, workdir)
    return 0


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
