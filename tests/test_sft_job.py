"""Curriculum SFT on a small folder of dialogues: what it leaves, and that a kill changes nothing."""

import json
import shutil

import jax
import numpy as np
import pytest
from corpus_files import write_folder
from jobs import Jobs, lines, refusal

from pixelis_jax import adapters, held_out
from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.data.corpus import Selection, open_corpora
from pixelis_jax.metrics import names

CONFIG = "configs/sft.py:smoke"


@pytest.fixture(scope="module")
def jobs(compile_cache):
    with Jobs(compile_cache) as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(
        tmp_path_factory.mktemp("sft_data") / "data", sizes=dict.fromkeys(("simple", "medium", "hard"), 24)
    )


@pytest.fixture(scope="module")
def fields(folder):
    """Every evaluation advances a stage, and nothing is learnt: what matters is that it goes on the same."""
    return {
        "model__name": "pixelis-tiny",
        "data__path": folder,
        "tools__names": "('ZOOM_IN',)",
        "sampling__max_turns": 3,
        "total_steps": 6,
        "curriculum__min_performance": 0.0,
        "curriculum__performance_window": 1,
        "curriculum__patience_cycles": 1,
        "optimizer__label_smoothing": 0.1,
        "optimizer__average_share": 0.5,
        "eval__samples": 3,
        "eval__test_samples": 3,
        "eval__batch": 3,
    }


