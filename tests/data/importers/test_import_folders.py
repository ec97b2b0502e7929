import json

import numpy as np
import pytest
from PIL import Image

from pixelis_jax.data import cota
from pixelis_jax.data.importers import folders
from pixelis_jax.data.importers.base import Options
from pixelis_jax.data.importers.job import Import
from pixelis_jax.types import UserError

OPTIONS = ["The cup is red.", "The cup is blue.", "The cup is green.", "The cup is white."]


@pytest.fixture
def bench(tmp_path):
    """Two categories of eight questions, as V*Bench has them."""
    for category in ("direct_attributes", "relative_position"):
        (tmp_path / "bench" / category).mkdir(parents=True)
        for i in range(8):
            file = tmp_path / "bench" / category / f"sa_{i}.jpg"
            Image.fromarray(np.full((40, 60, 3), 20 * i, np.uint8)).save(file)
            record = {
                "target_object": ["cup"],
                "bbox": [[10, 5, 20, 30]],
                "question": f"Colour {i}?",
                "options": OPTIONS,
            }
            file.with_suffix(".json").write_text(json.dumps(record))
    return tmp_path / "bench"


def bring(bench, out, **options):
    job = Import(bench, out, Options(**options))
    job.run()
    return cota.read_jsonl(out / "cota.jsonl"), job


def test_categories_pairs_and_the_right_option(bench, tmp_path):
    samples, job = bring(bench, tmp_path / "out")
    assert len(samples) == 16 and job.counts.formats == {"vstar": 16}
    kinds = [(sample.task_type, sample.metadata["category"]) for sample in samples]
    assert (
        kinds == [("attribute_recognition", "direct_attributes")] * 8 + [("spatial_reasoning", "relative_position")] * 8
    )
    for sample in samples:
        assert sample.choices["ABCD".index(sample.answer)] == OPTIONS[0] and sorted(sample.choices) == sorted(OPTIONS)
        assert sample.question.splitlines()[1:] == [f"{a}. {b}" for a, b in zip("ABCD", sample.choices, strict=True)]
        assert sample.metadata["target_boxes"] == [[10, 5, 30, 35]] and sample.metadata["target_object"] == ["cup"]
    assert samples[0].provenance.original_sample_id == "direct_attributes/sa_0"
    assert len({sample.answer for sample in samples}) == 4  # the right one is not always A


def test_the_order_of_options_depends_on_the_name_alone():
    assert folders.shuffle(OPTIONS, "a/b") == folders.shuffle(OPTIONS, "a/b")
    right = [folders.shuffle(OPTIONS, f"a/{i}").index(OPTIONS[0]) for i in range(400)]
    assert min(right.count(place) for place in range(4)) > 70


def test_a_question_file_beside_the_pairs_is_left_aside_unless_asked_for(bench, tmp_path):
    lines = [{"image": "direct_attributes/sa_1.jpg", "text": "What?\n(A) x\n(B) y", "label": "B", "question_id": 0}]
    (bench / "test_questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    samples, job = bring(bench, tmp_path / "pairs")
    assert len(samples) == 16 and [path.name for path in job.aside] == ["test_questions.jsonl"]
    samples, job = bring(bench, tmp_path / "lines", format="prompts")
    assert len(samples) == 1 and len(job.aside) == 16
    assert samples[0].answer == "B" and samples[0].metadata["split"] == "test"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"options": ["x"]}, "options: must be at least two"),
        ({"options": ["x", "x"]}, "options: must be at least two, and all different"),
        ({"options": None}, "options: must be a list"),
        ({"question": ""}, "question: missing or empty"),
        ({"bbox": [[10, 5, 20]]}, "bbox: must be a list of boxes"),
        ({"bbox": [[100, 5, 20, 20]]}, "bbox: is empty or lies outside the image"),
        ({"bbox": [[10, 5, 0, 20]]}, "bbox: is empty"),
        ({"bbox": "box"}, "bbox: must be a list of boxes"),
    ],
)
def test_bad_pairs_are_refused(bench, tmp_path, changes, told):
    file = bench / "direct_attributes" / "sa_3.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    samples, job = bring(bench, tmp_path / "out")
    assert len(samples) == 15 and f"{file}:1: {told}" in job.counts.first[0]


def test_files_that_are_no_records(bench, tmp_path):
    for i, content in enumerate([b"", b"{", b"\xff", b"[1]"]):
        (bench / "direct_attributes" / f"sa_{i}.json").write_bytes(content)
    samples, job = bring(bench, tmp_path / "out")
    assert len(samples) == 12 and [path.name for path in job.aside] == ["sa_3.json"]  # a list is about no image
    assert job.counts.refused == {"file: is empty": 1, "not valid JSON ..": 1, "not UTF-8 text ..": 1}
    assert all(f"sa_{i}.json:" in line for i, line in enumerate(job.counts.first))
    (bench / "direct_attributes" / "sa_4.json").write_text('{"question": "?", "options": ["x", "y"]}')
    with pytest.raises(UserError, match=r"sa_0\.json: file: is empty"):
        bring(bench, tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict").exists()
