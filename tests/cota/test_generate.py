"""Generating CoTA data: what is in it, the same bytes each time, and going on after a kill."""

import functools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest
from processes import LIMIT_S, started, wait_until

from pixelis_jax.cota.__main__ import main
from pixelis_jax.data import cota
from pixelis_jax.data.corpus import Selection, open_corpus
from pixelis_jax.data.synthesis import dataset
from pixelis_jax.data.synthesis.samples import SynthesisConfig, make_block
from pixelis_jax.models.image_processor import PixelBudget, smart_resize
from pixelis_jax.tools.base import View
from pixelis_jax.types import UserError

FIT = functools.partial(smart_resize, factor=28, budget=PixelBudget(84 * 84, 112 * 112))
CONFIG = SynthesisConfig(seed=5, view=View(FIT, FIT), ocr=False)


@pytest.fixture(scope="module")
def samples():
    """All samples of 30 blocks, as they are written and read."""
    made = [s for block in range(30) for s in make_block(CONFIG, block, "2026-01-02").samples]
    return [cota.from_record(json.loads(json.dumps(cota.to_record(s))), s.sample_id) for s in made]


def job(out, *, count=40, config=CONFIG):
    return dataset.Job(config, {"seed": config.seed}, count, out, shard_blocks=1)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_all_task_types_and_sample_types_come_in_the_mix(samples):
    assert Counter(s.task_type for s in samples) == dict.fromkeys(cota.TASK_TYPES, 30)
    kinds = Counter(s.sample_type for s in samples)
    assert set(kinds) == set(cota.SAMPLE_TYPES)
    traps = sum(kinds[k] for k in ("outcome_negative", "trap_perceptual", "trap_logical"))
    deviation = (210 * 0.2 * 0.8) ** 0.5
    assert abs(traps - 42) < 4 * deviation and abs(kinds["self_correction"] - 21) < 4 * (210 * 0.1 * 0.9) ** 0.5


def test_samples_are_valid_and_say_what_is_wrong_in_them(samples):
    assert len({s.sample_id for s in samples}) == len(samples)
    for s in samples:
        assert 2 <= len(s.trajectory) <= 10
        right = s.sample_type in ("positive", "self_correction")
        assert (s.answer == s.ground_truth) == right == s.answer_loss
        assert s.sampling_weight == {"trap": 1.5, "self": 1.2}.get(s.sample_type[:4], 1.0)
        assert s.provenance.synthesis_timestamp == "2026-01-02" and s.provenance.source_dataset == "pixelsearch"
        calls = [step for step in s.trajectory if step.action != "THINK"]
        assert all(step.result["ok"] for step in calls if step.loss)
        wrong = [step for step in s.trajectory if not step.loss]
        assert bool(wrong) == (s.sample_type not in ("positive", "outcome_negative"))
        if s.sample_type == "self_correction":
            (step,) = wrong
            after = s.trajectory[s.trajectory.index(step) + 1]
            assert after.action == "THINK" and after.loss
            assert any(phrase in after.thought for phrase in ("doesn't seem right", "Actually", "Wait", "Correction"))


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:100], lambda whole: b"{}\n" * 7, lambda whole: b"[" * 100_000], ids=range(3)
)
def test_the_same_bytes_whatever_the_processes_and_the_kills(tmp_path, damage):
    """Seven samples a shard: one run alone, and one of two workers whose parts are taken away in between."""
    assert dataset.build(job(tmp_path / "one"), "2026-01-02", workers=1).made == 40
    two = job(tmp_path / "two")
    with dataset.Folder(two, "2026-01-02") as folder:
        shards = dataset.generate(two, folder.whole_shards(), folder.date, workers=2)
        next(shards)
        next(shards)
        shards.close()
    left, other = sorted((two.out / "shards").glob("*.jsonl"))[:2]  # whichever were done first
    left.write_bytes(damage(left.read_bytes()))
    picture = min((two.out / "images").rglob(f"{int(other.stem):07}*.png"))
    picture.write_bytes(b"")
    done = dataset.build(two, "2027-07-07", workers=2)  # another day: the first one's date stays
    assert done.made + done.found == 40
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert dataset.build(two, "2027-07-07", workers=2) is None
    assert len(open_corpus(two.out, Selection(cota.SAMPLE_TYPES))) == 40


