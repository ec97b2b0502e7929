"""Reading text in an image: what a backend is, and the classical one, rapidocr's detector and recogniser on one core.

Work is bounded whatever the image holds: it is brought to at most MAX_PIXELS (and LONG_SIDE) before text is looked
for, and at most MAX_LINES lines are recognised. Nothing is downloaded: the models are those of the installed package.
"""

import dataclasses
import importlib
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pixelis_jax.tools.base import Box, ToolError

PACKAGES = ("rapidocr", "onnxruntime")  # that `rapid` imports
LONG_SIDE = 2560  # px after scaling
MAX_PIXELS = 1280 * 1024  # after scaling
SMALL_SIDE = 480  # px that the long side of a small image is enlarged to
ENLARGED = 4.0  # times, at most
MARGIN = 32  # px of border around the scaled image: text that touches the edge is missed otherwise
MAX_LINES = 32
LONGEST_LINE = 40  # widths by height that a line is recognised at; a longer one is squeezed
MIN_CONFIDENCE = 0.5  # below it a "line" is mostly texture
_TALL = 1.5  # height by width from which a line is taken to run up or down
_COLUMN = 3.0  # height by width up to which it may be one upright character instead
_HEIGHT = 48  # px of a line that the recogniser works at
_WIDEST = 30000  # px that OpenCV can warp
_BETTER = 0.1  # of confidence, by which another way of holding a line must win

_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Word:
    """A word of a line, without spaces; `confidence` is the mean of its characters', 0..1."""

    text: str
    confidence: float
    box: Box


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of text and its box in px. An empty `text` is a line that was found and, beyond MAX_LINES, not read."""

    text: str
    confidence: float
    box: Box
    words: tuple[Word, ...] = ()


OCR = Callable[[np.ndarray], list[Line]]  # u8[height, width, 3], RGB -> lines in reading order, boxes inside the image


def rapid(image: np.ndarray) -> list[Line]:
    """Lines that rapidocr reads with a confidence of at least MIN_CONFIDENCE; the same ones on every call.

    Raises ToolError where the package is not installed or is without its models.
    """
    reader = _reader()
    height, width = image.shape[:2]
    bgr = np.ascontiguousarray(image[..., ::-1])
    page = _Page(bgr, _scaled(bgr, _scale(height, width)))
    quads = reader.find(page.scaled) / page.scale
    if not len(quads) and height * width < page.scaled.shape[0] * page.scaled.shape[1]:
        page = _Page(bgr, bgr)  # enlarged, a large letter can be taken for a picture
        quads = reader.find(page.scaled)
    boxes = [_box(quad, width, height) for quad in quads]
    order = reading_order(boxes)
    read = [reader.read(page, quads[i], boxes[i]) for i in order[:MAX_LINES]]
    lines = [line for line in read if line.text and line.confidence >= MIN_CONFIDENCE]
    return lines + [Line("", 0.0, boxes[i]) for i in order[MAX_LINES:]]


def reading_order(boxes: Sequence[Box]) -> list[int]:
    """Indices of boxes row by row from the top, and from the left in a row: see `rows`."""
    return [i for row in rows(boxes) for i in row]


def rows(boxes: Sequence[Box]) -> list[list[int]]:
    """Indices of boxes in rows. A box whose middle lies within the height of a row's first box is in that row."""
    found: list[list[int]] = []
    for i in sorted(range(len(boxes)), key=lambda i: (boxes[i][1] + boxes[i][3], boxes[i])):
        middle = (boxes[i][1] + boxes[i][3]) / 2
        if found and boxes[found[-1][0]][1] <= middle < boxes[found[-1][0]][3]:
            found[-1].append(i)
        else:
            found.append([i])
    return [sorted(row, key=lambda i: boxes[i]) for row in found]


@dataclasses.dataclass(frozen=True)
class _Page:
    """An image u8[height, width, 3] in BGR, and the same as text is looked for in it."""

    full: np.ndarray
    scaled: np.ndarray

    @property
    def scale(self) -> np.ndarray:
        """(x, y) px of `scaled` a px of `full`."""
        return np.array(self.scaled.shape[1::-1], float) / self.full.shape[1::-1]


