import argparse
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pixelis_jax.cli import exit_code
from pixelis_jax.cota import import_
from pixelis_jax.data import cota
from pixelis_jax.data.cota import Provenance, Sample, Step

NO_FORMAT = "record: has the fields of no format that is known; its question must be in question, its answer in answer"
BOX = {"bbox_2d": [1, 2, 30, 40]}
OWN = Sample(
    task_type="text_extraction",
    question="Which digit is inside the red circle?",
    image_paths=("scene.png",),
    trajectory=(
        Step("THINK", thought="I need a closer look."),
        Step("ZOOM_IN", BOX, result={"text": "Image 2", "ok": True}, loss=False),
        Step("THINK", thought="Now I can read it."),
    ),
    answer="7",
    ground_truth="7",
    provenance=Provenance("pixelsearch", "a-1", "1", "oracle", "2026-01-01T00:00:00Z"),
    metadata={"kind": "digit", "seen_size": [84, 112]},
)


def command(*arguments):
    """Exit code of the command."""
    parser = argparse.ArgumentParser()
    import_.add_arguments(parser)
    args = parser.parse_args([str(argument) for argument in arguments])
    return exit_code(lambda: import_.run(args))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for i, name in enumerate(("scene.png", "other.png")):
        Image.fromarray(np.full((84, 112, 3), 50 * i, np.uint8)).save(folder / name)
    return folder


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def files(folder):
    """Everything in a folder, with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def dialects():
    """One sample as each dialect of CoTA writes it."""
    ours = json.loads(json.dumps(cota.to_record(OWN)))
    steps = ours["trajectory"]
    operation = [
        {"action": s["action"], **s}
        if s["action"] == "THINK"
        else {"operation": "ZOOM_IN", "arguments": {"region": BOX["bbox_2d"]}, "result": s["result"], "loss": False}
        for s in steps
    ]
    observation = [
        {"correction": s["thought"]}
        if s["action"] == "THINK"
        else {"action": "ZOOM_IN", "parameters": {"bbox": [1, 2, 30, 40]}, "observation": s["result"], "loss": False}
        for s in steps
    ]
    final = {name: value for name, value in ours.items() if name != "answer"} | {"final_answer": "7"}
    return {"ours": ours, "operation": ours | {"trajectory": operation}, "final_answer": final} | {
        "observation": ours | {"trajectory": observation}
    }


@pytest.mark.parametrize("form", ["jsonl", "list", "envelope"])
@pytest.mark.parametrize("dialect", ["ours", "operation", "observation", "final_answer"])
def test_every_dialect_of_our_own_sample_is_that_sample_again(data, tmp_path, dialect, form):
    record = dialects()[dialect]
    whole = {"jsonl": record, "list": [record], "envelope": {"metadata": {}, "samples": [record]}}[form]
    (data / "mine.json").write_text(json.dumps(whole, indent=None if form == "jsonl" else 1))
    assert command(f"--input={data / 'mine.json'}", f"--out={tmp_path / 'out'}") == 0
    (sample,) = cota.read_jsonl(tmp_path / "out" / "cota.jsonl")
    assert dataclasses.replace(sample, image_paths=OWN.image_paths) == OWN
    assert sample.provenance.synthesis_timestamp == OWN.provenance.synthesis_timestamp
    image = tmp_path / "out" / sample.image_paths[0]
    assert image.read_bytes() == (data / "scene.png").read_bytes()


def talk(*values, **more):
    turns = [{"from": ("human", "gpt")[i % 2], "value": value} for i, value in enumerate(values)]
    return {"image": "scene.png", "conversations": turns, **more}


CALL = '<tool_call>{"name": "crop_image_normalized", "arguments": {"bbox_2d": [0.25, 0.5, 0.75, 1]}}</tool_call>'
RECORDS = {
    "cota": dialects()["ours"],
    "conversations": talk("<image>What?", f"Look. {CALL}", "<image>", "Red. \\boxed{red}", id="c"),
    "video": {
        **{"messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "<answer>x</answer>"}]},
        **{"frames": ["scene.png", "other.png"], "is_video": True},
    },
    "prompts": {"qid": 3, "question": "Which?", "options": ["a", "b"], "image": "scene.png", "answer": "b"},
    "several": {"question": "Which?", "image": ["scene.png", "other.png"], "answer": ["x", "y"]},
}


@pytest.mark.parametrize("name", RECORDS)
def test_importing_an_import_gives_the_same_bytes(data, tmp_path, name):
    path = write(data / "x.jsonl", [RECORDS[name]])
    assert command(f"--input={path}", f"--out={tmp_path / 'one'}") == 0
    assert command(f"--input={tmp_path / 'one'}", f"--out={tmp_path / 'two'}") == 0
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    del one["import.json"], two["import.json"]
    assert one == two and len(one) >= 2
    (sample,) = cota.read_jsonl(tmp_path / "one" / "cota.jsonl")
    method = {"cota": "oracle", "video": "import:conversations", "several": "import:prompts"}.get(
        name, f"import:{name}"
    )
    assert sample.provenance.synthesis_method == method and sample.provenance.source_dataset in (
        "x.jsonl",
        "pixelsearch",
    )


def test_a_file_of_mixed_formats_is_told_apart_record_by_record(data, tmp_path, capsys):
    lines = [json.dumps(record).encode() for record in RECORDS.values()]
    bad = [b'{"a": 1}', b"{", b'"\xff"', b"[1]", b"null", b"", lines[3], json.dumps(dialects()["ours"]).encode()]
    (data / "x.jsonl").write_bytes(b"\n".join(lines + bad))
    assert command(f"--input={data / 'x.jsonl'}", f"--out={tmp_path / 'out'}") == 0
    told = json.loads((tmp_path / "out" / "import.json").read_text())
    assert (told["records"], told["samples"], told["images"]) == (12, 5, 2)
    assert told["formats"] == {"conversations": 2, "cota": 1, "prompts": 2}
    assert told["refused"] == {
        "total": 7,
        "reasons": {
            **{"record: must be a JSON object": 2, "sample_id: is there twice; the first one is kept": 2},
            **{NO_FORMAT: 1},
            **{"not valid JSON ..": 1, "not UTF-8 text ..": 1},
        },
    }
    assert told["sources"][0]["file"] == "x.jsonl" and len(told["sources"][0]["sha256"]) == 64
    shown = capsys.readouterr().out
    assert "refused: 7 of 12 records" in shown and f"{data / 'x.jsonl'}:6: record: has the fields of no format" in shown
    refusals = [f"  {line}" for line in (tmp_path / "out" / "refused.txt").read_text().splitlines()]
    start = shown.splitlines().index(f"the first 7 refusals (all: {tmp_path / 'out' / 'refused.txt'}):")
    assert shown.splitlines()[start + 1 : start + 8] == refusals


def test_only_the_first_refusals_are_shown(data, tmp_path, capsys):
    write(data / "x.jsonl", [RECORDS["prompts"], *({"a": i} for i in range(50))])
    assert command(f"--input={data / 'x.jsonl'}", f"--out={tmp_path / 'out'}") == 0
    shown = capsys.readouterr().out
    assert f"    50  {NO_FORMAT}" in shown
    assert shown.count(f"{NO_FORMAT} (a)\n") == 20 and "read: 1 of 51 records, 1 samples" in shown


def test_strict_stops_at_the_first_and_leaves_nothing(data, tmp_path, capsys):
    path = write(data / "x.jsonl", [RECORDS["prompts"], {"a": 1}, {"b": 1}])
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new", tmp_path / "empty"):
        assert command(f"--input={path}", f"--out={out}", "--strict") == 2
        assert f"{path}:2: {NO_FORMAT} (a)" in capsys.readouterr().err
    assert not (tmp_path / "new").exists() and files(tmp_path / "empty") == {}
    assert list((tmp_path / "empty").iterdir()) == []
    write(path, [RECORDS["prompts"]])
    assert command(f"--input={path}", f"--out={tmp_path / 'new'}", "--strict") == 0


@pytest.mark.parametrize("content", ["", "[]", "\n\n", '{"samples": []}'])
def test_an_empty_data_set(data, tmp_path, capsys, content):
    (data / "x.json").write_text(content)
    assert command(f"--input={data / 'x.json'}", f"--out={tmp_path / 'out'}") == 2
    assert "there are no records in it" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.gz", b"\x1f\x8b\x08", "is compressed; unpack it with gunzip"),
        ("x.zip", b"PK\x03\x04", "is a zip archive"),
        ("x.csv", b"a,b", ".csv files are not read; write JSONL"),
        ("x.jsonl", '{"a": 1}'.encode("utf-16"), "is UTF-16 or UTF-32 text; save it as UTF-8"),
        ("x.jsonl", b'{"question": "?"}', "no sample could be imported; all 1 records are refused"),
    ],
)
def test_files_without_a_record(data, tmp_path, capsys, name, content, told):
    (data / name).write_bytes(content)
    assert command(f"--input={data / name}", f"--out={tmp_path / 'out'}") == 2
    assert told in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_inputs_and_outputs_that_can_not_be(data, tmp_path, capsys):
    path = write(data / "x.jsonl", [RECORDS["prompts"]])
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").write_text("mine")
    (tmp_path / "void").mkdir()
    cases = {
        (tmp_path / "nothing", tmp_path / "out"): "there is no such file or folder",
        (tmp_path / "void", tmp_path / "out"): "nothing to read; name a .jsonl",
        (data, data): "lies inside --input",
        (data, data / "out"): "lies inside --input",
        (path, path): "lies inside --input",
        (path, data / "scene.png"): "is a file; name a folder",
        (path, tmp_path / "used"): "has no import.json but holds thesis.txt",
    }
    for (given, out), told in cases.items():
        assert command(f"--input={given}", f"--out={out}") == 2
        assert told in capsys.readouterr().err
    assert command(f"--input={path}", f"--out={tmp_path / 'out'}", f"--image_root={tmp_path / 'none'}") == 2
    assert not (tmp_path / "out").exists() and (tmp_path / "used" / "thesis.txt").read_text() == "mine"


def test_a_finished_import_is_done_again_but_not_replaced_by_another(data, tmp_path, capsys):
    path, out = write(data / "x.jsonl", [RECORDS["prompts"]]), tmp_path / "out"
    assert command(f"--input={path}", f"--out={out}") == 0
    before = files(out)
    assert command(f"--input={path}", f"--out={out}") == 0
    assert files(out) == before
    assert command(f"--input={path}", f"--out={out}", "--task_type=object_counting") == 2
    assert "holds another import (task_type: 'attribute_recognition', now 'object_counting')" in capsys.readouterr().err
    assert files(out) == before


def test_an_import_that_fails_loses_nothing_of_an_earlier_one(data, tmp_path, capsys):
    path, out = write(data / "x.jsonl", [RECORDS["prompts"]]), tmp_path / "out"
    assert command(f"--input={path}", f"--out={out}") == 0
    before = files(out)
    write(path, [{"a": 1}])
    assert command(f"--input={path}", f"--out={out}") == 2
    assert "no sample could be imported" in capsys.readouterr().err and files(out) == before


def test_a_second_import_into_the_same_folder_is_refused(data, tmp_path, capsys):
    path, out = write(data / "x.jsonl", [RECORDS["prompts"]]), tmp_path / "out"
    assert command(f"--input={path}", f"--out={out}") == 0
    before, lock = files(out), os.open(out, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert command(f"--input={path}", f"--out={out}") == 2
    os.close(lock)
    assert "another import writes there" in capsys.readouterr().err and files(out) == before


def test_a_killed_import_leaves_no_samples_and_the_same_command_works(data, tmp_path):
    """The child is killed when it has made both samples, before they get their name."""
    path, out = write(data / "x.jsonl", [RECORDS["prompts"], RECORDS["several"]]), tmp_path / "out"
    program = (
        "import os, signal, argparse\n"
        "from pixelis_jax.cota import import_\n"
        "from pixelis_jax.data.importers import job\n"
        "count = job.Import._count\n"
        "def kill(self, *rest):\n"
        "    count(self, *rest)\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if self.counts.samples == 2 else None\n"
        "job.Import._count = kill\n"
        "parser = argparse.ArgumentParser()\n"
        "import_.add_arguments(parser)\n"
        f"import_.run(parser.parse_args(['--input={path}', '--out={out}']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    left = files(out)
    assert "cota.jsonl" not in left and json.loads(left["import.json"])["finished"] is False
    assert command(f"--input={path}", f"--out={out}") == 0
    assert command(f"--input={path}", f"--out={tmp_path / 'straight'}") == 0
    assert files(out) == files(tmp_path / "straight")


def test_many_records_are_streamed(data, tmp_path):
    """No list of samples is kept: the memory of a record is free when the next is made."""
    lines = (
        {"qid": i, "question": f"What is {i}? " + "x" * 9000, "image": "scene.png", "answer": i} for i in range(800)
    )
    path = write(data / "x.jsonl", lines)
    tracemalloc.start()
    assert command(f"--input={path}", f"--out={tmp_path / 'out'}", "--no_check_images") == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 6_000_000 and peak < 4_000_000
    assert sum(1 for _ in cota.iter_jsonl(tmp_path / "out" / "cota.jsonl")) == 800


def test_nesting_and_repetition_that_would_take_for_ever(data, tmp_path):
    """Patterns are searched in time linear in the text, and depth costs one record."""
    deep: list = []
    for _ in range(900):
        deep = [deep]
    words = (
        "<tool_call>",
        "</tool_call><tool_call>",
        "<answer>",
        "\\boxed{",
        "\n",
        "A. x ",
        "<tools>",
        "<image>",
        "<think>",
    )
    large = [word * 50_000 for word in words]
    large += ["Guidelines: `crop_image " * 20_000, "A. x" + " " * 200_000 + "y"]
    records = [RECORDS["prompts"], {"question": "?", "image": "scene.png", "answer": "x", "more": deep}]
    records += [talk(f"<image>{text}", text, answer="x") for text in large]
    records += [{"question": text, "image": "scene.png", "answer": text} for text in large]
    path = write(data / "x.jsonl", records)
    assert command(f"--input={path}", f"--out={tmp_path / 'out'}", "--no_check_images") == 0
    told = json.loads((tmp_path / "out" / "import.json").read_text())
    assert told["records"] == 24 == told["samples"] + told["refused"]["total"]
    lines = (tmp_path / "out" / "refused.txt").read_text().splitlines()
    assert "nested" in lines[0] and max(map(len, lines)) < 500


def test_samples_without_a_size_as_seen_are_told(data, tmp_path, capsys):
    record = dialects()["ours"] | {"metadata": {}, "sample_id": None, "provenance": None, "task_type": None, "id": "k"}
    write(data / "x.jsonl", [record])
    assert command(f"--input={data / 'x.jsonl'}", f"--out={tmp_path / 'out'}", "--task_type=object_counting") == 0
    assert "samples without metadata.seen_size: their boxes are taken as they are: 1" in capsys.readouterr().out
    (sample,) = cota.read_jsonl(tmp_path / "out" / "cota.jsonl")
    assert (sample.task_type, sample.provenance.original_sample_id) == ("object_counting", "k")
    assert sample.provenance.synthesis_method == "import:cota"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trajectory": [{"action": "FLY"}]}, "trajectory step 1: action: unknown 'FLY'"),
        ({"trajectory": [{"action": "ZOOM_IN", "parameters": BOX}] * 11}, "trajectory: 11 steps; at most 10"),
        ({"trajectory": [{"action": "ZOOM_IN", "parameters": {"bbox_2d": [1, 2, 300, 40]}}]}, "lies outside the image"),
        ({"task_type": "poetry"}, "task_type: unknown 'poetry'"),
        ({"image_path": None}, "image_path: give one of image_path, image_paths and frames"),
        ({"image_path": "none.png"}, "image_path: no such image"),
        ({"provenance": {"who": "x"}}, "provenance: unknown field 'who'"),
        ({"provenance": []}, "provenance: must be a JSON object"),
        ({"answer": ""}, "answer: missing"),
    ],
)
def test_bad_samples_of_ours_are_refused(data, tmp_path, changes, told):
    path = write(data / "x.jsonl", [dialects()["ours"], dialects()["ours"] | {"sample_id": None} | changes])
    assert command(f"--input={path}", f"--out={tmp_path / 'out'}") == 0
    (line,) = (tmp_path / "out" / "refused.txt").read_text().splitlines()
    assert line.startswith(f"{path}:2: {told}") or told in line


@pytest.mark.parametrize("value", ["-0.1", "2", "nan", "x"])
def test_padding_must_be_a_share(value):
    with pytest.raises(SystemExit):
        command("--input=x", "--out=y", f"--crop_padding={value}")


def test_a_score_of_one_for_the_right_choice_box_and_number(data, tmp_path):
    """From other people's records to the reward: the command, the folder as a job opens it, the verifier."""
    from pixelis_jax.data.corpus import Selection, open_corpus
    from pixelis_jax.rewards.verifiers import verify

    records = [
        ({"question": "Which?", "options": ["8.75", "8.79", "8.75"], "answer": "C"}, ["C", "8.75"], ["B", "8.79"]),
        ({"question": "Which two?", "options": ["a", "b", "c"], "answer": "BC"}, ["B", "C", "B, C"], ["A", "A, B"]),
        ({"question": "Where?", "answer": [10.5, 20, 60, 70]}, ["[10.5, 20, 60, 70]"], ["[70, 20, 80, 80]", "here"]),
        ({"question": "How much?", "answer": "\\$1,234.00"}, ["1234", "$1,234"], ["1235"]),
        ({"question": "How long?", "answer": "\\fbox{12 cm}"}, ["12", "12 cm"], ["12 mm"]),
        ({"question": "What?", "answer": "**dark\u00a0red**"}, ["Dark red."], ["red"]),
    ]
    path = write(data / "x.jsonl", [record | {"image": "scene.png"} for record, *_ in records])
    assert command(f"--input={path}", f"--out={tmp_path / 'out'}", "--strict") == 0
    corpus = open_corpus(tmp_path / "out", Selection())
    for number, (record, right, wrong) in enumerate(records):
        task = corpus.task(number)
        found = {said: verify(task, said) for said in (*right, *wrong)}
        assert found == {**dict.fromkeys(right, 1.0), **dict.fromkeys(wrong, 0.0)}, record


def test_options_of_the_command_for_types_and_numbers(data, tmp_path):
    records = [{"question": "Which?", "options": ["cat", "dog", "ape"], "answer": 1, "image": "scene.png"}]
    records += [{"question": "Which one?", "answer": "B", "image": "scene.png"}]
    path = write(data / "x.jsonl", records)
    assert command(f"--input={path}", f"--out={tmp_path / 'none'}") == 2
    assert command(f"--input={path}", f"--out={tmp_path / 'zero'}", "--answer_index=0") == 0
    (sample,) = cota.read_jsonl(tmp_path / "zero" / "cota.jsonl")
    assert (sample.answer, sample.answer_type) == ("B", "choice")
    assert command(f"--input={path}", f"--out={tmp_path / 'exact'}", "--answer_type=exact") == 0
    assert [s.answer_type for s in cota.read_jsonl(tmp_path / "exact" / "cota.jsonl")] == ["exact", "exact"]
