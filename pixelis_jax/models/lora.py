"""LoRA adapters as a pytree of their own (Hu et al. 2021, arXiv:2106.09685)."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax import Array

from pixelis_jax.types import UserError

PyTree = Any
DECODER_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Adapter shape. `targets` are regular expressions searched in a layer's path, e.g. `language_model/.*/q_proj`."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = tuple(f"language_model/.*/{name}" for name in DECODER_TARGETS)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


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
        delta = lora[(*path, "a")] @ lora[(*path, "b")] * scale
        flat[(*path, "kernel")] = (kernel.astype(jnp.float32) + delta).astype(kernel.dtype)
    return traverse_util.unflatten_dict(flat)


def layers(adapter: PyTree) -> set[str]:
    """Paths of the layers that an adapter has, such as `language_model/layers_0/self_attn/q_proj`."""
    return {"/".join(path[:-1]) for path in traverse_util.flatten_dict(adapter)}


def count(tree: PyTree) -> int:
    """Number of parameters in a pytree."""
    return sum(x.size for x in jax.tree.leaves(tree))
