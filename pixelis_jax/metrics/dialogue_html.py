"""One dialogue as HTML: what was asked, each turn with its result, pictures with the boxes of calls, numbered.

The dialogue is a record of metrics/trajectories.py, schema 1; a page needs nothing from outside. All text is escaped.
"""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

SIDE = 320  # px, of a picture in a page at most
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; } .dialogue { border-top: 1px solid #bbb; padding: 1rem 0; }
.head { color: #666; font-size: .85rem; } .says { white-space: pre-wrap; overflow-wrap: anywhere; margin: .4rem 0; }
.asked { background: #eef3fb; padding: .5rem .7rem; } .turn { background: #f6f6f6; padding: .5rem .7rem; }
.result { background: #fbf6e8; padding: .5rem .7rem; } .gold { color: #0a6b2d; } .wrong { color: #a01818; }
figure { display: inline-block; margin: .3rem .6rem .3rem 0; vertical-align: top; }
figcaption { color: #666; font-size: .8rem; } .frame { position: relative; display: inline-block; line-height: 0; }
.box { position: absolute; border: 2px solid #d22; box-sizing: border-box; } .box.right { border: 2px dashed #0a6b2d; }
.box b { position: absolute; left: 0; top: 0; padding: 0 3px; background: #d22; color: #fff; font: 11px/1.3 system-ui; }
.box.right b { background: #0a6b2d; }
"""
Region = tuple[float, float, float, float]  # centre x, centre y, width, height, relative to the picture


def inline(image: np.ndarray, side: int = SIDE) -> str:
    """A picture u8[height, width, 3], made smaller where it is larger than `side`, as a data URI."""
    picture = Image.fromarray(image)
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG" if max(picture.size) <= 64 else "JPEG", quality=85)
    kind = "png" if max(picture.size) <= 64 else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def dialogue(
    record: Mapping[str, Any],
    pictures: Sequence[str],
    *,
    captions: Sequence[str] = (),
    gold_box: tuple[int, Region] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """One dialogue as a <section>. `pictures` are addresses or data URIs of `record["images"]`, the task's own first.

    Boxes of calls are drawn on the picture they are about, numbered by their turn; `gold_box` is (number of a picture
    from 1, region) of the right answer. `captions` stand under the pictures, `notes` in the head.
    """
    turns = record["turns"]
    own = len(pictures) - sum(bool(turn["observation"]) and turn["observation"]["image"] is not None for turn in turns)
    boxes = _boxes(turns, gold_box)

    def figure(place: int) -> str:
        caption = captions[place] if place < len(captions) else f"image {place + 1}"
        return _figure(pictures[place], caption, boxes.get(place + 1, []))

    head = [str(record.get(name, "")) for name in ("task_id", "task_type", "status") if record.get(name)]
    parts = [f'<section class="dialogue"><p class="head">{_escaped(" · ".join([*head, *notes]))}</p>']
    parts += ['<div class="asked">', *(figure(place) for place in range(own)), _says(record["question"]), "</div>"]
    for number, turn in enumerate(turns, 1):
        parts.append(f'<div class="turn"><span class="head">turn {number}</span>{_says(turn["text"])}')
        parts += [f'<p class="wrong">{_escaped(turn["error"])}</p>'] if turn["error"] else []
        parts.append("</div>")
        seen = turn["observation"]
        if seen:
            told = "result" if seen["ok"] else "result wrong"
            shown = figure(seen["image"]) if seen["image"] is not None else ""
            parts.append(f'<div class="{told}">{shown}{_says(seen["text"])}</div>')
    numbers = [f"{name} {value:.3g}" for name, value in sorted(record["numbers"].items()) if value is not None]
    right = f'<p>right answer: <b class="gold">{_escaped(str(record["gold"]))}</b>'
    parts += [right + (f' <span class="head">{_escaped(", ".join(numbers))}</span>' if numbers else "") + "</p>"]
    return "\n".join([*parts, "</section>"])


def page(title: str, intro: str, sections: Sequence[str], *, folded: Mapping[str, str] | None = None) -> str:
    """A whole page: a title, words, texts that can be unfolded, and dialogues."""
    parts = [
        f"<details><summary>{_escaped(name)}</summary>{_says(text)}</details>" for name, text in (folded or {}).items()
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f"<title>{_escaped(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{_escaped(title)}</h1>{_says(intro)}",
            *parts,
            *sections,
            "</body></html>\n",
        ]
    )


def _boxes(
    turns: Sequence[Mapping[str, Any]], gold_box: tuple[int, Region] | None
) -> dict[int, list[tuple[str, Region, str]]]:
    """Number of a picture -> its boxes as (label, region, class)."""
    found: dict[int, list[tuple[str, Region, str]]] = {}
    for number, turn in enumerate(turns, 1):
        seen, call = turn["observation"], turn["call"]
        if seen and seen["region"] is not None and call:
            target = call["arguments"].get("target_image", 1)
            found.setdefault(target, []).append((str(number), tuple(seen["region"]), "box"))
    if gold_box:
        found.setdefault(gold_box[0], []).append(("right", gold_box[1], "box right"))
    return found


def _figure(source: str, caption: str, boxes: Sequence[tuple[str, Region, str]]) -> str:
    drawn = []
    for label, (x, y, wide, high), kind in boxes:
        left, right = (min(max(side, 0.0), 1.0) * 100 for side in (x - wide / 2, x + wide / 2))
        top, bottom = (min(max(side, 0.0), 1.0) * 100 for side in (y - high / 2, y + high / 2))
        place = f"left:{left:.2f}%;top:{top:.2f}%;width:{right - left:.2f}%;height:{bottom - top:.2f}%"
        drawn.append(f'<span class="{kind}" style="{place}"><b>{_escaped(label)}</b></span>')
    image = f'<img src="{_escaped(source)}" alt="{_escaped(caption)}">'
    framed = f'<span class="frame">{image}{"".join(drawn)}</span>'
    return f"<figure>{framed}<figcaption>{_escaped(caption)}</figcaption></figure>"


def _says(text: str) -> str:
    return f'<div class="says">{_escaped(text)}</div>'


def _escaped(text: str) -> str:
    """Text as HTML shows it; half of a surrogate pair, which no file can hold, as a question mark."""
    return html.escape(text.encode("utf-8", "replace").decode(), quote=True)
