"""Base weights of the decoder in 8 or 4 bits, for training adapters on them (QLoRA, arXiv:2305.14314), by qwix.

A quantized kernel is a `qwix.QArray`: a pytree of small integers and fp32 scales with the shape of the matrix. int8 has
a scale an output feature, nf4 (quantiles of a normal distribution) one for each block of 64 inputs of it. Embeddings,
head, norms and the vision tower stay as they are.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax import Array

from pixelis_jax.types import UserError

PyTree = Any
KINDS = ("int8", "nf4")
BLOCK = 64  # input features that share a scale in nf4


def quantize(params: PyTree, kind: str) -> PyTree:
    """Parameters with quantized decoder kernels; traceable, so that `jax.eval_shape` gives their shapes.

    UserError where nf4's blocks do not fit a kernel.
    """
    flat = traverse_util.flatten_dict(params, sep="/")
    made = {path: _quantize(path, leaf, kind) if _is_chosen(path) else leaf for path, leaf in flat.items()}
    return traverse_util.unflatten_dict(made, sep="/")


def leaf_quantizer(kind: str, layout: Callable[[PyTree], PyTree]) -> Callable[[str, Array], Any]:
    """(path, parameter) -> the parameter, quantized on its devices if it is to be; `layout` gives shardings of a tree.

    For loading one by one, so that never more than one is held whole.
    """

    @functools.cache
    def compiled(shardings: tuple[Any, ...], structure: Any) -> Callable[[Array], Any]:
        out = jax.tree.unflatten(structure, shardings)
        return jax.jit(functools.partial(_quantize, "", kind=kind), out_shardings=out)

    def one(path: str, leaf: Array) -> Any:
        if not _is_chosen(path):
            return leaf
        made = jax.eval_shape(functools.partial(_quantize, path, kind=kind), leaf)
        leaves, structure = jax.tree.flatten(layout({path: made})[path])
        return compiled(tuple(leaves), structure)(leaf)

    return one


def _is_chosen(path: str) -> bool:
    return path.startswith("language_model/") and path.endswith("/kernel")


def product(x: Array, kernel: Any, dtype: jnp.dtype) -> Array:
    """`x kernel` f[B, out] in `dtype`, for a matrix or a quantized one."""
    if not is_quantized(kernel):
        return x @ kernel.astype(dtype)
    if kernel.qvalue.dtype == jnp.int8:  # one scale an output: applied to the product, so that the integers stay small
        return ((x @ kernel.qvalue.astype(dtype)) * kernel.scale[0]).astype(dtype)
    return x @ dequantize(kernel, dtype)


def is_quantized(kernel: Any) -> bool:
    """Whether a kernel is a `qwix.QArray`."""
    return hasattr(kernel, "qvalue")


def dequantize(kernel: Any, dtype: jnp.dtype) -> Array:
    """The matrix that a kernel stands for."""
    if not is_quantized(kernel):
        return kernel.astype(dtype)
    import qwix

    return qwix.dequantize(kernel).astype(dtype)


def _quantize(path: str, kernel: Array, kind: str) -> Any:
    import qwix  # takes half a second

    wide = kernel.astype(jnp.float32)
    if kind == "int8":
        return qwix.quantize(wide, jnp.int8, channelwise_axes=[1])
    if kernel.shape[0] % BLOCK:
        raise UserError(f"model.quantize=nf4: {path} has {kernel.shape[0]} inputs, no multiple of {BLOCK}; use int8")
    return qwix.quantize(wide, kind, channelwise_axes=[1], tiled_axes={0: BLOCK})
