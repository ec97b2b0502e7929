"""Run by test_parallel.py on 8 simulated CPU devices, in a process of its own: the numbers of each mesh as JSON."""

import dataclasses
import json
import re
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import optax
import rl_batch
from conftest import CORPUS, make_policy
from meshes import FULL_SHAPE, ONE, SFT_SHAPES, SHAPES, UNEVEN_SHAPE, name_of
from one_tool import ZOOM

from pixelis_jax import parallel, train_step
from pixelis_jax.data import demonstrations
from pixelis_jax.data.demonstrations import DemonstrationConfig
from pixelis_jax.models import lora, weights
from pixelis_jax.models import tokenizer as bpe
from pixelis_jax.rewards.curiosity import CuriosityConfig
from pixelis_jax.rewards.orchestrator import RewardConfig
from pixelis_jax.rollout.engine import Engine, SamplingConfig, row_keys
from pixelis_jax.tools.base import schemas
from pixelis_jax.types import TokenBatch

# Every dimension that a rule splits divides by 8, and so do the heads.
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 8, "mrope_section": (2, 1, 1)}
EVEN = {"text": {"num_hidden_layers": 1} | HEADS, "vision": {"depth": 1, "num_heads": 8}}
UNEVEN = {"text": {"num_hidden_layers": 1}, "vision": {"depth": 1}}
SAMPLING = SamplingConfig(max_new_tokens=6, context_tokens=320)
GROUP = 2  # samples a prompt: 8 rows of 4 prompts


class Job:
    """A policy, a batch of dialogues and an adapter, and what they give on a mesh."""

    def __init__(self, policy, rewards):
        self.policy, self.model, self.rewards = policy, policy.model, rewards
        config = DemonstrationConfig(seed=0, scenes=2, questions=4, kinds=("digit",), answer_weight=2.0, row_tokens=224)
        self.batch = demonstrations.make_batch(config, policy.processor, schemas(ZOOM), 0)
        self.params = jax.device_get(policy.params)
        adapter = jax.device_get(lora.init(jax.random.key(0), self.params, lora.LoraConfig(rank=2)))
        # The second factor too, or the first would have no gradient.
        self.adapter = jax.tree.map(lambda x: np.asarray(x + 0.01), adapter)
        self.trajectories = jax.device_get(rl_batch.trajectory_batch(policy))

    def __call__(self, shape, *, sft):
        mesh = mesh_of(shape)
        frozen = {"params": put(mesh, self.params)}
        return {
            "sft": self.sft(mesh, frozen) if sft else None,
            "rl": self.rl(mesh, frozen),
            "rollout": self.rollout(mesh, frozen),
            "notes": parallel.notes(mesh, self.params, kv_heads=self.model.config.text.num_key_value_heads, rows={}),
            "param_bytes": sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(frozen)),
        }

    def sft(self, mesh, frozen):
        """Scores, then the metrics and the adapter of one step."""
        placed = parallel.put_batch(mesh, self.batch)
        state = put(mesh, train_step.init_state({"lora": self.adapter}, optax.sgd(0.1)))
        step = train_step.make_sft_step(self.model, optax.sgd(0.1), train_step.SFTConfig())
        compiled = step.jitted(state).lower(state, frozen, placed).compile()
        arguments = compiled.memory_analysis().argument_size_in_bytes
        share = placed.rows.tokens.size / placed.rows.tokens.addressable_shards[0].data.size
        state, metrics = compiled(state, frozen, placed)
        return {"metrics": numbers(metrics), "arguments": arguments, "row_parts": share} | self.moved(state)

    def full(self, shape):
        """The same, of all parameters, with Adam: how its moments lie, and what the step gives."""
        mesh, tx = mesh_of(shape), optax.adam(1e-3)
        trainable = {"params": self.params}
        state = put(mesh, train_step.init_state(trainable, tx))
        state, metrics = train_step.make_sft_step(self.model, tx, train_step.SFTConfig())(
            state, {}, parallel.put_batch(mesh, self.batch)
        )
        moments = state.opt_state[0]
        here = [x.sharding for x in jax.tree.leaves(state.trainable)]
        alike = all([x.sharding for x in jax.tree.leaves(m)] == here for m in (moments.mu, moments.nu))
        return {"metrics": numbers(metrics), "moments_like_params": alike, "mu": flat(moments.mu)}

    def rl(self, mesh, frozen):
        """Metrics, per-row numbers and the adapter of one RL step."""
        parts = 2 if self.rewards.curiosity.kind == "icm" else 1
        config = dataclasses.replace(rl_batch.rl_config(micro_batches=parts), rewards=self.rewards)
        tx, adapter = optax.sgd(0.3), self.adapter
        batch = parallel.put_batch(mesh, self.trajectories)
        reference = put(mesh, adapter)
        state = rl_batch.first_state(mesh, config, tx, adapter)
        layout = [x.sharding for x in jax.tree.leaves(state)]
        step = train_step.RLStep(self.model, tx, config).train_step
        state, metrics, rows = step(state, frozen, reference, batch, weights=rl_batch.FULL)
        rows = {name: np.asarray(value).tolist() for name, value in rows.items()}
        kept = layout == [x.sharding for x in jax.tree.leaves(state)]
        return {"metrics": numbers(metrics), "rows": rows, "layout_kept": kept} | self.moved(state)

    def rollout(self, mesh, frozen):
        """Two sampled turns of 8 rows; between them an observation with an image is appended to the cache."""
        engine = Engine(self.model, SAMPLING, end_of_turn=1, pack=mesh.shape["tensor"] == 1, mesh=mesh)
        variables = frozen | {"lora": put(mesh, self.adapter)}
        prompt, observation = pieces(self.batch.rows)
        table, _ = engine.encode(frozen, parallel.put_batch(mesh, self.batch.overview))
        # What a crop would show is taken from the overviews: one vision tower less to compile.
        index = np.where(observation.image_index < 0, -1, observation.image_index % table.shape[0])
        observation = dataclasses.replace(observation, image_index=index)
        observation = jax.tree.map(lambda x: np.repeat(x, GROUP, axis=0), observation)
        prompts, samples = (
            np.repeat(np.arange(4, dtype=np.uint32), GROUP),
            np.tile(np.arange(GROUP, dtype=np.uint32), 4),
        )
        state = engine.prefill(variables, parallel.put_batch(mesh, prompt), table, repeat=GROUP)
        running, turns, exchanges = parallel.put_batch(mesh, np.ones(8, bool)), [], []
        for turn in range(2):
            keys = row_keys(np.uint32(0), np.uint32(1), prompts, samples, np.uint32(turn))
            out, state = engine.generate(variables, state, parallel.put_batch(mesh, keys), running)
            turns.append(jax.device_get(out))
            if turn == 0 and mesh.shape["data"] == 8:
                compiled = engine.generate.lower(variables, state, parallel.put_batch(mesh, keys), running).compile()
                exchanges = re.findall(
                    r"= (\S+?)(?:{\S*)? (all-\w+|collective-\w+|reduce-scatter)\(", compiled.as_text()
                )
            if turn == 0:
                state = engine.extend(variables, state, parallel.put_batch(mesh, observation), table)
        cache = state.cache.keys[0]
        return {
            "exchanges": [f"{kind} {shape}" for shape, kind in exchanges],
            "tokens": np.stack([t.tokens for t in turns]).tolist(),
            "logp": np.stack([t.logp for t in turns]).tolist(),
            "cache_parts": [a // b for a, b in zip(cache.shape, cache.addressable_shards[0].data.shape, strict=True)],
        }

    def moved(self, state):
        """The adapter after a step, and how far the step moved it."""
        after = flat(state.trainable["lora"])
        return {"adapter": after.tolist(), "moved": float(np.abs(after - flat(self.adapter)).max())}

    def loaded(self):
        """Whether weights read from a file onto all devices, in pieces, are the saved bits, each with its share."""
        weights.PIECE_BYTES = 1000
        mesh, config = mesh_of((2, 2, 2)), self.model.config
        with tempfile.TemporaryDirectory() as folder:
            weights.save(Path(folder), self.params, config=config)
            shardings = parallel.param_shardings(mesh, self.params)
            read = weights.load(Path(folder), config, abstract=parallel.abstract(self.params, shardings))
        return {
            "same": all(jax.tree.leaves(jax.tree.map(np.array_equal, read, self.params))),
            "placed": all(jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding == s, read, shardings))),
        }


