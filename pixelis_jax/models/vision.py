"""The Qwen2.5-VL vision tower, windows first.

Patches arrive grouped by attention window, `[M, W, L, ...]` with a validity mask (types.ImageBatch, packed by
`image_processor.pack`). Window layers attend inside `L`; full layers attend over `W * L` of one image. A frame pair of
a video is an image of its own here, as the reference does not attend across frames either. The four patches of a merged
token are neighbours, so the merger is a reshape, and its output stays in window order: callers index it through
`image_processor.token_rows`.
"""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array

from pixelis_jax.models.config import VISION_THETA, VisionBase, VisionConfig
from pixelis_jax.models.layers import Dense, GatedMLP, RMSNorm, attend, rotate
from pixelis_jax.types import ImageBatch


class VisionAttention(nn.Module):
    """Self-attention with 2-D rotary positions; `x` f[N, S, D], `valid` bool[N, S], cos/sin f32[N, S, d / 2]."""

    num_heads: int
    dtype: jnp.dtype
    lora_scale: float

    @nn.compact
    def __call__(self, x: Array, valid: Array, cos: Array, sin: Array) -> Array:
        n, s, width = x.shape
        qkv = Dense(3 * width, True, self.lora_scale, self.dtype, name="qkv")(x)
        query, key, value = jnp.moveaxis(qkv.reshape(n, s, 3, self.num_heads, width // self.num_heads), 2, 0)
        mask = jnp.broadcast_to(valid[:, None, :], (n, s, s))
        out = attend(rotate(query, cos, sin), rotate(key, cos, sin), value, mask=mask)
        return Dense(width, True, self.lora_scale, self.dtype, name="proj")(out.reshape(n, s, width))


class VisionBlock(nn.Module):
    """Pre-norm block; window or full attention is only a matter of how the caller shaped the input."""

    config: VisionConfig
    dtype: jnp.dtype
    lora_scale: float

    @nn.compact
    def __call__(self, x: Array, valid: Array, cos: Array, sin: Array) -> Array:
        cfg = self.config
        attention = VisionAttention(cfg.num_heads, self.dtype, self.lora_scale, name="attn")
        x = x + attention(RMSNorm(dtype=self.dtype, name="norm1")(x), valid, cos, sin)
        mlp = GatedMLP(cfg.intermediate_size, True, self.lora_scale, self.dtype, name="mlp")
        return x + mlp(RMSNorm(dtype=self.dtype, name="norm2")(x))


class VisionTower(nn.Module):
    """Patches to merged tokens: f[M, W * L / merge, out_hidden_size], in window order, zeros where no patch is."""

    config: VisionConfig
    dtype: jnp.dtype = jnp.float32
    lora_scale: float = 1.0
    remat: bool = False

    @nn.compact
    def __call__(self, images: ImageBatch) -> Array:
        cfg = self.config
        m, w, length = images.valid.shape
        x = Dense(cfg.hidden_size, False, self.lora_scale, self.dtype, name="patch_embed")(
            normalise(images.patches, cfg)
        )
        cos, sin = rope(images.coords, cfg)
        block_cls = nn.remat(VisionBlock) if self.remat else VisionBlock
        for i in range(cfg.depth):
            # One image's windows are separate rows in window layers and one row in full layers.
            rows, span = (m, w * length) if i in cfg.fullatt_block_indexes else (m * w, length)
            block = block_cls(cfg, self.dtype, self.lora_scale, name=f"blocks_{i}")
            shaped = [a.reshape(rows, span, *a.shape[3:]) for a in (x, images.valid, cos, sin)]
            x = block(*shaped).reshape(m, w, length, -1)
        x = RMSNorm(dtype=self.dtype, name="merger_ln_q")(x).reshape(m, w * length // cfg.merge_unit, -1)
        x = nn.gelu(Dense(x.shape[-1], True, self.lora_scale, self.dtype, name="merger_mlp_0")(x), approximate=False)
        x = Dense(cfg.out_hidden_size, True, self.lora_scale, self.dtype, name="merger_mlp_2")(x)
        return jnp.where(images.valid.reshape(m, -1, cfg.merge_unit)[..., :1], x, 0)


def normalise(patches: Array, config: VisionBase) -> Array:
    """u8[..., channels * frames * patch * patch] -> f32, per channel; a patch's slowest index is the channel."""
    per_channel = config.patch_dim // config.in_channels
    mean = np.repeat(np.array(config.image_mean, np.float32), per_channel)
    std = np.repeat(np.array(config.image_std, np.float32), per_channel)
    return (patches.astype(jnp.float32) * np.float32(1 / 255) - mean) / std


def rope(coords: Array, config: VisionBase) -> tuple[Array, Array]:
    """cos and sin f32[..., head_dim / 2]: half of the angles turn with the row, half with the column."""
    quarter = config.hidden_size // config.num_heads // 4
    inverse = 1.0 / VISION_THETA ** (np.arange(quarter, dtype=np.float32) / quarter)
    angles = coords[..., None].astype(jnp.float32) * inverse
    angles = angles.reshape(*coords.shape[:-1], 2 * quarter)
    return jnp.cos(angles), jnp.sin(angles)
