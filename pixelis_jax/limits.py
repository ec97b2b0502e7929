"""What the fields of a config may be: said in one line before anything is loaded or trained.

Each number has an interval here. What a part of a job refuses beyond that, such as two values that don't go together,
it refuses when it is made; `check` makes these parts, so that nothing that it admits is refused later.
"""

import dataclasses
import importlib
import math
from collections.abc import Collection, Mapping
from typing import Any, get_args

from ml_collections import ConfigDict

from pixelis_jax import assembly, curriculum
from pixelis_jax.algorithms import grpo
from pixelis_jax.algorithms.advantages import Scale
from pixelis_jax.as_trained import FALLBACK
from pixelis_jax.config import flatten, is_open
from pixelis_jax.data.cota import SAMPLE_TYPES
from pixelis_jax.data.pixelsearch.questions import KINDS
from pixelis_jax.evaluation import MODES
from pixelis_jax.models import quantized
from pixelis_jax.rewards import orchestrator
from pixelis_jax.tools import TOOLS
from pixelis_jax.tools.base import COORDINATES
from pixelis_jax.types import UserError

INT32 = 2**31 - 1
COUNT = (1, INT32)
FROM_ZERO = (0, INT32)
SIZE = (1, 2**20)  # length of one axis of an array: tokens, rows
DEPTH = (1, 1024)  # what is written out one by one: layers, turns
AMOUNT = (0, 1e9)
SHARE = (0, 1)
AXIS = (-1, INT32)  # and not 0
LARGEST_AREA = 8192 * 8192  # px