def pieces(rows):
    """The prompts of the first four dialogues, and what follows the first turn in each, as right-padded rows."""

    def take(mask):
        length = mask.sum(axis=1).max()
        order = np.argsort(~mask, axis=1, kind="stable")[:, :length]
        cut = jax.tree.map(lambda x: np.take_along_axis(x, order, axis=1), dataclasses.replace(rows, positions=None))
        positions = np.take_along_axis(rows.positions, order[:, None], axis=2)
        kept = np.take_along_axis(mask, order, axis=1)
        index = np.where(kept, cut.image_index, -1)
        return TokenBatch(cut.tokens, kept, cut.policy & False, positions, index)

    rows = jax.tree.map(lambda x: x[:4], rows)
    turn = np.cumsum(np.diff(rows.policy.astype(int), axis=1, prepend=0) > 0, axis=1)
    return take(rows.valid & (turn == 0)), take(rows.valid & ~rows.policy & (turn == 1))


def mesh_of(shape):
    return parallel.make_mesh(parallel.MeshShape(*shape), jax.devices()[: int(np.prod(shape))])


def put(mesh, tree):
    return parallel.place(mesh, tree)


def numbers(metrics):
    return {name: float(value) for name, value in metrics.items()}


def flat(tree):
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(tree)])


def main() -> None:
    # Learned curiosity takes as long to compile as all the rest, so one pair of meshes does it for all.
    even = Job(
        make_policy(bpe.train(CORPUS * 4, vocab_size=568), **EVEN), RewardConfig(curiosity=CuriosityConfig("rapr"))
    )
    results = {name_of(shape): even(shape, sft=shape in SFT_SHAPES) for shape in (ONE, *SHAPES)}
    uneven = Job(make_policy(bpe.train(CORPUS * 4, vocab_size=900), **UNEVEN), RewardConfig())
    results |= {f"uneven {name_of(shape)}": uneven(shape, sft=False) for shape in (ONE, UNEVEN_SHAPE)}
    full = {name_of(shape): even.full(shape) for shape in (ONE, FULL_SHAPE)}
    first, second = (values.pop("mu") for values in full.values())
    full["difference"] = float(np.abs(first - second).max() / np.abs(first).max())
    json.dump({"meshes": results, "full": full, "loaded": even.loaded()}, sys.stdout)


if __name__ == "__main__":
    main()
