import datetime
import decimal
import json
import sys

import pytest

from pixelis_jax.data import cota
from pixelis_jax.data.importers import hf
from pixelis_jax.data.importers.base import Options
from pixelis_jax.data.importers.job import Import
from pixelis_jax.types import UserError

pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the extras [data] and [test]")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extras [data] and [test]")


def rows(data, count=40):
    """Rows of all kinds: image structs, nested columns, NaN, nulls, dates."""
    image = {"bytes": (data / "a.png").read_bytes(), "path": "a.png"}
    return [
        {
            **{"qid": i, "question": f"<image>What is {i}?", "images": [image], "answer": str(i)},
            **{"choices": None, "score": float("nan"), "day": datetime.date(2026, 1, 1)},
            **{"price": decimal.Decimal("1.50"), "extra": {"a": [1, 2], "raw": b"bytes"}},
        }
        for i in range(count)
    ]


def bring(path, out, **options):
    job = Import(path, out, Options(**options))
    job.run()
    return cota.read_jsonl(out / "cota.jsonl"), job


def write_stream(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def save(folder, table, *, shards=2):
    """What `save_to_disk` of Hugging Face's datasets writes."""
    files = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    size = -(-table.num_rows // shards)
    for i, name in enumerate(files):
        write_stream(folder / name, table.slice(i * size, size))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in files]}))
    (folder / "dataset_info.json").write_text("{}")


def test_a_parquet_file(data, tmp_path):
    pq.write_table(pa.Table.from_pylist(rows(data)), data / "train.parquet", row_group_size=9)
    samples, job = bring(data / "train.parquet", tmp_path / "out")
    assert [sample.question for sample in samples] == [f"What is {i}?" for i in range(40)]
    assert [sample.answer for sample in samples] == [str(i) for i in range(40)]
    assert len({sample.image_paths for sample in samples}) == 1 and samples[3].provenance.original_sample_id == "3"
    assert (job.out / samples[0].image_paths[0]).read_bytes() == (data / "a.png").read_bytes()
    assert samples[0].metadata["other_fields"] == {
        **{"day": "2026-01-01", "price": "1.50", "extra": {"a": [1, 2], "raw": None}}
    }
    assert sorted(p.name for p in job.out.iterdir()) == ["cota.jsonl", "images", "import.json"]


