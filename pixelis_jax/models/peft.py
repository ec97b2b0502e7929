"""LoRA adapters in the layout of Hugging Face PEFT: `adapter_config.json` and `adapter_model.safetensors`.

PEFT stores `lora_A` as [rank, in] and `lora_B` as [out, rank] under `base_model.model.` and the module's name in
`transformers`; ours are `a` [in, rank] and `b` [rank, out], so both are transposed. Nothing is rescaled: PEFT
multiplies by lora_alpha / r, or by lora_alpha / sqrt(r) with `use_rslora`, as we do.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import traverse_util
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors

from pixelis_jax.metrics.files import atomic_write
from pixelis_jax.models import checkpoint_files, weights
from pixelis_jax.models.config import read_object
from pixelis_jax.models.lora import DECODER_TARGETS, LoraConfig
from pixelis_jax.types import UserError

PyTree = Any
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_FACTORS = {"lora_A": "a", "lora_B": "b"}
# A key: the module, the factor, and perhaps the adapter's name, which PEFT itself leaves out.
_KEY = re.compile(r"(.+)\.(lora_[AB])(?:\.([^.]+))?\.weight")
# What PEFT and trainers put before a module's name, once or more.
_WRAPPER = re.compile(r"^(base_model\.model|base_model|module|_orig_mod|_fsdp_wrapped_module|_forward_module)\.")
_MERGE = "merge it into its base with PEFT (merge_and_unload) and give the merged model as --config.model.name"
CONVOLUTION = "visual/patch_embed"  # PEFT gives convolutions factors of other shapes

# Fields of PEFT's LoraConfig that do not change what a finished adapter computes. Every other field must be off.
_WITHOUT_EFFECT = frozenset(
    """auto_mapping base_model_name_or_path inference_mode lora_dropout megatron_core peft_type peft_version
    qalora_group_size revision runtime_config task_type layers_pattern layers_to_transform exclude_modules
    target_modules r lora_alpha use_rslora bias init_lora_weights eva_config""".split()
)
_PLAIN_INITS = (True, False, "gaussian", "eva", "orthogonal")  # others change the base's weights too


def save(
    directory: Path,
    adapter: PyTree,
    *,
    lora: LoraConfig,
    base_name: str,
    text_only: bool = False,
    dtype: Any = None,
) -> None:
    """Write `adapter` so that `peft.PeftModel.from_pretrained` reads it onto the same base.

    `text_only` says that the base has no vision tower: `transformers` then names its layers otherwise. `dtype` None
    keeps f32, which `load` gives back bitwise. Layers are named in full: a short name such as `down_proj` would also
    match the vision tower. Raises UserError for an adapter of another rank than `lora.rank`, for one on the patch
    embedding, and on a full disk.
    """
    tensors, modules = {}, []
    parts = {ours: theirs for theirs, ours in _FACTORS.items()}
    for path, leaf in sorted(traverse_util.flatten_dict(adapter).items()):
        layer, factor = "/".join(path[:-1]), path[-1]
        if layer == CONVOLUTION:
            raise UserError(f"{CONVOLUTION} is a convolution in PEFT; leave it out of lora.targets")
        if leaf.shape[1 if factor == "a" else 0] != lora.rank:
            raise UserError(f"lora.rank is {lora.rank}, but {layer}/{factor} has shape {list(leaf.shape)}")
        name = _names(layer)[text_only]
        modules.append(name)
        value = np.asarray(leaf if dtype is None else leaf.astype(dtype)).T
        if dtype is not None and not bool(jnp.isfinite(value).all()):
            raise UserError(f"adapter of {name} does not fit into {jnp.dtype(dtype).name}; use bfloat16 or float32")
        tensors[f"{_PREFIX}{name}.{parts[factor]}.weight"] = np.ascontiguousarray(value)
    directory.mkdir(parents=True, exist_ok=True)
    atomic_write(directory / WEIGHTS, safetensors.save(tensors, metadata={"format": "pt"}))
    config = {
        "base_model_name_or_path": base_name,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        "lora_dropout": lora.dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": sorted(set(modules), key=_natural),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": lora.rslora,
    }
    atomic_write(directory / CONFIG, json.dumps(config, indent=2) + "\n")


def load(directory: Path, params: PyTree) -> tuple[PyTree, LoraConfig]:
    """(adapter, its LoraConfig) of a PEFT directory for the base `params` (arrays or `jax.ShapeDtypeStruct`).

    Leaves are f32. The config's `targets` select exactly the layers that the file holds. Raises UserError for a
    missing, truncated or foreign file, a kind of adapter that computes something else, a rank or a base that does not
    fit, target modules the base does not have, and keys that are missing or too many.
    """
    config = read_config(directory)
    kernels = {
        "/".join(path[:-1]): leaf.shape
        for path, leaf in traverse_util.flatten_dict(params).items()
        if path[-1] == "kernel" and "/".join(path[:-1]) != CONVOLUTION
    }
    rank, file = config["r"], directory / WEIGHTS
    found: dict[tuple[str, ...], Any] = {}
    names: set[str] = set()
    for key, read in _tensors(file):
        layer, factor, name = _place(key)
        if layer not in kernels:
            raise _misplaced(file, key, layer, kernels)
        names.add(name)
        if len(names) > 1:
            raise UserError(f"{file}: holds several adapters ({', '.join(sorted(names))}); save one of them alone")
        value = read()
        width, features = kernels[layer]
        wanted = (rank, width) if factor == "a" else (features, rank)
        if value.shape != wanted:
            own = value.shape[0 if factor == "a" else -1] if value.ndim == 2 else rank
            reason = f"{CONFIG} says rank {rank}" if own != rank else "it was made for another base model"
            raise UserError(f"{file}: key {key!r} has shape {list(value.shape)} in place of {list(wanted)}; {reason}")
        if not jnp.issubdtype(value.dtype, jnp.floating) or not bool(jnp.isfinite(value).all()):
            raise UserError(f"{file}: key {key!r} holds values that are no finite floats; copy it again")
        if (*layer.split("/"), factor) in found:
            raise UserError(f"{file}: key {key!r} stands twice, under two names; copy the file again")
        found[(*layer.split("/"), factor)] = jnp.asarray(value.T, jnp.float32)
    layers = {"/".join(path[:-1]) for path in found}
    selected = _without_frozen_vision(file, _selected(directory, config, kernels), layers)
    _check_complete(file, config, layers=selected, found=set(found))
    lora = LoraConfig(
        rank=rank,
        alpha=float(config["lora_alpha"]),
        targets=_patterns(layers, kernels),
        rslora=bool(config.get("use_rslora")),
        dropout=float(config.get("lora_dropout") or 0.0),
    )
    return traverse_util.unflatten_dict(found), lora


def _without_frozen_vision(file: Path, selected: set[str], layers: set[str]) -> set[str]:
    """The `selected` layers without those of the vision tower, where the file's `layers` are of the decoder only.

    Names such as `gate_proj` choose both. What PEFT would make for the others does nothing: B is zero.
    """
    unseen = {layer for layer in selected if layer.startswith("visual/")}
    if not unseen or not layers or any(layer.startswith("visual/") for layer in layers):
        return selected
    logging.warning(
        "%s: target_modules of %s also name %d layers of the vision tower, such as %s, and the file has none of them:"
        " it was trained on text only and is read so, as PEFT does",
        *(file, CONFIG, len(unseen), min(unseen, key=_natural)),
    )
    return selected - unseen


def read_config(directory: Path) -> dict[str, Any]:
    """`adapter_config.json` of a directory, refused where it asks for what a plain LoRA does not compute."""
    file = directory / CONFIG
    if not file.is_file():
        raise UserError(f"{file}: not there; give a directory that PEFT or pixelis_jax.export wrote")
    config = read_object(file)
    if config.get("peft_type") != "LORA":
        raise UserError(f"{file}: peft_type is {config.get('peft_type')!r:.40}; only 'LORA' can be read")
    for name in ("r", "lora_alpha", "target_modules"):
        if config.get(name) in (None, "", []):
            raise UserError(f"{file}: {name} is missing; copy the file again")
    if wrong := _wrong_kind(config):
        raise UserError(f"{file}: {wrong}; copy the file again")
    off = [name for name, value in config.items() if value and name not in _WITHOUT_EFFECT]
    # Other ranks and alphas by layer, which may all be the common one.
    same = {"rank_pattern": config["r"], "alpha_pattern": config["lora_alpha"]}
    off = [n for n in off if not (n in same and isinstance(config[n], dict) and set(config[n].values()) == {same[n]})]
    if config.get("bias", "none") != "none":
        off.append("bias")
    if config.get("init_lora_weights", True) not in _PLAIN_INITS:
        off.append("init_lora_weights")
    if off:
        raise UserError(f"{file}: {off[0]} is {config[off[0]]!r:.60}, which this program does not compute; {_MERGE}")
    return config


def _wrong_kind(config: Mapping[str, Any]) -> str | None:
    """What is wrong with the fields that are read, in a few words."""

    def number(value: Any, kind: Any) -> bool:
        return isinstance(value, kind) and not isinstance(value, bool) and 0 < value < 2**31

    def names(value: Any) -> bool:
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(name, str) for name in value))

    dropped = config.get("lora_dropout") or 0.0
    base, excluded = config.get("base_model_name_or_path"), config.get("exclude_modules") or []
    indices = config.get("layers_to_transform") or []
    indices = [indices] if isinstance(indices, int) else indices
    rules = {
        "r must be an integer above 0": number(config["r"], int),
        "lora_alpha must be a number above 0": number(config["lora_alpha"], int | float),
        "lora_dropout must be a number from 0 to below 1": dropped == 0 or (number(dropped, float) and dropped < 1),
        "target_modules must be names or one regular expression": names(config["target_modules"]),
        "exclude_modules must be names or one regular expression": names(excluded),
        "layers_to_transform must be integers": (
            isinstance(indices, list) and all(isinstance(index, int) for index in indices)
        ),
        "use_rslora must be true or false": config.get("use_rslora") in (None, True, False),
        "base_model_name_or_path must be a name": base is None or isinstance(base, str),
    }
    for pattern in (config["target_modules"], excluded):
        try:
            re.compile(pattern if isinstance(pattern, str) else "")
        except re.error as error:
            return f"{pattern!r:.60} is no regular expression ({error})"
    return next((rule for rule, kept in rules.items() if not kept), None)


def _names(layer: str) -> tuple[str, str]:
    """Our layer path -> the module's name in `transformers`, and the one before version 4.52 or without images."""
    older = weights.from_path(layer + "/kernel")[0].removesuffix(".weight")
    return weights.prefixed(older), older


