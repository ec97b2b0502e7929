"""Vision tower (where there is one), decoder and head behind one module, whatever the family."""

from typing import Any, cast

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from pixelis_jax.models.config import ModelConfig, Qwen3VisionConfig, VisionConfig
from pixelis_jax.models.decoder import Cache, Decoder
from pixelis_jax.models.head import HeadOutput, score_tokens
from pixelis_jax.models.layers import matmul_precision
from pixelis_jax.models.qwen3_vision import Qwen3VisionTower
from pixelis_jax.models.vision import VisionTower
from pixelis_jax.types import ImageBatch, TokenBatch

PyTree = Any
TOWERS: dict[type, Any] = {VisionConfig: VisionTower, Qwen3VisionConfig: Qwen3VisionTower}


class VLM(nn.Module):
    """Call methods through `model.apply(variables, ..., method=...)` with `{"params": base, "lora": adapter}`.

    `lora_scale` is alpha / rank of the adapter, if any. `remat` recomputes each layer in the backward pass.
    """

    config: ModelConfig
    dtype: jnp.dtype = jnp.float32
    lora_scale: float = 1.0
    remat: bool = False

    def setup(self) -> None:
        text = self.config.text
        if self.config.vision is not None:
            tower = TOWERS[type(self.config.vision)]
            self.visual = tower(self.config.vision, self.dtype, self.lora_scale, self.remat)
        self.language_model = Decoder(text, self.dtype, self.lora_scale, self.remat)
        scale = nn.initializers.normal(text.hidden_size**-0.5)
        self.embed_tokens = self.param("embed_tokens", scale, (text.vocab_size, text.hidden_size), self.dtype)
        if not text.tie_word_embeddings:
            self.lm_head = self.param("lm_head", scale, (text.hidden_size, text.vocab_size), self.dtype)

    def encode_images(self, images: ImageBatch) -> Array:
        """Flat feature table f[M * W * L / merge, D] of images; rows are found by `image_processor.token_rows`.

        With deepstack a row is [D * (1 + levels)]: the token's embedding, then what each level adds in the decoder.
        UserError in a text-only model: no token points into its table, so there one row of zeros serves.
        """
        vision = self.config.need_vision()
        shape = images.valid.shape
        chex.assert_rank(images.valid, 3, custom_message="images.valid bool[M, W, L]")
        chex.assert_shape(
            images.patches, (*shape, vision.patch_dim), custom_message="images.patches u8[M, W, L, values]"
        )
        chex.assert_shape(images.coords, (*shape, 2), custom_message="images.coords i32[M, W, L, 2]")
        with matmul_precision(self.dtype):
            features = self.visual(images)
        return features.reshape(-1, features.shape[-1])

    def hidden(
        self,
        rows: TokenBatch,
        features: Array,
        slots: Array,
        cache: Cache | None = None,
        lengths: Array | None = None,
    ) -> tuple[Array, Cache | None]:
        """Final hidden states f[B, T, D]; token positions whose `image_index` >= 0 take that row of `features`."""
        _check_rows(rows, slots)
        chex.assert_rank(features, 2, custom_message="features f[rows of the table, D * (1 + deepstack levels)]")
        text = self.embed_tokens.astype(self.dtype)[rows.tokens]
        seen = features.astype(self.dtype)[jnp.maximum(rows.image_index, 0)]
        seen, *levels = jnp.split(seen, seen.shape[-1] // text.shape[-1], axis=-1)
        is_image = rows.image_index[..., None] >= 0
        x = jnp.where(is_image, seen, text)
        deepstack = tuple(jnp.where(is_image, level, 0) for level in levels)
        with matmul_precision(self.dtype):
            return self.language_model(x, rows.positions, slots, cache, lengths=lengths, deepstack=deepstack)

    def logits(self, hidden: Array) -> Array:
        """f32[..., V]; ids of image and video placeholders keep their raw logits here."""
        return _to_logits(hidden, self._head())

    def _head(self) -> Array:
        tied = self.config.text.tie_word_embeddings
        return (self.embed_tokens.T if tied else self.lm_head).astype(self.dtype)

    def forward_logits(self, rows: TokenBatch, features: Array) -> Array:
        """f32[B, T, V]: what the reference implementation returns; for tests and small models."""
        return self.logits(self.hidden(rows, features, row_slots(rows.valid))[0])

    def score(
        self, rows: TokenBatch, features: Array, *, temperature: float = 1.0, with_mean: bool = False
    ) -> HeadOutput:
        """Log-prob and entropy f32[B, T] of each `policy` token given those before, 0 elsewhere and at the first.

        Never holds [B, T, V]. Rows must be padded at their right end, as `pad_rows` does.
        """
        lengths = jnp.sum(rows.valid, axis=1, dtype=jnp.int32)
        hidden, _ = self.hidden(rows, features, row_slots(rows.valid), lengths=lengths)
        head = self._head()  # taken out of the module here: linen modules may not be called inside lax.map
        out = score_tokens(
            lambda h: _to_logits(h, head),
            hidden[:, :-1],
            rows.tokens[:, 1:],
            rows.policy[:, 1:],
            forbidden=self.placeholders(),
            temperature=temperature,
            with_mean=with_mean,
        )
        return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (1, 0))), out)

    def placeholders(self) -> tuple[int, ...]:
        """Ids that only a processor may write: neither sampled nor counted in a softmax."""
        return (self.config.image_token_id, self.config.video_token_id) if self.config.vision else ()

    def init_all(self, rows: TokenBatch, images: ImageBatch | None) -> Array:
        """Touches every parameter, for linen's init. A text-only model has no `images`."""
        no_image = jnp.zeros((1, self.config.text.hidden_size), self.dtype)
        return self.forward_logits(rows, no_image if images is None else self.encode_images(images))


