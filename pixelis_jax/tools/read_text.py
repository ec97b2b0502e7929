"""READ_TEXT: the text in an image or a box of it, read at full resolution."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pixelis_jax.tools.base import BBOX, TARGET_IMAGE, Box, Session, Tool
from pixelis_jax.tools.cache import cached
from pixelis_jax.tools.ocr import OCR, PACKAGES, Line, Word, rapid, rows
from pixelis_jax.types import Observation

LINES_TOLD = 16  # what the policy is told of a longer text
CHARACTERS_TOLD = 800


def make(ocr: OCR = rapid, *, name: str = "rapid", packages: tuple[str, ...] = PACKAGES) -> Tool:
    """READ_TEXT with a backend that needs these packages; results are kept under its `name`."""

    def run(session: Session, arguments: Mapping[str, Any]) -> Observation:
        """The lines of text in reading order; none is no error. Raises ToolError for a box that is none."""
        target = arguments.get("target_image", 1)
        frame = session.frame(target)
        height, width = frame.image.shape[:2]
        place = session.box(arguments["bbox_2d"], target) if "bbox_2d" in arguments else None
        box = (0, 0, width, height) if place is None else place.box
        lines = cached(("ocr", name, frame.digest, box), lambda: _read(ocr, frame.image, box))
        known = [line for line in lines if line.text]
        told = _told(known)
        answer: dict[str, Any] = {"text": _joined(told), "lines": [_record(session, target, line) for line in told]}
        if len(told) < len(lines):
            answer["lines_left_out"] = len(lines) - len(told)
        if place is not None and place.clamped:
            answer["note"] = "box clamped to the image"
        whole = [
            _record(session, target, line) | {"words": [_record(session, target, word) for word in line.words]}
            for line in known
        ]
        return Observation(
            text=json.dumps(answer, ensure_ascii=False, separators=(",", ":")),
            region=None if place is None else session.region(box, target),
            target_image=target,
            out_of_image=place is not None and place.clamped,
            data={"text": _joined(known), "lines": whole, "lines_not_read": len(lines) - len(known)},
        )

    return Tool(
        name="READ_TEXT",
        description="Reads the text in an image or a box of it; small text needs a box.",
        parameters={"bbox_2d": BBOX, "target_image": TARGET_IMAGE},
        required=(),
        run=run,
        packages=packages,
    )


def _read(ocr: OCR, image: np.ndarray, box: Box) -> tuple[Line, ...]:
    """Lines in a box of an image, with boxes of that image."""
    x1, y1, x2, y2 = box

    def moved(inner: Box) -> Box:
        return inner[0] + x1, inner[1] + y1, inner[2] + x1, inner[3] + y1

    return tuple(
        dataclasses.replace(
            line,
            box=moved(line.box),
            words=tuple(dataclasses.replace(word, box=moved(word.box)) for word in line.words),
        )
        for line in ocr(image[y1:y2, x1:x2])
    )


def _told(lines: Sequence[Line]) -> list[Line]:
    """The first lines, as far as they may be told; a line that is too long by itself is cut."""
    told: list[Line] = []
    room = CHARACTERS_TOLD
    for line in lines[:LINES_TOLD]:
        if len(line.text) > room:
            return told or [dataclasses.replace(line, text=line.text[: CHARACTERS_TOLD - 3] + "...")]
        told.append(line)
        room -= len(line.text)
    return told


def _joined(lines: Sequence[Line]) -> str:
    """The lines' text: a space between lines that stand side by side, a line break below."""
    return "\n".join(" ".join(lines[i].text for i in row) for row in rows([line.box for line in lines]))


def _record(session: Session, target: int, item: Line | Word) -> dict[str, Any]:
    """A line or word as JSON values, its box in the coordinates that the model sees."""
    box = session.shown_box(item.box, target)
    return {"text": item.text, "confidence": round(item.confidence, 2), "bbox_2d": box}


TOOL = make()