def _place(key: str) -> tuple[str, str, str]:
    """(our layer path, "a" or "b", PEFT's name of the adapter) of a key; "" each where it is none of ours."""
    match = _KEY.fullmatch(key)
    name = match[1] if match else ""
    while (shorter := _WRAPPER.sub("", name)) != name:
        name = shorter
    # As saved from a model with a head, and from one without.
    for candidate in (
        f"{name}.weight",
        f"model.{name}.weight",
        f"{name}.weight".replace("language_model.model.", "model."),
    ):
        target = weights.to_path(candidate)
        if match is not None and target is not None and target[0].endswith("/kernel"):
            return target[0].removesuffix("/kernel"), _FACTORS[match[2]], match[3] or ""
    return "", "", ""


def _tensors(file: Path) -> Iterable[tuple[str, Callable[[], Any]]]:
    if not file.is_file():
        older = file.with_suffix(".bin")
        if older.is_file():
            raise UserError(
                f'{file}: not there, and {older.name} is not read; convert it with torch: python -c "import torch;'
                " from safetensors.torch import save_file;"
                f" t = torch.load('{older}', map_location='cpu', weights_only=True);"
                f" save_file({{k: v.contiguous() for k, v in t.items()}}, '{file}')\""
            )
        raise UserError(f"{file}: not there; it belongs beside {CONFIG}")
    try:
        with safe_open(file, framework="flax") as handle:
            for key in sorted(handle.keys(), key=_natural):
                yield key, functools.partial(handle.get_tensor, key)
    except SafetensorError as error:
        raise checkpoint_files.unreadable(file, error) from None


