"""Files that hold their records in an object: by id, or in a list of its own."""

import json

import pytest

from pixelis_jax.data import cota
from pixelis_jax.data.importers.base import Options
from pixelis_jax.data.importers.job import Import

GOOD = {"question": "What?", "image": "a.png", "answer": "red"}


def bring(data, out, content):
    (data / "x.json").write_text(content if isinstance(content, str) else json.dumps(content))
    job = Import(data / "x.json", out, Options())
    counts = job.run()
    assert counts.read + counts.refused.total() == counts.records
    return cota.read_jsonl(out / "cota.jsonl"), counts


@pytest.mark.parametrize("indent", [None, 1])
def test_an_object_keyed_by_id_is_read_as_records(data, tmp_path, indent):
    content = {"q1": GOOD, "q2": GOOD | {"question": "Who?"}, "q3": None, "q4": GOOD | {"answer": ""}}
    samples, counts = bring(data, tmp_path / "out", json.dumps(content, indent=indent))
    assert [sample.provenance.original_sample_id for sample in samples] == ["q1", "q2"] and counts.records == 4
    assert all(f": key q{i}: " in line for i, line in zip((3, 4), counts.first, strict=True))


def test_an_id_of_its_own_comes_before_the_key(data, tmp_path):
    samples, _ = bring(data, tmp_path / "out", {"q1": GOOD | {"id": 7}, "q2": GOOD | {"question": "Who?", "qid": "x"}})
    assert [sample.provenance.original_sample_id for sample in samples] == ["7", "x"]


@pytest.mark.parametrize("name", ["data", "annotations", "questions", "records", "samples"])
def test_a_list_inside_an_object_is_read(data, tmp_path, name):
    content = {"info": {"year": 2026}, "version": "1", name: [GOOD, GOOD | {"question": "Who?"}, 3]}
    samples, counts = bring(data, tmp_path / "out", json.dumps(content, indent=1))
    assert len(samples) == 2 and counts.records == 3


def test_single_records_stay_single(data, tmp_path):
    for number, record in enumerate(
        (
            GOOD,
            GOOD | {"metadata": {"a": {}}, "extra_info": {}},
            {"prompt": [{"role": "user", "content": "?"}], "images": ["a.png"], "reward_model": {"ground_truth": "x"}},
        )
    ):
        samples, counts = bring(data, tmp_path / f"out{number}", json.dumps(record, indent=1))
        assert len(samples) == counts.records == 1


def test_objects_in_lines_are_opened_too(data, tmp_path):
    lines = [
        {"q1": GOOD},
        {"q2": GOOD | {"question": "Who?"}, "q3": GOOD | {"question": "Why?"}},
        GOOD | {"answer": "blue"},
    ]
    samples, counts = bring(data, tmp_path / "out", "".join(json.dumps(line) + "\n" for line in lines))
    assert len(samples) == 4 and counts.records == 4


def test_a_list_beside_lines_is_read_and_other_files_are_told(data, tmp_path):
    record = {"image": "a.png", "question": "What?", "answer": "red"}
    (data / "train.jsonl").write_text(json.dumps(record))
    (data / "val.json").write_text(json.dumps([record | {"question": "Which?"}], indent=1))
    (data / "about.json").write_text(json.dumps({"license": "CC"}))
    (data / "more.csv").write_text("question,answer\n")
    job = Import(data, tmp_path / "out", Options())
    assert job.run().samples == 2 and sorted(path.name for path in job.aside) == ["about.json", "more.csv"]
