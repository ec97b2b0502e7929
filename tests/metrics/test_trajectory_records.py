import json

import numpy as np

from pixelis_jax.metrics.files import json_line
from pixelis_jax.metrics.trajectories import as_text, record
from pixelis_jax.types import Observation, Task, ToolCall, Trajectory, Turn


def trajectory() -> Trajectory:
    scene, crop = np.zeros((8, 8, 3), np.uint8), np.ones((4, 4, 3), np.uint8)
    task = Task(task_id="a", index=7, task_type="text_extraction", question="Which digit?", images=(scene,), answer="5")
    zoom = ToolCall("ZOOM_IN", {"bbox_2d": [0, 0, 4, 4]})
    seen = Observation(text="4x4 px", image=crop, region=(0.25, 0.25, 0.5, 0.5))
    turns = (
        Turn(text="{", error="not JSON", observation=Observation(text="Error: not JSON", ok=False)),
        Turn(text="<tool_call>", thought="look", call=zoom, observation=seen),
        Turn(text="<answer>5</answer>", answer="5"),
    )
    t = 6
    return Trajectory(
        task=task,
        sample=1,
        tokens=np.zeros(t, np.int32),
        policy=np.array([0, 0, 1, 1, 0, 1], bool),
        positions=np.zeros((3, t), np.int32),
        logp=np.zeros(t, np.float32),
        turn_of=np.zeros(t, np.int32),
        image_index=np.full(t, -1, np.int32),
        turns=turns,
        images=(scene, crop),
        embeddings=np.zeros((3, 768), np.float32),
        status="answered",
    )


def test_the_record_points_at_the_image_of_each_observation() -> None:
    made = record(trajectory(), {"reward/total": 1.0})
    assert [t["observation"] and t["observation"]["image"] for t in made["turns"]] == [None, 1, None]
    assert (made["tokens"], made["policy_tokens"], made["gold"], made["answer"]) == (6, 3, "5", "5")
    assert len(made["images"]) == 2


def test_the_record_is_strict_json() -> None:
    made = record(trajectory(), {"advantage": np.float32(0.5), "kl": float("nan")}) | {"images": ["a.png", "b.png"]}
    back = json.loads(json_line(made))
    assert back["numbers"] == {"advantage": 0.5, "kl": None}
    assert back["turns"][1]["call"] == {"name": "ZOOM_IN", "arguments": {"bbox_2d": [0, 0, 4, 4]}}


def test_as_text_shows_question_turns_and_numbers() -> None:
    text = as_text(record(trajectory(), {"reward": 1.0, "kl": None}))
    assert "Which digit?" in text and "not JSON" in text and "4x4 px" in text and "reward 1" in text
