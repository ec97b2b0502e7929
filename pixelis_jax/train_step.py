"""The compiled train steps: supervised (`make_sft_step`) and RL (`score`, `update`, and both as `train_step`).

All are pure: (state, batch) -> (state, metrics), jitted, the state donated. The frozen base and the reference adapter
are arguments that are not donated, so rollout and training share one copy.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import Array
from jax.sharding import NamedSharding

from pixelis_jax import update as updates
from pixelis_jax.algorithms import advantages as advantage
from pixelis_jax.algorithms import grpo, kl, sft
from pixelis_jax.algorithms import replay as replaying
from pixelis_jax.algorithms.grpo import GRPOConfig, GRPOInputs
from pixelis_jax.algorithms.replay import Replay, ReplayConfig
from pixelis_jax.data.demonstrations import DemonstrationBatch
from pixelis_jax.masked import masked_mean
from pixelis_jax.models import lora as loras
from pixelis_jax.models import vlm
from pixelis_jax.models.layers import NOISE, VISION
from pixelis_jax.models.vlm import VLM
from pixelis_jax.reading import Charts, reading_loss
from pixelis_jax.rewards import measures, orchestrator
from pixelis_jax.rewards.orchestrator import RewardConfig, RewardState, Weights
from pixelis_jax.types import ImageBatch, TokenBatch, TrajectoryBatch
from pixelis_jax.update import Stats, Through

PyTree = Any
# name -> f32[B], for trajectories.jsonl
RowNumbers = dict[str, Array]
_DROPOUT, _REPLAY = 3, 4  # of the addresses (seed, 0 .. 4, ...) those of an adapter's dropout, and of replay


@struct.dataclass
class TrainState:
    """What training changes: `trainable` is {"params": ...} or {"lora": ...}; `rewards` is None for supervised jobs.

    `average`, where one is kept, is the mean of `trainable` over the last steps (tail averaging).
    """

    step: Array  # i32[] training steps done
    skipped: Array  # i32[] of these, the ones without an update
    trainable: PyTree
    opt_state: optax.OptState
    rewards: RewardState | None = None
    average: PyTree | None = None
    kl_beta: Array | None = None  # f32[] the adaptive KL coefficient; None: a fixed one
    replay: Replay | None = None  # informative rows of earlier steps


def init_state(
    trainable: PyTree,
    tx: optax.GradientTransformation,
    rewards: RewardState | None = None,
    *,
    averaged: bool = False,
    kl_beta: Array | None = None,
    replay: Replay | None = None,
) -> TrainState:
    """State at step 0; what is None or not asked for, the job does without."""
    average = jax.tree.map(jnp.zeros_like, trainable) if averaged else None
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, zero.copy(), trainable, tx.init(trainable), rewards, average, kl_beta, replay)


def with_average(state: TrainState, *, after: int) -> TrainState:
    """The state with its average over the steps behind step `after` brought up to date."""
    count = state.step - after
    share = jnp.where(count > 0, 1.0 / jnp.maximum(count, 1), 0.0)
    average = jax.tree.map(lambda old, new: old + share * (new - old), state.average, state.trainable)
    return dataclasses.replace(state, average=average)


def _advance(
    state: TrainState, trainable: PyTree, opt_state: optax.OptState, metrics: dict[str, Array]
) -> tuple[TrainState, dict[str, Array]]:
    """(state one step on, metrics with the number of skipped updates so far)."""
    skipped = state.skipped + metrics["update/skipped"].astype(jnp.int32)
    state = dataclasses.replace(state, step=state.step + 1, skipped=skipped, trainable=trainable, opt_state=opt_state)
    return state, metrics | {"update/skipped": skipped}


class StateStep:
    """A jitted `(state, ...) -> (state, ...)` that donates the state and lays the new one out as it found it.

    Left to itself the compiler may give the new state other shardings, and the second call would compile once more.
    """

    def __init__(self, step: Callable[..., Any], *, outputs: int, static: tuple[str, ...] = ()) -> None:
        """`outputs` is the length of the tuple that `step` returns; `static` names its compile-time arguments."""
        self._step = step
        self._outputs = outputs
        self._static = static
        self._jitted: Any = None

    def __call__(self, state: TrainState, *args: Any, **options: Any) -> Any:
        return self.jitted(state)(state, *args, **options)

    def jitted(self, state: TrainState) -> Any:
        """The jit function; `state` (arrays or abstract ones) fixes the layout when first asked for."""
        if self._jitted is None:
            layout = jax.tree.map(_mesh_sharding, state)
            self._jitted = jax.jit(
                self._step,
                static_argnames=self._static,
                donate_argnums=0,
                out_shardings=(layout, *[None] * (self._outputs - 1)),
            )
        return self._jitted


def _mesh_sharding(leaf: Any) -> NamedSharding | None:
    """Where a leaf lies on a mesh; None (the compiler's choice) for one that was put nowhere."""
    sharding = getattr(leaf, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


# index i32[N] of rows or images -> {} or their `lora_noise` collection
Noise = Callable[[Array], PyTree]


def feature_table(
    model: VLM, variables: PyTree, images: tuple[ImageBatch, ...], noise: Noise = lambda index: {}
) -> Array:
    """f32[F, D], the features of `images` one batch after the other, under `variables`."""
    parts, first = [], 0
    for part in images:
        count = part.valid.shape[0]
        changed = variables | noise(jnp.arange(first, first + count))
        parts.append(vlm.encode_images(model, changed, part))
        first += count
    return jnp.concatenate(parts)


def _joined(images: tuple[ImageBatch, ...]) -> tuple[ImageBatch, ...]:
    """Neighbours of one shape as one batch: the tower is compiled for each."""
    alike = itertools.groupby(images, key=lambda part: part.valid.shape[1:])
    return tuple(jax.tree.map(lambda *x: jnp.concatenate(x), *group) for _, group in alike)


def demonstration_features(
    model: VLM, variables: PyTree, batch: DemonstrationBatch, noise: Noise = lambda index: {}
) -> Array:
    """Feature table of a batch: overviews first, then crops."""
    return feature_table(model, variables, (batch.overview, batch.crops), noise)


def trains_vision(trainable: PyTree) -> bool:
    """Whether a step changes what images are encoded to."""
    return VISION in trainable["params"] if "params" in trainable else loras.touches_vision(trainable["lora"])


def together(frozen: PyTree, trainable: PyTree) -> PyTree:
    """The variables of both; a part of `params` may be frozen."""
    params = frozen.get("params", {}) | trainable.get("params", {})
    return frozen | trainable | {"params": params}


@dataclasses.dataclass(frozen=True)
class SFTConfig:
    """Static settings of the supervised step.

    `dropout` of the adapter's inputs draws from (seed, step, layer, row or image). `average_after`: the step behind
    which the state's average begins, None without one.
    """

    micro_batches: int = 1
    dropout: float = 0.0
    smoothing: float = 0.0
    average_after: int | None = None
    seed: int = 0


def make_sft_step(model: VLM, tx: optax.GradientTransformation, config: SFTConfig) -> StateStep:
    """Token-mean cross-entropy step; with `charts`, their reading loss is added.

    Where the vision tower is trained, wholly or through an adapter, each image is encoded once a step and features are
    differentiated once, whatever `micro_batches`.
    """

    def step(
        state: TrainState, frozen: PyTree, batch: DemonstrationBatch, charts: Charts | None = None
    ) -> tuple[TrainState, dict[str, Array]]:
        def noise(index: Array) -> PyTree:
            if not config.dropout:
                return {}
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), _DROPOUT), state.step)
            return {NOISE: loras.noise(state.trainable["lora"], key=key, rate=config.dropout, index=index)}

        def features_of(trainable: PyTree) -> Array:
            # In f32, since micro-batches add up their gradients of it.
            return demonstration_features(model, together(frozen, trainable), batch, noise).astype(jnp.float32)

        trained = trains_vision(state.trainable)
        fixed = None if trained else demonstration_features(model, together(frozen, state.trainable), batch)

        def loss(trainable: PyTree, part: PyTree, features: Any = fixed) -> tuple[tuple[Array, Array], Stats]:
            rows, weights, answer, index = part
            variables = together(frozen, trainable)
            out = vlm.score(model, variables | noise(index), rows, features, with_mean=config.smoothing > 0)
            (total, weight), stats = sft.sft_loss(
                out.logp, rows.policy, weights=weights, smoothing=config.smoothing, mean_logp=out.mean_logp
            )
            means = stats.means | _answer_stats(out.logp, rows.policy & answer)
            if charts is not None:
                reading, accuracy = reading_loss(model, variables, charts)
                means |= {"pretrain/reading_loss": (reading, jnp.float32(1)), "pretrain/reading_accuracy": accuracy}
                total = total + weight * reading
            return (total, weight), Stats(means=means, maxima=stats.maxima)

        rows = (batch.rows, batch.weights, batch.answer, jnp.arange(batch.answer.shape[0]))
        through = Through(features_of, loss) if trained else loss
        trainable, opt_state, metrics = updates.update(
            through, state.trainable, state.opt_state, rows, tx=tx, micro_batches=config.micro_batches
        )
        state, metrics = _advance(state, trainable, opt_state, metrics)
        return (state if config.average_after is None else with_average(state, after=config.average_after)), metrics

    return StateStep(step, outputs=2)


