"""LoRA adapters as a pytree of their own (Hu et al. 2021, arXiv:2106.09685)."""

import dataclasses
import math
import re
import zlib
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import traverse_util
from jax import Array

from pixelis_jax.models.layers import VISION
from pixelis_jax.types import UserError

PyTree = Any
DECODER_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Adapter shape. `targets` are regular expressions searched in a layer's path, e.g. `language_model/.*/q_proj`.

    `rslora` scales by the root of the rank (Kalajdzievski 2023, arXiv:2312.03732). `dropout` is the share of an
    adapter's inputs that supervised training sets to 0; nothing else does.
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = tuple(f"language_model/.*/{name}" for name in DECODER_TARGETS)
    rslora: bool = False
    dropout: float = 0.0

    @property
    def scale(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def init(key: Array, params: PyTree, config: LoraConfig) -> PyTree:
    """The `lora` collection for `params`: `a` uniform as in the reference (Kaiming, a = sqrt 5), `b` zero.

    Leaves are f32 whatever the base's dtype. Raises UserError where a target is no regular expression or matches no
    linear layer, or where there is none.
    """
    if config.rank < 1:
        raise UserError(f"lora.rank {config.rank}: must be at least 1")
    kernels = {path[:-1]: leaf for path, leaf in traverse_util.flatten_dict(params).items() if path[-1] == "kernel"}
    names = ", ".join(sorted({path[-1] for path in kernels}))
    if not config.targets:
        raise UserError(f"lora.targets is empty; name some layers, which are {names}")
    targets = [_compile(pattern) for pattern in config.targets]
    for target in targets:
        if not any(target.search("/".join(path)) for path in kernels):
            raise UserError(f"lora.targets: {target.pattern!r} matches no linear layer; layers are named {names}")
    chosen = sorted(p for p in kernels if any(t.search("/".join(p)) for t in targets))
    adapter = {}
    for i, path in enumerate(chosen):
        width, features = kernels[path].shape
        bound = 1 / math.sqrt(width)
        adapter[(*path, "a")] = jax.random.uniform(
            jax.random.fold_in(key, i), (width, config.rank), jnp.float32, -bound, bound
        )
        adapter[(*path, "b")] = jnp.zeros((config.rank, features), jnp.float32)
    return traverse_util.unflatten_dict(adapter)


def _compile(target: str) -> re.Pattern[str]:
    try:
        return re.compile(target)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise UserError(
            f"lora.targets: {target!r:.60} is no regular expression ({error}); name layers, such as"
            " 'language_model/.*/q_proj'"
        ) from error


def merge(params: PyTree, adapter: PyTree, scale: float) -> PyTree:
    """Base parameters with the adapter folded in: `W + scale A B`."""
    flat, lora = traverse_util.flatten_dict(params), traverse_util.flatten_dict(adapter)
    for path in {p[:-1] for p in lora}:
        kernel = flat[(*path, "kernel")]
        a, b = lora[(*path, "a")], lora[(*path, "b")]
        message = f"{'/'.join(path)}: a f32[in, rank], b f32[rank, out] for kernel f[in, out]"
        chex.assert_shape([a, b], [(kernel.shape[0], None), (a.shape[-1], kernel.shape[1])], custom_message=message)
        delta = a @ b * scale
        flat[(*path, "kernel")] = (kernel.astype(jnp.float32) + delta).astype(kernel.dtype)
    return traverse_util.unflatten_dict(flat)


def noise(adapter: PyTree, *, key: Array, rate: float, index: Array) -> PyTree:
    """The `lora_noise` collection, with which the layers of `adapter` drop a share `rate` of their adapter's inputs.

    By `layers.dropout` (Hinton et al. 2012, arXiv:1207.0580), where PEFT has it: x W itself is never dropped.
    Row (or image) i of the batch draws from fold(key, layer, index[i]), `index` i32[B]: its noise does not depend on
    its neighbours, nor on how a batch was split.
    """

    def keys(layer: str) -> Array:
        at = jax.random.fold_in(key, zlib.crc32(layer.encode()))
        return jax.vmap(lambda i: jax.random.fold_in(at, i))(index)

    made = {layer: {"keys": keys(layer), "rate": jnp.float32(rate)} for layer in sorted(layers(adapter))}
    return traverse_util.unflatten_dict(made, sep="/")


def touches_vision(adapter: PyTree | None) -> bool:
    """Whether an adapter changes what images are encoded to."""
    return adapter is not None and VISION in adapter


def layers(adapter: PyTree) -> set[str]:
    """Paths of the layers that an adapter has, such as `language_model/layers_0/self_attn/q_proj`."""
    return {"/".join(path[:-1]) for path in traverse_util.flatten_dict(adapter)}


def count(tree: PyTree) -> int:
    """Number of parameters in a pytree."""
    return sum(x.size for x in jax.tree.leaves(tree))
