"""Weights between Hugging Face safetensors and our parameter tree, with strict key accounting.

On disk Qwen2.5-VL uses `visual.*` and `model.*` (before transformers 5) or `model.visual.*` and
`model.language_model.*`; both are read, the first is written, as `transformers` does. Qwen3-VL has the latter only,
text-only models `model.*`.
"""

import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pixelis_jax import hosts
from pixelis_jax.models import checkpoint_files, tying
from pixelis_jax.models.checkpoint_files import INDEX, WEIGHTS
from pixelis_jax.models.config import ModelConfig
from pixelis_jax.models.families import FAMILIES
from pixelis_jax.types import UserError

PyTree = Any
SHARD_BYTES = 5 * 10**9
PIECE_BYTES = 1 << 28  # of a tensor, at most on the host at a time
_SHARD = "model-{:05d}-of-{:05d}.safetensors"

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


def load(
    directory: Path,
    config: ModelConfig,
    *,
    abstract: PyTree,
    finish: Callable[[str, jax.Array], Any] = lambda _, parameter: parameter,
) -> PyTree:
    """Read a directory's safetensors into the shapes, dtypes and shardings of `abstract` (jax.ShapeDtypeStruct leaves).

    Each device's part of a tensor goes from the file to that device, in pieces of at most `PIECE_BYTES`, and a process
    reads only what its own devices need. What `finish` makes of a (path, parameter) is kept. UserError names a missing,
    unknown, repeated or misshapen key and its file.
    """
    wanted = traverse_util.flatten_dict(abstract, sep="/")
    loaded: dict[str, Any] = {}
    last: tuple[Path, str] | None = None
    tied = config.text.tie_word_embeddings
    twice = tied and not checkpoint_files.stored_keys(directory).keys().isdisjoint(tying.EMBEDDINGS)
    for file, key, stored in _tensors(directory):
        checkpoint_files.refuse_stored(file, key, stored.get_dtype())
        if key == tying.HEAD and twice:
            continue  # equal to the embedding, as `tying.decide` found
        found = ("embed_tokens", False) if key == tying.HEAD and tied else to_path(key)
        if found is None or found[0] not in wanted:
            raise UserError(f"{file}: key {key!r} has no place in this model; is config.json of the same checkpoint?")
        path, transposed = found
        if path in loaded:
            raise UserError(f"{file}: key {key!r} stands twice in the checkpoint")
        target = wanted[path]
        shape, asked = tuple(stored.get_shape()), _stored_shape(path, target.shape, config)
        if shape != asked:
            raise UserError(f"{file}: key {key!r} has shape {shape}, the config asks for {asked}")
        loaded[path] = _place(stored, target, transposed)
        _finish(last, loaded, finish)  # waits for the one before: more than two under way would pile up on the host
        last = (file, path)
    _finish(last, loaded, finish)
    if missing := sorted(set(wanted) - set(loaded)):
        remedy = "copy all shards"
        if missing == ["lm_head"]:
            remedy += f", or, where the head is tied to the embedding, set {tying.FIELD} to true in config.json"
        raise UserError(
            f"{directory}: {len(missing)} weights are missing, first {from_path(missing[0])[0]!r}; {remedy}"
        )
    return traverse_util.unflatten_dict(loaded, sep="/")