# Closed intervals, one for every field that is a number or lists numbers.
LIMITS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**31 - 1),
    "total_steps": FROM_ZERO,
    "log_every_steps": COUNT,
    "model.width": (64, 2**20),  # in steps of two heads
    "model.layers": DEPTH,
    "model.vision_width": (32, 2**20),  # in steps of a head
    "model.vision_depth": DEPTH,
    "image.min_pixels": (1, LARGEST_AREA),
    "image.max_pixels": (1, LARGEST_AREA),  # a vision token of the model at least: models/processor.py
    "image.crop_min_pixels": (1, LARGEST_AREA),
    "image.crop_max_pixels": (1, LARGEST_AREA),
    "lora.rank": (1, 2**14),
    "lora.alpha": (1e-6, 1e9),  # 0 would train nothing
    "lora.dropout": (0, 0.99),
    "mesh.data": AXIS,
    "mesh.fsdp": AXIS,
    "mesh.tensor": AXIS,
    "tools.workers": (1, 1024),
    "tools.time_limit_s": (0.01, 1e6),
    "sampling.temperature": (0, 100),  # and not between 0 and COLDEST
    "sampling.max_new_tokens": SIZE,
    "sampling.context_tokens": SIZE,
    "sampling.max_turns": DEPTH,
    "eval.scenes": COUNT,
    "eval.batch": SIZE,
    "checkpoint.every_steps": COUNT,
    "checkpoint.keep": COUNT,
    "checkpoint.restore_step": (-1, INT32),
    "optimizer.learning_rate": (0, 10),
    "optimizer.warmup_steps": FROM_ZERO,
    "optimizer.weight_decay": AMOUNT,
    "optimizer.clip_norm": AMOUNT,
    "optimizer.beta2": (0, 0.999999),
    "optimizer.micro_batches": SIZE,
    "data.scenes": SIZE,
    "data.questions": SIZE,
    "data.direct_answer_share": SHARE,
    "data.failed_call_share": SHARE,
    "data.close_up_share": SHARE,
    "data.box_noise": SHARE,
    "data.answer_weight": AMOUNT,
    "data.row_tokens": SIZE,
    "data.batch_tokens": (16, INT32),
    "data.buckets": (1, 64),
    "data.num_samples": FROM_ZERO,
    "data.held_out_share": (0, 0.9),
    "optimizer.label_smoothing": (0, 0.99),
    "optimizer.average_share": SHARE,
    "eval.samples": COUNT,
    "eval.test_samples": COUNT,
    "curriculum.advancement_interval": FROM_ZERO,
    "curriculum.min_performance": SHARE,
    "curriculum.performance_window": (1, 1000),
    "curriculum.patience_cycles": (1, 1000),
    "curriculum.rollback_threshold": (-1, 0),
    "curriculum.rollback_cooldown": FROM_ZERO,
    "curriculum.cooldown_cycles": (0, 1000),
    "curriculum.rollback_factor": (1, 1000),
    "curriculum.early_stopping_evaluations": FROM_ZERO,
    "data.workers": (0, 1024),
    "cota.samples": FROM_ZERO,
    "cota.every": COUNT,
    "cota.batch_tokens": (16, INT32),
    "cota.row_tokens": SIZE,
    "cota.buckets": (1, 64),
    "reading.charts": FROM_ZERO,
    "reading.first_steps": COUNT,
    "reading.first_batch": SIZE,
    "reading.batch": SIZE,
    "reading.learning_rate": (0, 10),
    "rollout.prompts": SIZE,
    "rollout.group_size": SIZE,
    "rollout.length_buckets": (1, 64),
    "rollout.dynamic_batches": (0, 1000),
    "rollout.replay_ratio": (0, 0.9),
    "rollout.replay_size": SIZE,
    "rollout.replay_alpha": (0, 100),
    "rollout.replay_max_age": COUNT,
    "algorithm.e_low": (0, 0.999999),
    "algorithm.e_high": (1e-9, 100),
    "algorithm.kl_beta": AMOUNT,
    "algorithm.entropy_bonus": AMOUNT,
    "algorithm.delta": (0, 1e9),
    "algorithm.cispo_cap": (1e-9, 1e9),
    "algorithm.sapo_tau_positive": (1e-9, 1e9),
    "algorithm.sapo_tau_negative": (1e-9, 1e9),
    "algorithm.updates_per_rollout": (1, 1000),
    "algorithm.filtering_threshold": AMOUNT,
    "algorithm.kl_target": AMOUNT,
    "algorithm.kl_horizon": COUNT,
    "algorithm.correction_cap": (1e-9, 1e9),
    "rewards.majority_share": SHARE,
    "rewards.curiosity_floor": SHARE,
    "rewards.dynamics_transitions": FROM_ZERO,
    "rewards.norm_window": COUNT,
    "rewards.norm_warmup": FROM_ZERO,
    "rewards.clip": (1e-6, 1e9),
    "rewards.success_threshold": SHARE,
    "rewards.curiosity_eta": AMOUNT,
    "rewards.curiosity_cap": AMOUNT,
    "rewards.rapr_target": SHARE,
    "rewards.rapr_operations": FROM_ZERO,
    "rewards.rapr_alpha": AMOUNT,
    "rewards.rapr_beta": AMOUNT,
    "penalty.base": AMOUNT,
    "penalty.track_on_still": AMOUNT,
    "penalty.out_of_image": AMOUNT,
    "penalty.max_zoom_in": FROM_ZERO,
    "penalty.max_segment_object_at": FROM_ZERO,
    "penalty.max_get_properties": FROM_ZERO,
    "penalty.max_read_text": FROM_ZERO,
    "penalty.max_track_object": FROM_ZERO,
    "rewards.overlong_from": FROM_ZERO,
    "rewards.overlong_to": FROM_ZERO,
    "curriculum.windows": COUNT,
    "curriculum.evaluation_frequency": COUNT,
    "curriculum.rollback_patience": (1, 1000),
    "curriculum.rollback_cooldown_steps": FROM_ZERO,
    "logging.rollouts": FROM_ZERO,
    "logging.rollouts_every_steps": COUNT,
}  # fmt: skip

# Fields that list names, and the names there are.
NAMES: dict[str, Collection[str]] = {
    "tools.names": TOOLS,
    "data.kinds": tuple(KINDS),
    "rollout.kinds": tuple(KINDS),
    "eval.kinds": tuple(KINDS),
    "eval.modes": tuple(MODES),
    "data.sample_types": SAMPLE_TYPES,
}
# Fields that take one name of a few; others of the kind are checked by the part that reads them.
CHOICES: dict[str, tuple[str, ...]] = {
    "algorithm.advantage_scale": get_args(Scale),
    "algorithm.correction": ("auto", *grpo.CHOICES["correction"]),
    "rewards.coherence": orchestrator.COHERENCE,
    "rewards.majority": ("", "gated", "weighted"),
    "image.coordinates": ("", *COORDINATES),
    "model.quantize": ("none", *quantized.KINDS),
}
# Axes of one array: the product is its size, which XLA counts in int32 here and there.
ARRAYS = (
    ("rollout.prompts", "rollout.group_size", "sampling.context_tokens"),
    ("rollout.prompts", "rollout.group_size", "sampling.max_turns"),
    ("eval.batch", "sampling.context_tokens"),
    ("data.scenes", "data.questions", "data.row_tokens"),
)
COLDEST, HOTTEST = 0.01, 100.0  # temperatures besides 0, which is greedy


