import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pixelis_jax import cli
from pixelis_jax.cota import __main__ as cota_command
from pixelis_jax.data import charts, cota, difficulty, splits
from pixelis_jax.data.cota import TASK_TYPES, Sample, Step
from pixelis_jax.data.scoring import folder as result_folder
from pixelis_jax.types import UserError

CATEGORIES = splits.CATEGORIES
STEPS = (Step("THINK", thought="Let me look."), Step("ZOOM_IN", {"bbox_2d": [1, 2, 3, 4]}))


def sample(number, steps=None):
    length = number % 9 if steps is None else steps
    return Sample(
        TASK_TYPES[number % 7], f"Question {number}", (f"images/{number}.png",), (STEPS * 5)[:length], "7", "7"
    )


@pytest.fixture(autouse=True)
def quick_pictures(monkeypatch):
    """Drawing takes seconds, and tests/data/test_statistics.py looks at pictures; the shell's command below draws."""
    monkeypatch.setattr(charts, "_png", lambda draw, **_: b"picture")


@pytest.fixture
def data(tmp_path):
    """A folder with 60 samples in two files."""
    folder = tmp_path / "data"
    folder.mkdir()
    cota.write_jsonl(folder / "a.jsonl", [sample(i) for i in range(40)])
    cota.write_jsonl(folder / "b.jsonl", [sample(i) for i in range(40, 60)])
    return folder


def score(source, out, *more):
    return cota_command.main(["score", f"--input={source}", f"--out={out}", *more])


def refused(source, out, *more):
    """The one line that the command ends with."""
    with pytest.raises(UserError) as raised:
        score(source, out, *more)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def result(out):
    """{category: samples}, metadata, report."""
    made = {category: cota.read_jsonl(out / f"{category}.jsonl") for category in CATEGORIES}
    return made, json.loads((out / "metadata.json").read_text()), (out / "report.md").read_text()


def test_every_sample_is_in_one_category_scored_and_in_order(data, tmp_path, capsys):
    out = tmp_path / "out"
    assert score(data, out) == 0
    made, metadata, report = result(out)
    given = [sample(i) for i in range(60)]
    wanted = {s.sample_id: difficulty.score(s).total for s in given}
    limits = splits.thresholds(np.array(list(wanted.values())))
    for category in CATEGORIES:
        kept = [s.sample_id for s in made[category]]
        assert kept == [s.sample_id for s in given if splits.category_of(wanted[s.sample_id], limits) == category]
        assert all(s.difficulty_score == wanted[s.sample_id] for s in made[category])
        assert {dataclasses.replace(s, difficulty_score=None).question for s in made[category]} <= {
            s.question for s in given
        }
        assert metadata["categories"][category]["samples"] == len(kept)
    assert metadata["samples"] == 60 and metadata["thresholds"] == pytest.approx(dataclasses.asdict(limits))
    assert metadata["scorer"] == "pixelis_jax.data.difficulty" and metadata["formula_version"] == difficulty.VERSION
    assert [(f["file"], f["samples"], f["sha256"]) for f in metadata["input_files"]] == [
        (name, count, hashlib.sha256((data / name).read_bytes()).hexdigest())
        for name, count in (("a.jsonl", 40), ("b.jsonl", 20))
    ]
    assert f"Simple up to {limits.p33:.4f}, medium up to {limits.p66:.4f}" in report
    assert "60 samples" in capsys.readouterr().out
    assert sorted(f.name for f in out.iterdir() if f.suffix == ".jsonl") == [
        "hard.jsonl",
        "medium.jsonl",
        "simple.jsonl",
    ]
    assert all((out / line.split("(")[1][:-1]).exists() for line in report.splitlines() if line.startswith("!["))
    assert not list(out.glob(".*"))


def test_the_same_input_gives_the_same_bytes(data, tmp_path):
    for name in ("one", "two"):
        score(data, tmp_path / name)
    files = {f.name: f.read_bytes() for f in (tmp_path / "one").iterdir()}
    assert files == {f.name: f.read_bytes() for f in (tmp_path / "two").iterdir()}
    score(data, tmp_path / "one")  # over the former result
    assert files == {f.name: f.read_bytes() for f in (tmp_path / "one").iterdir()}


