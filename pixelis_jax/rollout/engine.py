"""The compiled half of the rollout: prefill, sampling with a KV cache, and appending what a tool returned.

State is one pytree per batch of rows. Rows are independent: a row's noise comes from its own key (seed, step, prompt,
sample, turn) and its token index, and padding or neighbours never enter its attention.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jax.sharding import Mesh

from pixelis_jax import parallel
from pixelis_jax.models import packing
from pixelis_jax.models.decoder import Cache, empty_cache
from pixelis_jax.models.head import log_softmax
from pixelis_jax.models.layers import LORA
from pixelis_jax.models.policy import Policy
from pixelis_jax.models.vlm import VLM, row_slots
from pixelis_jax.types import ImageBatch, TokenBatch

PyTree = Any


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How turns are sampled. `temperature` 0 is greedy; log-probs are then those at temperature 1."""

    temperature: float = 1.0
    max_new_tokens: int = 48
    context_tokens: int = 256

    @property
    def softmax_temperature(self) -> float:
        return self.temperature or 1.0


@struct.dataclass
class DecodeState:
    """`length` tokens of each row are cached; `hidden` is the last one's final state, `position` the next one's."""

    cache: Cache
    hidden: Array  # f[B, D]
    length: Array  # i32[B]
    position: Array  # i32[B]


@struct.dataclass
class Generated:
    """One assistant turn of each row: `tokens` i32[B, N] and `logp` f32[B, N], the first `count` i32[B] real."""

    tokens: Array
    logp: Array
    count: Array
    ended: Array  # bool[B] an end-of-turn token was sampled, the row's last one


