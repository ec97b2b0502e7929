"""What the fields of a config may be: said in one line before anything is loaded or trained."""

import math
from collections.abc import Collection, Mapping
from typing import Any, get_args

from ml_collections import ConfigDict

from pixelis_jax.algorithms.advantages import Scale
from pixelis_jax.config import flatten
from pixelis_jax.data.pixelsearch.questions import KINDS
from pixelis_jax.evaluation import MODES
from pixelis_jax.types import UserError

COUNT = (1, math.inf)
NOT_NEGATIVE = (0, math.inf)
SHARE = (0, 1)
AXIS = (-1, math.inf)  # and not 0
PATCH_AREA = 28 * 28  # px of one merged vision token

# Closed intervals, one for every field that is a number.
LIMITS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**31 - 1),
    "total_steps": NOT_NEGATIVE,
    "log_every_steps": COUNT,
    "model.width": COUNT,
    "model.layers": COUNT,
    "model.vision_width": COUNT,
    "model.vision_depth": COUNT,
    "image.min_pixels": COUNT,
    "image.max_pixels": (PATCH_AREA, math.inf),
    "image.crop_min_pixels": COUNT,
    "image.crop_max_pixels": (PATCH_AREA, math.inf),
    "lora.rank": COUNT,
    "lora.alpha": NOT_NEGATIVE,
    "mesh.data": AXIS,
    "mesh.fsdp": AXIS,
    "mesh.tensor": AXIS,
    "sampling.temperature": (0, 100),  # and not between 0 and COLDEST
    "sampling.max_new_tokens": COUNT,
    "sampling.context_tokens": COUNT,
    "sampling.max_turns": COUNT,
    "eval.scenes": COUNT,
    "eval.batch": COUNT,
    "checkpoint.every_steps": COUNT,
    "checkpoint.keep": COUNT,
    "checkpoint.restore_step": (-1, math.inf),
    "optimizer.learning_rate": (0, 10),
    "optimizer.warmup_steps": NOT_NEGATIVE,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.clip_norm": NOT_NEGATIVE,
    "optimizer.beta2": (0, 0.999999),
    "optimizer.micro_batches": COUNT,
    "data.scenes": COUNT,
    "data.questions": COUNT,
    "data.direct_answer_share": SHARE,
    "data.close_up_share": SHARE,
    "data.box_noise": SHARE,
    "data.answer_weight": NOT_NEGATIVE,
    "data.row_tokens": COUNT,
    "data.workers": NOT_NEGATIVE,
    "reading.charts": COUNT,
    "reading.first_steps": COUNT,
    "reading.first_batch": COUNT,
    "reading.batch": COUNT,
    "reading.learning_rate": (0, 10),
    "rollout.prompts": COUNT,
    "rollout.group_size": COUNT,
    "algorithm.e_low": SHARE,
    "algorithm.e_high": (0, 100),
    "algorithm.kl_beta": NOT_NEGATIVE,
    "algorithm.entropy_bonus": (-math.inf, math.inf),
    "curriculum.evaluation_frequency": COUNT,
    "curriculum.rollback_cooldown_steps": NOT_NEGATIVE,
    "logging.rollouts": NOT_NEGATIVE,
    "logging.rollouts_every_steps": COUNT,
}  # fmt: skip

# Fields that list names, and the names there are.
NAMES: dict[str, Collection[str]] = {
    "data.kinds": tuple(KINDS),
    "rollout.kinds": tuple(KINDS),
    "eval.kinds": tuple(KINDS),
    "eval.modes": tuple(MODES),
}
# Fields that take one name of a few; others of the kind are checked by the part that reads them.
CHOICES: dict[str, tuple[str, ...]] = {"algorithm.advantage_scale": get_args(Scale)}
COLDEST, HOTTEST = 0.01, 100.0  # temperatures besides 0, which is greedy


def check(config: ConfigDict) -> None:
    """Raises UserError, with the field and what it takes, for the first value that no job can work with."""
    fields = flatten(config)
    for name, (low, high) in LIMITS.items():
        value = fields.get(name)
        # `not <=` and no `<`: NaN is in no interval
        if value is not None and not (low <= value <= high and math.isfinite(value)):
            raise UserError(f"{name} is {value}; it takes a number {_interval(low, high)}")
    for name in ("mesh.data", "mesh.fsdp", "mesh.tensor"):
        if fields.get(name) == 0:
            raise UserError(f"{name} is 0; it takes a number of devices, or -1 for what the others leave")
    for name, known in NAMES.items():
        _check_names(name, fields.get(name), known)
    for name, known in CHOICES.items():
        if fields.get(name, known[0]) not in known:
            raise UserError(f"{name} is {fields[name]!r}; use one of {', '.join(known)}")
    _check_pairs(fields)
    _check_job(str(config.get("job")), fields)


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
    check_temperature("sampling.temperature", fields.get("sampling.temperature", 1.0))


def check_temperature(name: str, value: float) -> None:
    """Raises UserError for a temperature at which log-probs are no numbers: neither 0 nor between the bounds."""
    if value != 0 and not COLDEST <= value <= HOTTEST:
        raise UserError(f"{name} is {value}; use 0 for greedy decoding, or a number from {COLDEST} to {HOTTEST}")


def _check_job(job: str, fields: Mapping[str, Any]) -> None:
    """What only some jobs can't do."""
    if job != "eval" and fields.get("total_steps") == 0:
        raise UserError("total_steps is 0: there is nothing to train; configs/eval.py evaluates")
    if job == "rft" and fields["rewards.norm"] == fields["algorithm.advantage_scale"] == "group":
        raise UserError(
            "rewards.norm and algorithm.advantage_scale are both group: components are normalised by their group"
            " already; set algorithm.advantage_scale to batch or none"
        )
    if job == "rft" and fields["sampling.temperature"] == 0:
        raise UserError("sampling.temperature is 0: greedy samples of a group are all alike; use a value above 0")
    parts = fields.get("optimizer.micro_batches", 1)
    if job == "pretrain" and parts != 1:
        raise UserError(
            f"optimizer.micro_batches is {parts}; pretraining takes 1, since rows of a scene share its image"
        )
    sizes = {"rft": ("rollout.prompts", "rollout.group_size"), "sft": ("data.scenes", "data.questions")}
    if job in sizes:
        a, b = sizes[job]
        if fields[a] * fields[b] % parts:
            raise UserError(
                f"optimizer.micro_batches {parts} does not divide the {fields[a] * fields[b]} rows of {a} x {b}"
            )


def _interval(low: float, high: float) -> str:
    if math.isinf(high):
        return "that is finite" if math.isinf(low) else f"from {low} on"
    return f"from {low} to {high}"
