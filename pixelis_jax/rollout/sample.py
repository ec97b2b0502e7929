"""Multi-turn rollouts: generate until a tool call or the end, run the tool on the host, append text and image, go on.

Strings and images live here, numbers live in `engine`. Ids that were sampled are never re-tokenised; a tool's result is
appended as rendered ids, and its image as features in the same table that the trainer later reads.

On several hosts each process runs the dialogues of its own rows (hosts.Share). Before a compiled function is called
the processes agree on its shapes: what the largest of them needs. Each turn's images of all processes stand in one
table, those of the first process first, and `image_index` points into that.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pixelis_jax import hosts, parallel
from pixelis_jax.data.dialogues import view_of
from pixelis_jax.models import lora as loras
from pixelis_jax.models.policy import Policy
from pixelis_jax.models.processor import Placed
from pixelis_jax.models.rows import Row, bucket, pad_rows, power_bucket
from pixelis_jax.rollout.embeddings import StateEmbedder
from pixelis_jax.rollout.engine import DecodeState, Engine, SamplingConfig, row_keys
from pixelis_jax.tools import TOOLS, grammar
from pixelis_jax.tools.base import Session, Tool, schemas
from pixelis_jax.tools.pool import ToolPool
from pixelis_jax.types import STATE_DIM, ImageBatch, Observation, Task, TokenBatch, Trajectory, Turn, UserError

PyTree = Any
TOKEN_BUCKET = 32  # observations are padded to a multiple of this many tokens


@dataclasses.dataclass(frozen=True)
class RolloutConfig:
    """One rollout's budgets. `prefix` opens the first turn (forced modes); with `tools_on` False calls fail.

    `tool_workers` calls run at a time, and one that takes longer than `tool_time_limit_s` is cut (see tools/pool.py).
    """

    sampling: SamplingConfig = dataclasses.field(default_factory=SamplingConfig)
    group_size: int = 1
    max_turns: int = 4
    tools_on: bool = True
    prefix: str = ""
    tool_workers: int = 4
    tool_time_limit_s: float = 30.0


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Trajectories of this process in (task, sample) order; the table f[F, D] of all that `image_index` points into.

    With an adapter on the vision tower `features` is None and `images` holds what that table is made from, as NumPy
    arrays: this process's share of each turn's.
    """

    trajectories: list[Trajectory]
    features: Array | None
    images: tuple[ImageBatch, ...] | None


