"""Makes, scores and imports CoTA data (Chain-of-Thought-Action).

python -m pixelis_jax.cota generate --num_samples=1000 --out=data/cota
python -m pixelis_jax.cota score --input=data/cota --out=data/cota_scored
python -m pixelis_jax.cota import --input=data/theirs --out=data/mine

Each command says more with --help.
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import NoReturn

from pixelis_jax.cli import USER_ERROR, run_cli

PROGRAM = "pixelis_jax.cota"
# Name -> (module with HELP, add_arguments and run; what it does). The module is imported for its own command only.
COMMANDS = {
    "generate": ("pixelis_jax.cota.generate", "make samples of all seven task types with the real tools"),
    "score": ("pixelis_jax.cota.score", "score difficulty and split into simple, medium and hard, with a report"),
    "import": ("pixelis_jax.cota.import_", "convert data in other formats"),
}


class _Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        told = " ".join(message.split())
        self.exit(USER_ERROR, f"{self.prog.removeprefix('python -m ')}: {told}; --help shows what there is\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the first argument names; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        _refuse(arguments)
    module_name, _ = COMMANDS[name]
    parser = _parser(f" {name}")
    if importlib.util.find_spec(module_name) is None:
        parser.error("this installation has no such command")
    module = importlib.import_module(module_name)
    parser.description = f"{module.HELP[0].upper()}{module.HELP[1:]}."
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments[1:])))


def _refuse(arguments: Sequence[str]) -> NoReturn:
    """--help, or what is wrong with the first argument."""
    parser = _parser()
    summary, _, rest = (__doc__ or "").partition("\n\n")
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {about}" for name, (_, about) in COMMANDS.items())
    parser.description, parser.epilog = f"{summary}\n\ncommands:\n{commands}", rest
    parser.add_argument("command", help=argparse.SUPPRESS, nargs="?")
    parser.usage = f"python -m {PROGRAM} {{{','.join(COMMANDS)}}} --OPTION=VALUE ..."
    if arguments and not arguments[0].startswith("-"):
        parser.error(f"there is no command {arguments[0][:40]!r}; commands are {', '.join(COMMANDS)}")
    parser.parse_args(arguments)
    parser.error(f"name the command first: {', '.join(COMMANDS)}")


def _parser(of: str = "") -> _Parser:
    return _Parser(
        prog=f"python -m {PROGRAM}{of}", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )


if __name__ == "__main__":
    run_cli(main, memory_remedy="use fewer --workers, or give the input in several parts")