def check(config: ConfigDict) -> None:
    """Raises UserError, with the field and what it takes, for the first value that no job can work with.

    Fields that the config left open are filled in before (`as_trained.resolve`).
    """
    fields = flatten(config)
    job = str(config.get("job"))
    _check_types(job, fields)
    for name, (low, high) in LIMITS.items():
        value = fields.get(name, ())
        for number in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(number, int | float) or not low <= number <= high:  # and no `<`: NaN is in no interval
                raise UserError(f"{name} is {number!r:.60}; it takes a number from {low} to {high}")
    for name in ("mesh.data", "mesh.fsdp", "mesh.tensor"):
        if fields.get(name) == 0:
            raise UserError(f"{name} is 0; it takes a number of devices, or -1 for what the others leave")
    for name, known in NAMES.items():
        _check_names(name, fields.get(name), known)
    for name, known in CHOICES.items():
        if fields.get(name, known[0]) not in known:
            raise UserError(f"{name} is {fields[name]!r}; use one of {', '.join(k or repr(k) for k in known)}")
    _check_pairs(fields)
    _check_job(job, fields)
    _check_parts(job, config)


def _check_types(job: str, fields: Mapping[str, Any]) -> None:
    """UserError for a field that the job's own config file has, and that lacks here or is of another type."""
    file = f"configs/{job}.py"
    for name, like in flatten(importlib.import_module(f"configs.{job}").get_config()).items():
        if name not in fields:
            raise UserError(f"the config has no {name}, which job {job!r} takes; start from {file}")
        value = fields[name]
        like = FALLBACK[name] if is_open(name, like) and name in FALLBACK else like
        if not isinstance(like, tuple):
            if not _is_like(value, like):
                raise UserError(
                    f"{name} is {value!r:.60}; it takes a value of type {type(like).__name__}, as in {file}"
                )
            continue
        entries = value if isinstance(value, list | tuple) else (value,)
        wrong = [entry for entry in entries if not _is_like(entry, like[0])]
        if wrong or entries is not value:
            told = (wrong or entries)[0]
            raise UserError(
                f"{name}: {told!r:.60} is out of place; it takes a tuple of {type(like[0]).__name__}, as in {file}"
            )


def _is_like(value: object, like: object) -> bool:
    """Whether a value may stand where `like` does: of the same type, or a whole number for a float."""
    if isinstance(value, bool) or isinstance(like, bool):
        return type(value) is type(like)
    return isinstance(value, int | float if isinstance(like, float) else type(like))


def _check_names(name: str, chosen: Collection[str] | None, known: Collection[str]) -> None:
    if chosen is None:
        return
    unknown = [entry for entry in chosen if entry not in known]
    if unknown or not chosen:
        told = f"{unknown[0]!r} is unknown" if unknown else "it is empty"
        raise UserError(
            f"{name}: {told}; use some of {', '.join(known)}, such as --config.{name}=\"('{next(iter(known))}',)\""
        )


def _check_pairs(fields: Mapping[str, Any]) -> None:
    for low, high in (("image.min_pixels", "image.max_pixels"), ("image.crop_min_pixels", "image.crop_max_pixels")):
        if low in fields and fields[low] > fields[high]:
            raise UserError(f"{low} {fields[low]} is above {high} {fields[high]}")
    for group in ("data", "cota"):
        step, row = (fields.get(f"{group}.{name}", 0) for name in ("batch_tokens", "row_tokens"))
        if f"{group}.batch_tokens" in fields and step < row:
            raise UserError(
                f"{group}.batch_tokens {step} is below {group}.row_tokens {row}: a step holds one row at least"
            )
    for names in ARRAYS:
        size = math.prod(fields.get(name, 0) for name in names)
        if size > INT32:
            raise UserError(f"{' x '.join(names)} is {size}, above {INT32}; lower one of them")
    check_temperature("sampling.temperature", fields.get("sampling.temperature", 1.0))


