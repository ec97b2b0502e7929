"""The parts of a supervised job (pretraining, SFT) between the lines of `train.train_offline`."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax import Array
from ml_collections import ConfigDict

from pixelis_jax import assembly, hosts, parallel, reading, tiny, train_step
from pixelis_jax.config import to_json
from pixelis_jax.data import cota_pool, demonstrations
from pixelis_jax.data.corpus import ALL
from pixelis_jax.data.cota_batches import BatchConfig, Batches
from pixelis_jax.data.demonstrations import DemonstrationBatch
from pixelis_jax.models import policy as policies
from pixelis_jax.models import weights
from pixelis_jax.models.layers import VISION
from pixelis_jax.reading import READER
from pixelis_jax.runtime import Run
from pixelis_jax.tools.base import schemas
from pixelis_jax.train_step import TrainState

PyTree = Any


class Offline:
    """SFT of an adapter on oracle dialogues. Holds no training state: that is passed in."""

    def __init__(self, config: ConfigDict) -> None:
        self.config = config
        self.policy = self.make_policy()
        self.share = hosts.share(self.policy.mesh)
        self.start, self.hashes, self.origin = self.make_start()
        self.schedule = assembly.make_schedule(config.optimizer, config.total_steps)
        self.tx = assembly.make_optimizer(config.optimizer, self.schedule)
        self.step_fn = train_step.make_sft_step(self.policy.model, self.tx, assembly.sft_config(config))

    def make_policy(self) -> policies.Policy:
        """The base model that the job starts from."""
        return assembly.load_policy(self.config)

    def make_start(self) -> tuple[PyTree, dict[str, str], str]:
        """(what is trained, as it starts; SHA-256 of what was read for it; both in words)."""
        adapter, origin = assembly.starting_adapter(self.config, self.policy)
        words = f"{self.config.model.name}, starting from {origin}; {assembly.size_of(adapter, self.policy)}"
        return {"lora": adapter}, assembly.hashes(self.policy, adapter), words

    def first_state(self) -> TrainState:
        """State at step 0, before `prepare`."""
        return self.first_state_of(self.start)

    def prepare(self, run: Run, state: TrainState) -> TrainState:
        """Work before the first step of a run that starts at step 0."""
        return state

    def first_state_of(self, trainable: PyTree) -> TrainState:
        """State at step 0 with `trainable`, placed on the mesh by the rule table."""
        state = train_step.init_state(trainable, self.tx)
        return parallel.place(self.policy.mesh, state)

    def batches(self, start: int) -> Iterator[DemonstrationBatch]:
        """Batches from step `start` on, this process's part of each."""
        made = demonstrations.batches(
            assembly.demonstration_config(self.config, self.share),
            self.policy.processor,
            schemas(assembly.tools_of(self.config)),
            start=start,
            stop=self.config.total_steps,
            workers=self.config.data.workers,
        )
        return (demonstrations.as_part(batch, self.share, self.policy.model.config) for batch in made)

    def policy_tokens(self, batch: DemonstrationBatch) -> int:
        """Tokens of the step that are trained on, those of other processes too."""
        return sum(hosts.gather(self.share, [int(batch.rows.policy.sum())]))

    def train_step(
        self, state: TrainState, batch: DemonstrationBatch, step: int
    ) -> tuple[TrainState, Mapping[str, Array]]:
        """One update."""
        return self.step_fn(state, {"params": self.policy.params}, parallel.put_batch(self.policy.mesh, batch))

    def scalars(self, metrics: Mapping[str, Array], step: int) -> dict[str, float]:
        """The step's metrics as Python numbers; waits for the device."""
        numbers = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
        return numbers | {"learning_rate": assembly.learning_rate(self.schedule, step, numbers["update/skipped"])}

    def keep(self, run: Run, state: TrainState) -> tuple[policies.Policy, PyTree]:
        """Write the result; returns what to evaluate: (policy, adapter)."""
        lora = state.trainable["lora"]
        assembly.save_adapter(self.config, self.policy, run.path / "adapter", lora)
        run.say(f"adapter written to {run.path / 'adapter'} (PEFT layout)")
        return self.policy, lora


