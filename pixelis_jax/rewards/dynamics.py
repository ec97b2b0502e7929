"""Intrinsic curiosity module: how badly a small model of the tools predicts what an operation shows.

Source: Pathak et al., arXiv:1705.05363. Different here: the forward model is a base, trained on the first transitions
of the run and then frozen, with a LoRA that goes on learning; and a transition counts once a trajectory.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import Array

from pixelis_jax.masked import masked_mean
from pixelis_jax.types import OPS, STATE_DIM, RewardInputs

ACTION_DIM = (
    128  # one-hot op at 0..5, the call's place at 10..13 (centre x, centre y, width, height in 0..1), zeros elsewhere
)
PLACE_AT = 10
Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class DynamicsConfig:
    """Sizes and training of the module."""

    hidden: int = 256
    rank: int = 8
    alpha: float = 16.0  # the LoRA update is scaled by alpha / rank
    beta: float = 0.2  # loss = beta * forward + (1 - beta) * inverse
    learning_rate: float = 1e-3
    pretrain_transitions: int = 2000  # transitions until the base is frozen


@struct.dataclass
class DynamicsState:
    """Parameters and optimizer state by part (encoder, inverse, base, lora), and the transitions seen so far."""

    params: dict[str, Params]
    opt: dict[str, optax.OptState]
    transitions: Array  # i32[]


@struct.dataclass
class Transitions:
    """Calls as training data of the module; what is under a false mask is zero."""

    states: Array  # f32[B, K+1, STATE_DIM]
    actions: Array  # f32[B, K, ACTION_DIM]
    mask: Array  # bool[B, K]


def init(key: Array, config: DynamicsConfig) -> DynamicsState:
    """Fresh module. The forward model has layers 896-256-256-768 (at hidden 256), the encoder 768-256-768."""
    h = config.hidden
    keys = iter(jax.random.split(key, 10))

    def dense(rows: int, columns: int) -> Params:
        return {"w": jax.random.normal(next(keys), (rows, columns)) * rows**-0.5, "b": jnp.zeros(columns)}

    def low_rank(rows: int, columns: int) -> Params:
        return {
            "a": jax.random.normal(next(keys), (rows, config.rank)) * rows**-0.5,
            "b": jnp.zeros((config.rank, columns)),
        }

    forward = [(STATE_DIM + ACTION_DIM, h), (h, h), (h, STATE_DIM)]
    params: dict[str, Params] = {
        "encoder": {"0": dense(STATE_DIM, h), "1": dense(h, STATE_DIM)},
        "inverse": {"0": dense(2 * STATE_DIM, h), "1": dense(h, len(OPS) + 4)},
        "base": {str(i): dense(*shape) for i, shape in enumerate(forward)},
        "lora": {str(i): low_rank(*shape) for i, shape in enumerate(forward)},
    }
    tx = optax.adam(config.learning_rate)
    return DynamicsState(params=params, opt={k: tx.init(p) for k, p in params.items()}, transitions=jnp.int32(0))


def parameter_counts(state: DynamicsState) -> dict[str, int]:
    """Number of parameters of each part; at the default sizes lora is 21 504 and base 492 800."""
    return {part: sum(x.size for x in jax.tree.leaves(tree)) for part, tree in state.params.items()}


def action_vectors(inputs: RewardInputs) -> Array:
    """f32[..., K, ACTION_DIM] of the calls."""
    one_hot = jax.nn.one_hot(inputs.ops, len(OPS))
    gap = jnp.zeros((*inputs.ops.shape, PLACE_AT - len(OPS)))
    tail = jnp.zeros((*inputs.ops.shape, ACTION_DIM - PLACE_AT - 4))
    return jnp.concatenate([one_hot, gap, inputs.arguments, tail], axis=-1)


def transitions(inputs: RewardInputs, counted: Array) -> Transitions:
    """Training data from the calls in `counted` bool[B, K]. A state that is not finite takes its transitions out."""
    finite = jnp.all(jnp.isfinite(inputs.embeddings), axis=-1)
    mask = counted & finite[:, :-1] & finite[:, 1:] & jnp.all(jnp.isfinite(inputs.arguments), axis=-1)
    edge = jnp.zeros((mask.shape[0], 1), bool)
    used = jnp.concatenate([mask, edge], axis=1) | jnp.concatenate([edge, mask], axis=1)
    states = jnp.where(used[..., None], inputs.embeddings, 0.0).astype(jnp.float32)
    return Transitions(states=states, actions=jnp.where(mask[..., None], action_vectors(inputs), 0.0), mask=mask)


def loss(
    params: dict[str, Params], data: Transitions, config: DynamicsConfig
) -> tuple[Array, tuple[Array, dict[str, Array]]]:
    """(beta L_forward + (1 - beta) L_inverse, (squared error f32[B, K], both losses)).

    The target phi(s') and the states are constants; the forward model's input phi(s) is not. The encoder also learns
    from the inverse model, which predicts the operation (cross-entropy) and its place (squared error) from both states.
    """
    features = encode(params["encoder"], jax.lax.stop_gradient(data.states))
    before, after = features[:, :-1], features[:, 1:]
    predicted = predict(params, jnp.concatenate([before, data.actions], axis=-1), config)
    error = jnp.mean((predicted - jax.lax.stop_gradient(after)) ** 2, axis=-1)
    guess = _mlp(params["inverse"], jnp.concatenate([before, after], axis=-1))
    logits, place = guess[..., : len(OPS)], guess[..., len(OPS) :]
    wrong_op = -jnp.sum(jax.nn.log_softmax(logits) * data.actions[..., : len(OPS)], axis=-1)
    wrong_place = jnp.mean((place - data.actions[..., PLACE_AT : PLACE_AT + 4]) ** 2, axis=-1)
    forward, inverse = masked_mean(error, data.mask), masked_mean(wrong_op + wrong_place, data.mask)
    total = config.beta * forward + (1.0 - config.beta) * inverse
    return total, (error, {"dynamics/forward_loss": forward, "dynamics/inverse_loss": inverse})


def encode(params: Params, states: Array) -> Array:
    """phi: dense, LayerNorm, GELU, dense, LayerNorm (without scale and shift, so that phi has variance 1)."""
    hidden = jax.nn.gelu(_layer_norm(_dense(params["0"], states)))
    return _layer_norm(_dense(params["1"], hidden))


def predict(params: dict[str, Params], x: Array, config: DynamicsConfig) -> Array:
    """Forward model f([phi(s), a]): the base plus its LoRA, GELU between the layers."""
    scale = config.alpha / config.rank
    for i in range(3):
        low = params["lora"][str(i)]
        x = _dense(params["base"][str(i)], x) + scale * ((x @ low["a"]) @ low["b"])
        x = jax.nn.gelu(x) if i < 2 else x
    return x


def score_and_train(
    state: DynamicsState, data: Transitions, config: DynamicsConfig
) -> tuple[Array, DynamicsState, dict[str, Array]]:
    """(squared error f32[B, K] with the parameters from before, the state after one optimizer step, both losses).

    Until `pretrain_transitions` transitions were seen the base learns, afterwards the LoRA; encoder and inverse model
    always. A step without a transition, or whose gradient is not finite, changes nothing.
    """
    tx = optax.adam(config.learning_rate)

    def step(part: str, state: DynamicsState) -> tuple[Array, DynamicsState, dict[str, Array]]:
        trained = {k: state.params[k] for k in ("encoder", "inverse", part)}

        def objective(trained: dict[str, Params]) -> tuple[Array, tuple[Array, dict[str, Array]]]:
            return loss(state.params | trained, data, config)

        (_, (error, losses)), grads = jax.value_and_grad(objective, has_aux=True)(trained)
        good = jnp.any(data.mask) & jnp.isfinite(optax.global_norm(grads))
        params, opt = dict(state.params), dict(state.opt)
        for k, tree in trained.items():
            updates, moments = tx.update(grads[k], state.opt[k])
            new = (optax.apply_updates(tree, updates), moments)
            params[k], opt[k] = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, (tree, state.opt[k]))
        count = state.transitions + jnp.sum(data.mask, dtype=jnp.int32)
        return error, DynamicsState(params=params, opt=opt, transitions=count), losses

    pretraining = state.transitions < config.pretrain_transitions
    return jax.lax.cond(pretraining, functools.partial(step, "base"), functools.partial(step, "lora"), state)


def _mlp(params: Params, x: Array) -> Array:
    return _dense(params["1"], jax.nn.gelu(_dense(params["0"], x)))


def _dense(params: Params, x: Array) -> Array:
    return x @ params["w"] + params["b"]


def _layer_norm(x: Array) -> Array:
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-6)
