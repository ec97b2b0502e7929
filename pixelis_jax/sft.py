"""The parts of a curriculum SFT job between the lines of `train.train_sft`."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax import Array
from ml_collections import ConfigDict

from pixelis_jax import assembly, curriculum, hosts, parallel, train_step
from pixelis_jax.curriculum import Curriculum, DifficultyRules
from pixelis_jax.curriculum.presets import accuracy_in, accuracy_on
from pixelis_jax.data import cota_batches, demonstrations, generated
from pixelis_jax.data.corpus import ALL, Corpus, Selection, open_sides
from pixelis_jax.data.cota_batches import Batches, Cursor, Encode, Step
from pixelis_jax.data.dialogues import view_of
from pixelis_jax.data.prompts import shared_pictures
from pixelis_jax.data.synthesis.samples import SynthesisConfig
from pixelis_jax.evaluation import Questions
from pixelis_jax.held_out import Accuracy, HeldOut, split_questions
from pixelis_jax.metrics import trajectories
from pixelis_jax.models.processor import Processor
from pixelis_jax.offline import Offline
from pixelis_jax.runtime import Host, Run, write_rollouts
from pixelis_jax.train_step import TrainState
from pixelis_jax.types import Trajectory, UserError

PyTree = Any
DATA_SEED = 1  # of data that the job makes: pixelis-tiny-tools was pretrained on scenes of seed 0


class CurriculumSFT(Offline):
    """SFT of an adapter on CoTA dialogues whose difficulty follows held-out accuracy. Holds no training state."""

    def __init__(self, config: ConfigDict) -> None:
        self.tools = assembly.tools_of(config)
        super().__init__(config)
        folder, self.data_note = data_folder(config, self.policy.processor)
        self.corpus, held_out = open_data(config, folder)
        self.held_out = held_out
        self.curriculum = difficulty_curriculum(config, self.corpus, held_out)
        processor = self.policy.processor
        encode = Encode(self.corpus, processor, self.tools)
        self.batches_of = Batches(self.corpus, self.batch_config(), processor, encode)
        rollout = assembly.rollout_config(config)
        sizes = {"validation": config.eval.samples, "test": config.eval.test_samples}
        questions = Questions(self.policy, batch=config.eval.batch, tools=self.tools)
        self.split = split_questions(held_out, **sizes)
        self.validation, self.test = (
            HeldOut(questions, held_out, numbers, rollout) for numbers in (self.split.validation, self.split.test)
        )
        self.shared_pictures = shared_pictures(self.corpus, held_out)
        self.hashes |= {"data": self.corpus.sha256, "held_out": held_out.sha256}

    def batch_config(self) -> cota_batches.BatchConfig:
        """How batches are made, and which part of them is this process's."""
        data, mesh = self.config.data, self.policy.mesh
        return cota_batches.BatchConfig(
            seed=self.config.seed,
            batch_tokens=data.batch_tokens,
            row_tokens=data.row_tokens,
            buckets=data.buckets,
            multiple=mesh.shape["data"] * mesh.shape["fsdp"] * self.config.optimizer.micro_batches,
            answer_weight=data.answer_weight,
            workers=data.workers,
            share=self.share,
        )

    def notes(self) -> list[str]:
        """What was left out of the data, and what does not divide by the mesh, in lines for the user."""
        told = [f"data: {self.data_note}"] if self.data_note else []
        told += [*accounts(self.corpus, self.held_out), f"data: {self._row_limit()}"]
        if self.shared_pictures:
            told.append(f"data: {self.shared_pictures} held-out pictures are trained on too: accuracy will be too high")
        if self.split.unreadable:
            left = f"evaluation: {self.split.unreadable} held-out questions left out"
            told.append(f"{left}, whose picture is damaged or answer of another type")
        counts = (
            f"of {len(self.held_out)} held-out samples {len(self.validation.numbers)} are asked while training,"
            f" {len(self.test.numbers)} at the end"
        )
        return [*told, f"evaluation: {counts}", *assembly.mesh_notes(self.config, self.policy)]

    def _row_limit(self) -> str:
        limit = self.config.data.row_tokens
        return f"a dialogue of more than {limit} tokens (data.row_tokens) is left out when it is drawn; skipped/samples"

    # State ----------------------------------------------------------------------------------------------------------
    def first_state_of(self, trainable: PyTree) -> TrainState:
        averaged = self.config.optimizer.average_share > 0
        own = jax.tree.map(lambda x: x.copy(), trainable)  # steps donate it, and the start is evaluated at the end
        state = train_step.init_state(own, self.tx, averaged=averaged)
        return parallel.place(self.policy.mesh, state)

    def first_host(self) -> Host:
        """What the host remembers between steps, as JSON values."""
        return {
            "curriculum": curriculum.to_json(curriculum.init(self.curriculum)),
            "data": None,  # the cursor, once lengths are measured
            "best": None,  # {"accuracy", "step"} of the best evaluation
            "evaluations_since_best": 0,
            "coordinates": self.policy.processor.coordinates,
        }

    # One step, in order ---------------------------------------------------------------------------------------------
    def stream(self, run: Run, host: Host) -> Iterator[Step]:
        """Batches of the current stage's mix, from where the data stands; measures lengths at the first start."""
        cursor = self.batches_of.first_cursor() if host["data"] is None else Cursor.from_json(host["data"])
        if host["data"] is None:
            run.say(f"data: rows are padded to {', '.join(map(str, cursor.edges))} tokens")
            host["data"] = cursor.to_json()
        return self.batches_of.steps(cursor, self.mix(host))

    def mix(self, host: Host) -> dict[str, float]:
        """Share of each category now; without stages, of one pool."""
        if not self.config.curriculum.stages:
            counts = {name: len(self.corpus.numbers(name)) for name in self.corpus.categories}
            return {name: count / len(self.corpus) for name, count in counts.items() if count}
        stage = curriculum.current(self.curriculum, curriculum.from_json(host["curriculum"]))
        return dict(stage.weights)

    def train_on(self, state: TrainState, step: Step, host: Host) -> tuple[TrainState, Mapping[str, Array], Host]:
        """One update; the host then knows where the data stands."""
        batch = demonstrations.as_part(step.batch, self.share, self.policy.model.config)
        state, metrics = self.train_step(state, batch, 0)
        return state, metrics, host | {"data": step.cursor.to_json()}

    def evaluates(self, step: int) -> bool:
        """Whether held-out accuracy is measured after a step."""
        return step % self.config.curriculum.evaluation_frequency == 0 or step == self.config.total_steps

    def measure(self, run: Run, state: TrainState, step: int) -> dict[str, float]:
        """Held-out accuracies under their metric names; the first dialogues go to trajectories.jsonl."""
        kept: list[dict[str, Any]] = []

        def keep(trajectory: Trajectory) -> None:
            if len(kept) < self.config.logging.rollouts:
                kept.append(trajectories.record(trajectory, {}))

        found = self.validation(state.trainable["lora"], seen=keep)
        write_rollouts(run.writer, step, kept)
        if line := found.unanswered.line():
            run.say(f"step {step}: {line}")
        return self.metrics_of(found)

    def metrics_of(self, found: Accuracy) -> dict[str, float]:
        """Accuracies under their metric names."""
        named = {f"eval/accuracy/{name}": share for name, (share, _) in (found.by_category | found.by_task).items()}
        stages = {accuracy_on(stage.name): found.on(dict(stage.weights)) for stage in self.curriculum.stages}
        return (
            named
            | stages
            | {"eval/accuracy": found.overall, "eval/rapr": found.rapr, "eval/valid_calls": found.valid_calls}
        )

    def decide(self, run: Run, host: Host, measured: Mapping[str, float], step: int) -> tuple[Host, bool]:
        """The curriculum one evaluation on, and the record of the best; whether the mix changed, which it says."""
        before = curriculum.from_json(host["curriculum"])
        after = curriculum.update(self.curriculum, before, measured, step) if self.config.curriculum.stages else before
        for change in after.transitions[len(before.transitions) :]:
            cause = ", ".join(f"{name.removeprefix('eval/')} {value:.3f}" for name, value in change.metrics)
            run.say(f"step {step}: {change.source} -> {change.target} ({change.cause}: {cause or 'step count'})")
            host = host | {"data": Cursor.from_json(host["data"]).turned().to_json()}
        accuracy, best = measured["eval/accuracy"], host["best"]
        better = accuracy == accuracy and (best is None or accuracy > best["accuracy"])  # a NaN never wins
        host = host | {
            "curriculum": curriculum.to_json(after),
            "best": {"accuracy": accuracy, "step": step} if better else best,
            "evaluations_since_best": 0 if better else host["evaluations_since_best"] + 1,
        }
        return host, len(after.transitions) > len(before.transitions)

    def logs(self, step: int) -> bool:
        """Whether a step has its line in metrics.jsonl."""
        return step % self.config.log_every_steps == 0 or self.evaluates(step)

    def scalars_of(self, metrics: Mapping[str, Array], drawn: Step, host: Host, step: int) -> dict[str, float]:
        """The step's metrics, its data and the mix it was drawn by; nothing where it has no line."""
        if not self.logs(step):
            return {}
        state = curriculum.from_json(host["curriculum"])
        mix = {f"curriculum/weight/{name}": share for name, share in self.mix(host).items()}
        stage = {"curriculum/stage": state.stage, "curriculum/transitions": len(state.transitions)}
        return self.scalars(metrics, step) | self.numbers_of(drawn) | mix | stage

    def numbers_of(self, drawn: Step) -> dict[str, float]:
        """What the batch held, the parts of other processes too."""
        counted = {name: value for name, value in drawn.numbers.items() if name in cota_batches.COUNTED}
        told = hosts.gather(self.share, list(counted.values()))
        whole = {name: float(sum(told[i :: len(counted)])) for i, name in enumerate(counted)}
        padding = 1 - whole["data/tokens"] / (whole["data/rows"] * drawn.numbers["data/row_tokens"])
        return drawn.numbers | whole | {"data/padding_share": padding}

    def headline(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """What the progress line shows."""
        shown = ("loss", "data/padding_share", "eval/accuracy", "curriculum/stage")
        return {name.rpartition("/")[2]: scalars[name] for name in shown if name in scalars}

    def is_enough(self, host: Host) -> bool:
        """Whether accuracy has not risen for as many evaluations as early stopping allows, in the last stage."""
        patience, last = self.config.curriculum.early_stopping_evaluations, len(self.curriculum.stages) - 1
        in_last = curriculum.from_json(host["curriculum"]).stage == last
        return bool(patience) and in_last and host["evaluations_since_best"] >= patience

    def where(self, start: int, host: Host) -> int:
        """The step to go on from: the end, where a run that stopped early was cut in its last evaluation."""
        return int(self.config.total_steps) if self.is_enough(host) else start

    def candidates(self, run: Run, state: TrainState, host: Host) -> dict[str, PyTree]:
        """What may become the final adapter, by name: that of the last step, the average, the best evaluation's."""
        found = {"last": state.trainable["lora"]}
        after = assembly.sft_config(self.config).average_after
        if after is not None and int(state.step) > after:
            assert state.average is not None
            found["average"] = state.average["lora"]
        if host["best"] is not None and host["best"]["step"] != int(state.step):
            restored = run.checkpoints.restore(state, host["best"]["step"])
            assert restored is not None
            found["best"] = restored[1].trainable["lora"]
        return found


def data_folder(config: ConfigDict, processor: Processor) -> tuple[Path, str]:
    """(folder, note) of `data.path`; where that is empty, of `num_samples` generated ones, made if they are not there.

    The first process makes them, the others wait. They are as this model sees them, see `generated`. Raises UserError
    where there is neither a path nor a number.
    """
    count = config.data.num_samples
    if config.data.path:
        return Path(config.data.path), ""
    if not count:
        raise UserError("data.path is empty and data.num_samples is 0; name a folder of `pixelis_jax.cota score`")
    synthesis = SynthesisConfig(seed=DATA_SEED, view=view_of(processor), ocr="READ_TEXT" in config.tools.names)
    found = generated.find(Path("runs"), synthesis, data_settings(synthesis, processor), count)
    if hosts.first() and not found.is_whole:
        found.make(workers=os.cpu_count() or 1)
    hosts.meet("data")
    return found.path, found.note


def data_settings(synthesis: SynthesisConfig, processor: Processor) -> dict[str, Any]:
    """All that generated samples depend on, as JSON values: how they are made, and how the model sees them."""
    made = {f.name: getattr(synthesis, f.name) for f in dataclasses.fields(synthesis) if f.name != "view"}
    budgets = {"overview": processor.overview, "crop": processor.crop}
    sizes = {f"{name}_{field}": int(n) for name, b in budgets.items() for field, n in dataclasses.asdict(b).items()}
    factor = processor.config.need_vision().factor
    return made | sizes | {"factor": factor, "coordinates": processor.coordinates}


def accounts(training: Corpus, held_out: Corpus) -> list[str]:
    """What became of every sample of the data, in lines: trained on, held out, left out and why."""
    one = training.name == held_out.name
    lines = []
    for corpus, does in ((training, "are trained on"), (held_out, "are held out")):
        sizes = ", ".join(f"{len(corpus.numbers(name))} {name}" for name in corpus.categories)
        left = corpus.left_out.total()
        read = len(corpus) + left + (len(held_out) if one else 0)
        parts = [f"{len(corpus)} {does} ({sizes})"]
        if one:
            parts.append(f"{len(held_out)} are held out")
        reasons = ", ".join(f"{count} {reason}" for reason, count in corpus.left_out.most_common())
        parts.append(f"{left} are left out" + (f" ({reasons})" if left else ""))
        lines.append(f"data: of {read} samples in {corpus.name} {', '.join(parts)}")
        if one:
            break
    return lines


def open_data(config: ConfigDict, folder: Path) -> tuple[Corpus, Corpus]:
    """(training corpus, held-out corpus) of a config. Raises UserError where they can't be had."""
    data = config.data
    selection = Selection(tuple(data.sample_types), data.held_out_share, data.strict)
    training, held_out = open_sides(folder, Path(data.held_out_path) if data.held_out_path else None, selection)
    if training.categories != held_out.categories:
        told = " and ".join(f"{c.name} has {', '.join(c.categories)}" for c in (training, held_out))
        raise UserError(f"categories differ: {told}; score both with `python -m pixelis_jax.cota score`")
    return training, held_out


def difficulty_curriculum(config: ConfigDict, corpus: Corpus, held_out: Corpus) -> Curriculum:
    """The curriculum of a config, validated. Without stages, one that never changes."""
    table = config.curriculum
    stages = tuple(table.stages)
    if not stages:
        counts = {name: len(corpus.numbers(name)) / len(corpus) for name in corpus.categories}
        single = curriculum.Stage("all", tuple(counts.items()))
        return Curriculum((single,), table.evaluation_frequency, rollback=None)
    for data in (corpus, held_out):
        if data.categories == (ALL,):
            raise UserError(
                f"{data.name} was never sorted by difficulty, which curriculum.stages needs; run `python -m"
                f" pixelis_jax.cota score --input={data.name} --out=DIR` and name DIR, or use configs/sft.py:uniform"
            )
    rules = DifficultyRules(**{field.name: table[field.name] for field in dataclasses.fields(DifficultyRules)})
    made = curriculum.difficulty_curriculum(stages, rules)
    known = {accuracy_on(stage.name) for stage in made.stages} | {accuracy_in(name) for name in corpus.categories}
    curriculum.validate(made, known)
    for stage in made.stages:
        for name, share in stage.weights:
            for what, data in (("training", corpus), ("held-out", held_out)):
                if share and (name not in data.categories or not len(data.numbers(name))):
                    raise UserError(
                        f"curriculum stage {stage.name!r} takes {share:g} of {name!r}, and the {what} samples of"
                        f" {data.name} have none; score more data with `pixelis_jax.cota score`, change the stages, or"
                        " train without them (configs/sft.py:uniform)"
                    )
    return made
