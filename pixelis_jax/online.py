"""The parts of an online RL job between the lines of `train.train_online`."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from pixelis_jax import assembly, curriculum, hosts, parallel, train_step
from pixelis_jax.algorithms import replay as replaying
from pixelis_jax.algorithms.agreement import NAME, sampler_trainer_difference
from pixelis_jax.data.demonstrations import look_tokens
from pixelis_jax.data.prompts import SKIPPED, prompt_tokens
from pixelis_jax.dynamic import Collected, GroupRules, collect
from pixelis_jax.evaluation import Outcome, outcomes_of
from pixelis_jax.left_out import commonest_complaint, first_step_lines, why_unanswered
from pixelis_jax.metrics import alerts, trajectories, windows
from pixelis_jax.models import lora as loras
from pixelis_jax.models.rows import bucket
from pixelis_jax.rollout import Rollout, Sampler
from pixelis_jax.rollout.collate import padded_length, trajectory_batch
from pixelis_jax.runtime import Host, Run
from pixelis_jax.train_step import RLStep, RowNumbers, TrainState
from pixelis_jax.types import Task, TrajectoryBatch, UserError

PyTree = Any
# (mean, max) of |sampler - trainer| log-prob above which the correction is switched on; ten times that stops the run.
AGREEMENT_BOUNDS = {"float32": (1e-4, 1e-4), "bfloat16": (5e-3, 0.1)}
FRESH = 2**30  # number of the first prompt that is drawn for dynamic sampling
STAGE_FOLDERS = ("rft_adapters_base", "rft_adapters_coherence", "rft_adapters_full")


class Online:
    """Policy, sampler, step functions and curriculum of an RFT config. Holds no training state: that is passed in."""

    def __init__(self, config: ConfigDict) -> None:
        self.config = config
        self.curriculum = assembly.reward_curriculum(config)
        assembly.rl_config(config)  # refuses what can't be, before anything is loaded
        self.policy = assembly.load_policy(config)
        self.start, self.origin = assembly.starting_adapter(config, self.policy)
        self.updates = config.algorithm.updates_per_rollout
        self.schedule = assembly.make_schedule(config.optimizer, config.total_steps * self.updates)
        self.tx = assembly.make_optimizer(config.optimizer, self.schedule)
        self.questions = assembly.make_prompts(config, self.policy)
        vision = self.policy.model.config.vision
        replay = assembly.replay_config(config, vision, pictures=self.questions.pictures)
        self.rl_config = assembly.rl_config(config, replay=replay)
        self.step_fns = RLStep(self.policy.model, self.tx, self.rl_config)
        self.evaluator = assembly.make_evaluator(config, self.policy, self.questions)
        rollout = assembly.rollout_config(config, group_size=config.rollout.group_size)
        rollout = dataclasses.replace(rollout, tools_on=config.rollout.tools_on)
        engine = self.evaluator.engine(rollout.sampling)
        self.sampler = Sampler(self.policy, rollout, tools=assembly.tools_of(config), engine=engine)
        self.share = hosts.share(self.policy.mesh)
        self.reward = assembly.task_reward(config, self.questions.columns)
        self.excluded = assembly.excluded_statuses(config)
        if self.questions.unanswered and self.reward.needs_answers:
            raise UserError(
                f"{config.data.path}: {self.questions.unanswered} of its training questions have no answer to verify;"
                " set rewards.majority (what most samples say is right) or a rewards.function"
            )
        self.reward.check(self.questions.train(0))
        self._refuse_vision_adapter()
        self._prompts = self.share.of(config.rollout.prompts, "rollout.prompts")
        self._gated = False  # in this process

    def _refuse_vision_adapter(self) -> None:
        """UserError for what picks rows from a table of features where there is none."""
        cfg = self.config.rollout
        field = "replay_ratio" if cfg.replay_ratio else "dynamic_batches" if cfg.dynamic_batches else ""
        if field and loras.touches_vision(self.start):
            raise UserError(
                f"rollout.{field} needs a frozen vision tower, and lora.targets selects layers of it; set"
                f" rollout.{field} to 0, or name only layers of language_model"
            )

    @property
    def hashes(self) -> dict[str, str]:
        """What the run reads besides its config, for `run.json`."""
        return assembly.hashes(self.policy, self.start) | self.questions.hashes

    @property
    def size(self) -> str:
        """What is trained, in words."""
        words = f"{assembly.size_of(self.start, self.policy)}; {self.policy.loaded}"
        dropout = self.config.lora.dropout
        if dropout:
            words += f"; without lora.dropout {dropout:g}, which is for sft: here each ratio would no longer start at 1"
        return words

    def notes(self) -> list[str]:
        """What is asked, what does not divide by the mesh, and what leaves no room to look, in lines for the user."""
        found = [*self.questions.notes(), *assembly.mesh_notes(self.config, self.policy)]
        if replay := self.rl_config.replay:
            model = self.policy.model
            size = replaying.bytes_of(replay, width=model.config.feature_width, dtype=model.dtype)
            found.append(
                f"replay: {replay.size} rows of {replay.tokens} tokens, {replay.image_tokens} of them of images at"
                f" most: {size / 2**20:.1f} MiB on each device; lower rollout.replay_size for less"
            )
        epoch, prompts = self.questions.epoch, self.config.rollout.prompts
        if 0 < epoch < prompts:
            found.append(
                f"data: fewer training questions ({epoch}) than rollout.prompts ({prompts}): some are asked more than"
                " once a step; lower it, or give more"
            )
        context = self.config.sampling.context_tokens
        needed = self._look_tokens()
        if needed > context:
            found.append(
                f"sampling.context_tokens is {context}, and a dialogue that looks closer takes about {needed} tokens:"
                " looks will end in an error; raise it"
            )
        return found

    def _look_tokens(self) -> int:
        """Tokens of a short dialogue that looks closer at one of the first prompts; 0 where none of them needs that."""
        task = next((t for t in map(self.questions.train, range(16)) if t.needs_look), None)
        if task is None:
            return 0
        if "target_box" in task.metadata:  # the oracle knows where
            return look_tokens(task, self.policy.processor, self.sampler.schemas)
        processor = self.policy.processor
        return prompt_tokens(task, processor, self.sampler.schemas) + processor.full_tokens(crop=True)

    # State ----------------------------------------------------------------------------------------------------------
    def first_state(self) -> TrainState:
        """State at step 0: a copy of the starting adapter (the original stays as the KL reference)."""
        lora = jax.tree.map(lambda x: x.copy(), self.start)
        key = jax.random.fold_in(jax.random.key(self.config.seed), 2)
        parts = train_step.rl_parts(key, self.rl_config, self.policy.model)
        state = train_step.init_state({"lora": lora}, self.tx, **parts)
        return parallel.place(self.policy.mesh, state)

    def first_host(self) -> Host:
        """What the host remembers between steps, as JSON values."""
        return {
            "curriculum": curriculum.to_json(curriculum.init(self.curriculum)),
            "windows": windows.to_json(windows.init(assembly.window_lengths(self.config))),
            "correction": self.rl_config.loss.correction,
            "gated": False,
            "alerts": alerts.init(),
            "skipped": 0,  # updates so far
            "updated": True,  # by the last step
            "coordinates": self.policy.processor.coordinates,
            "pixel_budgets": [list(map(int, (b.min_pixels, b.max_pixels))) for b in assembly.budgets(self.config)],
        }

    # One step, in order ---------------------------------------------------------------------------------------------
    def prompts(self, start: int) -> Iterator[list[Task]]:
        """Prompts of this process from step `start` on: a pure function of (seed, step), rendered ahead by a thread."""
        count = self.config.rollout.prompts

        def tasks(step: int) -> list[Task]:
            return [self.questions.train(int(step) * count + i) for i in self._prompts]

        steps = grain.MapDataset.range(start, self.config.total_steps).map(tasks)
        yield from steps.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4))

    def roll_out(self, tasks: Sequence[Task], state: TrainState, step: int) -> Collected:
        """Dialogues for every task, with what they earn; where so asked, fresh prompts for those that teach nothing.

        A group that stays in the batch although its samples earn the same is left out of the update.
        """
        cfg, lora = self.config.rollout, state.trainable["lora"]

        def ask(attempt: int) -> Rollout:
            asked = self.fresh_tasks(step, attempt) if attempt else tasks
            return self.sampler(asked, lora=lora, seed=self.config.seed, step=step)

        rules = GroupRules(
            cfg.group_size,
            excluded=self.excluded,
            unrepaired=self.config.rewards.unrepaired_rule,
        )
        return collect(ask, self.reward, rules, further=cfg.dynamic_batches, share=self.share)

    def fresh_tasks(self, step: int, attempt: int) -> list[Task]:
        """Training prompts of this process under numbers that no step has itself, a pure function of the arguments."""
        cfg = self.config.rollout
        first = FRESH + (step * cfg.dynamic_batches + attempt) * cfg.prompts
        return [self.questions.train(first + i) for i in self._prompts]

    def verify(self, rollout: Collected) -> TrajectoryBatch:
        """Strings end here: answers are checked, calls become ids, rows go to the device."""
        sampling = self.config.sampling
        (longest,) = hosts.largest(max(len(t.tokens) for t in rollout.trajectories))
        batch = trajectory_batch(
            rollout.trajectories,
            rollout.features,
            rollout.scores,
            length=padded_length(longest, limit=sampling.context_tokens, buckets=self.config.rollout.length_buckets),
            calls=sampling.max_turns,
            pad=self.policy.processor.pad,
            first_group=self._prompts.start,
            excluded=self.excluded,
        )
        rewards = dataclasses.replace(batch.rewards, excluded=batch.rewards.excluded | rollout.left_out)
        batch = dataclasses.replace(batch, features=None, images=rollout.images, rewards=rewards)
        rest = parallel.put_batch(self.policy.mesh, batch)
        if rollout.features is None:
            return rest
        # One compiled shape: the table grows with every crop, so it is padded to what a full rollout would fill.
        size = bucket(
            rollout.features.shape[0], multiple=assembly.table_rows(self.config, self.policy.model.config.vision)
        )
        features = jnp.pad(rollout.features, ((0, size - rollout.features.shape[0]), (0, 0)))
        return dataclasses.replace(rest, features=features)

    def gate(self, run: Run, state: TrainState, batch: TrajectoryBatch, host: Host) -> None:
        """Once a process: sampler and trainer must agree on the sampled tokens.

        What it decides, it decides at the first step of the run: a resumed run only reports, since it has to go on as
        it would have gone on.
        """
        if self._gated:
            return
        self._gated = True
        logp = self.step_fns.logp(self.frozen, state.trainable["lora"], batch)
        mask = batch.rows.policy
        found = jax.device_get(sampler_trainer_difference(logp, batch.logp_sampler, mask).reduce())
        mean, top = float(found[f"{NAME}/mean"]), float(found[f"{NAME}/max"])
        mean_bound, max_bound = AGREEMENT_BOUNDS[self.config.model.dtype]
        run.say(f"start-up gate: |sampler - trainer log-prob| mean {mean:.2e}, max {top:.2e} (bound {max_bound:.0e})")
        if host["gated"]:
            return
        host["gated"] = True
        excess = max(mean / mean_bound, top / max_bound)
        if not excess <= 10:
            raise UserError(
                f"sampler and trainer log-probs differ by {top:.2e}, over ten times the bound {max_bound:.0e}:"
                " training would be off-policy from the first step; report this with your run.json"
            )
        if excess > 1 and self.config.algorithm.correction == "auto":
            run.say("above the bound: the importance weight token_truncate is switched on")
            host["correction"] = "token_truncate"

    def train_step(
        self, state: TrainState, batch: TrajectoryBatch, host: Host
    ) -> tuple[TrainState, dict[str, Array], RowNumbers]:
        """Rewards, advantages and one update with the current stage's weights."""
        if host["correction"] != self.step_fns.config.loss.correction:
            config = assembly.replace_correction(self.rl_config, host["correction"])
            self.step_fns = RLStep(self.policy.model, self.tx, config)
        stage = curriculum.current(self.curriculum, curriculum.from_json(host["curriculum"]))
        return self.step_fns.train_step(state, self.frozen, self.start, batch, weights=stage.weights)

    def outcomes(self, rollout: Collected) -> list[Outcome]:
        """What came of all the step's dialogues, those of other processes too, and those that are not trained on."""
        return outcomes_of(rollout.sampled, self.share)

    def advance(
        self, host: Host, metrics: Mapping[str, Array], rollout: Collected, outcomes: Sequence[Outcome], step: int
    ) -> tuple[Host, dict[str, float | None]]:
        """Moving averages and the curriculum one step on; returns (new host state, all scalars of the step)."""
        scalars: dict[str, float | None] = {k: float(v) for k, v in jax.device_get(dict(metrics)).items()}
        rate = assembly.learning_rate(self.schedule, step * self.updates, scalars["update/skipped"] or 0)
        threshold = self.rl_config.rewards.curiosity.success_threshold
        counts = [
            self.sampler.pool.counters()["tool/nondeterministic"],
            rollout.refused,
            int(rollout.left_out.sum()),
            int(np.sum(rollout.earned >= threshold)),
            int(np.isfinite(rollout.earned).sum()),
            len(rollout.sampled),
            *rollout.uniform,
            sum(t.task.metadata.get(SKIPPED, 0) for t in rollout.sampled if t.sample == 0),
        ]
        totals = map(float, np.sum(hosts.gather(self.share, [counts]), axis=0))
        cut, refused, left_out, right, applies, sampled, uniform, groups, unasked = totals
        scalars |= rollout_scalars(outcomes) | {"learning_rate": rate, "tool/nondeterministic": cut}
        scalars |= {"skipped/reward": refused, "skipped/prompt": unasked}
        if self.config.rollout.dynamic_batches:  # what is trained on is chosen: these are of all dialogues
            scalars |= {
                "success_rate": right / applies if applies else None,
                "rapr": sum(o.calls > 0 for o in outcomes) / sampled,
                "grpo/uniform_group_share": uniform / groups,
                "skipped/uniform_rows": left_out,
                "skipped/excluded_rows": (scalars["skipped/excluded_rows"] or 0.0) - left_out,
                "rollout/sampled": sampled,
            }
        moved = windows.update(windows.from_json(host["windows"]), scalars)
        scalars |= windows.averages(moved)
        before = curriculum.from_json(host["curriculum"])
        state = curriculum.update(self.curriculum, before, scalars, step)
        stage = curriculum.current(self.curriculum, before)
        scalars |= {f"curriculum/weight/{name}": weight for name, weight in stage.weights}
        scalars |= {"curriculum/stage": before.stage, "curriculum/transitions": len(state.transitions)}
        skipped = int(scalars["update/skipped"] or 0)
        complaint = commonest_complaint(outcomes)
        told = alerts.update(host["alerts"], scalars, dialogues=len(outcomes), refused=complaint)
        if step == 1:
            told["now"] += first_step_lines(scalars, outcomes, self.config, excluded=self.excluded)
        host = host | {"alerts": told}
        host = host | {"skipped": skipped, "updated": skipped == host.get("skipped", skipped)}
        return host | {"windows": windows.to_json(moved), "curriculum": curriculum.to_json(state)}, scalars

    def tell(self, run: Run, host: Host, outcomes: Sequence[Outcome], step: int) -> None:
        """Early warnings of the step, and that it made no update."""
        for line in host["alerts"]["now"]:
            run.say(f"step {step}: {line}")
        self.say_no_update(run, host, outcomes, step)

    def say_no_update(self, run: Run, host: Host, outcomes: Sequence[Outcome], step: int) -> None:
        """Says that a step made no update, and why: the first time, the second, the fourth and so on."""
        count = host["skipped"]
        if host["updated"] or count & (count - 1):
            return
        if all(o.status != "answered" for o in outcomes):
            why = f"none of {len(outcomes)} dialogues came to an answer: {why_unanswered(outcomes, self.config)}"
        else:
            why = "nothing was left to train, or the gradient is not finite; see skipped/ in metrics.jsonl"
        run.say(f"step {step}: no update ({count} left out so far): {why}")

    def keep_stage_adapter(self, run: Run, state: TrainState, host: Host, step: int) -> bool:
        """At a change of stage: say it, and keep the adapter that a finished stage ended with; so at the last step.

        Returns whether a stage ended here, whose whole state is to be kept too.
        """
        ended = False
        names = [stage.name for stage in self.curriculum.stages]
        for change in curriculum.from_json(host["curriculum"]).transitions:
            if change.step == step:
                cause = ", ".join(f"{name} {value:.3f}" for name, value in change.metrics)
                run.say(f"step {step}: {change.source} -> {change.target} ({change.cause}: {cause or 'step count'})")
                if names.index(change.target) > names.index(change.source):  # a rollback finishes nothing
                    self.save_adapter(run, state, _stage_folder(names.index(change.source)))
                    ended = True
        if step == self.config.total_steps:
            self.save_adapter(run, state, _stage_folder(curriculum.from_json(host["curriculum"]).stage))
        return ended

    def save_adapter(self, run: Run, state: TrainState, folder: str) -> None:
        assembly.save_adapter(self.config, self.policy, run.path / folder, state.trainable["lora"])

    def records(self, rollout: Rollout, numbers: RowNumbers) -> list[dict[str, Any]]:
        """The first of this process's rows for trajectories.jsonl."""
        host = {name: self.share.cut(values) for name, values in hosts.fetch(dict(numbers)).items()}
        count = min(self.config.logging.rollouts, len(rollout.trajectories))
        return [
            trajectories.record(rollout.trajectories[i], {name: float(v[i]) for name, v in host.items()})
            for i in range(count)
        ]

    def headline(self, scalars: Mapping[str, float | None]) -> dict[str, float]:
        """What the progress line shows, of what there is: another loss may not measure a KL."""
        names = ("success_rate", "rapr", "reward", "kl", "curriculum/stage")
        found = {name.removeprefix("curriculum/"): scalars.get(name) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def frozen(self) -> PyTree:
        return {"params": self.policy.params}


def _stage_folder(stage: int) -> str:
    return STAGE_FOLDERS[min(stage, len(STAGE_FOLDERS) - 1)]


def rollout_scalars(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Host-side metrics of a step's rollouts, over all rows, excluded ones too."""
    tokens = np.array([o.tokens for o in outcomes], float)
    turns = np.array([o.turns for o in outcomes], float)
    out = {
        "rollout/clipped_share": float(np.mean([o.status == "truncated" for o in outcomes])),
        "rollout/over_turn_share": float(np.mean([o.status == "over_turn" for o in outcomes])),
        "tool/parse_failures": float(sum(o.parse_failures for o in outcomes)),
        "visual_op_ratio": sum(o.calls for o in outcomes) / max(1.0, float(turns.sum())),
    }
    for name, values in (("length_tokens", tokens), ("turns", turns)):
        out |= {
            f"rollout/{name}/min": values.min(),
            f"rollout/{name}/mean": values.mean(),
            f"rollout/{name}/max": values.max(),
        }
    kinds: dict[str, list[float]] = {}
    for o in outcomes:
        kinds.setdefault(o.task_type, []).append(o.score)
    out |= {f"success_rate/{kind}": float(np.mean(v)) for kind, v in kinds.items()}
    return {name: float(value) for name, value in out.items()}
