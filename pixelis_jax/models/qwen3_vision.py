"""The Qwen3-VL vision tower (arXiv:2511.21631): full attention, learned positions, features from several depths.

Patches arrive as for `vision.VisionTower` (types.ImageBatch), in windows of one merged token: its patches are
neighbours, and all windows of an image are one row. The learned position table is a square grid that is resampled to
each image's grid. A feature is as wide as the decoder times one plus the number of deepstack levels: the merged token
first, then what each level adds to the decoder's hidden states (DeepStack, arXiv:2406.04334).
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from pixelis_jax.models.config import Qwen3VisionConfig
from pixelis_jax.models.layers import Dense
from pixelis_jax.models.vision import VisionAttention, normalise, rope
from pixelis_jax.types import ImageBatch


def layer_norm(dtype: jnp.dtype, name: str) -> nn.LayerNorm:
    """With the reference's epsilon, statistics in fp32."""
    return nn.LayerNorm(epsilon=1e-6, dtype=dtype, param_dtype=dtype, use_fast_variance=False, name=name)


class Qwen3VisionBlock(nn.Module):
    """Pre-norm block over whole images."""

    config: Qwen3VisionConfig
    dtype: jnp.dtype
    lora_scale: float

    @nn.compact
    def __call__(self, x: Array, valid: Array, cos: Array, sin: Array) -> Array:
        cfg = self.config
        attention = VisionAttention(cfg.num_heads, self.dtype, self.lora_scale, name="attn")
        x = x + attention(layer_norm(self.dtype, "norm1")(x), valid, cos, sin)
        mlp = MLP(cfg.intermediate_size, cfg.hidden_size, True, self.lora_scale, self.dtype, name="mlp")
        return x + mlp(layer_norm(self.dtype, "norm2")(x))


class MLP(nn.Module):
    """Two linear layers with GELU between them: its tanh approximation in the blocks, the exact one in mergers."""

    intermediate_size: int
    features: int
    approximate: bool
    lora_scale: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array) -> Array:
        hidden = Dense(self.intermediate_size, True, self.lora_scale, self.dtype, name="linear_fc1")(x)
        hidden = nn.gelu(hidden, approximate=self.approximate)
        return Dense(self.features, True, self.lora_scale, self.dtype, name="linear_fc2")(hidden)


class Merger(MLP):
    """f[M, N, D] patches -> f[M, N / unit, features]; its norm is over a patch, or with `norm_merged` over the unit."""

    unit: int = 4
    norm_merged: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        norm = layer_norm(self.dtype, "norm")
        merged = (*x.shape[:-2], x.shape[-2] // self.unit, self.unit * x.shape[-1])
        return super().__call__(norm(x.reshape(merged)) if self.norm_merged else norm(x).reshape(merged))


class Qwen3VisionTower(nn.Module):
    """Patches to features: f[M, W * L / merge, out_hidden_size * (1 + levels)], zeros where no patch is."""

    config: Qwen3VisionConfig
    dtype: jnp.dtype = jnp.float32
    lora_scale: float = 1.0
    remat: bool = False

    @nn.compact
    def __call__(self, images: ImageBatch) -> Array:
        cfg = self.config
        m = images.valid.shape[0]
        patches, coords, valid = (x.reshape(m, -1, *x.shape[3:]) for x in (images.patches, images.coords, images.valid))
        embed = Dense(cfg.hidden_size, True, self.lora_scale, self.dtype, name="patch_embed")
        table_shape = (cfg.num_position_embeddings, cfg.hidden_size)
        table = self.param("pos_embed", nn.initializers.normal(0.02), table_shape, self.dtype)
        x = embed(normalise(patches, cfg)) + resampled(table, coords, valid).astype(self.dtype)
        cos, sin = rope(coords, cfg)
        block_cls = nn.remat(Qwen3VisionBlock) if self.remat else Qwen3VisionBlock
        levels = []
        for i in range(cfg.depth):
            x = block_cls(cfg, self.dtype, self.lora_scale, name=f"blocks_{i}")(x, valid, cos, sin)
            if i in cfg.deepstack_visual_indexes:
                name = f"deepstack_merger_list_{cfg.deepstack_visual_indexes.index(i)}"
                levels.append(self._merger(name, norm_merged=True)(x))
        merged = self._merger("merger", norm_merged=False)(x)
        there = valid.reshape(m, -1, cfg.merge_unit)[..., :1]
        return jnp.where(there, jnp.concatenate([merged, *levels], axis=-1), 0)

    def _merger(self, name: str, *, norm_merged: bool) -> Merger:
        cfg, unit = self.config, self.config.merge_unit
        sizes = (unit * cfg.hidden_size, cfg.out_hidden_size)
        return Merger(*sizes, False, self.lora_scale, self.dtype, unit=unit, norm_merged=norm_merged, name=name)


def resampled(table: Array, coords: Array, valid: Array) -> Array:
    """Position embeddings f32[M, N, D] of patches at `coords` i32[M, N, 2]: bilinear, corners on corners.

    `table` f[side * side, D] is a grid in raster order. An image's grid is what its valid patches span.
    """
    side = round(table.shape[0] ** 0.5)
    size = jnp.max(jnp.where(valid[..., None], coords, 0), axis=1, keepdims=True)  # of the grid, less one
    at = coords.astype(jnp.float32) * (side - 1) / jnp.maximum(size, 1).astype(jnp.float32)
    low = jnp.clip(jnp.floor(at), 0, side - 1)
    share, low = at - low, low.astype(jnp.int32)
    high = jnp.minimum(low + 1, side - 1)
    row, column = share[..., :1], share[..., 1:]

    def corner(rows: Array, columns: Array) -> Array:
        return table[rows[..., 0] * side + columns[..., 1]].astype(jnp.float32)

    top = corner(low, low) * (1 - column) + corner(low, high) * column
    bottom = corner(high, low) * (1 - column) + corner(high, high) * column
    return top * (1 - row) + bottom * row