def check_temperature(name: str, value: float) -> None:
    """Raises UserError for a temperature at which log-probs are no numbers: neither 0 nor between the bounds."""
    if value != 0 and not COLDEST <= value <= HOTTEST:
        raise UserError(f"{name} is {value}; use 0 for greedy decoding, or a number from {COLDEST} to {HOTTEST}")


def _check_job(job: str, fields: Mapping[str, Any]) -> None:
    """What only some jobs can't do."""
    if job != "eval" and fields.get("total_steps") == 0:
        raise UserError("total_steps is 0: there is nothing to train; configs/eval.py evaluates")
    if job == "rft":
        _check_online(fields)
    parts = fields.get("optimizer.micro_batches", 1)
    if job == "pretrain" and parts != 1:
        raise UserError(
            f"optimizer.micro_batches is {parts}; pretraining takes 1, since rows of a scene share its image"
        )
    for name, step in (("model.width", 64), ("model.vision_width", 32)):
        if job == "pretrain" and fields[name] % step:
            raise UserError(f"{name} is {fields[name]}; it takes a multiple of {step}, since a head has 32 numbers")
    for name in ("model.freeze_vision", "model.new_tokenizer"):
        if job == "pretrain" and fields[name] and not fields["model.init_from"]:
            raise UserError(f"{name} is for a model to go on from; name one with --config.model.init_from")
    sizes = {"rft": ("rollout.prompts", "rollout.group_size"), "habit": ("data.scenes", "data.questions")}
    if job in sizes:
        a, b = sizes[job]
        if fields[a] * fields[b] % parts:
            raise UserError(
                f"optimizer.micro_batches {parts} does not divide the {fields[a] * fields[b]} rows of {a} x {b}"
            )


def _check_parts(job: str, config: ConfigDict) -> None:
    """Makes what a config becomes without a model: each part checks itself."""
    if "dtype" in config.get("model", {}):
        assembly.dtype_of(config)
    if job == "rft":
        assembly.rl_config(config)
        assembly.reward_curriculum(config)
    if job == "sft" and config.curriculum.stages:
        names = [field.name for field in dataclasses.fields(curriculum.DifficultyRules)]
        rules = curriculum.DifficultyRules(**{name: config.curriculum[name] for name in names})
        curriculum.difficulty_curriculum(tuple(config.curriculum.stages), rules)
    if "optimizer" in config:
        updates = config.algorithm.updates_per_rollout if job == "rft" else 1
        assembly.make_schedule(config.optimizer, config.total_steps * updates)


def _check_online(fields: Mapping[str, Any]) -> None:
    """What RL can't do."""
    if fields["rewards.norm"] == fields["algorithm.advantage_scale"] == "group":
        raise UserError(
            "rewards.norm and algorithm.advantage_scale are both group: components are normalised by their group"
            " already; set algorithm.advantage_scale to batch or none"
        )
    if fields["sampling.temperature"] == 0:
        raise UserError("sampling.temperature is 0: greedy samples of a group are all alike; use a value above 0")
    if fields["rewards.function"] and fields["rewards.majority"]:
        raise UserError("rewards.function and rewards.majority both say what a dialogue earns; leave one of them empty")
    start, end = fields["rewards.overlong_from"], fields["rewards.overlong_to"]
    if (start or end) and not start < end:
        raise UserError(f"rewards.overlong_from {start} must be below rewards.overlong_to {end}; both 0: no price")
    if end and fields["algorithm.mask_truncated"]:
        raise UserError(
            "rewards.overlong_to and algorithm.mask_truncated exclude each other: a row that is left out can't pay for"
            " its length; set algorithm.mask_truncated to False"
        )
    if fields["rollout.replay_ratio"]:
        rows = fields["rollout.prompts"] * fields["rollout.group_size"]
        if fields["rollout.length_buckets"] > 1:
            raise UserError("rollout.replay_ratio needs rows of one length; set rollout.length_buckets to 1")
        if fields["rollout.replay_ratio"] * rows < 1:
            raise UserError(f"rollout.replay_ratio {fields['rollout.replay_ratio']} of {rows} rows is none; raise it")
    if fields["algorithm.kl_target"] and not fields["algorithm.kl_beta"]:
        raise UserError("algorithm.kl_target steers algorithm.kl_beta, which is 0; start it above 0")