def _misplaced(file: Path, key: str, layer: str, kernels: Mapping[str, Any]) -> UserError:
    """What to say of a key that belongs to no linear layer of the base."""
    part = next((name for name in ("embed_tokens", "lm_head") if name in key), None)
    if part is not None:
        what = "the embedding" if part == "embed_tokens" else "the output matrix"
        return UserError(
            f"{file}: key {key!r} is of {what}, which the adapter changes too (modules_to_save, target_modules, or a"
            f" resized vocabulary), and adapters of {part} are not read; {_MERGE}"
        )
    kind = key.rpartition(".")[2]
    if "lora_magnitude_vector" in key or key.endswith(".bias"):
        return UserError(f"{file}: key {key!r} is of DoRA or of trained biases, which are not computed here; {_MERGE}")
    if layer.startswith("visual/") and not any(name.startswith("visual/") for name in kernels):
        return UserError(f"{file}: key {key!r} is of a vision tower, and this base model has none; name its own base")
    if _KEY.fullmatch(key) is None:
        return UserError(f"{file}: key {key!r} is no factor of a LoRA ({kind}); {_MERGE}")
    top = layer.partition("/")[0]
    there = {int(m[1]) for name in kernels if name.startswith(top) and (m := re.search(r"_(\d+)/", name))}
    asked = re.search(r"_(\d+)/", layer)
    if asked and there and int(asked[1]) > max(there):
        return UserError(
            f"{file}: key {key!r} is of layer {asked[1]}, and this base model has layers 0 to {max(there)} there;"
            " it was made for another base model"
        )
    return UserError(f"{file}: key {key!r} has no linear layer in this base model; was it made for another one?")


