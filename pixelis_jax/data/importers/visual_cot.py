"""Dialogues of Visual-CoT: a question, the box that helps, the crop as `a.png###[x1, y1, x2, y2]`, and the answer.

The numbers behind ### are pixels of the picture. Such a dialogue becomes one with a call that zooms.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pixelis_jax.answers import boxes
from pixelis_jax.data.importers import picture_values
from pixelis_jax.data.importers.base import Context, Record, first_of
from pixelis_jax.data.importers.marks import without

NOTE = "questions with a box and a crop (Visual-CoT), read as a zoom"
SIGN = "###"
TOOL = {"name": "crop_image", "description": "shows a box of the image, in pixels"}
_ASKED = re.compile(r"\s*Please provide the bounding box coordinates? of the region[^.?!]*[.?!]?", re.IGNORECASE)
_TEXTS = ("value", "content")


def as_calls(record: Record, talk: list[Any], context: Context) -> tuple[Record, list[Any]]:
    """(record, messages) with a call in the place of the box; both as they are where the dialogue is another one."""
    name = next((name for name in ("image", "images") if isinstance(record.get(name), list)), "")
    pictures = picture_values.listed(record[name]) if name else []
    paths = [path for path in pictures if isinstance(path, str)]
    if len(pictures) != 2 or len(paths) != 2 or not paths[1].startswith(paths[0] + SIGN):
        return record, talk
    items = [item for item in talk if isinstance(item, Mapping)]
    texts = [text for item in items if isinstance(text := first_of(item, _TEXTS)[1], str)]
    box = boxes.parse(paths[1].partition(SIGN)[2])
    if len(talk) != 4 or len(texts) != 4 or box is None or boxes.parse(texts[1]) is None or without(texts[2]).strip():
        return record, talk
    call = json.dumps({"name": TOOL["name"], "arguments": {"bbox_2d": [*box]}})
    said = [_ASKED.sub("", texts[0]), f"<tool_call>{call}</tool_call>", texts[2], f"<answer>{texts[3]}</answer>"]
    context.notes[NOTE] += 1
    read = [{**item, first_of(item, _TEXTS)[0]: text} for item, text in zip(items, said, strict=True)]
    return {**record, "tools": [TOOL]}, read