class _Reader:
    """rapidocr's three models, each on one thread, so that results do not depend on the machine's cores.

    The parts are used rather than `RapidOCR.__call__`, which keeps what one call asks for on the object: two threads
    would disturb each other.
    """

    def __init__(self) -> None:
        import rapidocr
        from omegaconf import OmegaConf
        from rapidocr.ch_ppocr_cls import TextClassifier
        from rapidocr.ch_ppocr_det import TextDetector
        from rapidocr.ch_ppocr_rec import TextRecInput, TextRecognizer
        from rapidocr.utils.parse_parameters import ParseParams

        logging.getLogger("RapidOCR").setLevel(logging.CRITICAL)
        package = Path(rapidocr.__file__).parent
        config = ParseParams.load(package / "config.yaml")
        threads = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
        engine = OmegaConf.merge(config.EngineConfig.onnxruntime, threads)
        for section, kind in ((config.Det, "det"), (config.Cls, "cls"), (config.Rec, "rec")):
            section.engine_cfg = engine
            section.model_path = str(_model(package / "models", kind))  # given one, nothing is looked up or downloaded
        config.Det.limit_type, config.Det.limit_side_len = "max", LONG_SIDE + 2 * MARGIN  # the scale is ours
        config.Rec.rec_batch_num = 1  # no line is read otherwise because of the others
        config.Rec.font_path = None
        self.detector, self.classifier = TextDetector(config.Det), TextClassifier(config.Cls)
        self.recogniser, self.request = TextRecognizer(config.Rec), TextRecInput

    def find(self, image: np.ndarray) -> np.ndarray:
        """Quads f64[lines, 4, 2] of lines of text, px (x, y), clockwise from the top left."""
        import cv2

        framed = cv2.copyMakeBorder(image, MARGIN, MARGIN, MARGIN, MARGIN, cv2.BORDER_REPLICATE)
        boxes = self.detector(framed).boxes
        return np.zeros((0, 4, 2)) if boxes is None else np.asarray(boxes, float) - MARGIN

    def read(self, page: _Page, quad: np.ndarray, box: Box) -> Line:
        """The text in a quad of the full image, held the way that reads best."""
        flat = _cut(page, quad)
        high, wide = flat.shape[:2]
        quarters = [0] if high < _TALL * wide else [1] if high > _COLUMN * wide else [0, 1]
        text, score, turned, found = "", -1.0, 0, None
        for quarter in quarters:
            for turn in (quarter, quarter + 2) if self._may_be_upside_down(np.rot90(flat, quarter)) else (quarter,):
                reading = self.recogniser(self.request(img=_held(np.rot90(flat, turn)), return_word_box=True))
                if reading.scores[0] > score + _BETTER:
                    (text,), (score,), turned = reading.txts or ("",), reading.scores, turn
                    (found,) = reading.word_results
        size = page.full.shape[1::-1]
        words = [Word(word, sure, _box(_part(quad, turned, span), *size)) for word, sure, span in _words(text, found)]
        return Line(" ".join(text.split()), score, box, tuple(words))

    def _may_be_upside_down(self, line: np.ndarray) -> bool:
        return any("180" in label for label, _ in self.classifier(_held(line)).cls_res or ())


_readers: list[_Reader] = []  # one at most: models are loaded at the first call, once a process


def _reader() -> _Reader:
    with _lock:
        if not _readers:
            try:
                for package in PACKAGES:
                    importlib.import_module(package)
                _readers.append(_Reader())
            except ImportError as error:
                missing = error.name or "rapidocr"
                raise ToolError(
                    f"text can't be read here without the package {missing}: pip install 'pixelis-jax[tools]'"
                ) from None
        return _readers[0]