@pytest.fixture(scope="module")
def straight(jobs, fields, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("sft") / "straight"
    return workdir, jobs.run(CONFIG, workdir, **fields)


def test_it_leaves_an_adapter_a_summary_and_metrics(straight):
    workdir, _ = straight
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["chosen"] in ("last", "average", "best") and summary["steps"] == 6
    assert set(summary["test"]) == {"start", "tools_off", *summary["validation"]}
    counts = summary["test"]["start"]["by_category"]
    assert sorted(counts) == ["hard", "medium", "simple"] and sum(count for _, count in counts.values()) == 3
    logged = set().union(*lines(workdir / "metrics.jsonl")) - {"step"}
    assert [name for name in logged if names.find(name) is None] == []
    assert {"eval/accuracy", "eval/accuracy_on/stage2", "data/padding_share", "curriculum/weight/hard"} <= logged
    assert adapters.read(workdir / "adapter", base_name="pixelis-tiny").lora.rank == 8
    records = lines(workdir / "trajectories.jsonl")
    assert {record["step"] for record in records} == {2, 4, 6} and len(records) == 6


def test_stages_follow_the_evaluations(straight):
    workdir, output = straight
    found = [
        (t["step"], t["source"], t["target"]) for t in json.loads((workdir / "summary.json").read_text())["transitions"]
    ]
    assert found == [(2, "stage1", "stage2"), (4, "stage2", "stage3"), (6, "stage3", "stage4")]
    assert "step 2: stage1 -> stage2 (threshold: accuracy_on/stage1 0.000)" in output
    mixes = [record["curriculum/weight/medium"] for record in lines(workdir / "metrics.jsonl")]
    assert mixes == [0.0, 0.3, 0.4]  # what a step was drawn by, before its evaluation


def test_the_average_is_the_mean_of_the_last_steps(straight):
    """Half of six steps: after each of 4, 5 and 6; two of them are in checkpoints."""
    _, average, _ = Checkpoints(straight[0]).restore_part("average", 6)
    _, at_four, _ = Checkpoints(straight[0]).restore_part("average", 4)
    ends = [Checkpoints(straight[0]).restore_part("trainable", step)[1] for step in (4, 6)]
    for mean, first, four, six in zip(*map(jax.tree.leaves, (average, at_four, *ends)), strict=True):
        np.testing.assert_array_equal(first, four)  # of one step alone
        five = 3 * mean.astype(np.float64) - four - six
        low, high = np.minimum(four, six), np.maximum(four, six)
        assert np.all(np.abs(five - (low + high) / 2) <= 3 * np.abs(high - low) + 1e-3)


def test_a_killed_run_goes_on_the_same_after_a_change_of_stage(jobs, fields, straight, tmp_path):
    resumed = tmp_path / "resumed"
    shutil.copytree(straight[0], resumed)
    for step in Checkpoints(resumed).steps():
        if step > 4:
            shutil.rmtree(resumed / "checkpoints" / str(step))
    for left in ("finished.json", "summary.json"):
        (resumed / left).unlink()
    shutil.rmtree(resumed / "adapter")
    output = jobs.run(CONFIG, resumed, **fields)
    assert "resumed from step 4" in output
    for name in ("metrics.jsonl", "trajectories.jsonl", "adapter/adapter_model.safetensors"):
        assert (resumed / name).read_bytes() == (straight[0] / name).read_bytes(), name
    summaries = [json.loads((path / "summary.json").read_text()) | {"wall_s": 0} for path in (straight[0], resumed)]
    assert summaries[0] == summaries[1]


def test_changed_data_is_another_run(fields, folder, straight, tmp_path, monkeypatch, capsys):
    changed = shutil.copytree(folder, tmp_path / "data")
    kept = (changed / "hard.jsonl").read_text().splitlines()[:-1]
    (changed / "hard.jsonl").write_text("\n".join(kept) + "\n")
    shutil.copytree(straight[0], tmp_path / "run")
    (tmp_path / "run" / "finished.json").unlink()
    told = refusal(monkeypatch, capsys, CONFIG, tmp_path / "run", **fields | {"data__path": changed})
    assert "holds a run with another config" in told


def test_without_stages_all_is_one_pool_and_it_stops_early(jobs, fields, tmp_path):
    """Accuracy never rises: the second evaluation is one too many."""
    options = fields | {"curriculum__stages": "()", "curriculum__early_stopping_evaluations": 1, "total_steps": 8}
    output = jobs.run(CONFIG, tmp_path / "run", **options)
    assert "step 4: accuracy does not rise any more; stopping early" in output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 4 and summary["transitions"] == [] and summary["best"]["step"] == 2
    assert "this job is finished" in jobs.run(CONFIG, tmp_path / "run", **options)


def test_a_bad_held_out_picture_is_left_out_at_the_start(folder, tmp_path):
    """Of 72 samples some are held out: all but one of their pictures are damaged, the sizes stay."""
    changed = shutil.copytree(folder, tmp_path / "data")
    corpus = open_corpora(changed, Selection(held_out_share=0.3))[1]
    good = held_out.split_questions(corpus, validation=3, test=3)
    assert good.unreadable == 0 and len(good.validation) == len(good.test) == 3
    name = corpus.sample(good.validation[0]).image_paths[0]
    (changed / name).write_bytes((changed / name).read_bytes()[:300])
    again = held_out.split_questions(corpus, validation=3, test=3)
    assert again.unreadable == 1 and good.validation[0] not in again.validation + again.test
    assert len(again.validation) == len(again.test) == 3


def test_held_out_samples_of_each_category_are_needed(fields, folder, tmp_path, monkeypatch, capsys):
    other = shutil.copytree(folder, tmp_path / "data")
    (other / "hard.jsonl").write_text("")
    options = fields | {"data__held_out_path": other}
    told = refusal(monkeypatch, capsys, CONFIG, tmp_path / "run", **options)
    assert "'stage3' takes 0.2 of 'hard', and the held-out samples of" in told


def test_samples_that_were_never_scored_have_no_stages(fields, folder, tmp_path, monkeypatch, capsys):
    plain = tmp_path / "plain"
    plain.mkdir()
    shutil.copy(folder / "hard.jsonl", plain / "samples.jsonl")
    shutil.copytree(folder / "images", plain / "images")
    told = refusal(monkeypatch, capsys, CONFIG, tmp_path / "run", **fields | {"data__path": plain})
    assert f"{plain} was never sorted by difficulty" in told and "pixelis_jax.cota score --input=" in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data__batch_tokens": 100}, "data.batch_tokens 100 is below data.row_tokens 768"),
        ({"curriculum__stages": "({'name': 'a', 'mix': {'simple': 0.5}},)"}, "its mix sums to 0.5"),
        ({"curriculum__stages": "({'name': 'a', 'mix': {'easy': 1.0}},)"}, "mix names 'easy'"),
        ({"data__path": "/nowhere"}, "/nowhere: there is no such file or folder"),
        ({"data__path": "", "data__num_samples": 0}, "data.path is empty and data.num_samples is 0"),
        ({"data__held_out_share": 0.0}, "data.held_out_share is 0"),
        ({"data__sample_types": "('trap_logical',)"}, "no sample in it can be used"),
        ({"data__row_tokens": 20}, "no sample can be used"),
    ],
)
def test_what_can_not_work_is_said_at_the_start(fields, tmp_path, monkeypatch, capsys, change, message):
    assert message in refusal(monkeypatch, capsys, CONFIG, tmp_path / "run", **fields | change)