@jax.custom_vjp
def _to_logits(hidden: Array, head: Array) -> Array:
    """f32[..., V], not rounded to the 16 bits of `hidden` on the way; gradients are products of its own type."""
    with matmul_precision(hidden.dtype):
        return jnp.matmul(hidden, head, preferred_element_type=jnp.float32)


def _logits_forward(hidden: Array, head: Array) -> tuple[Array, tuple[Array, Array]]:
    return _to_logits(hidden, head), (hidden, head)


def _logits_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    with matmul_precision(saved[0].dtype):
        _, pull = jax.vjp(jnp.matmul, *saved)
        return pull(gradient.astype(saved[0].dtype))


_to_logits.defvjp(_logits_forward, _logits_backward)


def _check_rows(rows: TokenBatch, slots: Array) -> None:
    """AssertionError that names the parts of a TokenBatch of which one has another shape than its tokens."""
    chex.assert_rank(rows.tokens, 2, custom_message="rows.tokens i32[B, T]")
    b, t = rows.tokens.shape
    names = "rows.valid, rows.policy, rows.image_index, slots [B, T] like rows.tokens"
    chex.assert_shape([rows.valid, rows.policy, rows.image_index, slots], (b, t), custom_message=names)
    chex.assert_shape(rows.positions, (b, 3, t), custom_message="rows.positions i32[B, 3, T]")


def row_slots(valid: Array) -> Array:
    """Slot of each token i32[B, T]: its rank among the row's valid tokens (left or right padding); padding gets T."""
    rank = jnp.cumsum(valid, axis=1) - 1
    return jnp.where(valid, rank, valid.shape[1])


# Typed calls of the module, for code that holds variables: `model.apply` returns a union that type checkers can't read.
def encode_images(model: VLM, variables: PyTree, images: ImageBatch) -> Array:
    """Flat feature table of `images` under `variables`."""
    return cast(Array, model.apply(variables, images, method="encode_images"))


def score(
    model: VLM,
    variables: PyTree,
    rows: TokenBatch,
    features: Array,
    *,
    temperature: float = 1.0,
    with_mean: bool = False,
) -> HeadOutput:
    """Log-prob and entropy f32[B, T] of each `policy` token under `variables`, 0 elsewhere."""
    out = model.apply(variables, rows, features, temperature=temperature, with_mean=with_mean, method="score")
    return cast(HeadOutput, out)