def _model(folder: Path, kind: str) -> Path:
    """The one model of this kind that comes with the package."""
    found = sorted(folder.glob(f"*_{kind}_*.onnx"))
    if not found:
        raise ToolError(f"text can't be read here: rapidocr is without its {kind} model; install it anew")
    return found[0]


def _scale(height: int, width: int) -> float:
    """Of an image before text is looked for: a small one is enlarged, a large one brought within the bounds."""
    long = max(height, width)
    shrunk = min(1.0, LONG_SIDE / long, (MAX_PIXELS / (height * width)) ** 0.5)
    return max(shrunk, min(ENLARGED, SMALL_SIDE / long))


def _scaled(image: np.ndarray, scale: float) -> np.ndarray:
    import cv2

    if scale == 1:
        return image
    size = [max(1, round(side * scale)) for side in image.shape[1::-1]]
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA))


def _cut(page: _Page, quad: np.ndarray) -> np.ndarray:
    """A quad of the full image as an upright u8[height, width, 3], from whichever image has detail enough."""
    import cv2

    wide = max(np.linalg.norm(quad[0] - quad[1]), np.linalg.norm(quad[2] - quad[3]))
    high = max(np.linalg.norm(quad[0] - quad[3]), np.linalg.norm(quad[1] - quad[2]))
    scale = float(page.scale.mean())
    left, top, right, bottom = _box(quad, *page.full.shape[1::-1])
    if scale >= 1 or min(wide, high) * scale >= _HEIGHT or max(right - left, bottom - top) > _WIDEST:
        source, corners = page.scaled, quad * page.scale
    else:
        source, corners, scale = page.full[top:bottom, left:right], quad - (left, top), 1.0
    width, height = max(1, round(float(wide) * scale)), max(1, round(float(high) * scale))
    width, height = min(width, LONGEST_LINE * height), min(height, LONGEST_LINE * width)
    flat = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    matrix = cv2.getPerspectiveTransform(corners.astype(np.float32), flat)
    return np.asarray(
        cv2.warpPerspective(source, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    )


def _words(text: str, found: Any) -> list[tuple[str, float, tuple[float, float]]]:
    """(word, confidence, (start, end)) of the words of a line; start and end are shares of its length.

    `found` is rapidocr's WordInfo: its columns are those of the characters that are no spaces, its confidences those
    of all characters.
    """
    if not text.strip():
        return []
    columns, length = [column for word in found.word_cols for column in word], found.line_txt_len
    half = 0.5 * (columns[-1] - columns[0]) / (len(columns) - 1) if len(columns) > 1 else length
    places = iter(columns)
    letters = [(c, sure, c.isspace() or next(places) + 0.5) for c, sure in zip(text, found.confs, strict=True)]
    words = []
    for blank, group in itertools.groupby(letters, key=lambda letter: letter[0].isspace()):
        if not blank:
            part = list(group)
            span = max(0.0, (part[0][2] - half) / length), min(1.0, (part[-1][2] + half) / length)
            words.append(("".join(c for c, _, _ in part), sum(sure for _, sure, _ in part) / len(part), span))
    return words


def _held(view: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(view)  # OpenCV takes no view that was turned


def _part(quad: np.ndarray, turned: int, span: tuple[float, float]) -> np.ndarray:
    """The quad of what lies between two shares of a line's length; `turned` quarters brought the line upright."""
    start, end = span
    first, second, third, fourth = np.roll(quad, -turned % 4, axis=0)
    top, bottom = second - first, third - fourth
    return np.stack([first + start * top, first + end * top, fourth + end * bottom, fourth + start * bottom])


def _box(quad: np.ndarray, width: int, height: int) -> Box:
    """The smallest whole box around a quad, inside the image, at least 1 x 1."""
    low, high = np.floor(quad.min(axis=0)).astype(int), np.ceil(quad.max(axis=0)).astype(int)
    left, top = min(max(int(low[0]), 0), width - 1), min(max(int(low[1]), 0), height - 1)
    return left, top, min(max(int(high[0]), left + 1), width), min(max(int(high[1]), top + 1), height)
