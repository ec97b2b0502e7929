"""A trained adapter, or base and adapter merged, as a Hugging Face directory.

python -m pixelis_jax.export --workdir=runs/rft --to=peft --out=my_adapter
python -m pixelis_jax.export --workdir=runs/rft --to=merged --out=my_model
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelis_jax.cli import python, run_cli
from pixelis_jax.metrics.files import atomic_write

if TYPE_CHECKING:
    from pixelis_jax.adapters import Trained

LAYOUTS = ("peft", "merged")
DTYPES = ("float32", "bfloat16", "float16")
_HIDDEN = ".export."  # how the name of a folder begins until it is whole
_NOT_COPIED = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pth", ".gguf", ".md")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Command line, see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m pixelis_jax.export", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workdir", type=Path, required=True, help="folder of a training run, or a PEFT directory")
    parser.add_argument("--to", choices=LAYOUTS, required=True, help="peft: the adapter alone; merged: the whole model")
    parser.add_argument("--out", type=Path, required=True, help="folder to write, new or empty")
    parser.add_argument(
        "--step", type=int, help="checkpoint to take (default: the result of a finished run, else the last)"
    )
    parser.add_argument("--model", help="the base model's name or folder, where it is not where the run found it")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (default: peft float32, merged as the base's)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads, then writes beside `--out` and renames, so that `--out` is never half-written."""
    args = parse(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # copying needs no accelerator, and a run may hold its memory
    from pixelis_jax import adapters  # here, since it loads jax, which --help does without

    out = target_of(args.out)
    trained = adapters.read(args.workdir, step=args.step, base_name=args.model, moved=True)
    with replacing(out, told=args.out) as directory:
        {"peft": write_peft, "merged": write_merged}[args.to](directory, trained, args.dtype)
        adapters.write_settings(directory, trained.settings, origin=trained.origin, base=trained.base_name)
    what = "adapter for" if args.to == "peft" else "adapter merged into"
    print(f"{args.out}: {what} {trained.base_name}, {trained.origin}")
    if args.to == "peft":
        print(f"its base: {base_in_python(trained.base_name, args.out)}")
    flag = f"--model={trained.base_name} --adapter={args.out}" if args.to == "peft" else f"--model={args.out}"
    print(f'next: {python()} -m pixelis_jax.predict {flag} --image=FILE --question="..."')


def base_in_python(name: str, adapter: Path) -> str:
    """Where a base model lies, and the expression that loads it and the adapter: PEFT finds no bundled name."""
    from pixelis_jax.models import families, policy

    base = policy.resolve(name).resolve()
    text_only = families.from_json(base / "config.json").vision is None
    auto = "AutoModelForCausalLM" if text_only else "AutoModelForImageTextToText"
    return f"{base}; with PEFT: PeftModel.from_pretrained({auto}.from_pretrained({str(base)!r}), {str(adapter)!r})"


def target_of(out: Path) -> Path:
    """The folder that `--out` names, links followed. Raises UserError unless it is new or empty."""
    from pixelis_jax.types import UserError

    target = Path(os.path.realpath(os.path.expanduser(out)))
    if target == Path.cwd():
        raise UserError(f"--out={out} is the current folder; name a new one, such as --out=my_adapter")
    with _explained(out):
        if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
            raise UserError(f"--out={out} exists and is not an empty folder; name another one")
        above = next(folder for folder in target.parents if folder.exists())
        if not above.is_dir():
            raise UserError(f"--out={out}: {above} is a file, not a folder; name another place")
    return target


@contextlib.contextmanager
def replacing(out: Path, *, told: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its place at the end. `told` is what the user called it."""
    with contextlib.ExitStack() as stack:
        with _explained(told):
            out.parent.mkdir(parents=True, exist_ok=True)
            for left in sorted(out.parent.glob(f"{_HIDDEN}*")):
                print(f"note: {left} is of an export that was killed or still runs; remove it if none does")
            parent = stack.enter_context(tempfile.TemporaryDirectory(dir=out.parent, prefix=_HIDDEN))
        directory = Path(parent) / "made"
        directory.mkdir()
        yield directory
        with _explained(told):
            directory.rename(out)


@contextlib.contextmanager
def _explained(out: Path) -> Iterator[None]:
    """Turns what is wrong with the place into a UserError."""
    from pixelis_jax.types import UserError

    try:
        yield
    except OSError as error:
        raise UserError(f"--out={out} can't be written ({error.strerror}); name another place") from error


def write_peft(directory: Path, trained: "Trained", dtype: str | None) -> None:
    """The adapter in PEFT's layout, f32 unless told otherwise."""
    from pixelis_jax.models import families, peft, policy

    config = families.from_json(policy.resolve(trained.base_name) / "config.json")
    peft.save(
        directory,
        trained.adapter,
        lora=trained.lora,
        base_name=trained.base_name,
        text_only=config.vision is None,
        dtype=_dtype(dtype),
    )


def write_merged(directory: Path, trained: "Trained", dtype: str | None) -> None:
    """The base's directory with `W + scale A B` in place of each adapted `W`, added in f32 and rounded once."""
    import jax
    import jax.numpy as jnp

    from pixelis_jax.models import families, lora, policy, weights
    from pixelis_jax.models.vlm import VLM

    base = policy.resolve(trained.base_name)
    config = families.from_json(base / "config.json")
    abstract = policy.abstract_params(VLM(config))
    stored = _stored_dtype(base)
    wanted = _dtype(dtype) or stored
    wide = jnp.promote_types(stored, wanted)  # so that an unadapted weight is never rounded on the way
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, wide), abstract)
    merged = lora.merge(weights.load(base, config, abstract=like), trained.adapter, trained.lora.scale)
    for file in base.iterdir():
        if file.is_file() and not file.name.endswith(_NOT_COPIED) and not file.name.startswith("."):
            shutil.copyfile(file, directory / file.name)
    _name_dtype(directory / "config.json", jnp.dtype(wanted).name)
    weights.save(directory, merged, config=config, dtype=wanted)


def _dtype(name: str | None) -> Any:
    import jax.numpy as jnp

    return None if name is None else jnp.dtype(name)


def _stored_dtype(directory: Path) -> Any:
    """The widest type among a checkpoint's tensors; headers are read only."""
    import jax.numpy as jnp
    from safetensors import SafetensorError, safe_open

    from pixelis_jax.types import UserError

    names = {"F32": jnp.float32, "BF16": jnp.bfloat16, "F16": jnp.float16}
    kinds = set()
    for file in directory.glob("*.safetensors"):
        try:
            with safe_open(file, framework="flax") as handle:
                kinds |= {handle.get_slice(key).get_dtype() for key in handle.keys()}  # noqa: SIM118  no mapping
        except SafetensorError as error:
            raise UserError(f"{file}: truncated or not safetensors ({error}); copy it again") from None
    return jnp.dtype(jnp.result_type(*(names.get(kind, jnp.float32) for kind in kinds or {"F32"})))


def _name_dtype(file: Path, name: str) -> None:
    """`transformers` loads weights in the precision that config.json names."""
    config = json.loads(file.read_text())
    config.pop("torch_dtype", None)
    atomic_write(file, json.dumps(config | {"dtype": name}, indent=2) + "\n")


if __name__ == "__main__":
    run_cli(main, memory_remedy="use a machine with more memory, or --to=peft and merge with PEFT elsewhere")