@dataclasses.dataclass(frozen=True)
class _Table:
    """Features f[F', D] of one turn's images; of a table that is made anew, the images, padded by `spare` rows."""

    features: Array
    images: ImageBatch | None = None
    spare: int = 0  # of each process


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
    """Samples trajectories from a policy. Compiled functions are kept between calls; shapes are bucketed.

    `pool` runs the tools, and counts what came of their calls.
    """

    def __init__(
        self, policy: Policy, config: RolloutConfig, *, tools: Mapping[str, Tool], engine: Engine | None = None
    ) -> None:
        self.policy = policy
        self.config = config
        self.tools = tools
        self.schemas = schemas(tools)
        self.engine = engine or Engine.of(policy, config.sampling)
        self.share = hosts.share(policy.mesh)
        self.embedder = StateEmbedder(policy.model.config.text.hidden_size)
        if jax.process_count() > 1:
            _ = policy.host_embeddings  # read by all at once: later on only some may need it
        self.pool = ToolPool(
            tools, workers=config.tool_workers, time_limit_s=config.tool_time_limit_s, enabled=config.tools_on
        )

    def __call__(self, tasks: Sequence[Task], *, lora: PyTree | None, seed: int, step: int) -> Rollout:
        """Roll out every task `group_size` times with the adapter `lora` (None: the base model).

        All randomness is fold(seed, step, task.index, sample, turn). The mesh's data axes split the rows. On several
        hosts every process calls this with as many tasks, its own.
        """
        variables = {"params": self.policy.params} | ({} if lora is None else {"lora": lora})
        episodes, tables, state = self._open(variables, tasks)
        first_row = tables[0].features.shape[0]
        for turn in range(self.config.max_turns):
            active = np.array([not e.status for e in episodes])
            state = self._turn(variables, state, episodes, active, (seed, step, turn))
            crops = self._observe(episodes, last=turn == self.config.max_turns - 1)
            (running,) = hosts.largest(sum(not e.status for e in episodes))
            if not running:
                break
            table, places = self._embed(variables, episodes, crops)
            own = first_row + table.spare * self.share.index
            state = self._append(variables, state, episodes, places, table.features, own)
            tables.append(table)
            first_row += table.features.shape[0] + table.spare * self.share.count
        trajectories = [_finish(e) for e in episodes]
        if loras.touches_vision(lora):
            return Rollout(trajectories, None, self._images(tables, len(episodes)))
        parts = [table.features for table in tables]
        return Rollout(trajectories, parts[0] if len(parts) == 1 else jnp.concatenate(parts), None)

    # Phases ---------------------------------------------------------------------------------------------------------
    def _open(self, variables: PyTree, tasks: Sequence[Task]) -> tuple[list[_Episode], list[_Table], DecodeState]:
        """Encode each task's images once, prefill its prompt once, and repeat it over the group."""
        processor, group = self.policy.processor, self.config.group_size
        seen = [processor.seen(image, crop=False) for task in tasks for image in task.images]
        counts = [len(task.images) for task in tasks]
        count = max(1, power_bucket(len(seen))) if sum(counts) != len(tasks) else len(seen)
        table, pooled, found = self._encode(variables, seen, crop=False, count=count)
        places = iter(found)
        rows, starts = [], np.cumsum([0, *counts])
        prefix = processor.encode(self.config.prefix) if self.config.prefix else []
        for task in tasks:
            row = Row()
            processor.append_prompt(row, task.question, [next(places) for _ in task.images], self.schemas)
            row.append_text(prefix)
            self._check_room(task, row)
            rows.append(row)
        state = self.engine.prefill(variables, self._pad(rows), table.features, repeat=group)
        episodes = []
        view = view_of(processor)
        for i, (task, row) in enumerate(zip(tasks, rows, strict=True)):
            first = (
                pooled[starts[i] : starts[i + 1]].mean(axis=0)
                if counts[i]
                else self.embedder.text(self.policy, row.tokens)
            )
            for sample in range(group):
                session = view.session(task.images, is_video=task.is_video)
                episode = _Episode(task, sample, row.copy(), session)
                episode.embeddings.append(first)
                episodes.append(episode)
        return episodes, [table], state

    def _check_room(self, task: Task, row: Row) -> None:
        """UserError where a prompt leaves no room for a single sampled token."""
        context = self.config.sampling.context_tokens
        if len(row) < context:
            return
        images = row.tokens.count(self.policy.processor.config.image_token_id)
        remedy = "raise that, or lower image.max_pixels" if len(row) - images < context else "raise that"
        raise UserError(
            f"task {task.task_id!r}: its prompt has {len(row)} tokens, {images} of them of images, and"
            f" sampling.context_tokens is {context}; {remedy}"
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
        prompts = self._put(np.array([e.task.index for e in episodes], np.uint32))
        samples = self._put(np.array([e.sample for e in episodes], np.uint32))
        keys = row_keys(np.uint32(seed), np.uint32(step), prompts, samples, np.uint32(turn))
        out, state = self.engine.generate(variables, state, keys, self._put(running))
        host = jax.tree.map(self.share.cut, hosts.fetch(out))
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
        """Run the tools of all rows that called one; returns (episode, new image as seen) pairs in row order.

        No tool runs for a row that would not see its result: on the last turn, or where nothing more fits.
        """
        waiting = [e for e in episodes if not e.status]
        least = self._observation_tokens(Observation(text=""), None)
        calls = [(e, e.turns[-1].call) for e in waiting if not last and self._has_room(e, least)]
        made = [(e, call) for e, call in calls if call is not None]
        results = self.pool.run([(e.session, call) for e, call in made])
        seen = {id(e): observation for (e, _), observation in zip(made, results, strict=True)}
        crops = []
        for episode in waiting:
            refused = Observation(text=f"error: {episode.turns[-1].error}", ok=False)
            observation = seen.get(id(episode), refused)
            image = None if observation.image is None else self.policy.processor.seen(observation.image, crop=True)
            needed = max(least, self._observation_tokens(observation, image))
            if last or not self._has_room(episode, needed):
                limit = "turn limit reached" if last else "context limit reached"
                observation = Observation(text=f"error: {limit}", ok=False)
                episode.status = "over_turn"
            episode.turns[-1] = dataclasses.replace(episode.turns[-1], observation=observation)
            if observation.image is not None and image is not None:
                episode.images.append(observation.image)
                crops.append((episode, image))
        return crops

    def _has_room(self, episode: _Episode, tokens: int) -> bool:
        """Whether a row can take so many tokens and one that is sampled after them."""
        return len(episode.row) + tokens < self.config.sampling.context_tokens

    def _observation_tokens(self, observation: Observation, image: np.ndarray | None) -> int:
        probe = Row()
        place = None if image is None else Placed(image.shape[:2], 0)
        self.policy.processor.append_observation(probe, observation.text, place)
        return len(probe)

    def _embed(
        self, variables: PyTree, episodes: list[_Episode], crops: list[tuple[_Episode, np.ndarray]]
    ) -> tuple[_Table, dict[int, Placed]]:
        """Feature table of this turn's new images, and where each row's is; every running row gets its embedding."""
        embedded: dict[int, np.ndarray] = {}
        images = [image for _, image in crops]
        count = max(len(episodes) // 4, power_bucket(len(images)))
        room = _room(len(episodes))
        table, pooled, places = self._encode(variables, images, crop=True, count=count, room=room)
        placed = {}
        for (episode, _), place, vector in zip(crops, places, pooled, strict=False):
            embedded[id(episode)], placed[id(episode)] = vector, place
        for episode in episodes:
            if not episode.status:
                observation = episode.turns[-1].observation
                assert observation is not None
                vector = embedded.get(id(episode))
                if vector is None:
                    vector = self.embedder.text(self.policy, self.policy.processor.encode_within("", observation.text))
                episode.embeddings.append(vector)
        return table, placed

    def _encode(
        self, variables: PyTree, images: list[np.ndarray], *, crop: bool, count: int, room: int = 0
    ) -> tuple[_Table, np.ndarray, list[Placed]]:
        """(table of all processes' images, state embedding and place of each of these, which `count` makes room for).

        A text-only model's table is a zero row. Embeddings are the base's, whatever the adapter: what curiosity calls
        new must not move as the policy learns. So an adapter on the vision tower costs a second encoding. What is kept
        for training has `room` for as many images in any turn.
        """
        model, processor = self.policy.model, self.policy.processor
        if model.config.vision is None and not images:
            zero = self._put(np.zeros((1, model.config.text.hidden_size), model.dtype))
            return _Table(zero), np.zeros((0, STATE_DIM), np.float32), []
        count, windows = hosts.largest(count, processor.windows(images, crop=crop))
        packed = processor.pack(images, crop=crop, count=count, windows=windows)
        on_device = self._put(packed)
        features, pooled = self.engine.encode({"params": variables["params"]}, on_device)
        table = _Table(features)
        own = features.shape[0] // self.share.count
        if loras.touches_vision(variables.get("lora")):
            more = max(0, room - count)
            kept = jax.tree.map(lambda x: np.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)]), packed)
            features, _ = self.engine.encode(variables, on_device)
            table = _Table(features, kept, own // count * more)
        places = processor.place(images, crop=crop, first_row=own * self.share.index, windows=windows)
        return table, self.embedder.images(self.share.cut(hosts.fetch(pooled))), places

    def _images(self, tables: list[_Table], episodes: int) -> tuple[ImageBatch, ...]:
        """What a trainer makes the table from, of the same shapes whenever a rollout ends."""
        none = self.policy.processor.pack([], crop=True, count=_room(episodes))
        kept = [table.images for table in tables if table.images is not None]
        return (*kept, *[none] * (self.config.max_turns - len(kept)))

    def _append(
        self,
        variables: PyTree,
        state: DecodeState,
        episodes: list[_Episode],
        placed: Mapping[int, Placed],
        table: Array,
        first_row: int,
    ) -> DecodeState:
        """Add each running row's observation to its tokens and to the cache."""
        added = []
        for episode in episodes:
            piece = Row()
            if not episode.status:
                piece.next_position = episode.row.next_position
                observation = episode.turns[-1].observation
                assert observation is not None
                self.policy.processor.append_observation(piece, observation.text, placed.get(id(episode)))
                episode.row.extend(piece, image_offset=first_row)
            added.append(piece)
        return self.engine.extend(variables, state, self._pad(added), table)

    def _pad(self, rows: Sequence[Row]) -> TokenBatch:
        """Rows on the devices, padded to the bucket of the longest one of all processes."""
        (longest,) = hosts.largest(max(map(len, rows)))
        length = bucket(longest, multiple=TOKEN_BUCKET)
        return self._put(pad_rows(rows, length=length, pad=self.policy.processor.pad))

    def _put(self, tree: PyTree) -> PyTree:
        return parallel.put_batch(self.policy.mesh, tree)


def _room(episodes: int) -> int:
    """Images that any turn may bring, and at most what `_embed` packs."""
    return power_bucket(episodes)


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
        shown_sizes=tuple(map(episode.session.shown_size, episode.session.frames[: len(episode.task.images)])),
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