class Pretrain(Offline):
    """All weights: the vision tower reads charts first, and goes on with that beside the dialogues.

    With `reading.charts=0` there are dialogues alone. With `model.freeze_vision` the tower stays as it is, and the
    decoder alone is trained, on dialogues.
    """

    _pool: reading.Charts | None = None

    def make_policy(self) -> policies.Policy:
        """Fresh weights, or those of `model.init_from`."""
        return assembly.new_policy(self.config)

    @property
    def reads(self) -> bool:
        """Whether the vision tower is trained with charts too."""
        return self.config.reading.charts > 0 and not self.config.model.freeze_vision

    def make_start(self) -> tuple[PyTree, dict[str, str], str]:
        shape, text = self.policy.model.config.need_vision(), self.policy.model.config.text
        origin = (
            f"{self.config.model.init_from or 'scratch'} (decoder {text.num_hidden_layers} layers of"
            f" {text.hidden_size}, vision {shape.depth} of {shape.hidden_size}, vocabulary {text.vocab_size})"
        )
        params = self.policy.params
        hashes = assembly.hashes(self.policy, None)
        if self.reads:
            return (
                {"params": params, READER: reading.init_reader(self.policy.model)},
                hashes,
                f"all weights, from {origin}",
            )
        if not self.config.model.freeze_vision:
            return {"params": params}, hashes, f"all weights, from {origin}; dialogues alone"
        start = {"params": {name: part for name, part in params.items() if name != VISION}}
        return start, hashes, f"the decoder, from {origin}; the vision tower is frozen"

    def prepare(self, run: Run, state: TrainState) -> TrainState:
        """Reading alone, which later steps build on."""
        if not self.reads:
            return state
        settings = assembly.reading_config(self.config)
        params, reader = reading.read_first(self.policy, self.pool, settings, run.say, run.check)
        return self.first_state_of({"params": params, READER: reader})

    @property
    def pool(self) -> reading.Charts:
        """The charts, rendered when first asked for."""
        if self._pool is None:
            self._pool = reading.make_pool(
                self.config.seed,
                self.policy.processor,
                mesh=self.policy.mesh,
                charts=self.config.reading.charts,
                workers=self.config.data.workers,
            )
        return self._pool

    def batches(self, start: int) -> Iterator[DemonstrationBatch]:
        """Every `cota.every`th batch is of generated CoTA dialogues, the others of PixelSearch's."""
        every = self.config.cota.every if self.config.cota.samples else self.config.total_steps + 1
        dialogues = super().batches(start - start // every)
        cota = self.cota_batches(skip=start // every)
        for step in range(start + 1, self.config.total_steps + 1):
            yield next(dialogues) if step % every else next(cota)

    def cota_batches(self, *, skip: int) -> Iterator[DemonstrationBatch]:
        """Batches behind the first `skip`, this process's part of each."""
        config, mesh, processor = self.config.cota, self.policy.mesh, self.policy.processor
        pool = cota_pool.make_pool(
            assembly.synthesis_config(self.config, processor),
            processor,
            samples=config.samples,
            workers=self.config.data.workers,
        )
        settings = BatchConfig(
            self.config.seed,
            config.batch_tokens,
            config.row_tokens,
            config.buckets,
            multiple=mesh.shape["data"] * mesh.shape["fsdp"],
            answer_weight=self.config.data.answer_weight,
            share=self.share,
        )
        made = Batches(pool, settings, processor, pool)
        for step in made.steps(made.first_cursor(), {ALL: 1.0}, skip=skip):
            yield demonstrations.as_part(step.batch, self.share, self.policy.model.config)

    def train_step(
        self, state: TrainState, batch: DemonstrationBatch, step: int
    ) -> tuple[TrainState, Mapping[str, Array]]:
        placed = parallel.put_batch(self.policy.mesh, batch)
        if self.reads:
            return self.step_fn(state, {}, placed, reading.take(self.pool, step, count=self.config.reading.batch))
        frozen = {name: part for name, part in self.policy.params.items() if name not in state.trainable["params"]}
        return self.step_fn(state, {"params": frozen}, placed)

    def keep(self, run: Run, state: TrainState) -> tuple[policies.Policy, PyTree]:
        """The whole model directory; weights in half precision, which is how it is shipped."""
        policy = policies.with_params(self.policy, self.policy.params | state.trainable["params"])
        processor, target = policy.processor, run.path / "model"
        model_config = policy.model.config
        settings = to_json(self.config)
        settings["model"] |= {"dtype": "float32", "quantize": "none"}  # what it was trained in, not how it is stored
        if self.config.cota.samples:
            settings["tools"]["names"] = list(assembly.synthesis_config(self.config).tools())
        if hosts.first():
            tiny.write_directory(
                target, processor.tokenizer, model_config, overview=processor.overview, settings=settings
            )
        weights.save(target, policy.params, config=policy.model.config, dtype="float16")
        run.say(f"model written to {target} (Hugging Face layout)")
        return policy, None


JOBS = {"habit": Offline, "pretrain": Pretrain}