def test_image_paths_stay_and_are_found(data, tmp_path):
    """Also after scoring what was scored."""
    (data / "images").mkdir()
    (data / "images" / "0.png").write_bytes(b"x")
    score(data, tmp_path / "out")
    score(tmp_path / "out", tmp_path / "deep" / "again")
    for out in (tmp_path / "out", tmp_path / "deep" / "again"):
        (first,) = [s for samples in result(out)[0].values() for s in samples if s.sample_id == sample(0).sample_id]
        assert first.image_paths == ("images/0.png",)
        assert splits.resolve(splits.image_root(out), first.image_paths[0]).read_bytes() == b"x"


def test_an_image_path_that_leaves_is_counted(tmp_path, capsys):
    paths = ["/etc/passwd", "../a.png", "images/a.png"]
    cota.write_jsonl(
        tmp_path / "a.jsonl", [dataclasses.replace(sample(1), image_paths=(p,), sample_id="") for p in paths]
    )
    score(tmp_path / "a.jsonl", tmp_path / "out")
    assert result(tmp_path / "out")[1]["images_outside"] == 2
    assert "warning: 2 samples have an image path that is absolute or leaves" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["jsonl", "list", "envelope"])
def test_all_forms_of_input(data, tmp_path, form):
    records = [json.loads(line) for line in (data / "a.jsonl").read_text().splitlines()]
    texts = {"list": records, "envelope": {"metadata": {}, "samples": records}}
    source = tmp_path / "in" / "x.json"
    source.parent.mkdir()
    source.write_text(json.dumps(texts[form], indent=1) if form in texts else (data / "a.jsonl").read_text())
    score(source, tmp_path / "out")
    score(data / "a.jsonl", tmp_path / "wanted")
    for category in CATEGORIES:
        name = f"{category}.jsonl"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "wanted" / name).read_bytes()


def test_bad_lines_are_told_counted_and_left_out(data, tmp_path, capsys):
    good = (data / "a.jsonl").read_bytes()
    (data / "a.jsonl").write_bytes(b'{"question": 1}\n' * 30 + good + b'{"a": "\xff"}\n' + good[:100])
    score(data, tmp_path / "out")
    made, metadata, report = result(tmp_path / "out")
    assert sum(map(len, made.values())) == 60 and metadata["refused"]["count"] == 32
    assert metadata["input_files"][0]["refused"] == 32 and len(metadata["refused"]["first"]) == 20
    told = capsys.readouterr().err.splitlines()
    assert told[:20] == metadata["refused"]["first"] and told[20] == "and 12 more bad lines"
    assert told[0] == f"{data / 'a.jsonl'}:1: image_path: give one of image_path, image_paths and frames"
    assert told[21] == "warning: 32 lines or items can't be read and are left out"
    assert "- warning: 32 lines" in report and "- and 12 more" in report and "a.jsonl:1: image_path" in report
    assert f"{data / 'a.jsonl'}:1: image_path" in refused(data, tmp_path / "strict", "--strict")
    assert not (tmp_path / "strict").exists()


