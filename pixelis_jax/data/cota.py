"""CoTA samples: Chain-of-Thought-Action records, their JSONL form and their validation.

One sample is a question about images, the steps that lead to an answer, and the answer. Coordinates in step
parameters are absolute pixels of the image as the model sees it.
"""

import dataclasses
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pixelis_jax.answers import frames
from pixelis_jax.answers.kinds import ANSWER_TYPES
from pixelis_jax.data import json_lines
from pixelis_jax.tools import TOOLS
from pixelis_jax.tools.base import BBOX, COORDINATES, POINT, TARGET_IMAGE, Schema, check_arguments, check_value
from pixelis_jax.types import OPS, Observation, UserError

TASK_TYPES: tuple[str, ...] = (
    "object_counting",
    "geometric_comparison",
    "text_extraction",
    "spatial_reasoning",
    "temporal_tracking",
    "attribute_recognition",
    "relationship_detection",
)
SAMPLE_TYPES: tuple[str, ...] = (
    "positive",
    "outcome_negative",
    "trap_perceptual",
    "trap_logical",
    "self_correction",
)
MAX_STEPS = 10
MAX_NESTING = 64  # lists and objects inside each other

# Names that other writers of CoTA use -> ours.
UNANSWERED = "unanswered"  # in metadata: nobody knows the answer, and what stands in its place is none
OWN_TYPE = "own_type"  # metadata of an imported sample: what its data calls this kind of question
_SAMPLE_NAMES = {"final_answer": "answer"}
_STEP_NAMES = {"operation": "action", "arguments": "parameters", "observation": "result", "correction": "thought"}
_PARAMETER_NAMES = {
    "ZOOM_IN": {"bbox": "bbox_2d", "region": "bbox_2d"},
    "SEGMENT_OBJECT_AT": {"coordinates": "point"},
    "GET_PROPERTIES": {"bbox": "bbox_2d", "region": "bbox_2d"},
    "READ_TEXT": {"bbox": "bbox_2d", "region": "bbox_2d"},
    "TRACK_OBJECT": {"bbox": "bbox_2d", "region": "bbox_2d"},
}
# What is checked of an operation without a tool in this installation.
_COMMON_PARAMETERS: dict[str, Schema] = {"bbox_2d": BBOX, "point": POINT, "target_image": TARGET_IMAGE}


