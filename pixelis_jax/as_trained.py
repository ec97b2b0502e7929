"""What a config leaves open is taken from what it starts from: an adapter is used as it was trained.

Tools, pixel budgets, token limits, precision, the base model and the adapter's shape are open in a config where they
have the value that `config.OPEN` gives. `resolve` fills them in once, before a job looks at its config: from the run or
folder of `init_from`, else from the model's own `pixelis.json`, else from `FALLBACK`. What the config sets itself wins,
and is said where it differs from the training.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from pixelis_jax import adapters
from pixelis_jax.config import OPEN, flatten, is_open, replaced
from pixelis_jax.models import policy, shapes
from pixelis_jax.models.lora import LoraConfig
from pixelis_jax.types import UserError

# What is taken where nothing is recorded: budgets that a general checkpoint can work with.
FALLBACK: dict[str, Any] = {
    "model.dtype": "float32",
    "model.quantize": "none",
    "image.min_pixels": 56 * 56,
    "image.max_pixels": 448 * 448,
    "image.crop_min_pixels": 56 * 56,
    "image.crop_max_pixels": 448 * 448,
    "image.coordinates": "",
    "tools.names": ("ZOOM_IN",),
    "sampling.temperature": 1.0,
    "sampling.max_new_tokens": 256,
    "sampling.context_tokens": 2048,
    "sampling.max_turns": 4,
    "lora.rank": 8,
    "lora.alpha": 16.0,
    "lora.targets": LoraConfig().targets,
}
MODELS = {"sft": "pixelis-tiny-tools"}  # the base of a job that names none; others: pixelis-tiny


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A locked config without open fields, and what was decided, in lines for the user."""

    config: ConfigDict
    notes: tuple[str, ...]


def resolve(config: ConfigDict) -> Resolved:
    """Fills in what a config leaves open. Only small JSON files are read. Raises UserError for a bad `init_from`."""
    given = flatten(config)
    if "model.name" not in given:
        return Resolved(config, ())  # pretraining makes its model
    recorded = adapters.recorded(Path(config.init_from)) if config.init_from else None
    name = _base(config, recorded)
    known, source = _known(name, recorded, config.init_from)
    values: dict[str, Any] = {"model.name": name}
    taken, assumed, otherwise = [], [], []
    for field in FALLBACK:
        if not is_open(field, given[field]):
            if field in known and known[field] != given[field]:
                otherwise.append(f"{field} {given[field]!r} ({known[field]!r} there)")
        elif field in known:
            values[field] = known[field]
            taken.append(field)
        else:
            values[field] = FALLBACK[field]
            assumed.append(field)
    if "lora.rank" in taken:
        values["lora.rslora"] = known.get("lora.rslora", False) or given["lora.rslora"]
    resolved = replaced(config, values)
    return Resolved(resolved, tuple(_notes(resolved, source, taken, assumed, otherwise)))


def _base(config: ConfigDict, recorded: "adapters.Recorded | None") -> str:
    """The base model's name: the config's own, that of the adapter, or the job's default."""
    own = str(config.model.name)
    if own and not (recorded and recorded.base and own in shapes.SHAPES):  # a shape has no weights to go with
        return own
    if recorded:
        if not recorded.base:
            raise UserError(f"{config.init_from} names no base model; give it with --config.model.name=DIR")
        return recorded.base
    return MODELS.get(config.job, "pixelis-tiny")


def _known(name: str, recorded: "adapters.Recorded | None", init_from: str) -> tuple[dict[str, Any], str]:
    """(fields that are recorded, where): by the adapter, else by the base model."""
    shape = {f"lora.{field}": value for field, value in (recorded.shape(name) if recorded else {}).items()}
    if recorded is not None and recorded.settings:
        return _typed(flatten(recorded.settings) | shape), init_from
    own = adapters.settings_of(policy.resolve(name)) if name not in shapes.SHAPES else {}
    return _typed(flatten({group: fields for group, fields in own.items() if group != "lora"}) | shape), name


def _typed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that may be open, and `lora.rslora`, in the types of a config."""
    known = {field: tuple(value) if isinstance(value, list) else value for field, value in fields.items()}
    if "model.quantize" in known:
        known["model.quantize"] = known["model.quantize"] or "none"
    return {field: value for field, value in known.items() if field in OPEN or field == "lora.rslora"}


def _notes(config: ConfigDict, source: str, taken: list[str], assumed: list[str], otherwise: list[str]) -> list[str]:
    """What was taken from where, in at most three lines."""
    assumed = [field for field in assumed if not field.startswith("lora.") and field != "image.coordinates"]
    lines = []
    if any(not field.startswith("lora.") for field in taken):
        lines.append(f"as {source} was trained: {_words(config, taken)}")
    if assumed:
        lines.append(f"{source} does not record how it was used, so these are defaults: {_words(config, assumed)}")
    if otherwise:
        lines.append(f"set by this config, and otherwise than {source} was trained: {', '.join(otherwise)}")
    return lines


def _words(config: ConfigDict, fields: list[str]) -> str:
    """Some fields in one line, in a reader's words."""
    image, sampling = config.image, config.sampling
    words = {
        "tools.names": f"tools {', '.join(map(str, config.tools.names))}",
        "image.max_pixels": f"pictures up to {image.max_pixels} px",
        "image.crop_max_pixels": f"those of tools up to {image.crop_max_pixels} px",
        "sampling.max_new_tokens": f"{sampling.max_new_tokens} tokens a turn",
        "sampling.context_tokens": f"{sampling.context_tokens} a dialogue",
        "sampling.max_turns": f"{sampling.max_turns} turns",
        "model.dtype": config.model.dtype,
        "model.quantize": "" if config.model.quantize == "none" else config.model.quantize,
    }
    return "; ".join(text for field, text in words.items() if field in fields and text)
