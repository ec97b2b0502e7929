"""A small folder of CoTA samples with pictures, as `cota score` leaves one."""

import json

import numpy as np
from PIL import Image

from pixelis_jax.data.cota import Sample, Step, write_jsonl

SIZES = {"simple": 12, "medium": 9, "hard": 6}


def sample(number, *, looks=1, words=1, **fields):
    """A question about picture `number`, answered after `looks` calls of ZOOM_IN and `words` thoughts before each."""
    look = [Step("THINK", thought="I need a closer look.")] * words + [Step("ZOOM_IN", {"bbox_2d": [10, 10, 60, 60]})]
    options = {
        "task_type": "text_extraction" if looks else "attribute_recognition",
        "question": f"Which digit is number {number}?",
        "image_paths": (f"images/{number}.png",),
        "trajectory": tuple(look * looks),
        "answer": str(number % 10),
        "ground_truth": str(number % 10),
        "metadata": {"seen_size": [112, 112]},
    }
    return Sample(**(options | fields))


def write_folder(folder, *, sizes=SIZES, change=lambda category, i, made: made):
    """Samples 0 .. in each category, longer with the difficulty; `change` may replace one."""
    (folder / "images").mkdir(parents=True)
    number = 0
    for words, (category, count) in enumerate(sizes.items(), 1):
        made = []
        for i in range(count):
            pixels = np.random.default_rng(number).integers(0, 256, (120, 120, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
            made.append(change(category, i, sample(number, looks=i % 3, words=words)))
            number += 1
        write_jsonl(folder / f"{category}.jsonl", made)
    (folder / "metadata.json").write_text(json.dumps({"image_root": "."}))
    return folder
