"""A hand-made rollout batch for tests of the RL step: two groups of four oracle dialogues with made-up rewards."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from one_tool import ZOOM

from pixelis_jax import parallel, train_step
from pixelis_jax.algorithms.grpo import GRPOConfig
from pixelis_jax.data import demonstrations
from pixelis_jax.data.demonstrations import DemonstrationConfig
from pixelis_jax.models import lora
from pixelis_jax.rewards.orchestrator import RewardConfig
from pixelis_jax.tools.base import schemas
from pixelis_jax.train_step import RLConfig
from pixelis_jax.types import STATE_DIM, RewardInputs, TrajectoryBatch

ROWS, CALLS = 8, 2
SCORES = np.array([1, 0, 0, 1, 0, 0, 0, 1], np.float32)
GOAL = (("coherence", 0.0), ("curiosity", 0.0), ("final", 1.0))
FULL = (("coherence", 0.1), ("curiosity", 0.05), ("final", 1.0))


def rl_config(*, micro_batches: int = 1, updates_per_rollout: int = 1, **loss) -> RLConfig:
    return RLConfig(
        rewards=RewardConfig(),
        loss=GRPOConfig(**{"loss": "clip", "kl_beta": 0.01, "max_completion": 224} | loss),
        micro_batches=micro_batches,
        updates_per_rollout=updates_per_rollout,
    )


def make_adapter(params):
    """A random adapter whose second factor is not 0: a policy that differs from the base."""
    adapter = lora.init(jax.random.key(0), params, lora.LoraConfig(rank=2))
    return jax.tree.map(lambda x: np.asarray(x + 0.01), adapter)


def trajectory_batch(policy, *, mesh=None) -> TrajectoryBatch:
    """Rows of 224 tokens on the mesh. The sampler's log-probs are those of `make_adapter`, the trainer's own."""
    mesh = mesh or policy.mesh
    config = DemonstrationConfig(seed=0, scenes=2, questions=4, kinds=("digit",), row_tokens=224)
    made = demonstrations.make_batch(config, policy.processor, schemas(ZOOM), 0)
    variables = {"params": policy.params, "lora": make_adapter(policy.params)}

    @jax.jit
    def score(variables, made):
        features = train_step.demonstration_features(policy.model, variables, made)
        return policy.model.apply(variables, made.rows, features, method="score").logp, features

    logp, features = map(np.asarray, score(variables, made))
    policy_tokens = made.rows.policy
    starts = policy_tokens & ~np.pad(policy_tokens, ((0, 0), (1, 0)))[:, :-1]
    batch = TrajectoryBatch(
        rows=made.rows,
        logp_sampler=np.where(policy_tokens, logp, 0.0).astype(np.float32),
        turn_of=np.where(policy_tokens, np.cumsum(starts, axis=1) - 1, -1).astype(np.int32),
        features=None,
        rewards=reward_inputs(),
    )
    placed = parallel.put_batch(mesh, batch)
    return dataclasses.replace(placed, features=jax.device_put(features, parallel.replicated(mesh)))


def reward_inputs() -> RewardInputs:
    """One ZOOM_IN in every row, at different places, and a second one in every other row."""
    generator = np.random.default_rng(5)
    shape = (ROWS, CALLS)
    valid = np.ones(shape, bool)
    valid[::2, 1] = False
    no = np.zeros(shape, bool)
    return RewardInputs(
        ops=np.zeros(shape, np.int32),
        arguments=generator.uniform(0.2, 0.6, (*shape, 4)).astype(np.float32),
        target_image=np.ones(shape, np.int32),
        call=np.tile(np.arange(CALLS, dtype=np.int32), (ROWS, 1)),
        observation=np.tile(np.arange(CALLS, dtype=np.int32), (ROWS, 1)),
        valid=valid,
        succeeded=valid,
        out_of_image=no,
        by_object=no,
        thought_after=valid,
        embeddings=generator.standard_normal((ROWS, CALLS + 1, STATE_DIM)).astype(np.float32) * 0.05,
        is_video=np.zeros(ROWS, bool),
        score=SCORES,
        answered=np.ones(ROWS, bool),
        excluded=np.zeros(ROWS, bool),
        group=np.array([0, 1, 0, 1, 0, 1, 0, 1], np.int32),
    )


def first_state(mesh, config: RLConfig, tx, adapter):
    from pixelis_jax.rewards import orchestrator

    rewards = orchestrator.init(jax.random.key(1), config.rewards)
    state = train_step.init_state({"lora": jax.tree.map(jnp.array, adapter)}, tx, rewards)
    return parallel.place(mesh, state)
