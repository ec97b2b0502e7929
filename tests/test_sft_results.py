"""The table of finished SFT runs: means by hand, and runs that can't be compared."""

import dataclasses
import json

import pytest
from corpus_files import write_folder

from docs import make_sft_results
from pixelis_jax.data.corpus import Selection, open_sides
from pixelis_jax.sft import accounts
from pixelis_jax.types import UserError


def write_run(folder, *, right, seed=0, questions=4):
    """`right` of `questions` simple counting questions after training, none before."""

    def found(share):
        part = {"simple": [share, questions]}
        return {"overall": share, "by_category": part, "by_task": {"object_counting": [share, questions]}}

    folder.mkdir()
    summary = {
        "chosen": "last",
        "test": {"start": found(0.0), "last": found(right / questions), "tools_off": found(0.25)},
        "transitions": [{"step": 8, "source": "a", "target": "b", "cause": "threshold"}],
        "seed": seed,
        "steps": 9,
        "wall_s": 7.0,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [{"step": 1, "loss": 2.0}, {"step": 4, "eval/accuracy": 0.5}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_table_has_each_run_and_the_mean(tmp_path, capsys):
    runs = [write_run(tmp_path / f"r{i}", right=i + 1, seed=i) for i in range(2)]
    make_sft_results.main([f"some={runs[0]},{runs[1]}", f"one={runs[1]}"])
    out = capsys.readouterr().out
    assert "| test accuracy | questions | start | some 0 | some 1 | mean | one 1 | mean |" in out
    assert "| object counting | 4 | 0.000 | 0.250 | 0.500 | **0.375** | 0.500 | **0.500** |" in out
    assert "- some, seed 0: step 8: a -> b (threshold). Chosen: last; tools off 0.250; 9 steps, 7 s" in out
    assert "validation accuracy by step: 4: 0.50" in out


def test_runs_that_can_not_be_compared(tmp_path, capsys):
    run, other = write_run(tmp_path / "a", right=1), write_run(tmp_path / "b", right=1, questions=5)
    with pytest.raises(UserError, match="asked different test questions"):
        make_sft_results.main([f"x={run}", f"y={other}"])
    (other / "summary.json").unlink()
    with pytest.raises(UserError, match="b holds no finished SFT run"):
        make_sft_results.main([f"x={run},{other}"])
    with pytest.raises(SystemExit):
        make_sft_results.main([f"={run}"])
    assert "is no group; write it as" in capsys.readouterr().err


def test_every_sample_is_accounted_for_at_the_start(tmp_path):
    """27 samples, three of them traps: trained on, held out and left out add up to what was read."""

    def change(category, i, made):
        return dataclasses.replace(made, sample_type="trap_logical" if i == 0 else made.sample_type)

    folder = write_folder(tmp_path / "own", change=change)
    training, held_out = open_sides(folder, None, Selection(held_out_share=0.3))
    (line,) = accounts(training, held_out)
    assert line.startswith(f"data: of 27 samples in {folder} {len(training)} are trained on (")
    assert line.endswith(f"), {len(held_out)} are held out, 3 are left out (3 sample_type trap_logical)")
    assert len(training) + len(held_out) + 3 == 27
    other = write_folder(tmp_path / "apart", sizes={"simple": 2, "medium": 1, "hard": 1})
    lines = accounts(*open_sides(folder, other, Selection()))
    assert lines[1] == f"data: of 4 samples in {other} 4 are held out (2 simple, 1 medium, 1 hard), 0 are left out"
