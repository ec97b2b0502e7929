"""Weights and adapters of the decoder arranged for decoding, where a step is as slow as its many small products.

Layers that read the same input become one. The attention's get one kernel `[W1 | W2 | .. | A1 A2 ..]`, a copy of their
weights (a tenth of a model of 3B or 7B parameters); the larger ones of the MLP keep theirs and share an adapter. In
both B1, B2, .. stand on the diagonal of one B, so that a row costs two products. The result is what `Dense` gives, but
for the order of sums; for many tokens a row it would cost more than it saves.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax import Array

from pixelis_jax.models import quantized
from pixelis_jax.models.layers import LORA, PACKED

PyTree = Any
# (layers that read the same input, whether their kernels are copied), by the module they stand in.
GROUPS = {
    "self_attn": ((("q_proj", "k_proj", "v_proj"), True), (("o_proj",), True)),
    "mlp": ((("gate_proj", "up_proj"), False), (("down_proj",), False)),
}
CHUNK = 256  # input features of a part of a narrow product


def pack(variables: PyTree, dtype: jnp.dtype) -> PyTree:
    """`variables` ({"params", perhaps "lora"}) with a collection `packed` of `dtype`, for `layers.project`.

    Packed adapters leave "lora". A group of which only some layers are adapted stays as it is.
    """
    params = traverse_util.flatten_dict(variables["params"])
    adapter = traverse_util.flatten_dict(variables.get(LORA, {}))
    packed: dict[tuple[str, ...], Array] = {}
    for module in {path[:-2] for path in params if path[0] == "language_model" and path[-3] in GROUPS}:
        for names, copied in GROUPS[module[-1]]:
            layers = [(*module, name) for name in names]
            adapted = sum((*layer, "a") in adapter for layer in layers)
            if adapted == len(layers) or (copied and adapted == 0):
                made = _pack_group(params, adapter, layers, dtype, copied=copied)
                packed |= {(*layers[0], name): leaf.astype(dtype) for name, leaf in made.items()}
                adapter = {path: leaf for path, leaf in adapter.items() if path[:-1] not in layers}
    return variables | {LORA: traverse_util.unflatten_dict(adapter), PACKED: traverse_util.unflatten_dict(packed)}


def _pack_group(
    params: dict[tuple[str, ...], Array],
    adapter: dict[tuple[str, ...], Array],
    layers: list[tuple[str, ...]],
    dtype: jnp.dtype,
    *,
    copied: bool,
) -> dict[str, Array]:
    def all_of(tree: dict[tuple[str, ...], Array], leaf: str) -> list[Array]:
        return [tree[*layer, leaf] for layer in layers if (*layer, leaf) in tree]

    made = {}
    first = all_of(adapter, "a")
    if first:
        made["b"] = jax.scipy.linalg.block_diag(*all_of(adapter, "b"))
    if copied:
        kernels = [quantized.dequantize(kernel, dtype) for kernel in all_of(params, "kernel")]
        made["kernel"] = jnp.concatenate([*kernels, *(a.astype(dtype) for a in first)], axis=1)
        if biases := all_of(params, "bias"):
            made["bias"] = jnp.concatenate(biases)
    else:
        a = jnp.concatenate(first, axis=1)
        chunks = a.shape[0] // CHUNK if a.shape[0] % CHUNK == 0 else 1
        made["a"] = a.reshape(chunks, -1, a.shape[1])
    return made