@dataclasses.dataclass(frozen=True)
class Step:
    """One step. THINK has a `thought` only; an operation has `parameters` and the `result` the tool gave (JSON values).

    `loss` False marks a deliberately wrong step that is seen and not trained. `observation` is the tool's real answer
    with its pixels while the sample is in memory; it is not written.
    """

    action: str
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    thought: str | None = None
    result: Any = None
    loss: bool = True
    observation: Observation | None = dataclasses.field(default=None, compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where a sample comes from. The timestamp (ISO 8601, UTC) is outside comparisons and outside the sample id."""

    source_dataset: str = ""
    original_sample_id: str = ""
    synthesis_version: str = ""
    synthesis_method: str = ""
    synthesis_timestamp: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Sample:
    """One CoTA sample. An empty `sample_id` is filled from the content's hash.

    `image_paths` are files, or addresses that a data set resolves; with `is_video` they are the frames in order.
    `images` are the pixels u8[height, width, 3] while the sample is in memory; they are not written.
    """

    task_type: str
    question: str
    image_paths: tuple[str, ...]
    trajectory: tuple[Step, ...]
    answer: str
    ground_truth: str
    sample_type: str = "positive"
    is_video: bool = False
    answer_type: str = "exact"
    choices: tuple[str, ...] = ()
    tolerance: float = 0.0
    answer_loss: bool = True
    sampling_weight: float = 1.0
    difficulty_score: float | None = None
    provenance: Provenance = Provenance()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sample_id: str = ""
    images: tuple[np.ndarray, ...] = dataclasses.field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.sample_id:
            object.__setattr__(self, "sample_id", content_id(self))


def content_id(sample: Sample) -> str:
    """Returns "cota_" and 12 hex digits of a content hash; time, weight and difficulty score are outside it."""
    record = to_record(sample)
    for name in ("sample_id", "sampling_weight", "difficulty_score"):
        del record[name]
    del record["provenance"]["synthesis_timestamp"]
    text = json.dumps(record, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return "cota_" + hashlib.sha256(text.encode()).hexdigest()[:12]


def to_record(sample: Sample) -> dict[str, Any]:
    """The JSON object of a sample; optional fields that say nothing are left out."""
    place = "frames" if sample.is_video else "image_path" if len(sample.image_paths) == 1 else "image_paths"
    return {
        "sample_id": sample.sample_id,
        "task_type": sample.task_type,
        "sample_type": sample.sample_type,
        "question": sample.question,
        place: sample.image_paths[0] if place == "image_path" else list(sample.image_paths),
        "trajectory": [_step_record(step) for step in sample.trajectory],
        "answer": sample.answer,
        "ground_truth": sample.ground_truth,
        "provenance": dataclasses.asdict(sample.provenance),
        "metadata": dict(sample.metadata),
        "sampling_weight": sample.sampling_weight,
        "difficulty_score": sample.difficulty_score,
        "answer_type": sample.answer_type,
        **({"choices": list(sample.choices)} if sample.choices else {}),
        **({"tolerance": sample.tolerance} if sample.tolerance else {}),
        "answer_loss": sample.answer_loss,
    }


def _step_record(step: Step) -> dict[str, Any]:
    record: dict[str, Any] = {"action": step.action}
    if step.action != "THINK":
        record["parameters"] = dict(step.parameters)
    if step.thought is not None:
        record["thought"] = step.thought
    if step.result is not None:
        record["result"] = step.result
    if not step.loss:
        record["loss"] = False
    return record


def write_jsonl(path: str | os.PathLike[str], samples: Iterable[Sample]) -> None:
    """One sample a line. The file appears whole or not at all."""
    path = Path(path)
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps(to_record(sample), ensure_ascii=False, allow_nan=False) + "\n")
    part.replace(path)


def read_jsonl(path: str | os.PathLike[str]) -> list[Sample]:
    """All samples of a file. Raises UserError for the first that can't be read, with file, line and field."""
    samples = []
    for item in iter_jsonl(path):
        if isinstance(item, UserError):
            raise item
        samples.append(item)
    return samples


def iter_jsonl(path: str | os.PathLike[str]) -> Iterator[Sample | UserError]:
    """Samples in order, with the UserError in place of one that can't be read, so that a caller can count them.

    Reads JSONL, line by line, a JSON list, and an envelope {"metadata": ..., "samples": [...]}. Raises UserError
    without a file, and for one that is not in UTF-8 as a whole.
    """
    for where, record in json_lines.iter_values(Path(path)):
        if isinstance(record, UserError):
            yield record
            continue
        try:
            yield from_record(record, where)
        except UserError as error:
            yield error


def _refuse_unwritable(record: Mapping[str, Any], where: str) -> None:
    """UserError for what could not be written again as JSON in UTF-8, whichever field holds it."""
    waiting: list[tuple[str, Any, int]] = [(_shown(name), [name, value], 0) for name, value in record.items()]
    while waiting:
        field, value, depth = waiting.pop()
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise UserError(f"{where}: {field}: has half of a surrogate pair; write the character in UTF-8")
        if isinstance(value, int | float) and not abs(value) <= sys.float_info.max:  # NaN is in no interval
            raise UserError(f"{where}: {field}: has a number that is not finite or too large")
        if isinstance(value, list | dict):
            if depth > MAX_NESTING:
                raise UserError(f"{where}: {field}: nested more than {MAX_NESTING} deep")
            items = value if isinstance(value, list) else [*value, *value.values()]
            waiting += [(field, item, depth + 1) for item in items]


def _shown(text: str) -> str:
    """A name or value of somebody else's file in an error: one line, not too long."""
    return repr(text[:40])[1:-1]


def from_line(line: bytes, where: str) -> Sample:
    """The sample of one line of a JSONL file, as `from_record` reads it. Raises UserError."""
    return from_record(json_lines.value_of(line, where), where)


def from_record(record: Any, where: str) -> Sample:
    """The sample of a JSON object in our form or an accepted dialect. `where` (file and line) begins every error.

    Fields we do not know are kept in `metadata["other_fields"]`. Raises UserError.
    """
    if not isinstance(record, dict):
        raise UserError(f"{where}: a sample must be a JSON object")
    _refuse_unwritable(record, where)
    fields = _renamed(record, _SAMPLE_NAMES, where)
    place = [name for name in ("image_path", "image_paths", "frames") if name in fields]
    if len(place) != 1:
        raise UserError(f"{where}: image_path: give one of image_path, image_paths and frames")
    paths = [fields.pop(place[0])] if place[0] == "image_path" else fields.pop(place[0])
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise UserError(f"{where}: {place[0]}: must name at least one file")
    answer_type = _one_of(fields, "answer_type", ANSWER_TYPES, where, default="exact")
    sample_type = _one_of(fields, "sample_type", SAMPLE_TYPES, where, default="positive")
    answer = _answer(fields.pop("answer", None), f"{where}: answer")
    if "ground_truth" not in fields and sample_type in ("positive", "self_correction"):
        fields["ground_truth"] = answer
    choices = fields.pop("choices", [])
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise UserError(f"{where}: choices: must be a list of strings")
    sample = Sample(
        task_type=_one_of(fields, "task_type", TASK_TYPES, where),
        question=_string(fields, "question", where),
        image_paths=tuple(paths),
        trajectory=_steps(fields.pop("trajectory", None), where),
        answer=answer,
        ground_truth=_answer(fields.pop("ground_truth", None), f"{where}: ground_truth"),
        sample_type=sample_type,
        is_video=place[0] == "frames",
        answer_type=answer_type,
        choices=tuple(choices),
        tolerance=_number(fields, "tolerance", where, default=0.0),
        answer_loss=_flag(fields, "answer_loss", where, default=sample_type in ("positive", "self_correction")),
        sampling_weight=_number(fields, "sampling_weight", where, default=1.0),
        difficulty_score=_number(fields, "difficulty_score", where) if "difficulty_score" in fields else None,
        provenance=_provenance(fields.pop("provenance", {}), where),
        sample_id=_string(fields, "sample_id", where, default=""),
        metadata=_metadata(fields, where),
    )
    validate(sample, where)
    return sample


def validate(sample: Sample, where: str) -> None:
    """Raises UserError unless actions are known and their parameters have the right types and lie inside the image.

    The size of the image as seen is `metadata["seen_size"]` (height, width), or `seen_sizes`, one an image; without it,
    places are not checked. With `metadata["coordinates"]` "norm1000" they are thousandths. A step with `loss` False may
    point outside: that can be what is wrong with it. Where a box as the answer stands is in answers/frames.py.
    """
    if len(sample.trajectory) > MAX_STEPS:
        raise UserError(f"{where}: trajectory: {len(sample.trajectory)} steps; at most {MAX_STEPS} are read")
    if sample.answer_type == "choice" and not sample.choices:
        raise UserError(f"{where}: choices: missing, and answer_type is choice")
    seen_size = _seen_size(sample, where)
    if sample.answer_type == "iou":
        try:
            frames.gold_frame(sample.metadata, [(1, 1)] * len(sample.image_paths))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
    for number, step in enumerate(sample.trajectory, 1):
        place = f"{where}: trajectory step {number}"
        if step.action == "THINK":
            if not step.thought:
                raise UserError(f"{place}: thought: missing or empty")
            continue
        if step.action not in OPS:
            raise UserError(f"{place}: action: unknown {step.action[:40]!r}; use one of {', '.join(OPS)}")
        wrong = _parameter_error(step) or (_outside(step, seen_size) if step.loss else None)
        if wrong:
            raise UserError(f"{place}: parameters: {wrong}")


def _parameter_error(step: Step) -> str | None:
    if step.action in TOOLS:
        return check_arguments(TOOLS[step.action], step.parameters)
    for name, schema in _COMMON_PARAMETERS.items():
        wanted = check_value(step.parameters[name], schema) if name in step.parameters else None
        if wanted:
            return f"{name} must be {wanted}"
    return None


def _seen_size(sample: Sample, where: str) -> tuple[float, float] | None:
    """(height, width) that places on the first image are relative to, if it is known. Raises UserError."""
    metadata = sample.metadata
    frame = metadata.get("coordinates", "pixels")
    if frame not in COORDINATES:
        raise UserError(
            f"{where}: metadata: coordinates {frame!r:.40} is no known frame; use {' or '.join(COORDINATES)}"
        )
    sizes = metadata.get(
        "seen_sizes", [metadata["seen_size"]] * len(sample.image_paths) if "seen_size" in metadata else []
    )
    good = isinstance(sizes, list) and all(check_value(size, POINT) is None and min(size) >= 1 for size in sizes)
    if not good or ("seen_sizes" in metadata and len(sizes) != len(sample.image_paths)):
        raise UserError(
            f"{where}: metadata: seen_size must be [height, width] in pixels, seen_sizes one of these an image"
        )
    if not sizes:
        return None
    return (1000, 1000) if frame == "norm1000" else (sizes[0][0], sizes[0][1])


def _outside(step: Step, seen_size: tuple[float, float] | None) -> str | None:
    """What of a step's place lies outside the first image as seen; None where nothing does or the size is not known."""
    if seen_size is None or step.parameters.get("target_image", 1) != 1:
        return None
    height, width = seen_size
    for name in ("bbox_2d", "point"):
        values = step.parameters.get(name, ())
        if not all(0 <= value <= limit for value, limit in zip(values, (width, height, width, height), strict=False)):
            return f"{name} {list(values)} lies outside the image of {width}x{height}"
    box = step.parameters.get("bbox_2d")
    return f"bbox_2d {list(box)} is empty" if box and (box[2] <= box[0] or box[3] <= box[1]) else None


def _steps(value: Any, where: str) -> tuple[Step, ...]:
    if not isinstance(value, list):
        raise UserError(f"{where}: trajectory: must be a list of steps")
    return tuple(_step(step, f"{where}: trajectory step {number}") for number, step in enumerate(value, 1))


def _step(record: Any, where: str) -> Step:
    if not isinstance(record, dict):
        raise UserError(f"{where}: must be a JSON object")
    fields = _renamed(record, _STEP_NAMES, where)
    # A correction is written as a thought without an action.
    action = _string(fields, "action", where, default="THINK" if "thought" in fields else None)
    parameters = fields.pop("parameters", {})
    if not isinstance(parameters, dict):
        raise UserError(f"{where}: parameters: must be a JSON object")
    parameters = _renamed(parameters, _PARAMETER_NAMES.get(action, {}), f"{where}: parameters")
    if action == "SEGMENT_OBJECT_AT" and "point" not in parameters and {"x", "y"} <= parameters.keys():
        parameters["point"] = [parameters.pop("x"), parameters.pop("y")]
    if action == "THINK" and "thought" in parameters and "thought" not in fields:
        fields["thought"] = parameters.pop("thought")
    thought = _string(fields, "thought", where) if "thought" in fields else None
    step = Step(action, parameters, thought, fields.pop("result", None), _flag(fields, "loss", where, default=True))
    if fields:
        raise UserError(f"{where}: {_shown(next(iter(fields)))}: unknown field of a step")
    return step


def _renamed(record: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    """A copy under our names, without nulls. Raises UserError where one thing is given under two names."""
    renamed: dict[str, Any] = {}
    for name, value in record.items():
        if value is None:
            continue
        ours = names.get(name, name)
        if ours in renamed:
            raise UserError(f"{where}: {_shown(name)}: {_shown(ours)} is given twice")
        renamed[ours] = value
    return renamed


def _metadata(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """The metadata, with the fields that are left over under `other_fields`."""
    metadata = fields.pop("metadata", {})
    if not isinstance(metadata, dict):
        raise UserError(f"{where}: metadata: must be a JSON object")
    return {**metadata, **({"other_fields": dict(fields)} if fields else {})}


def _provenance(value: Any, where: str) -> Provenance:
    names = [field.name for field in dataclasses.fields(Provenance)]
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise UserError(f"{where}: provenance: must be a JSON object of strings")
    unknown = [name for name in value if name not in names]
    if unknown:
        raise UserError(f"{where}: provenance: unknown field {unknown[0][:40]!r}; fields are {', '.join(names)}")
    return Provenance(**value)


def _answer(value: Any, where: str) -> str:
    """A string; numbers and boxes are accepted in JSON form."""
    if isinstance(value, str) and value.strip():
        return value
    numbers = value if isinstance(value, list) else [value]
    if numbers and all(isinstance(item, int | float) and not isinstance(item, bool) for item in numbers):
        return json.dumps(value)
    raise UserError(f"{where}: missing, empty or of another type than string, number and list of numbers")


def _string(fields: dict[str, Any], name: str, where: str, *, default: str | None = None) -> str:
    value = fields.pop(name, default)
    if not isinstance(value, str) or (not value.strip() and value != default):
        raise UserError(f"{where}: {name}: {'missing' if value is None else 'must be a string that is not empty'}")
    return value


def _one_of(
    fields: dict[str, Any], name: str, known: tuple[str, ...], where: str, *, default: str | None = None
) -> str:
    value = _string(fields, name, where, default=default)
    if value not in known:
        raise UserError(f"{where}: {name}: unknown {value[:40]!r}; use one of {', '.join(known)}")
    return value


def _number(fields: dict[str, Any], name: str, where: str, *, default: float | None = None) -> float:
    value = fields.pop(name, default)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not (0 <= value < math.inf):
        raise UserError(f"{where}: {name}: must be a number of at least 0")
    return float(value)


def _flag(fields: dict[str, Any], name: str, where: str, *, default: bool) -> bool:
    value = fields.pop(name, default)
    if not isinstance(value, bool):
        raise UserError(f"{where}: {name}: must be true or false")
    return value