def _selected(directory: Path, config: Mapping[str, Any], layers: Iterable[str]) -> set[str]:
    """Layers of the base that the config's `target_modules` choose, by PEFT's rules."""
    names = {layer: _names(layer) for layer in layers}

    def having(targets: str | list[str]) -> set[str]:
        return {layer for layer in names if any(_matches(name, targets) for name in names[layer])}

    targets = config["target_modules"]
    for target in targets if isinstance(targets, list) else [targets]:
        if not having(targets if isinstance(targets, str) else [target]):
            known = ", ".join(sorted({newer.rpartition(".")[2] for newer, _ in names.values()}))
            raise UserError(f"{directory / CONFIG}: target module {target!r} is not in this base model; it has {known}")
    chosen = having(targets) - having(config.get("exclude_modules") or [])
    indices = config.get("layers_to_transform")
    if indices is not None:
        allowed = {indices} if isinstance(indices, int) else set(indices)
        chosen = {layer for layer in chosen if (m := re.search(r"_(\d+)/", layer)) and int(m[1]) in allowed}
    return chosen


def _matches(name: str, targets: str | list[str]) -> bool:
    """A text is a regular expression for the whole name (or `all-linear`), a list holds names or ends of names."""
    if isinstance(targets, str):
        return targets == "all-linear" or re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith("." + target) for target in targets)


def _check_complete(file: Path, config: Mapping[str, Any], *, layers: set[str], found: set[tuple[str, ...]]) -> None:
    wanted = {(*layer.split("/"), factor) for layer in layers for factor in _FACTORS.values()}
    for path in sorted(wanted - found):
        raise UserError(f"{file}: {'/'.join(path)} is missing, which {CONFIG} asks for; copy the file again")
    for path in sorted(found - wanted):
        raise UserError(f"{file}: {'/'.join(path)} is there, but target_modules in {CONFIG} do not name it")


def _patterns(layers: set[str], kernels: Iterable[str]) -> tuple[str, ...]:
    """`LoraConfig.targets` that choose exactly `layers`: one a layer name where that is exact, else one a layer."""
    ends = {(layer.partition("/")[0], layer.rpartition("/")[2]) for layer in layers}
    order = {name: i for i, name in enumerate(DECODER_TARGETS)}
    short = [f"{top}/.*/{name}" for top, name in sorted(ends, key=lambda e: (e[0], order.get(e[1], len(order)), e[1]))]
    if {k for k in kernels if any(re.search(p, k) for p in short)} == layers:
        return tuple(short)
    return tuple(f"^{re.escape(layer)}$" for layer in sorted(layers, key=_natural))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key in which layer 10 comes after layer 9."""
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"(\d+)", name)]
