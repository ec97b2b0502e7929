"""What a checkpoint asks of images: its `preprocessor_config.json`, every field honoured or refused.

A directory that `transformers` 5 saved may keep the same fields in `processor_config.json`, under `image_processor`;
as in the reference, these come first.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import logging

from pixelis_jax.models.config import VisionBase, group, read_object, refuse_unknown, wrong_kind
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.types import UserError

FILE, NESTED = "preprocessor_config.json", "processor_config.json"
# All do the arithmetic of models/image_processor.py; the "Fast" one is Qwen3-VL's.
_TYPES = tuple(f"Qwen2{name}ImageProcessor{kind}" for name in ("VL", "_5_VL") for kind in ("", "Fast", "Pil"))
_STEPS = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_center_crop": False,
    "do_pad": False,
    "resample": 3,  # bicubic
    "rescale_factor": 1 / 255,
    "data_format": "channels_first",
}
STATISTICS = ("image_mean", "image_std")
_BOUNDS = ("min_pixels", "max_pixels")
# Fields that change nothing: `default_to_square` is for sizes of one number, a crop's size for crops.
_IGNORED = frozenset(
    """
    processor_class _processor_class default_to_square crop_size pad_size feature_extractor_type _valid_processor_keys
    device disable_grouping input_data_format return_tensors auto_map transformers_version name_or_path _name_or_path
    unsloth_fixed unsloth_version _attn_implementation_autoset _commit_hash
    """.split()
)


def as_preprocessed(vision: VisionBase, directory: Path) -> VisionBase:
    """`vision` with the channel statistics of the checkpoint in `directory`, if it says any.

    Raises UserError, one line with file and field, where the checkpoint asks for what this program does not do.
    """
    file, raw = _read(directory)
    steps = _STEPS | {
        "patch_size": vision.patch_size,
        "merge_size": vision.spatial_merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
    }
    refuse_unknown(raw, {*steps, *STATISTICS, *_BOUNDS, *_IGNORED, "size", "image_processor_type"}, str(file))
    for name, done in steps.items():
        if raw.get(name, done) != done:
            raise UserError(f"{file}: {name} is {raw[name]!r:.60}, this program can only do {done!r}")
    kind = raw.get("image_processor_type", _TYPES[0])
    if kind not in _TYPES:
        raise UserError(f"{file}: image_processor_type {kind!r:.60} is not supported; expected {_TYPES[0]!r}")
    statistics: dict[str, Any] = {}
    for name in STATISTICS:
        value = raw.get(name, list(getattr(vision, name)))
        good = isinstance(value, list) and len(value) == vision.in_channels
        if not good or any(wrong_kind(number, 1.0) for number in value):
            raise UserError(f"{file}: {name} is {value!r:.60} and must be {vision.in_channels} numbers above 0")
        statistics[name] = tuple(map(float, value))
    return dataclasses.replace(vision, **statistics)


def refuse_none(directory: Path) -> None:
    """UserError where a checkpoint does not say how its images are prepared."""
    file, _ = _read(directory)
    if not file.is_file():
        raise UserError(f"{file}: not there; copy it from the checkpoint")


def read_budget(directory: Path) -> PixelBudget:
    """Pixel bounds of a model directory. UserError where there are none.

    As in the reference, `min_pixels` and `max_pixels` come before those in `size`; a warning says where they differ.
    """
    file, raw = _read(directory)
    size = raw.get("size", {})
    if not isinstance(size, dict):
        raise UserError(f"{file}: size is {size!r:.60}; expected shortest_edge and longest_edge, or set config.image")
    refuse_unknown(_said(size), {"shortest_edge", "longest_edge", *_BOUNDS}, f"{file}: size")
    low, high = (
        _bound(file, raw, size, names) for names in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    )
    if low is None or high is None:
        raise UserError(f"{file}: no pixel bounds; set config.image.min_pixels and max_pixels")
    if type(low) is not int or type(high) is not int or not 0 < low <= high:
        raise UserError(f"{file}: pixel bounds {low!r:.40} and {high!r:.40} must be whole numbers, the lower one first")
    return PixelBudget(low, high)


def _bound(file: Path, raw: Mapping[str, Any], size: Mapping[str, Any], names: tuple[str, str]) -> Any:
    """The first that is given of a bound's places: the top level, and in `size` under its newer and its older name."""
    older, newer = names
    found = [value for value in (raw.get(older), size.get(newer), size.get(older)) if value is not None]
    if any(value != found[0] for value in found):
        logging.warning("%s: %s is given as %s; taken is the first, as in transformers", file, older, found)
    return found[0] if found else None


def _read(directory: Path) -> tuple[Path, dict[str, Any]]:
    """(file that says how images are prepared, its fields), none where there is no such file."""
    nested = directory / NESTED
    raw = read_object(nested) if nested.is_file() else {}
    if raw.get("image_processor") is not None:
        return nested, _said(group(raw, "image_processor", nested))
    file = directory / FILE
    return file, _said(read_object(file)) if file.is_file() else {}


def _said(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that are null: those have their defaults."""
    return {name: value for name, value in raw.items() if value is not None}
