"""A sampler that is told what to say: every path of a rollout is the real one, only the choice of the token is not."""

import jax
import jax.numpy as jnp
import numpy as np
from one_tool import ZOOM

from pixelis_jax.models.rows import bucket, pad_1d
from pixelis_jax.rollout.engine import Engine, SamplingConfig
from pixelis_jax.rollout.sample import RolloutConfig, Sampler
from pixelis_jax.types import TokenBatch

SAMPLING = SamplingConfig(max_new_tokens=32, context_tokens=320)
LOOK = (
    "<think>I need a closer look.</think>"
    '<tool_call>{"name": "ZOOM_IN", "arguments": {"bbox_2d": [%d, %d, %d, %d]}}</tool_call>'
)
ANSWER = "<think>Now I can read it.</think><answer>7</answer>"


class ScriptedEngine(Engine):
    """Says `script[turn][row]` token by token; log-probs and state are the model's own."""

    def __init__(self, model, config, *, end_of_turn):
        super().__init__(model, config, end_of_turn=end_of_turn)
        self.script = []
        compiled = self.generate
        self.generate = lambda variables, state, keys, active: compiled(variables, state, self.script.pop(0), active)

    def _choose(self, logp, keys, i):
        return keys[:, i]


class Script:
    """`script(tasks, turns)`: a rollout in which row r's assistant messages are `turns[r]`. One engine for all.

    `sampler` is that of the last rollout.
    """

    def __init__(self, policy):
        self.policy = policy
        self.engine = ScriptedEngine(policy.model, SAMPLING, end_of_turn=policy.processor.im_end)

    def __call__(self, tasks, turns, *, lora=None, **options):
        processor = self.policy.processor
        longest = max(map(len, turns))
        texts = [[row[t] if t < len(row) else "" for row in turns] for t in range(longest)]
        ids = [[[*processor.encode(text), processor.im_end] for text in turn] for turn in texts]
        self.engine.script = [jnp.asarray(pad_1d(turn, SAMPLING.max_new_tokens, 0, np.int32)) for turn in ids]
        config = RolloutConfig(**{"sampling": SAMPLING, "max_turns": longest} | options)
        self.sampler = Sampler(self.policy, config, tools=ZOOM, engine=self.engine)
        return self.sampler(tasks, lora=lora, seed=0, step=0)


def token_batch(trajectories, *, pad, multiple=64):
    """Right-padded rows of trajectories."""
    length = bucket(max(len(t.tokens) for t in trajectories), multiple=multiple)
    positions = np.zeros((len(trajectories), 3, length), np.int32)
    for row, trajectory in zip(positions, trajectories, strict=True):
        row[:, : len(trajectory.tokens)] = trajectory.positions
    return TokenBatch(
        tokens=pad_1d([t.tokens for t in trajectories], length, pad, np.int32),
        valid=pad_1d([np.ones(len(t.tokens), bool) for t in trajectories], length, False, bool),
        policy=pad_1d([t.policy for t in trajectories], length, False, bool),
        positions=positions,
        image_index=pad_1d([t.image_index for t in trajectories], length, -1, np.int32),
    )


def insistent(policy, tokens):
    """(params, adapter): with the adapter, every position's last hidden state points at `tokens`, whatever came before.

    Feature 0 of every embedding is 2, so the normed input of a layer has it positive everywhere; the adapter carries it
    through the attention (a mean over positions stays positive) into the direction of `tokens`.
    """
    text = policy.model.config.text
    embedding = np.array(policy.params["embed_tokens"]) * 0.3
    embedding[:, 0] = 2.0
    scale = jnp.ones_like(policy.params["language_model"]["norm"]["scale"]) * 8.0
    inner = dict(policy.params["language_model"])
    inner["norm"] = {"scale": scale.at[0].set(0.0)}
    first = dict(inner["layers_0"])
    first["input_layernorm"] = {"scale": jnp.ones_like(first["input_layernorm"]["scale"])}
    inner["layers_0"] = first
    params = policy.params | {"embed_tokens": jnp.asarray(embedding), "language_model": inner}
    target = embedding[list(tokens)].sum(axis=0)
    target[0] = 0.0
    values = text.num_key_value_heads * text.head_dim
    a_value = np.zeros((text.hidden_size, 1), np.float32)
    a_value[0] = 1.0
    b_value = np.zeros((1, values), np.float32)
    b_value[0, 0] = 100.0
    a_out = np.zeros((text.hidden_size, 1), np.float32)
    a_out[0] = 1.0
    b_out = (1e3 * target)[None]
    adapter = {
        "language_model": {
            "layers_0": {"self_attn": {"v_proj": {"a": a_value, "b": b_value}, "o_proj": {"a": a_out, "b": b_out}}}
        }
    }
    return params, jax.tree.map(jnp.asarray, adapter)