class Engine:
    """Jitted rollout functions of a model and its sampling. `variables` is {"params": ..., "lora": ... or absent}.

    A turn ends with the first sampled id of `end_of_turn`, which is a token of the policy like those before it.
    `pack` decodes with packed weights (`models.packing`), which is slow where features are split over a mesh axis.
    `mesh` is what the rows and the cache are split over; None leaves that to the compiler.
    """

    def __init__(
        self,
        model: VLM,
        config: SamplingConfig,
        *,
        end_of_turn: int | Sequence[int],
        pack: bool = True,
        mesh: Mesh | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.end_of_turn = np.atleast_1d(np.asarray(end_of_turn, np.int32))
        self.pack = pack
        self.mesh = mesh
        self.encode = jax.jit(self._encode)
        self.prefill = jax.jit(self._prefill, static_argnames="repeat")
        self.extend = jax.jit(self._extend, donate_argnames="state")
        self.generate = jax.jit(self._generate, donate_argnames="state")

    @classmethod
    def of(cls, policy: Policy, config: SamplingConfig) -> "Engine":
        """The engine of a policy on its mesh."""
        pack = policy.mesh.shape["tensor"] == 1
        stop = policy.processor.end_of_turn
        return cls(policy.model, config, end_of_turn=stop, pack=pack, mesh=policy.mesh)

    def _encode(self, variables: PyTree, images: ImageBatch) -> tuple[Array, Array]:
        """(flat feature table f[M * U, D], mean feature of each image f32[M, D], without its deepstack levels)."""
        table: Any = self.model.apply(variables, images, method="encode_images")
        m = images.valid.shape[0]
        there = images.valid.reshape(m, -1, self.model.config.need_vision().merge_unit)[..., :1]
        tokens = table[:, : self.model.config.text.hidden_size]
        total = jnp.sum(tokens.reshape(m, -1, tokens.shape[-1]) * there, axis=1)
        pooled = total / jnp.maximum(jnp.sum(there, axis=1), 1)
        return table, pooled.astype(jnp.float32)

    def _prefill(self, variables: PyTree, rows: TokenBatch, features: Array, *, repeat: int) -> DecodeState:
        """Run prompts once and hand each to `repeat` neighbouring rows (a group)."""
        text = self.model.config.text
        cache = empty_cache(text, rows=rows.tokens.shape[0], slots=self.config.context_tokens, dtype=self.model.dtype)
        state = DecodeState(
            cache=cache,
            hidden=jnp.zeros((rows.tokens.shape[0], text.hidden_size), self.model.dtype),
            length=jnp.zeros(rows.tokens.shape[0], jnp.int32),
            position=jnp.zeros(rows.tokens.shape[0], jnp.int32),
        )
        state = self._extend(variables, state, rows, features)
        return parallel.constrain_state(self.mesh, jax.tree.map(lambda x: jnp.repeat(x, repeat, axis=0), state))

    def _extend(self, variables: PyTree, state: DecodeState, rows: TokenBatch, features: Array) -> DecodeState:
        """Append right-padded tokens to each row; a row with no valid token stays as it is."""
        added = jnp.sum(rows.valid, axis=1)
        slots = row_slots(rows.valid) + state.length[:, None]
        slots = jnp.where(rows.valid, slots, state.cache.slots)
        out: Any = self.model.apply(variables, rows, features, slots, state.cache, method="hidden")
        hidden, cache = out
        last = jnp.maximum(added - 1, 0)[:, None, None]
        final = jnp.take_along_axis(hidden, last, axis=1)[:, 0]
        top = jnp.max(jnp.where(rows.valid[:, None, :], rows.positions, -1), axis=(1, 2)) + 1
        state = DecodeState(
            cache=cache,
            hidden=jnp.where((added > 0)[:, None], final, state.hidden),
            length=state.length + added,
            position=jnp.where(added > 0, top, state.position),
        )
        return parallel.constrain_state(self.mesh, state)

    def _generate(
        self, variables: PyTree, state: DecodeState, keys: Array, active: Array
    ) -> tuple[Generated, DecodeState]:
        """Sample a turn in every `active` row until its end-of-turn token, `max_new_tokens`, or a full context."""
        b, n = state.length.shape[0], self.config.max_new_tokens
        out = Generated(
            tokens=jnp.zeros((b, n), jnp.int32),
            logp=jnp.zeros((b, n), jnp.float32),
            count=jnp.zeros(b, jnp.int32),
            ended=jnp.zeros(b, bool),
        )
        no_image = jnp.zeros((1, self.model.config.text.hidden_size), self.model.dtype)
        # Adapters are f32: cast here once, not at every token.
        adapter = jax.tree.map(lambda x: x.astype(self.model.dtype), variables.get(LORA, {}))
        variables = variables | {LORA: adapter}
        if self.pack:
            variables = packing.pack(variables, self.model.dtype)
        step = functools.partial(self._decode_step, variables, keys=keys, no_image=no_image)

        def more(carry: tuple[Array, Array, Generated, DecodeState]) -> Array:
            i, running, _, _ = carry
            return jnp.any(running) & (i < n)

        running = active & (state.length < state.cache.slots)
        _, _, out, state = jax.lax.while_loop(more, step, (jnp.int32(0), running, out, state))
        return out, state

    def _decode_step(
        self, variables: PyTree, carry: tuple[Array, Array, Generated, DecodeState], *, keys: Array, no_image: Array
    ) -> tuple[Array, Array, Generated, DecodeState]:
        i, running, out, state = carry
        logits: Any = self.model.apply(variables, state.hidden, method="logits")
        logp = log_softmax(logits, forbidden=self.model.placeholders(), temperature=self.config.softmax_temperature)
        token = self._choose(logp, keys, i)
        chosen = jnp.take_along_axis(logp, token[:, None], axis=1)[:, 0]
        ends = jnp.isin(token, self.end_of_turn)
        out = Generated(
            tokens=out.tokens.at[:, i].set(jnp.where(running, token, 0)),
            logp=out.logp.at[:, i].set(jnp.where(running, chosen, 0.0)),
            count=out.count + running,
            ended=out.ended | (running & ends),
        )
        rows = TokenBatch(
            tokens=token[:, None],
            valid=running[:, None],
            policy=running[:, None],
            positions=jnp.broadcast_to(state.position[:, None, None], (token.shape[0], 3, 1)),
            image_index=jnp.full_like(token[:, None], -1),
        )
        state = self._extend(variables, state, rows, no_image)
        running = running & ~ends & (state.length < state.cache.slots)
        return i + 1, running, out, state

    def _choose(self, logp: Array, keys: Array, i: Array) -> Array:
        if self.config.temperature == 0:
            return jnp.argmax(logp, axis=-1)
        token_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, i)
        noise = jax.vmap(lambda key: jax.random.gumbel(key, logp.shape[-1:]))(token_keys)
        return jnp.argmax(logp + noise, axis=-1)


@jax.jit
def row_keys(seed: Array, step: Array, prompts: Array, samples: Array, turn: Array) -> Array:
    """Key of each row's turn: fold(seed, step, prompt, sample, turn), so a row's noise depends on its address alone."""

    def one(prompt: Array, sample: Array) -> Array:
        key = jax.random.key(seed)
        for part in (step, prompt, sample, turn):
            key = jax.random.fold_in(key, part)
        return key

    return jax.vmap(one)(prompts, samples)
