"""What kind of question a record has: our task type, and what the data itself calls it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pixelis_jax.data.cota import TASK_TYPES
from pixelis_jax.data.importers.base import Place, Refusal

REQUIRED = "required"  # the task type that stands for: refuse a record without one
# What other data calls our task types.
TASKS = {
    "counting": "object_counting",
    "count": "object_counting",
    "comparison": "geometric_comparison",
    "geometry": "geometric_comparison",
    "ocr": "text_extraction",
    "text": "text_extraction",
    "document": "text_extraction",
    "spatial": "spatial_reasoning",
    "relative_position": "spatial_reasoning",
    "position": "spatial_reasoning",
    "tracking": "temporal_tracking",
    "temporal": "temporal_tracking",
    "video": "temporal_tracking",
    "attribute": "attribute_recognition",
    "direct_attributes": "attribute_recognition",
    "color": "attribute_recognition",
    "relation": "relationship_detection",
    "relationship": "relationship_detection",
}
LONGEST_TYPE = 60  # characters of what the data calls a kind of question
_TASK_NAMES = ("task_type", "category", "question_type", "type")


def task_type(record: Mapping[str, Any], default: str, place: Place, notes: Counter[str]) -> str:
    """Our task type of a record: a field that names one, else `default`. Raises Refusal where `default` is REQUIRED."""
    for name in _TASK_NAMES:
        value = record.get(name)
        word = value.strip().lower().replace(" ", "_") if isinstance(value, str) else ""
        if word in TASK_TYPES or word in TASKS:
            notes["task_type from the data"] += 1
            return TASKS.get(word, word)
    if default == REQUIRED:
        raise Refusal(place.where, "task_type", f"missing; give one of {', '.join(TASK_TYPES)}, or --task_type")
    notes[f"task_type by --task_type={default}"] += 1
    return default


def own_type(record: Mapping[str, Any]) -> str:
    """What the data itself calls this kind of question, by which results are told apart; "" where it does not."""
    values = (record.get(name) for name in _TASK_NAMES)
    words = (" ".join(value.split())[:LONGEST_TYPE] for value in values if isinstance(value, str))
    return next((word for word in words if word), "")
