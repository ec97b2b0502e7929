"""The table of finished SFT runs: means by hand, and runs that can't be compared."""

import json

import pytest

from docs import make_sft_results
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
