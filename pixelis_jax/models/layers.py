"""Layers shared by the vision tower and the decoder."""

import contextlib
from collections.abc import Sequence
from typing import Any

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pixelis_jax.models import quantized

LORA = "lora"  # the variable collection that holds adapters
PACKED = "packed"  # what `models.packing` makes of weights and adapters for decoding
NOISE = "lora_noise"  # the one that makes them drop inputs, in supervised training only
VISION = "visual"  # the vision tower among parameters and adapters


class Dense(nn.Module):
    """`x W (+ b) (+ scale (x A) B)`, W perhaps quantized.

    The adapter applies where the `lora` collection has this layer's `a` f[in, rank] and `b` f[rank, features]; the
    collection is made by `models.lora.init`, never by linen's init. Where `models.lora.noise` made keys, x reaches A
    through `dropout`.
    """

    features: int
    use_bias: bool = False
    lora_scale: float = 1.0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel: Any = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features), self.dtype)
        # Two axes only: contracting [B, T] against a skinny adapter is several times slower in XLA's CPU backward pass.
        leading, x = x.shape[:-1], x.astype(self.dtype).reshape(-1, x.shape[-1])
        y = quantized.product(x, kernel, self.dtype)
        if self.use_bias:
            y = y + self.param("bias", nn.initializers.zeros_init(), (self.features,), self.dtype).astype(self.dtype)
        if self.has_variable(LORA, "a"):
            a: Array = self.get_variable(LORA, "a")
            b: Array = self.get_variable(LORA, "b")
            if self.has_variable(NOISE, "keys"):
                x = dropout(x, self.get_variable(NOISE, "keys"), self.get_variable(NOISE, "rate"))
            y = y + ((x @ a.astype(self.dtype)) @ b.astype(self.dtype)) * self.lora_scale
        return y.reshape(*leading, self.features)


def dropout(x: Array, keys: Array, rate: Array) -> Array:
    """`x` f[N, D] with a share `rate` of its entries at 0 and the others divided by 1 - rate (arXiv:1207.0580).

    Each of the `keys` [B] draws for N / B neighbouring rows: the tokens of one sequence, the patches of one image.
    """
    shape = (x.shape[0] // keys.shape[0], x.shape[1])
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, shape))(keys).reshape(x.shape)
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


def project(module: nn.Module, layers: Sequence[Dense], x: Array) -> list[Array]:
    """What each of `layers`, children of `module`, gives for `x` f[..., in].

    While decoding, the `packed` collection may hold them as one under the first one's name (`models.packing`).
    """
    first = layers[0]
    if not module.has_variable(PACKED, str(first.name)):
        return [layer(x) for layer in layers]
    packed: dict[str, Array] = module.get_variable(PACKED, str(first.name))
    sizes = np.cumsum([layer.features for layer in layers])
    leading, flat = x.shape[:-1], x.astype(first.dtype).reshape(-1, x.shape[-1])
    if "kernel" in packed:
        *outputs, low = jnp.split(flat @ packed["kernel"], sizes, axis=-1)
    else:
        outputs = [layer(flat) for layer in layers]
        low = _in_chunks(flat, packed["a"])
    if "bias" in packed:
        outputs = [y + b for y, b in zip(outputs, jnp.split(packed["bias"], sizes[:-1]), strict=True)]
    if "b" in packed:
        added = jnp.split((low @ packed["b"]) * first.lora_scale, sizes[:-1], axis=-1)
        outputs = [y + more for y, more in zip(outputs, added, strict=True)]
    return [y.reshape(*leading, -1) for y in outputs]


def _in_chunks(x: Array, a: Array) -> Array:
    """`x a` f[B, rank] for a of f[chunks, in / chunks, rank]: a narrow product keeps a GPU busy only in parts."""
    parts = jnp.einsum("bck,ckr->cbr", x.reshape(x.shape[0], *a.shape[:2]), a, preferred_element_type=jnp.float32)
    return jnp.sum(parts, axis=0).astype(x.dtype)


class RMSNorm(nn.Module):
    """Root mean square norm in fp32 (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    eps: float = 1e-6
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        scale = self.param("scale", nn.initializers.ones_init(), (x.shape[-1],), self.dtype)
        wide = x.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + self.eps)
        return scale.astype(self.dtype) * normed.astype(self.dtype)


class GatedMLP(nn.Module):
    """SwiGLU: `down(silu(gate x) * up x)`."""

    intermediate_size: int
    use_bias: bool = False
    lora_scale: float = 1.0
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        def dense(features: int, name: str) -> Dense:
            return Dense(features, self.use_bias, self.lora_scale, self.dtype, name=name)

        layers = [dense(self.intermediate_size, name) for name in ("gate_proj", "up_proj")]
        gate, up = project(self, layers, x)
        return project(self, [dense(x.shape[-1], "down_proj")], nn.silu(gate) * up)[0]


def matmul_precision(dtype: jnp.dtype) -> contextlib.AbstractContextManager[object]:
    """While it holds, products of an fp32 model are traced as fp32 products; other types keep the default.

    GPUs and TPUs would by default round fp32 inputs (to TF32 or bf16), and not alike for the shapes of the sampler and
    of the trainer: their log-probs were 3e-3 apart on an H100.
    """
    return jax.default_matmul_precision("highest") if dtype == jnp.float32 else contextlib.nullcontext()


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding, half-split form: x f[..., T, H, d]; cos and sin f32[..., T, d / 2], computed in fp32."""
    half = (*x.shape[:-2], x.shape[-1] // 2)
    chex.assert_shape([cos, sin], half, custom_message="cos, sin f32[..., T, d / 2] for x f[..., T, H, d]")
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Array | None = None,
    lengths: Array | None = None,
    causal: bool = False,
) -> Array:
    """Attention of query f[B, T, H, d] over key/value f[B, S, K, d], by `mask` or by `lengths`.

    `mask` bool[B, T, S] holds where a key is seen. With `lengths` i32[B], row b sees its first `lengths[b]` keys, and
    with `causal` none behind the query (T = S then): no [T, S] array is held where a flash kernel does the work, which
    is on a GPU for 16-bit types. What a row of length 0 gives is finite and means nothing.
    """
    chex.assert_rank([query, key, value], 4, custom_message="query f[B, T, H, d], key and value f[B, S, K, d]")
    chex.assert_equal_shape([key, value], custom_message="key and value f[B, S, K, d]")
    if mask is not None:
        rows = (query.shape[0], query.shape[1], key.shape[1])
        chex.assert_shape(mask, rows, custom_message="mask bool[B, T, S]")
    if lengths is not None:
        chex.assert_shape(lengths, query.shape[:1], custom_message="lengths i32[B]")
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=None if mask is None else mask[:, None],
        key_value_seq_lengths=None if lengths is None else jnp.maximum(lengths, 1),
        is_causal=causal,
        implementation="cudnn" if _has_flash_kernel(query) else "xla",
    )


def _has_flash_kernel(query: Array) -> bool:
    """Whether the attention of cuDNN takes this query: 16 bits, heads of a multiple of 8 up to 128 wide, on a GPU."""
    width = query.shape[-1]
    return jax.default_backend() == "gpu" and query.dtype.itemsize == 2 and width % 8 == 0 and width <= 128
