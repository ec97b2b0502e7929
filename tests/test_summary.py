"""What a job prints at its end."""

import contextlib
import json
import types
from pathlib import Path

import pytest

from pixelis_jax import config, summary, train
from pixelis_jax.evaluation import EvalResult, Unanswered


def example(workdir: Path, text: str) -> str:
    (workdir / "trajectories.jsonl").write_text(text)
    return summary._example(types.SimpleNamespace(path=workdir))


def test_the_next_command_asks_what_the_run_logged(tmp_path: Path) -> None:
    """About its own pictures, not those that tools returned."""
    turns = [{"observation": {"image": None}}, {"observation": {"image": 1}}, {"observation": None}]
    record = {
        "step": 3,
        "images": ["a b.png", "crop.png"],
        "question": "Which digit?",
        "is_video": False,
        "turns": turns,
    }
    asked = f"--image='{tmp_path}/a b.png' --question='Which digit?'"
    assert example(tmp_path, json.dumps(record) + "\n") == asked
    film = record | {"images": ["a.png", "b.png"], "is_video": True, "turns": turns[::2]}
    asked = f"--image={tmp_path}/a.png --image={tmp_path}/b.png --film --question='Which digit?'"
    assert example(tmp_path, json.dumps(film) + "\n") == asked


@pytest.mark.parametrize(
    "line",
    [
        "",
        '{"images": [], "turns": [], "is_video": false, "question": "q"}',
        '{"step": 3, "images": []}',
        '{"step": 3, "images": 7}',
        '{"images": [7], "question": 1}',
        '{"images": ["a.png"], "turns": 7}',
        "[]",
        "x",
    ],
)
def test_a_changed_log_does_not_spoil_the_end(tmp_path: Path, line: str) -> None:
    assert example(tmp_path, line + "\n" if line else "") == "--image=FILE --question=..."


@pytest.mark.parametrize(("init_from", "expected"), [("", "bbbaaaaa"), ("some/adapter", "Bbbbaaaaa")])
def test_a_start_that_is_the_base_is_evaluated_once(tmp_path: Path, monkeypatch, init_from: str, expected: str) -> None:
    """Modes asked, by label: of a fresh adapter the base's own ("B") would be the same dialogues once more."""
    asked, written = [], {}

    def evaluate(evaluator, modes, adapter, say, *, label, progress):
        asked.extend((label, mode) for mode in modes)
        found = EvalResult(0.5, 0.5, {}, 1.0, {}, Unanswered(0.0, "", ""))
        return {mode: found for mode in modes}

    monkeypatch.setattr(summary, "evaluate_modes", evaluate)
    job = types.SimpleNamespace(
        config=config.override(config.load("configs/rft.py"), [f"--config.init_from={init_from}"]),
        questions=types.SimpleNamespace(held_out_count=4, counted="over all questions"),
        evaluator=None,
        start="start",
        save_adapter=lambda *_: None,
    )
    run = types.SimpleNamespace(
        path=tmp_path,
        progress=lambda *_: contextlib.nullcontext(),
        say=lambda text: None,
        write=written.__setitem__,
        finish=lambda content: written.update(summary=content),
        workdir=types.SimpleNamespace(wall_s=lambda: 1.0),
    )
    state = types.SimpleNamespace(trainable={"lora": "end"}, step=3, skipped=0)
    summary.write_online_summary(run, job, state, {"curriculum": {"transitions": []}})
    marks = {"base": "B", "before": "b", "after": "a"}
    assert "".join(marks[label] for label, _ in asked) == expected
    assert list(written["final_eval.json"]) == ["base", "before", "after"]
    assert written["summary"]["success_base"] == 0.5


def test_a_job_returns_its_summary(tmp_path: Path, monkeypatch) -> None:
    """And gets a config without open fields."""
    given = {}
    monkeypatch.setitem(train.JOBS, "eval", lambda made, workdir: given.update(made=made) or {"eval": 1})
    assert train.run(config.load("configs/eval.py"), tmp_path) == {"eval": 1}
    assert given["made"].sampling.max_turns == 3 and given["made"].model.name == "pixelis-tiny"
