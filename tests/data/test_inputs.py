import hashlib
import os

import pytest

from pixelis_jax.data import cota, inputs
from pixelis_jax.data.cota import Sample
from pixelis_jax.types import UserError

SAMPLE = Sample("object_counting", "How many?", ("a.png",), (), "3", "3")


def test_a_folder_means_its_json_files_by_name(tmp_path):
    for name in ("b.jsonl", "a.JSON", "c.txt", "metadata.json", "generation.json", "import.json", ".d.jsonl", "e.json"):
        (tmp_path / name).touch()
    (tmp_path / "shards.jsonl").mkdir()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "f.jsonl").touch()
    assert [file.name for file in inputs.sample_files(tmp_path)] == ["a.JSON", "b.jsonl", "e.json"]
    assert inputs.sample_files(tmp_path / "c.txt") == [tmp_path / "c.txt"]  # a file that is named is meant


def test_what_is_no_input(tmp_path):
    (tmp_path / "metadata.json").touch()
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path, "no .jsonl or .json file"),
        (tmp_path / "nothing", "there is no such file"),
        (tmp_path / "pipe", "is a pipe or a device"),
    ):
        with pytest.raises(UserError, match=message):
            inputs.sample_files(path)
    (tmp_path / "gone.jsonl").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"gone\.jsonl: there is no such file"):
        inputs.sample_files(tmp_path)


def test_the_digest_is_that_of_the_bytes(tmp_path):
    content = b"a\nb\r\nc" * 400_000
    (tmp_path / "f").write_bytes(content)
    assert inputs.digest(tmp_path / "f") == (hashlib.sha256(content).hexdigest(), 800_000)


def test_samples_come_with_their_file_and_long_inputs_show_progress(tmp_path, capsys):
    cota.write_jsonl(tmp_path / "a.jsonl", [SAMPLE] * 3)
    (tmp_path / "b.jsonl").write_text("[1]\n[2]\n")
    files = inputs.sample_files(tmp_path)
    read = list(inputs.read(files, label="reading", lines=5))
    assert [file.name for file, _ in read] == ["a.jsonl"] * 3 + ["b.jsonl"] * 2
    assert [isinstance(item, UserError) for _, item in read] == [False] * 3 + [True] * 2
    assert capsys.readouterr().err == ""
    cota.write_jsonl(tmp_path / "a.jsonl", [SAMPLE] * inputs.LONG_LINES)
    assert sum(1 for _ in inputs.read(files[:1], label="reading", lines=inputs.LONG_LINES)) == inputs.LONG_LINES
    assert "reading: 5000/5000 (100 %)" in capsys.readouterr().err