def test_saved_data_sets_parquet_and_jsonl_give_the_same_samples(data, tmp_path):
    kept = [{name: row[name] for name in ("qid", "question", "answer")} | {"image": "a.png"} for row in rows(data)]
    table = pa.Table.from_pylist(kept)
    for name in ("saved", "pq/data", "ipc", "lines"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.png").write_bytes((data / "a.png").read_bytes())
    save(tmp_path / "saved", table)
    pq.write_table(table, tmp_path / "pq" / "data" / "train-00000-of-00001.parquet")
    (tmp_path / "pq" / "README.md").write_text("A data set.")
    with pa.OSFile(str(tmp_path / "ipc" / "x.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "lines" / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    found = {}
    for name in ("saved", "pq", "ipc", "lines"):
        samples, _ = bring(tmp_path / name, tmp_path / "out" / name)
        found[name] = [(s.question, s.answer, s.image_paths, s.provenance.original_sample_id) for s in samples]
    assert len(found["saved"]) == 40 and all(samples == found["saved"] for samples in found.values())


def test_splits_are_kept_apart(data, tmp_path):
    folder = tmp_path / "dict"
    for split, part in (("train", rows(data)[:30]), ("test", rows(data)[30:])):
        save(folder / split, pa.Table.from_pylist(part), shards=1)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    samples, _ = bring(folder, tmp_path / "all")
    assert [s.metadata["split"] for s in samples] == ["train"] * 30 + ["test"] * 10
    samples, _ = bring(folder, tmp_path / "test", split="test")
    assert len(samples) == 10
    with pytest.raises(UserError, match="has no split 'dev'; splits are test, train"):
        bring(folder, tmp_path / "dev", split="dev")


def test_null_rows_and_nested_nulls_are_refused_one_by_one(data, tmp_path):
    good = rows(data)[0]
    empty = dict.fromkeys(good)
    half = good | {"images": [{"bytes": None, "path": None}]}
    broken = good | {"images": [{"bytes": good["images"][0]["bytes"][:200], "path": None}]}
    pq.write_table(pa.Table.from_pylist([good, empty, half, broken]), data / "x.parquet")
    samples, job = bring(data / "x.parquet", tmp_path / "out")
    assert len(samples) == 1
    told = [line.partition(".parquet: ")[2] for line in job.counts.first]
    assert told[0] == "row 2: record: has no values" and told[1].startswith("row 3: images: names no image")
    assert told[2] == "row 4: images: image is damaged (its bytes)"
    assert not (job.out / ".import").exists()


def test_damaged_tables_cost_their_rows(data, tmp_path):
    table = pa.Table.from_pylist(rows(data))
    pq.write_table(table, data / "a.parquet")
    whole = (data / "a.parquet").read_bytes()
    (data / "b.parquet").write_bytes(whole[: len(whole) // 2])
    (data / "c.parquet").write_bytes(b"")
    (data / "d.arrow").write_bytes(b"no table")
    samples, job = bring(data, tmp_path / "out")
    assert len(samples) == 40
    assert job.counts.refused == {"file: is damaged, or not what its name says, from here on": 3}
    with pytest.raises(UserError, match=r"b\.parquet: row 1: file: is damaged"):
        bring(data, tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict").exists()


def test_an_empty_table(data, tmp_path):
    pq.write_table(pa.Table.from_pylist(rows(data)).slice(0, 0), data / "x.parquet")
    with pytest.raises(UserError, match="there are no records in it"):
        bring(data / "x.parquet", tmp_path / "out")


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("{}", "names no data files"),
        ("[", "can't be read as JSON"),
        ("[]", "must be a JSON object"),
        ('{"_data_files": [{"filename": "../x.arrow"}]}', "names no data files"),
        ('{"_data_files": [3]}', "names no data files"),
        ('{"_data_files": [{"filename": "x.arrow"}]}', "x.arrow: there is no such file, and state.json names it"),
    ],
)
def test_a_damaged_saved_data_set(tmp_path, state, told):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text(state)
    with pytest.raises(UserError, match=told):
        bring(tmp_path / "saved", tmp_path / "out")


def test_without_pyarrow_the_extra_is_named(data, tmp_path, monkeypatch):
    pq.write_table(pa.Table.from_pylist(rows(data)), data / "x.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs the package pyarrow.*pip install 'pixelis-jax\[data\]'"):
        bring(data / "x.parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_are_made_plain():
    value = {"a": (1, [float("nan"), 2.5]), 3: datetime.datetime(2026, 1, 2), "b": b"x", "c": True, "d": None}
    assert hf.plain(value) == {"a": [1, [None, 2.5]], "3": "2026-01-02 00:00:00", "b": b"x", "c": True, "d": None}


def test_folders_dialects_and_tables_obey_the_same_rules(data, tmp_path):
    """Marks, choices in texts, boxes and letters: in V*-style pairs, CoTA records and parquet."""
    pairs = tmp_path / "bench" / "position"
    pairs.mkdir(parents=True)
    two = {"question": "Which side?", "options": ["left", "right"]}
    asked = [two | {"question": "<image>Which side is <image>?"}, two | {"question": "<image>Which side?"}]
    asked += [two | {"question": "Which side is <ref-object>?"}, two | {"question": "Which?", "options": "['l','r']"}]
    for number, record in enumerate(asked):
        (pairs / f"{number}.png").write_bytes((data / "a.png").read_bytes())
        (pairs / f"{number}.json").write_text(json.dumps(record))
    steps = [{"question": "<image>Which?", "final_answer": "dog", "options": "['cat', 'dog']"}]
    steps += [
        {"question": "Where?", "answer": "<box>(1,2),(30,40)</box>"},
        {"question": "Which option?", "answer": "B"},
    ]
    steps += [{"question": "<image><image>Which?", "answer": "red"}, {"question": "What is <bbox>?", "answer": "red"}]
    lines = [json.dumps({"trajectory": [], "image_path": "a.png", **record}) for record in steps]
    (data / "steps.jsonl").write_text("\n".join(lines))
    image = {"bytes": (data / "a.png").read_bytes(), "path": None}
    columns = [{"question": "<image 1> or <image 2>?", "options": "['cat', 'dog']", "answer": "B"}]
    columns += [{"question": "<image 2>?", "options": "[]", "answer": "7"}]
    columns = [row | {"image_1": image, "image_2": image if i == 0 else None} for i, row in enumerate(columns)]
    pq.write_table(pa.Table.from_pylist(columns), data / "x.parquet")
    found = {}
    for name, path in (("vstar", pairs.parent), ("cota", data / "steps.jsonl"), ("prompts", data / "x.parquet")):
        samples, job = bring(path, tmp_path / "out" / name)
        assert job.counts.formats == {name: len(samples)}
        assert job.counts.records == job.counts.read + job.counts.refused.total()
        found[name] = [(s.question.partition("\n")[0], s.answer_type) for s in samples], job.counts.refused.total()
    assert found["vstar"] == ([("Which side?", "choice"), ("Which?", "choice")], 2)
    assert found["cota"] == ([("Which?", "choice"), ("Where?", "iou")], 3)
    assert found["prompts"] == ([("image 1 or image 2?", "choice")], 1)
