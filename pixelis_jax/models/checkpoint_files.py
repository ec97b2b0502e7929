"""The files of a checkpoint folder: which hold its weights, and what is said of those that can't be read."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pixelis_jax.models.config import read_object
from pixelis_jax.types import UserError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16")  # stored types that are read
_LFS = b"version https://git-lfs"  # how a pointer begins that Git leaves in place of a large file
# Ends of the names of quantized checkpoints, one or more behind the name of the model.
_QUANTIZED_NAME = re.compile(
    r"([-_.]((unsloth|bnb|awq|gptq|eetq|hqq|exl2|fp8|fp4|nf4|nvfp4|int4|int8|[48]bits?|dynamic|quantized(\.w\d+a\d+)?)"
    r"|w\d+a\d+|(awq|gptq)[-_]?int[48]))+$",
    re.IGNORECASE,
)
# Ends of the keys that quantized checkpoints have beside their weights.
_QUANTIZED_KEYS = re.compile(
    r".*\.(qweight|qzeros|scales|g_idx|weight_packed|weight_shape|weight_scale(_inv)?|input_scale|SCB|weight_format"
    r"|weight\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\..+))"
)
QUANTIZED = "weights in fewer bits, which this program does not read"


def full_name(name: str) -> str:
    """A model's name without what says that its weights are quantized; the same name where nothing does."""
    head, slash, last = name.rpartition("/")
    return head + slash + _QUANTIZED_NAME.sub("", last)


def refuse_no_model(path: Path) -> None:
    """UserError where no `config.json` is at `path` and its folder is known to be something else."""
    folder = path.parent
    if path.is_file() or not folder.is_dir():
        return
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{folder}: no {path.name} there: it is an adapter; give its base model in its place, and the adapter as"
            " --config.init_from (predict: --adapter)"
        )
    inside = [below.name for below in folder.iterdir() if (below / path.name).is_file()]
    if inside:
        last = folder / max(inside, key=number_in)
        raise UserError(f"{folder}: no {path.name} there, but in {last}; give that folder")


def number_in(name: str) -> tuple[int, str]:
    """Sort key: `checkpoint-100` comes after `checkpoint-20`."""
    digits = "".join(filter(str.isdecimal, name))
    return int(digits or -1), name


def refuse_quantized(raw: Mapping[str, Any], path: Path) -> None:
    """UserError where the `config.json` at `path` belongs to quantized weights."""
    for where in (raw, raw.get("text_config")):
        found = (
            (where.get("quantization_config") or where.get("compression_config")) if isinstance(where, dict) else None
        )
        if found:
            method = found.get("quant_method") if isinstance(found, dict) else found
            raise UserError(f"{path}: quantization_config ({method!s:.40}) is of {QUANTIZED}; {_in_full(path.parent)}")


def _in_full(directory: Path) -> str:
    """The remedy for quantized weights."""
    name = full_name(directory.name)
    which = f", such as {name}" if name != directory.name else ""
    return f"take the model in full{which}; --config.model.quantize=nf4 keeps it in 4 bits here"


def stored_keys(directory: Path) -> dict[str, Path]:
    """Key -> file of every tensor in a folder; none where its weights are missing or damaged, which `files` says."""
    try:
        names, placed = shards(directory)
        if placed:
            return {key: directory / name for key, name in placed.items()}
        with safe_open(directory / names[0], framework="numpy") as handle:
            return {key: directory / names[0] for key in handle.keys()}  # noqa: SIM118  safe_open is no mapping
    except (UserError, SafetensorError, OSError):
        return {}


def shards(directory: Path) -> tuple[list[str], dict[str, str]]:
    """(names of the weight files, key -> name by the index); UserError where one of them is not there."""
    index, names = directory / INDEX, [WEIGHTS]
    placed: dict[str, str] = {}
    if index.exists():
        found = read_object(index).get("weight_map")
        if not isinstance(found, dict) or not all(isinstance(n, str) and Path(n).name == n for n in found.values()):
            raise UserError(f"{index}: weight_map must name a file beside it for each key; copy it again")
        names, placed = sorted(set(found.values())), found
        if (directory / WEIGHTS).exists() and WEIGHTS not in names:
            raise UserError(f"{directory}: holds {WEIGHTS} and the shards of {INDEX}; remove what is not to be read")
    lost = [name for name in names if not (directory / name).is_file()]
    if not lost:
        return names, placed
    if not placed:
        raise UserError(f"{directory / WEIGHTS}: not there; {_instead(directory)}")
    more = f" ({len(lost)} of {len(names)} shards are missing)" if len(lost) > 1 else ""
    raise UserError(f"{directory / lost[0]}: not there, and {INDEX} names it{more}; copy all shards")


def _instead(directory: Path) -> str:
    """What a folder without safetensors and index holds, and what to do."""
    there = sorted(file.name for file in directory.glob("*") if file.is_file())
    if any(re.fullmatch(r"model-\d+-of-\d+\.safetensors", name) for name in there):
        return f"the shards beside it need {INDEX}; copy it from the checkpoint"
    if any(re.fullmatch(r"pytorch_model.*\.bin(\.index\.json)?", name) for name in there):
        return (
            'pytorch_model.bin beside it is not read; convert it with torch and transformers: python -c "from'
            " transformers import AutoConfig as C, AutoModelForCausalLM as T, AutoModelForImageTextToText as I; d ="
            f" '{directory}'; m = I if hasattr(C.from_pretrained(d), 'vision_config') else T;"
            ' m.from_pretrained(d).save_pretrained(d)"'
        )
    for other in ("consolidated.safetensors", "adapter_model.safetensors"):
        if other in there:
            what = "an adapter: name its base model" if "adapter" in other else "of another layout: take the checkpoint"
            return f"{other} beside it is {what}{'' if 'adapter' in other else ' in the layout of Hugging Face'}"
    if any(name.endswith(".gguf") for name in there):
        return "a .gguf file beside it is not read; take the checkpoint in the layout of Hugging Face"
    return f"the directory must hold {WEIGHTS} or all shards named by {INDEX}"


def unreadable(file: Path, error: Exception) -> UserError:
    """What to say of a safetensors file that the library does not open."""
    refuse_pointer(file)
    return UserError(f"{file}: truncated or not safetensors ({error}); copy it again")


def refuse_pointer(file: Path) -> None:
    """UserError where a file is what Git leaves in place of a large one that was not fetched."""
    with file.open("rb") as handle:
        if handle.read(len(_LFS)) == _LFS:
            raise UserError(
                f"{file}: is a pointer of Git LFS and not the file itself; run `git lfs pull` in {file.parent}"
            )


def refuse_stored(file: Path, key: str, kind: str) -> None:
    """UserError where a tensor, by its key or its type, is one of quantized weights or of no type that is read."""
    if _QUANTIZED_KEYS.fullmatch(key):
        raise UserError(f"{file}: key {key!r} is of {QUANTIZED}; {_in_full(file.parent)}")
    if kind.startswith("F8") or (kind in ("U8", "I8", "I32") and key.endswith("proj.weight")):
        raise UserError(f"{file}: key {key!r} is of type {kind}: {QUANTIZED}; {_in_full(file.parent)}")
    if kind not in FLOATS:
        raise UserError(f"{file}: key {key!r} is of type {kind}; supported are {', '.join(FLOATS)}")
