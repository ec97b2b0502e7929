"""The decoder: one forward for training, prefill, appending an observation, and single-token decoding.

A row's tokens fill consecutive slots 0, 1, 2, ... without gaps, so causality is `key slot <= query slot`, whatever the
padding. Padding tokens carry a slot past the end: what they would write is dropped, what they read is never used.
"""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from pixelis_jax.models.config import TextConfig
from pixelis_jax.models.layers import Dense, GatedMLP, RMSNorm, attend, project, rotate


@struct.dataclass
class Cache:
    """Keys and values, an array a layer: `keys[i]` and `values[i]` are f[B, S, K, d]."""

    keys: tuple[Array, ...]
    values: tuple[Array, ...]

    @property
    def slots(self) -> int:
        return self.keys[0].shape[1]


def empty_cache(config: TextConfig, *, rows: int, slots: int, dtype: jnp.dtype) -> Cache:
    """A zero cache of `slots` tokens a row."""
    shape = (rows, slots, config.num_key_value_heads, config.head_dim)

    def zeros() -> tuple[Array, ...]:
        return tuple(jnp.zeros(shape, dtype) for _ in range(config.num_hidden_layers))

    return Cache(zeros(), zeros())


def mrope(positions: Array, config: TextConfig) -> tuple[Array, Array]:
    """cos and sin f32[B, T, d / 2] of positions i32[B, 3, T]."""
    chex.assert_shape(positions, (None, 3, None), custom_message="positions i32[B, 3, T]")
    angles = jnp.moveaxis(positions, 1, -1)[..., _axes(config)].astype(jnp.float32) * _frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def _axes(config: TextConfig) -> np.ndarray:
    """Which of (time, height, width) turns each frequency, i[d / 2].

    In blocks of the lengths of `mrope_section` (Qwen2-VL, arXiv:2409.12191, section 2.1), or interleaved as (t, h, w)
    triples from the fastest frequency on, until height and width have their share (Qwen3-VL, arXiv:2511.21631).
    A text-only model has one position, which all three axes repeat.
    """
    if config.mrope_section is None:
        return np.zeros(config.head_dim // 2, int)
    if not config.mrope_interleaved:
        return np.repeat(np.arange(3), config.mrope_section)
    axes = np.zeros(config.head_dim // 2, int)
    for axis in (1, 2):
        axes[axis : 3 * config.mrope_section[axis] : 3] = axis
    return axes


def _frequencies(config: TextConfig) -> np.ndarray:
    """Angle per position f32[d / 2]: theta^(-i / (d / 2)), the slow ones stretched as `rope_scaling` says.

    Llama 3.1: a frequency whose wavelength fits `original_max_position_embeddings` less than `low_freq_factor` times is
    divided by `factor`, one that fits it more than `high_freq_factor` times stays, between them the two are mixed.
    """
    half, scaling = config.head_dim // 2, config.rope_scaling
    inverse = 1.0 / config.rope_theta ** (np.arange(half, dtype=np.float32) / half)
    if scaling is None:
        return inverse
    turns = scaling.original_max_position_embeddings * inverse / (2 * np.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return (inverse * (kept + (1.0 - kept) / scaling.factor)).astype(np.float32)


class Attention(nn.Module):
    """Grouped-query attention; writes the new keys and values into the cache where one is given."""

    config: TextConfig
    dtype: jnp.dtype
    lora_scale: float

    @nn.compact
    def __call__(
        self,
        x: Array,
        rope: tuple[Array, Array],
        slots: Array,
        cache: tuple[Array, Array] | None,
        lengths: Array | None,
    ) -> tuple[Array, tuple[Array, Array] | None]:
        cfg = self.config
        b, t, _ = x.shape

        def dense(heads: int, name: str) -> Dense:
            return Dense(heads * cfg.head_dim, cfg.attention_bias, self.lora_scale, self.dtype, name=name)

        kv_heads = cfg.num_key_value_heads
        layers = [dense(cfg.num_attention_heads, "q_proj"), dense(kv_heads, "k_proj"), dense(kv_heads, "v_proj")]
        query, key, value = (y.reshape(b, t, -1, cfg.head_dim) for y in project(self, layers, x))
        if cfg.qk_norm:
            query = RMSNorm(cfg.rms_norm_eps, self.dtype, name="q_norm")(query)
            key = RMSNorm(cfg.rms_norm_eps, self.dtype, name="k_norm")(key)
        query, key = rotate(query, *rope), rotate(key, *rope)
        key_slots = slots
        if cache is not None:
            # Row by row, so that a cache whose rows are split over devices is written without exchange between them.
            write = jax.vmap(lambda old, slot, new: old.at[slot].set(new, mode="drop"))
            key, value = (write(old, slots, new) for old, new in zip(cache, (key, value), strict=True))
            cache = (key, value)
            key_slots = jnp.arange(key.shape[1])[None]
        if cache is not None and t == 1:
            out = attend(query, key, value, lengths=jnp.minimum(slots[:, 0] + 1, key.shape[1]))
        elif cache is None and lengths is not None:
            out = attend(query, key, value, lengths=lengths, causal=True)
        else:
            out = attend(query, key, value, mask=key_slots[:, None, :] <= slots[:, :, None])
        out = out.reshape(b, t, -1)
        output = Dense(cfg.hidden_size, cfg.output_bias, self.lora_scale, self.dtype, name="o_proj")
        return project(self, [output], out)[0], cache


class Block(nn.Module):
    """Pre-norm decoder layer."""

    config: TextConfig
    dtype: jnp.dtype
    lora_scale: float

    @nn.compact
    def __call__(
        self,
        x: Array,
        rope: tuple[Array, Array],
        slots: Array,
        cache: tuple[Array, Array] | None,
        lengths: Array | None,
    ) -> tuple[Array, tuple[Array, Array] | None]:
        cfg = self.config
        normed = RMSNorm(cfg.rms_norm_eps, self.dtype, name="input_layernorm")(x)
        out, cache = Attention(cfg, self.dtype, self.lora_scale, name="self_attn")(normed, rope, slots, cache, lengths)
        x = x + out
        normed = RMSNorm(cfg.rms_norm_eps, self.dtype, name="post_attention_layernorm")(x)
        return x + GatedMLP(cfg.intermediate_size, cfg.mlp_bias, self.lora_scale, self.dtype, name="mlp")(normed), cache


class Decoder(nn.Module):
    """Embeddings f[B, T, D] -> final hidden states f[B, T, D] and the cache with these tokens added.

    `lengths` i32[B], without a cache only, says that rows are padded at their right end, which flash kernels need.
    `deepstack` f[B, T, D] each are added to what the first layers give.
    """

    config: TextConfig
    dtype: jnp.dtype = jnp.float32
    lora_scale: float = 1.0
    remat: bool = False

    @nn.compact
    def __call__(
        self,
        x: Array,
        positions: Array,
        slots: Array,
        cache: Cache | None = None,
        *,
        lengths: Array | None = None,
        deepstack: tuple[Array, ...] = (),
    ) -> tuple[Array, Cache | None]:
        rope = mrope(positions, self.config)
        block_cls = nn.remat(Block) if self.remat and cache is None else Block
        keys, values = [], []
        for i in range(self.config.num_hidden_layers):
            block = block_cls(self.config, self.dtype, self.lora_scale, name=f"layers_{i}")
            x, new = block(x, rope, slots, None if cache is None else (cache.keys[i], cache.values[i]), lengths)
            if i < len(deepstack):
                x = x + deepstack[i]
            if new is not None:
                keys.append(new[0])
                values.append(new[1])
        x = RMSNorm(self.config.rms_norm_eps, self.dtype, name="norm")(x)
        return x, None if cache is None else Cache(tuple(keys), tuple(values))
