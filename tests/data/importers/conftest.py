"""A folder with a picture of 200 x 100 px, and an import of one record that returns the sample or the refusal."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pixelis_jax.data import cota
from pixelis_jax.data.importers.base import Options
from pixelis_jax.data.importers.job import Import
from pixelis_jax.rewards.verifiers import verify
from pixelis_jax.types import Task

GOOD = {"image": "a.png", "question": "Is this record read?", "answer": "yes"}


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    pixels = np.arange(100 * 200 * 3, dtype=np.uint32).reshape(100, 200, 3).astype(np.uint8)
    Image.fromarray(pixels).save(folder / "a.png")
    return folder


@pytest.fixture
def bring(data, tmp_path):
    """`bring(record, ...)` imports records; returns (samples, refusals, job)."""
    turns = iter(range(1000))

    def bring(*records, **options):
        file = data / f"records{next(turns)}.jsonl"
        lines = [
            json.dumps(record) + "\n" for record in (GOOD, *records)
        ]  # with a good one, an import of bad ones is one
        file.write_text("".join(lines))
        job = Import(file, tmp_path / "out" / file.stem, Options(**options))
        counts = job.run()
        samples = cota.read_jsonl(job.out / "cota.jsonl")[1:]
        assert counts.samples == len(samples) + 1 and counts.records == len(records) + 1
        return samples, counts.first, job

    return bring


@pytest.fixture
def refusal(bring):
    """`refusal(record)` is what is said of a record that is refused."""

    def refusal(record, **options):
        samples, first, job = bring(record, **options)
        assert samples == [] and len(first) == 1 and "\n" not in first[0] and len(first[0]) < 700
        assert str(Path(first[0].split(":")[0]).name).startswith("records")
        assert job.counts.refused.total() == 1
        return first[0].partition(".jsonl:2: ")[2]

    return refusal


@pytest.fixture
def score():
    """`score(sample, said)` is what an answer to an imported question is worth."""

    def score(sample, said):
        fields = ("task_type", "question", "answer", "answer_type", "choices", "tolerance", "metadata")
        task = Task(task_id="s", index=0, images=(), **{name: getattr(sample, name) for name in fields})
        return verify(task, said)

    return score
