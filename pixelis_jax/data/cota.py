"""CoTA samples: Chain-of-Thought-Action records, their JSONL form and their validation.

One sample is a question about images, the steps that lead to an answer, and the answer. Coordinates in step
parameters are absolute pixels of the image as the model sees it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pixelis_jax.types import Observation

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
ANSWER_TYPES: tuple[str, ...] = ("choice", "exact", "numeric", "anls", "iou")
MAX_STEPS = 10


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
    """One CoTA sample (specification of the data, section 1). An empty `sample_id` is filled from the content's hash.

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
