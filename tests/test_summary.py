"""What a job prints at its end."""

import json
import types
from pathlib import Path

import pytest

from pixelis_jax import summary


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