def test_a_killed_command_goes_on_without_duplicates(tmp_path):
    """SIGKILL as soon as a shard is there; the workers end with their parent."""
    out = tmp_path / "data"
    arguments = ["generate", "--num_samples=300", "--no_ocr", "--workers=1", f"--out={out}"]
    with started([sys.executable, "-m", "pixelis_jax.cota", *arguments], stdout=subprocess.DEVNULL) as process:
        wait_until(process, lambda: any((out / "shards").glob("*.jsonl")))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (out / "cota.jsonl").exists()
    main(arguments)
    ids = [json.loads(line)["sample_id"] for line in (out / "cota.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 300 and not (out / "shards").exists() and (out / "report.md").exists()


def test_ctrl_c_between_two_shards_leaves_no_worker(tmp_path, monkeypatch):
    """There the workers' pool is not the one that is interrupted."""

    def interrupted(self, count):
        raise KeyboardInterrupt

    monkeypatch.setattr(dataset.Progress, "update", interrupted)
    with pytest.raises(KeyboardInterrupt, match="0 samples are kept; the same command goes on"):
        main(["generate", "--num_samples=3000", "--no_ocr", "--workers=2", f"--out={tmp_path / 'data'}"])
    assert multiprocessing.active_children() == []


def test_ctrl_c_ends_at_once_and_says_what_is_kept(tmp_path):
    """Nobody waits for the shards under way, and a second Ctrl-C finds nothing to wait for."""
    out = tmp_path / "data"
    arguments = ["generate", "--num_samples=3000", "--no_ocr", "--workers=2", f"--out={out}"]
    command = [sys.executable, "-m", "pixelis_jax.cota", *arguments]
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_until(process, lambda: any((out / "shards").glob("*.jsonl")))
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert re.search(r"interrupted: \d+ samples are kept; the same command goes on\n$", shown), shown[-300:]


def test_a_finished_folder_is_looked_at_again(tmp_path, capsys):
    """What is missing of it is made anew, the report too."""
    arguments = ["generate", "--num_samples=8", "--no_ocr", "--workers=1", f"--out={tmp_path / 'data'}"]
    main(arguments)
    before = files(tmp_path / "data")
    main(arguments)
    assert "this data set is finished" in capsys.readouterr().out
    for name in ("report.md", "cota.jsonl", next(f for f in before if f.endswith(".png") and "images" in f)):
        (tmp_path / "data" / name).write_bytes(b"")
        if name == "report.md":
            (tmp_path / "data" / name).unlink()
        main(arguments)
        assert files(tmp_path / "data") == before, name


def test_another_job_or_foreign_files_are_refused(tmp_path, capsys):
    dataset.build(job(tmp_path / "data", count=2), "2026-01-02", workers=1)
    with pytest.raises(UserError, match=r"holds other data \(num_samples: 2, now 3\)"):
        dataset.build(job(tmp_path / "data", count=3), "2026-01-02", workers=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="can't be made"):
        dataset.build(job(tmp_path / "file" / "deep"), "2026-01-02", workers=1)
    with pytest.raises(UserError, match=r"holds notes\.txt; name an empty or new --out"):
        dataset.build(job(tmp_path / "mine"), "2026-01-02", workers=1)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    with dataset.Folder(job(tmp_path / "busy"), "2026-01-02"), pytest.raises(UserError, match="another process"):
        dataset.build(job(tmp_path / "busy"), "2026-01-02", workers=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--num_samples=0"],
        ["--num_samples=many"],
        ["--num_samples=5", "--trap_share=1.5"],
        ["--num_samples=5", "--trap_share=nan"],
        ["--num_samples=5", "--split=test"],
        ["--num_samples=5", "--seed=-1"],
    ],
)
def test_wrong_options_are_told_in_one_line(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(["generate", f"--out={tmp_path / 'x'}", *arguments])
    assert ended.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_shares_and_budgets_that_exclude_each_other(tmp_path):
    common = ["generate", "--num_samples=5", f"--out={tmp_path / 'x'}"]
    with pytest.raises(UserError, match="sum to more than 1"):
        main([*common, "--trap_share=0.6", "--self_correction_share=0.6"])
    with pytest.raises(UserError, match="--min_pixels=20000 and --max_pixels=12544"):
        main([*common, "--min_pixels=20000"])


def test_the_date_can_be_set_for_builds_that_are_repeated(monkeypatch):
    monkeypatch.setitem(os.environ, "SOURCE_DATE_EPOCH", "86400")
    assert dataset.today() == "1970-01-02"
