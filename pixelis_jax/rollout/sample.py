"""Multi-turn rollouts: generate until a tool call or the end, run the tool on the host, append text and image, go on.

Strings and images live here, numbers live in `engine`. Ids that were sampled are never re-tokenised; a tool's result is
appended as rendered ids, and its image as features in the same table that the trainer later reads.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pixelis_jax import parallel
from pixelis_jax.models.policy import Policy
from pixelis_jax.models.processor import Placed
from pixelis_jax.models.rows import Row, bucket, pad_rows, power_bucket
from pixelis_jax.rollout.embeddings import StateEmbedder
from pixelis_jax.rollout.engine import DecodeState, Engine, SamplingConfig, row_keys
from pixelis_jax.tools import TOOLS, execute, grammar
from pixelis_jax.tools.base import Session, Tool, schemas
from pixelis_jax.types import STATE_DIM, Observation, Task, Trajectory, Turn, UserError

PyTree = Any
TOKEN_BUCKET = 32  # observations are padded to a multiple of this many tokens


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """One rollout's budgets. `prefix` opens the first turn (forced modes); with `tools_on` False calls fail."""

    sampling: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    group_size: int = 1
    max_turns: int = 4
    tools_on: bool = True
    prefix: str = ""


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Trajectories in (task, sample) order and the device table f[F, D] that their `image_index` points into."""

    trajectories: list[Trajectory]
    features: Array


class _Episode:
    """One row while it runs."""

    def __init__(self, task: Task, sample: int, row: Row, session: Session) -> None:
        self.task = task
        self.sample = sample
        self.row = row
        self.session = session
        self.turns: list[Turn] = []
        self.images: list[np.ndarray] = list(task.images)
        self.embeddings: list[np.ndarray] = []
        self.status = ""
        self.appended = Row()  # what the last observation added, for the next prefill

    def record(self, turn: Turn, observation: Observation | None) -> None:
        self.turns.append(dataclasses.replace(turn, observation=observation))


class Sampler:
    """Samples trajectories from a policy. Compiled functions are kept between calls; shapes are bucketed."""

    def __init__(
        self, policy: Policy, config: RolloutConfig, *, tools: Mapping[str, Tool], engine: Engine | None = None
    ) -> None:
        self.policy = policy
        self.config = config
        self.tools = tools
        self.schemas = schemas(tools)
        self.engine = engine or Engine.of(policy, config.sampling)
        self.embedder = StateEmbedder(policy.model.config.text.hidden_size)
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tools")

    def __call__(self, tasks: Sequence[Task], *, lora: PyTree | None, seed: int, step: int) -> Rollout:
        """Roll out every task `group_size` times with the adapter `lora` (None: the base model).

        All randomness is fold(seed, step, task.index, sample, turn). The mesh's data axes split the rows.
        """
        base = {"params": self.policy.params}
        variables = base if lora is None else base | {"lora": lora}
        episodes, tables, state = self._open(base, variables, tasks)
        first_row = tables[0].shape[0]
        for turn in range(self.config.max_turns):
            active = np.array([not e.status for e in episodes])
            if not active.any():
                break
            state = self._turn(variables, state, episodes, active, (seed, step, turn))
            crops = self._observe(episodes, last=turn == self.config.max_turns - 1)
            if all(e.status for e in episodes):
                break
            table = self._embed(base, episodes, crops)
            state = self._append(variables, state, episodes, crops, table, first_row)
            tables.append(table)
            first_row += table.shape[0]
        features = tables[0] if len(tables) == 1 else jnp.concatenate(tables)
        return Rollout([_finish(e) for e in episodes], features)

    # Phases ---------------------------------------------------------------------------------------------------------
    def _open(
        self, base: PyTree, variables: PyTree, tasks: Sequence[Task]
    ) -> tuple[list[_Episode], list[Array], DecodeState]:
        """Encode each task's images once, prefill its prompt once, and repeat it over the group."""
        processor, group = self.policy.processor, self.config.group_size
        seen = [processor.seen(image, crop=False) for task in tasks for image in task.images]
        counts = [len(task.images) for task in tasks]
        count = max(1, power_bucket(len(seen))) if sum(counts) != len(tasks) else len(seen)
        table, pooled = self._encode(base, seen, crop=False, count=count)
        places = iter(processor.place(seen, crop=False))
        rows, starts = [], np.cumsum([0, *counts])
        prefix = processor.encode(self.config.prefix) if self.config.prefix else []
        for task in tasks:
            row = Row()
            processor.append_prompt(row, task.question, [next(places) for _ in task.images], self.schemas)
            row.append_text(prefix)
            self._check_room(task, row)
            rows.append(row)
        length = bucket(max(map(len, rows)), multiple=TOKEN_BUCKET)
        batch = self._put(pad_rows(rows, length=length, pad=processor.pad))
        state = self.engine.prefill(variables, batch, table, repeat=group)
        episodes = []
        for i, (task, row) in enumerate(zip(tasks, rows, strict=True)):
            first = (
                pooled[starts[i] : starts[i + 1]].mean(axis=0)
                if counts[i]
                else self.embedder.text(self.policy, row.tokens)
            )
            for sample in range(group):
                sizes = [processor.fit_overview(*image.shape[:2]) for image in task.images]
                session = Session(task.images, sizes, fit_crop=processor.fit_crop, coordinates=processor.coordinates)
                episode = _Episode(task, sample, row.copy(), session)
                episode.embeddings.append(first)
                episodes.append(episode)
        return episodes, [table], state

    def _check_room(self, task: Task, row: Row) -> None:
        """UserError where a prompt leaves no room for a single sampled token."""
        if len(row) >= self.config.sampling.context_tokens:
            raise UserError(
                f"task {task.task_id!r}: its prompt has {len(row)} tokens and sampling.context_tokens is"
                f" {self.config.sampling.context_tokens}; raise that, or lower image.max_pixels"
            )

    def _turn(
        self,
        variables: PyTree,
        state: DecodeState,
        episodes: list[_Episode],
        running: np.ndarray,
        address: tuple[int, int, int],
    ) -> DecodeState:
        """Sample one assistant turn in every running row and parse it."""
        seed, step, turn = address
        keys = row_keys(
            np.uint32(seed),
            np.uint32(step),
            np.array([e.task.index for e in episodes], np.uint32),
            np.array([e.sample for e in episodes], np.uint32),
            np.uint32(turn),
        )
        out, state = self.engine.generate(variables, state, self._put(keys), self._put(running))
        host = jax.device_get(out)
        for i in np.nonzero(running)[0]:
            episode, n = episodes[i], int(host.count[i])
            ids = host.tokens[i, :n]
            episode.row.append_text(ids.tolist(), policy=True, logp=host.logp[i, :n].tolist(), turn=turn)
            if not host.ended[i]:
                text = self.policy.processor.decode(ids.tolist())
                episode.record(Turn(text=text, error="turn was cut at the token limit"), None)
                episode.status = "truncated"
                continue
            text = self.policy.processor.decode(ids[:-1].tolist())
            parsed = grammar.parse((self.config.prefix if turn == 0 else "") + text, self.tools)
            episode.turns.append(parsed)
            if parsed.answer is not None:
                episode.status = "answered"
        return state

    def _observe(self, episodes: list[_Episode], *, last: bool) -> list[tuple[_Episode, np.ndarray]]:
        """Run the tools of all rows that called one; returns (episode, new image as seen) pairs in row order."""
        waiting = [e for e in episodes if not e.status]
        results = list(self._pool.map(self._execute, waiting))
        crops = []
        for episode, observation in zip(waiting, results, strict=True):
            image = None if observation.image is None else self.policy.processor.seen(observation.image, crop=True)
            full = (
                len(episode.row) + self._observation_tokens(observation, image) >= self.config.sampling.context_tokens
            )
            if last or full:
                limit = "turn limit reached" if last else "context limit reached"
                observation = Observation(text=f"error: {limit}", ok=False)
                episode.status = "over_turn"
            episode.turns[-1] = dataclasses.replace(episode.turns[-1], observation=observation)
            if observation.image is not None and image is not None:
                episode.images.append(observation.image)
                crops.append((episode, image))
        return crops

    def _execute(self, episode: _Episode) -> Observation:
        turn = episode.turns[-1]
        if turn.call is None:
            return Observation(text=f"error: {turn.error}", ok=False)
        return execute(episode.session, turn.call, tools=self.tools, enabled=self.config.tools_on)

    def _observation_tokens(self, observation: Observation, image: np.ndarray | None) -> int:
        probe = Row()
        place = None if image is None else Placed(image.shape[:2], 0)
        self.policy.processor.append_observation(probe, observation.text, place)
        return len(probe)

    def _embed(self, base: PyTree, episodes: list[_Episode], crops: list[tuple[_Episode, np.ndarray]]) -> Array:
        """Feature table of this turn's new images; state embeddings of every running row's observation."""
        embedded: dict[int, np.ndarray] = {}
        images = [image for _, image in crops]
        count = max(len(episodes) // 4, power_bucket(len(images)))
        table, pooled = self._encode(base, images, crop=True, count=count)
        for (episode, _), vector in zip(crops, pooled, strict=False):
            embedded[id(episode)] = vector
        for episode in episodes:
            if not episode.status:
                observation = episode.turns[-1].observation
                assert observation is not None
                vector = embedded.get(id(episode))
                if vector is None:
                    vector = self.embedder.text(self.policy, self.policy.processor.encode_within("", observation.text))
                episode.embeddings.append(vector)
        return table

    def _encode(self, base: PyTree, images: list[np.ndarray], *, crop: bool, count: int) -> tuple[Array, np.ndarray]:
        """(feature table, state embedding of each of `count` images); a text-only model's table is one zero row."""
        model = self.policy.model
        if model.config.vision is None and not images:
            width = model.config.text.hidden_size
            return self._put(jnp.zeros((1, width), model.dtype)), np.zeros((0, STATE_DIM), np.float32)
        packed = self._put(self.policy.processor.pack(images, crop=crop, count=count))
        table, pooled = self.engine.encode(base, packed)
        return table, self.embedder.images(np.asarray(pooled))

    def _append(
        self,
        variables: PyTree,
        state: DecodeState,
        episodes: list[_Episode],
        crops: list[tuple[_Episode, np.ndarray]],
        table: Array,
        first_row: int,
    ) -> DecodeState:
        """Add each running row's observation to its tokens and to the cache."""
        processor = self.policy.processor
        places = processor.place([image for _, image in crops], crop=True)
        placed = {id(e): place for (e, _), place in zip(crops, places, strict=True)}
        added = []
        for episode in episodes:
            piece = Row()
            if not episode.status:
                piece.next_position = episode.row.next_position
                observation = episode.turns[-1].observation
                assert observation is not None
                processor.append_observation(piece, observation.text, placed.get(id(episode)))
                episode.row.extend(piece, image_offset=first_row)
            added.append(piece)
        length = bucket(max(map(len, added)), multiple=TOKEN_BUCKET)
        return self.engine.extend(variables, state, self._put(pad_rows(added, length=length, pad=processor.pad)), table)

    def _put(self, tree: PyTree) -> PyTree:
        return parallel.put_batch(self.policy.mesh, tree)


def _finish(episode: _Episode) -> Trajectory:
    row = episode.row
    return Trajectory(
        task=episode.task,
        sample=episode.sample,
        tokens=np.array(row.tokens, np.int32),
        policy=np.array(row.policy, bool),
        positions=row.positions(),
        logp=np.array(row.logp, np.float32),
        turn_of=np.array(row.turn_of, np.int32),
        image_index=np.array(row.image_index, np.int32),
        turns=tuple(episode.turns),
        images=tuple(episode.images),
        embeddings=np.stack(episode.embeddings),
        status=episode.status or "over_turn",
    )


def sample(
    policy: Policy,
    prompts: Sequence[Task],
    *,
    lora: PyTree | None = None,
    key: int = 0,
    max_turns: int = 4,
    tools: Mapping[str, Tool] = TOOLS,
) -> list[Trajectory]:
    """Roll out each prompt once at temperature 1: the whole rollout as one call, for notebooks and scripts."""
    return Sampler(policy, RolloutConfig(max_turns=max_turns), tools=tools)(
        prompts, lora=lora, seed=key, step=0
    ).trajectories