def test_nothing_but_bad_lines_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n2\n")
    assert "none of 2 samples can be read" in refused(tmp_path / "a.jsonl", tmp_path / "deep" / "out")
    assert [f.name for f in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_repeated_id_is_counted_and_the_second_dropped(tmp_path, capsys):
    second = dataclasses.replace(sample(2), sample_id=sample(1).sample_id)
    cota.write_jsonl(tmp_path / "a.jsonl", [sample(1), second, sample(3)])
    score(tmp_path / "a.jsonl", tmp_path / "out")
    made, metadata, _ = result(tmp_path / "out")
    assert {s.question for samples in made.values() for s in samples} == {"Question 1", "Question 3"}
    assert metadata["repeated"] == {"count": 1, "first": [sample(1).sample_id]}
    assert f"1 samples repeat a sample_id and are left out ({sample(1).sample_id})" in capsys.readouterr().err
    assert "is there twice" in refused(tmp_path / "a.jsonl", tmp_path / "strict", "--strict")
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize(("steps", "sizes"), [([2], (1, 0, 0)), ([3] * 9, (9, 0, 0)), ([1, 1, 1, 8], (3, 0, 1))])
def test_few_and_equal_samples(tmp_path, capsys, steps, sizes):
    """[1, 1, 1, 8]: Q1 = s(1), Q3 lies at 3/4 of the way to s(8) less, so s(8) is outside; p33 = p66 = s(1)."""
    made = [dataclasses.replace(sample(7 * i, steps=n), task_type="object_counting") for i, n in enumerate(steps)]
    cota.write_jsonl(tmp_path / "a.jsonl", made)
    assert score(tmp_path / "a.jsonl", tmp_path / "out") == 0
    got, metadata, report = result(tmp_path / "out")
    assert tuple(len(got[category]) for category in CATEGORIES) == sizes
    told = capsys.readouterr().err
    assert "medium has 0 of" in told and "- warning: " in report
    assert metadata["thresholds"]["p33"] is not None and list((tmp_path / "out").glob("*.png"))


SCORERS = """
import math
calls = []
def length(sample): return len(sample.trajectory) / 10
def whole(sample): return len(sample.trajectory) % 2
def raises(sample): return {}["no\\nsuch"]
def none(sample): return None
def nan(sample): return math.nan
def text(sample): return "0.5"
def above(sample): return 1.01
def below(sample): return -0.01
def flag(sample): return True
def huge(sample): return 10 ** 400
constant = 3
"""


@pytest.fixture
def scorers(tmp_path, monkeypatch):
    (tmp_path / "my_scorers.py").write_text(SCORERS)
    (tmp_path / "my_broken.py").write_text("1 / 0")
    (tmp_path / "my_leaving.py").write_text("raise SystemExit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("my_scorers", "my_broken", "my_leaving"):
        sys.modules.pop(name, None)


def test_a_scorer_of_ones_own(data, tmp_path, scorers):
    score(data, tmp_path / "out", "--scorer=my_scorers:length")
    made, metadata, _ = result(tmp_path / "out")
    assert all(s.difficulty_score == len(s.trajectory) / 10 for samples in made.values() for s in samples)
    assert metadata["scorer"] == "my_scorers:length" and metadata["formula_version"] is None
    # 0, .1, ..., .8 in turn: 33 % of 60 values lie at .2, 66 % at .5
    assert [sorted({len(s.trajectory) for s in made[c]}) for c in CATEGORIES] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    score(data, tmp_path / "out", "--scorer=my_scorers:whole")
    assert {s.difficulty_score for samples in result(tmp_path / "out")[0].values() for s in samples} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "--scorer= must be written package.module:function"),
        ("my_scorers", "must be written package.module:function"),
        (":f", "must be written package.module:function"),
        ("my_nothing:f", "module my_nothing can't be imported (ModuleNotFoundError: No module named 'my_nothing')"),
        ("my_broken:f", "module my_broken can't be imported (ZeroDivisionError"),
        ("my_leaving:f", "module my_leaving can't be imported (SystemExit"),
        ("..x:f", "can't be imported"),
        ("my_scorers:gone", "my_scorers has no function gone"),
        ("my_scorers:constant", "my_scorers has no function constant"),
        ("my_scorers:raises", f"sample '{sample(0).sample_id}': it raised KeyError: 'no\\nsuch'"),
        ("my_scorers:none", f"sample '{sample(0).sample_id}': it gave None; give a number from 0 to 1"),
        *(
            (f"my_scorers:{f}", "; give a number from 0 to 1")
            for f in ("nan", "text", "above", "below", "flag", "huge")
        ),
    ],
)
def test_a_scorer_that_does_not_work(data, tmp_path, scorers, name, words):
    assert words in refused(data, tmp_path / "out", f"--scorer={name}")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_else_is_refused(data, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").touch()
    assert "holds 'notes.txt', no result of this command" in refused(data, other)
    (other / "metadata.json").write_text('{"command": "another"}')
    assert "no result of this command" in refused(data, other)
    assert sorted(f.name for f in other.iterdir()) == ["metadata.json", "notes.txt"]
    assert "is the folder of the input" in refused(data, data)
    assert "is a file" in refused(data, data / "a.jsonl")
    (tmp_path / "link.jsonl").symlink_to(data / "a.jsonl")
    assert "is the folder of the input" in refused(tmp_path / "link.jsonl", data)


def test_a_former_result_is_replaced_whole(data, tmp_path):
    out = tmp_path / "out"
    score(data, out)
    (out / "notes.txt").write_text("mine")
    (tmp_path / "empty.jsonl").touch()
    before = {f.name: f.read_bytes() for f in out.iterdir()}
    assert "holds no sample; name a file or folder that has some" in refused(tmp_path / "empty.jsonl", out)
    assert before == {f.name: f.read_bytes() for f in out.iterdir()}
    (out / "more.jsonl").touch()
    assert "holds 'more.jsonl', which would be taken for samples" in refused(data, out)
    assert "is the folder of the input" in refused(out, out)


def test_an_error_leaves_the_former_result_as_it_was(data, tmp_path, scorers):
    out = tmp_path / "out"
    score(data, out)
    before = {f.name: f.read_bytes() for f in out.iterdir()}
    refused(data, out, "--scorer=my_scorers:raises")
    assert before == {f.name: f.read_bytes() for f in out.iterdir()}


@pytest.mark.parametrize("renamed", range(4))
def test_a_kill_while_files_are_renamed(data, tmp_path, monkeypatch, renamed):
    """metadata.json is not there then, and the same command again gives the whole result."""
    wanted, out = tmp_path / "wanted", tmp_path / "out"
    score(data, wanted)
    score(data / "a.jsonl", out)  # a former result

    class Killed(BaseException):
        pass

    done, replace = [], Path.replace

    def killing(self, target):
        if len(done) == renamed:
            raise Killed
        done.append(target)
        return replace(self, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "replace", killing)
        patch.setattr(result_folder.ResultFolder, "__exit__", lambda self, *_: os.close(self._lock))  # no cleaning up
        score(data, out)
    assert not (out / "metadata.json").exists() and (out / result_folder.STAGING).is_dir()
    score(data, out)
    assert {f.name: f.read_bytes() for f in out.iterdir()} == {f.name: f.read_bytes() for f in wanted.iterdir()}


def test_two_at_once(data, tmp_path):
    out = tmp_path / "out"
    with result_folder.ResultFolder(out, inputs=[], names=[], command="x"):
        assert "another process writes there" in refused(data, out)
    assert not out.exists()


def test_a_name_that_is_not_ascii_and_odd_texts(tmp_path):
    odd = dataclasses.replace(sample(4), question="é 七 😀 \u2028 \r\n \x00", sample_id="a/b\n|c")
    (tmp_path / "dätä").mkdir()
    cota.write_jsonl(tmp_path / "dätä" / "ü.jsonl", [odd])
    score(tmp_path / "dätä", tmp_path / "öut")
    (got,) = result(tmp_path / "öut")[0]["simple"]
    assert (got.question, got.sample_id) == (odd.question, odd.sample_id)


def test_the_command_from_a_shell(data, tmp_path):
    command = [sys.executable, "-m", "pixelis_jax.cota", "score", "--input=data"]
    done = subprocess.run([*command, "--out=out"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("out: 60 samples: ")
    pictures = list((tmp_path / "out").glob("*.png"))
    assert len(pictures) == 8
    for file in pictures:
        with Image.open(file) as image:
            image.load()
    done = subprocess.run([*command, "--out=data"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == cli.USER_ERROR and done.stdout == ""
    assert done.stderr == "pixelis_jax.cota: --out=data is the folder of the input; name another one\n"


def test_a_place_that_can_not_be_written(data, tmp_path, capsys, monkeypatch):
    assert "can't be made (Not a directory)" in refused(data, data / "a.jsonl" / "out")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "out"
    assert cli.exit_code(lambda: score(data, out)) == cli.USER_ERROR
    assert f"{out}: the disk is full; free some space" in capsys.readouterr().err
    assert not out.exists()