def _stored_shape(path: str, shape: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
    """The shape in a file of the parameter at `path`, whose own is `shape`."""
    if path == "visual/patch_embed/kernel":
        v = config.need_vision()
        return (shape[1], v.in_channels, v.temporal_patch_size, v.patch_size, v.patch_size)
    return shape[::-1] if from_path(path)[1] else shape


def _finish(read: tuple[Path, str] | None, loaded: dict[str, Any], finish: Callable[[str, jax.Array], Any]) -> None:
    """Finishes a weight, given by its (file, path). UserError where it is not finite; counted where it lies."""
    if read is None:
        return
    file, path = read
    if not _all_finite(loaded[path]):
        raise UserError(f"{file}: key {from_path(path)[0]!r} holds values that are not finite; copy it again")
    loaded[path] = finish(path, loaded[path])


@jax.jit
def _all_finite(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x).all()


def _place(stored: Any, target: jax.ShapeDtypeStruct, transposed: bool) -> jax.Array:
    """A file's tensor on the devices, read part by part; a transposition happens there, where it is quick."""
    sharding = target.sharding or SingleDeviceSharding(jax.devices()[0])
    sizes = tuple(stored.get_shape())

    def part(index: Any) -> np.ndarray:
        return stored[index].astype(target.dtype, copy=False)

    if transposed and len(sizes) == 2:
        rows_first = sharding
        if isinstance(sharding, NamedSharding):
            rows, columns = (*sharding.spec, None, None)[:2]
            rows_first = NamedSharding(sharding.mesh, PartitionSpec(columns, rows))
        return _transpose(sharding)(_in_pieces(sizes, rows_first, part, target.dtype))
    if transposed:  # the patch embedding, [out, channel, frame, y, x] on disk
        whole = stored[:].reshape(sizes[0], -1).T.astype(target.dtype)
        return jax.make_array_from_callback(target.shape, sharding, lambda i: whole[i])
    return _in_pieces(target.shape, sharding, part, target.dtype)


def _in_pieces(
    shape: tuple[int, ...], sharding: jax.sharding.Sharding, read: Callable[[Any], np.ndarray], dtype: Any
) -> jax.Array:
    """An array of what `read(index)` gives, as `jax.make_array_from_callback` makes it, but by pieces of rows."""
    regions: dict[tuple[tuple[int, int], ...], list[Any]] = {}  # who holds what: copies are read once
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(cut.indices(size)[:2] for cut, size in zip(index or (), shape, strict=True))
        regions.setdefault(bounds, []).append(device)
    arrays = []
    for ((first, last), *others), devices in regions.items():
        rest = [slice(*bound) for bound in others]
        pieces: list[list[jax.Array]] = []
        row = math.prod(end - begin for begin, end in others) * dtype.itemsize
        step = max(1, PIECE_BYTES // row)
        for begin in range(first, last, step):
            jax.block_until_ready(pieces[-1:])  # or the host would hold all that are under way
            piece = read((slice(begin, min(begin + step, last)), *rest))
            pieces.append([jax.device_put(piece, device) for device in devices])
        arrays += [parts[0] if len(parts) == 1 else jnp.concatenate(parts) for parts in zip(*pieces, strict=True)]
    return jax.make_array_from_single_device_arrays(shape, sharding, arrays)


@functools.lru_cache(maxsize=64)
def _transpose(sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jnp.transpose, out_shardings=sharding)


def save(
    directory: Path, params: PyTree, *, config: ModelConfig, dtype: Any = None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write `params` as safetensors with the reference's key names and shapes.

    What is larger than `shard_bytes` goes into several files with an index, as `transformers` does; the host holds one
    file's tensors at a time. Of several processes, which all call this, the first one writes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    leaves = traverse_util.flatten_dict(params, sep="/")
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for path, leaf in leaves.items():
        size = leaf.size * jnp.dtype(dtype or leaf.dtype).itemsize
        if size > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(path)
        room -= size
    names = [WEIGHTS] if len(shards) == 1 else [_SHARD.format(i + 1, len(shards)) for i in range(len(shards))]
    for name, paths in zip(names, shards, strict=True):
        tensors = dict(_as_stored(path, leaves[path], config, dtype) for path in paths)
        if hosts.first():
            save_file(tensors, directory / name, metadata={"format": "pt"})
            (directory / name).chmod(0o644)  # it comes out private, and others are to read the model
    if len(shards) > 1 and hosts.first():
        places = {_key(path, config): name for name, paths in zip(names, shards, strict=True) for path in paths}
        total = sum(x.size * jnp.dtype(dtype or x.dtype).itemsize for x in leaves.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _as_stored(path: str, leaf: Any, config: ModelConfig, dtype: Any) -> tuple[str, np.ndarray]:
    """(key, value) of a parameter in a file."""
    transposed = from_path(path)[1]
    narrow = leaf if dtype is None else leaf.astype(dtype)
    # A jax.Array turns on its device, where it is quick.
    value = np.ascontiguousarray(hosts.fetch(narrow.T if transposed else narrow))
    if dtype is not None and not hosts.fetch(_all_finite(narrow)):
        raise UserError(
            f"weight {_key(path, config)!r} does not fit into {jnp.dtype(dtype).name}; use bfloat16 or float32"
        )
    return _key(path, config), value.reshape(_stored_shape(path, leaf.shape, config))


def _key(path: str, config: ModelConfig) -> str:
    """The key that a file of this family has for a parameter."""
    key = from_path(path)[0]
    return prefixed(key) if FAMILIES[config.model_type].prefixed else key


def _tensors(directory: Path) -> Iterator[tuple[Path, str, Any]]:
    """(file, key, slices of it) of every tensor of a checkpoint directory; one file is open at a time."""
    names, placed = checkpoint_files.shards(directory)
    for name in names:
        file = directory / name
        try:
            with safe_open(file, framework="numpy") as handle:
                keys = list(handle.keys())
            there = set(keys)
            if lost := sorted(key for key, place in placed.items() if place == name and key not in there):
                raise UserError(f"{file}: has no key {lost[0]!r}, which {INDEX} places there; copy both again")
            for key in keys:
                # Opened anew for each: pages that were read would stay with the mapping, up to the whole file.
                with safe_open(file, framework="numpy") as handle:
                    yield file, key, handle.get_slice(key)
        except SafetensorError as error:
            raise checkpoint_files.unreadable(file, error) from None
