"""Weights between Hugging Face safetensors and our parameter tree, with strict key accounting.

On disk Qwen2.5-VL uses `visual.*` and `model.*` (before transformers 5) or `model.visual.*` and
`model.language_model.*`; both are read, the first is written, as `transformers` does. Qwen3-VL has the latter only,
text-only models `model.*`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pixelis_jax.models.config import ModelConfig, read_object
from pixelis_jax.models.families import FAMILIES
from pixelis_jax.types import UserError

PyTree = Any
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

# (regular expression on the key without its prefix, our path); "T" marks a matrix stored [out, in].
_RULES: tuple[tuple[str, str], ...] = (
    (r"visual\.patch_embed\.proj\.weight", "T visual/patch_embed/kernel"),
    (r"visual\.patch_embed\.proj\.bias", r"  visual/patch_embed/bias"),
    (r"visual\.pos_embed\.weight", r"  visual/pos_embed"),
    (r"visual\.blocks\.(\d+)\.(norm[12])\.weight", r"  visual/blocks_\1/\2/scale"),
    (r"visual\.blocks\.(\d+)\.(norm[12])\.bias", r"  visual/blocks_\1/\2/bias"),
    (r"visual\.blocks\.(\d+)\.(attn|mlp)\.(\w+)\.weight", r"T visual/blocks_\1/\2/\3/kernel"),
    (r"visual\.blocks\.(\d+)\.(attn|mlp)\.(\w+)\.bias", r"  visual/blocks_\1/\2/\3/bias"),
    (r"visual\.merger\.ln_q\.weight", "  visual/merger_ln_q/scale"),
    (r"visual\.merger\.mlp\.([02])\.weight", r"T visual/merger_mlp_\1/kernel"),
    (r"visual\.merger\.mlp\.([02])\.bias", r"  visual/merger_mlp_\1/bias"),
    (r"visual\.(merger|deepstack_merger_list_\d+)\.norm\.weight", r"  visual/\1/norm/scale"),
    (r"visual\.(merger|deepstack_merger_list_\d+)\.norm\.bias", r"  visual/\1/norm/bias"),
    (r"visual\.(merger|deepstack_merger_list_\d+)\.(linear_fc[12])\.weight", r"T visual/\1/\2/kernel"),
    (r"visual\.(merger|deepstack_merger_list_\d+)\.(linear_fc[12])\.bias", r"  visual/\1/\2/bias"),
    (r"model\.embed_tokens\.weight", "  embed_tokens"),
    (r"model\.norm\.weight", "  language_model/norm/scale"),
    (
        r"model\.layers\.(\d+)\.(input_layernorm|post_attention_layernorm)\.weight",
        r"  language_model/layers_\1/\2/scale",
    ),
    (r"model\.layers\.(\d+)\.self_attn\.([qk]_norm)\.weight", r"  language_model/layers_\1/self_attn/\2/scale"),
    (r"model\.layers\.(\d+)\.(self_attn|mlp)\.(\w+)\.weight", r"T language_model/layers_\1/\2/\3/kernel"),
    (r"model\.layers\.(\d+)\.(self_attn|mlp)\.(\w+)\.bias", r"  language_model/layers_\1/\2/\3/bias"),
    (r"lm_head\.weight", "T lm_head"),
)


def to_path(key: str) -> tuple[str, bool] | None:
    """(our path, transposed?) of a checkpoint key, None where we have no such parameter."""
    key = re.sub(r"^model\.(visual\.)", r"\1", key)
    key = re.sub(r"^model\.language_model\.", "model.", key)
    key = re.sub(r"(deepstack_merger_list)\.", r"\1_", key)
    for pattern, target in _RULES:
        if match := re.fullmatch(pattern, key):
            return match.expand(target[2:]), target[0] == "T"
    return None


def from_path(path: str) -> tuple[str, bool]:
    """(checkpoint key, transposed?) of our parameter path: the inverse of `to_path` (tested on every key)."""
    path = (
        path.replace("visual/patch_embed/", "visual/patch_embed/proj/")
        .replace("merger_mlp_", "merger/mlp/")
        .replace("merger_ln_q", "merger/ln_q")
    )
    path = path.replace("language_model/", "model/").replace("embed_tokens", "model/embed_tokens/weight")
    path = re.sub(r"(blocks|layers|deepstack_merger_list)_(\d+)", r"\1/\2", path)
    path = re.sub(r"/scale$|(?<=/pos_embed)$", "/weight", path)
    transposed = path.endswith("/kernel") or path == "lm_head"
    path = re.sub(r"/kernel$", "/weight", path) if path != "lm_head" else "lm_head/weight"
    return path.replace("/", "."), transposed


def prefixed(key: str) -> str:
    """The name since transformers 4.52 of a key or module whose older name `from_path` gives."""
    if key.startswith("model."):
        return "model.language_model." + key.removeprefix("model.")
    return "model." + key if key.startswith("visual.") else key


def load(directory: Path, config: ModelConfig, *, abstract: PyTree) -> PyTree:
    """Read a directory's safetensors into the shapes, dtypes and shardings of `abstract` (jax.ShapeDtypeStruct leaves).

    Each tensor goes from the file to its device on its own, so the host never holds a second copy. UserError names a
    missing, unknown, repeated or misshapen key and the file it is in.
    """
    wanted = traverse_util.flatten_dict(abstract, sep="/")
    loaded: dict[str, Any] = {}
    for file, key, read in _tensors(directory):
        if key == "lm_head.weight" and config.text.tie_word_embeddings:
            continue  # some checkpoints store the tied matrix twice
        found = to_path(key)
        if found is None or found[0] not in wanted:
            raise UserError(f"{file}: key {key!r} has no place in this model; is config.json of the same checkpoint?")
        path, transposed = found
        if path in loaded:
            raise UserError(f"{file}: key {key!r} stands twice in the checkpoint")
        target = wanted[path]
        value = read()
        value = value.reshape(len(value), -1).T if transposed else value
        if value.shape != target.shape:
            raise UserError(f"{file}: key {key!r} gives shape {value.shape}, the config asks for {target.shape}")
        loaded[path] = jax.device_put(jnp.asarray(value, target.dtype), target.sharding)
    if missing := sorted(set(wanted) - set(loaded)):
        raise UserError(
            f"{directory}: {len(missing)} weights are missing, first {from_path(missing[0])[0]!r}; copy all shards"
        )
    return traverse_util.unflatten_dict(loaded, sep="/")


def save(directory: Path, params: PyTree, *, config: ModelConfig, dtype: Any = None) -> None:
    """Write `params` as one safetensors file with the reference's key names and shapes."""
    tensors = {}
    for path, leaf in traverse_util.flatten_dict(params, sep="/").items():
        key, transposed = from_path(path)
        key = prefixed(key) if FAMILIES[config.model_type].prefixed else key
        value = np.asarray(leaf if dtype is None else leaf.astype(dtype))
        value = value.T if transposed else value
        if path == "visual/patch_embed/kernel":
            v = config.need_vision()
            value = value.reshape(-1, v.in_channels, v.temporal_patch_size, v.patch_size, v.patch_size)
        tensors[key] = np.ascontiguousarray(value)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def _tensors(directory: Path) -> Iterator[tuple[Path, str, Any]]:
    """(file, key, reader) of every tensor of a checkpoint directory."""
    index = directory / INDEX
    if index.exists():
        shards = read_object(index).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(n, str) and Path(n).name == n for n in shards.values()):
            raise UserError(f"{index}: weight_map must name a file beside it for each key; copy it again")
        names = sorted(set(shards.values()))
    else:
        names = [WEIGHTS]
    for name in names:
        file = directory / name
        if not file.is_file():
            raise UserError(f"{file}: not there; the directory must hold {WEIGHTS} or all shards named by {INDEX}")
        try:
            with safe_open(file, framework="flax") as handle:
                for key in handle.keys():  # noqa: SIM118  safe_open is no mapping
                    yield file, key, lambda key=key, handle=handle: handle.get_tensor(key)
        except SafetensorError as error:
            raise UserError(f"{file}: truncated or not safetensors ({error}); copy it again") from None