def _answer_stats(logp: Array, answer: Array) -> dict[str, tuple[Array, Array]]:
    """Mean probability of the trained tokens between the answer tags."""
    return {"sft/answer_prob": (jnp.sum(jnp.exp(logp) * answer), jnp.sum(answer, dtype=jnp.float32))}


@dataclasses.dataclass(frozen=True)
class RLConfig:
    """Static settings of the RL step. `updates_per_rollout` above 1 makes `score` compute logp_old.

    `kl_target` above 0: the KL coefficient follows the measured KL, over `kl_horizon` rows. `overlong` (from, to): what
    a row loses grows from 0 at `from` policy tokens to 1 at `to`.
    """

    rewards: RewardConfig
    loss: GRPOConfig
    advantage_scale: advantage.Scale = "batch"
    filtering_threshold: float = 0.01
    temperature: float = 1.0
    micro_batches: int = 1
    updates_per_rollout: int = 1
    kl_target: float = 0.0
    kl_horizon: int = 10_000
    overlong: tuple[int, int] | None = None
    replay: ReplayConfig | None = None
    seed: int = 0

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL is taken off the reward."""
        return self.loss.kl_beta > 0 and self.loss.kl_place == "reward"


def rl_parts(key: Array, config: RLConfig, model: VLM) -> dict[str, Any]:
    """What the state of RL has beside that of supervised training, as options of `init_state`."""
    width, dtype = model.config.feature_width, model.dtype
    return {
        "rewards": orchestrator.init(key, config.rewards),
        "kl_beta": jnp.float32(config.loss.kl_beta) if config.kl_target else None,
        "replay": None if config.replay is None else replaying.init(config.replay, width=width, dtype=dtype),
    }


@struct.dataclass
class Scored:
    """A rollout with everything the loss needs; leading axis B throughout, so that it splits into micro-batches."""

    rows: TokenBatch
    inputs: GRPOInputs


class RLStep:
    """The jitted RL functions of one model: `score`, `update`, and both in one as `train_step`.

    `weights` (the curriculum's) is static: a component of weight 0 is compiled out of the total, and a new stage is one
    recompilation. `frozen` is {"params": base}; `reference` the adapter the KL is measured against (None: the base).
    """

    def __init__(self, model: VLM, tx: optax.GradientTransformation, config: RLConfig) -> None:
        self.model = model
        self.tx = tx
        self.config = config
        self.logp = jax.jit(self._logp)
        self.score = jax.jit(self._score, static_argnames="weights")
        self.update = StateStep(self._update, outputs=2)
        self.train_step = StateStep(self._train_step, outputs=3, static=("weights",))

    def _train_step(
        self, state: TrainState, frozen: PyTree, reference: PyTree, batch: TrajectoryBatch, *, weights: Weights
    ) -> tuple[TrainState, dict[str, Array], RowNumbers]:
        """One whole step; returns the new state, scalars, and per-row numbers for the log."""
        scored, rewards, metrics, numbers = self._score(state, frozen, reference, batch, weights=weights)
        scored, seen, state, drawn = self._replayed(scored, batch.seen, state)
        state, more = self._update(state, frozen, scored, seen)
        return dataclasses.replace(state, rewards=rewards), metrics | drawn | more, numbers

    def _replayed(
        self, scored: Scored, seen: Any, state: TrainState
    ) -> tuple[Scored, Any, TrainState, dict[str, Array]]:
        """(rollout, what it sees, state, metrics) with earlier rows in place of uninformative ones, where so asked."""
        config = self.config.replay
        if config is None or state.replay is None:
            return scored, seen, state, {}
        inputs = scored.inputs
        informative = inputs.included & (jnp.abs(inputs.advantages) > self.config.filtering_threshold)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self.config.seed), _REPLAY), state.step)
        rows, inputs, table, metrics = replaying.splice(
            scored.rows, inputs, seen, state.replay, informative=informative, key=key, step=state.step, config=config
        )
        kept, skipped = replaying.insert(
            state.replay, scored.rows, scored.inputs, seen, informative=informative, step=state.step
        )
        return Scored(rows, inputs), table, dataclasses.replace(state, replay=kept), metrics | skipped

    def _score(
        self, state: TrainState, frozen: PyTree, reference: PyTree, batch: TrajectoryBatch, *, weights: Weights
    ) -> tuple[Scored, RewardState, dict[str, Array], RowNumbers]:
        """Rewards, advantages and the frozen policies' log-probs of a rollout."""
        assert state.rewards is not None
        cfg = self.config
        scores, rewards = orchestrator.score(batch.rewards, state.rewards, config=cfg.rewards, weights=weights)
        logp_ref = self._logp(frozen, reference, batch)
        logp_old, total, more = None, scores.total, {}
        beta = jnp.float32(cfg.loss.kl_beta) if state.kl_beta is None else state.kl_beta
        if cfg.updates_per_rollout > 1 or cfg.kl_in_reward or cfg.replay is not None:
            logp_old = self._logp(frozen, state.trainable["lora"], batch)
        if cfg.kl_in_reward and logp_old is not None:
            fee = kl.kl_reward(logp_old, logp_ref, batch.rows.policy, beta=beta, kind=cfg.loss.kl_estimator)
            total, more = total + fee, {"reward/kl": masked_mean(fee, scores.included)}
        if cfg.overlong is not None:
            fee = orchestrator.overlong(jnp.sum(batch.rows.policy, axis=1), *cfg.overlong)
            total, more = total + fee, more | {"reward/overlong": masked_mean(fee, scores.included)}
        adv = advantage.group_advantages(
            total,
            batch.rewards.group,
            scores.included,
            scale=cfg.advantage_scale,
            threshold=cfg.filtering_threshold,
        )
        inputs = GRPOInputs(
            policy=batch.rows.policy,
            advantages=adv.values,
            included=scores.included,
            logp_old=logp_old if cfg.updates_per_rollout > 1 or cfg.replay is not None else None,
            logp_ref=logp_ref,
            logp_sampler=batch.logp_sampler,
            turn_of=batch.turn_of,
            kl_beta=None if state.kl_beta is None else jnp.full(adv.values.shape, beta),
        )
        threshold = cfg.rewards.curiosity.success_threshold
        stats = measures.reward_stats(scores, batch.rewards, success_threshold=threshold).reduce()
        stats |= measures.tool_stats(batch.rewards).reduce()
        metrics = (
            stats
            | measures.tool_counts(batch.rewards)
            | measures.violation_counts(scores)
            | more
            | {
                "grpo/filtering_rate": adv.filtering_rate,
                "grpo/uniform_group_share": adv.uniform_share,
                "skipped/group_of_one": adv.single.astype(jnp.float32),
                "skipped/excluded_rows": jnp.sum(~scores.included, dtype=jnp.float32),
            }
        )
        numbers = {name: scores.raw[name] for name in sorted(scores.raw)} | {"advantage": adv.values}
        return Scored(batch.rows, inputs), rewards, metrics, numbers

    def _update(
        self, state: TrainState, frozen: PyTree, scored: Scored, seen: Any
    ) -> tuple[TrainState, dict[str, Array]]:
        """The updates of a scored rollout; `seen` is its feature table, or the images to train through.

        Metrics are means over the updates, `ratio/max` their largest.
        """
        cfg = self.config

        def features_of(trainable: PyTree) -> Array:
            return self._features(frozen | trainable, seen).astype(jnp.float32)

        def loss(trainable: PyTree, part: Scored, features: Any = seen) -> tuple[tuple[Array, Array], Stats]:
            out = vlm.score(self.model, frozen | trainable, part.rows, features, temperature=cfg.temperature)
            return grpo.grpo_loss(out.logp, out.entropy, part.inputs, cfg.loss)

        through = Through(features_of, loss) if isinstance(seen, tuple) else loss

        def one(carry: tuple[PyTree, optax.OptState], _: None) -> tuple[tuple[PyTree, optax.OptState], Any]:
            *new, metrics = updates.update(through, *carry, scored, tx=self.tx, micro_batches=cfg.micro_batches)
            return (new[0], new[1]), metrics

        start = (state.trainable, state.opt_state)
        if cfg.updates_per_rollout == 1:
            (trainable, opt_state), metrics = one(start, None)
        else:
            (trainable, opt_state), each = jax.lax.scan(one, start, length=cfg.updates_per_rollout)
            metrics = {name: jnp.mean(values) for name, values in each.items()}
            metrics["ratio/max"] = jnp.max(each["ratio/max"])
            metrics["update/skipped"] = jnp.sum(each["update/skipped"])
        if state.kl_beta is not None:
            share = jnp.sum(scored.inputs.included) / cfg.kl_horizon
            beta = kl.adapt_beta(state.kl_beta, metrics["kl"], target=cfg.kl_target, rate=share)
            metrics["kl/beta"] = state.kl_beta
            state = dataclasses.replace(state, kl_beta=beta)
        return _advance(state, trainable, opt_state, metrics)

    def _features(self, variables: PyTree, seen: Any) -> Array:
        """The feature table: as it was sampled with, or of images under `variables`."""
        return feature_table(self.model, variables, _joined(seen)) if isinstance(seen, tuple) else seen

    def _logp(self, frozen: PyTree, adapter: PyTree, batch: TrajectoryBatch) -> Array:
        variables = frozen if adapter is None else frozen | {"lora": adapter}
        features = self._features(variables, batch.seen)
        out = vlm.score(self.model, variables, batch.rows, features, temperature=self.config.temperature)
        return jax.lax.stop_gradient(out.logp)
