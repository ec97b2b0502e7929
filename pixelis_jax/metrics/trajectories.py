"""The record of one rollout in `trajectories.jsonl`.

Schema, version 1 (keys in this meaning for as long as the version stands):
`schema` 1; `step` training step; `task_id`, `index`, `task_type`, `question`, `is_video`, `gold` of the task; `sample`
number in its group; `status` (types.Trajectory); `answer` the policy's or null; `tokens` total, `policy_tokens`
sampled; `turns`, a list of {`text`, `thought`, `call` {name, arguments} or null, `answer`, `error`, `observation`
{text, ok, region, image} or null}, where `observation.image` is a place in `images` or null; `images` files relative
to the workdir, the task's own first; `numbers` what was measured of the row: rewards and advantage.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pixelis_jax.types import Trajectory, Turn

SCHEMA = 1


def record(trajectory: "Trajectory", numbers: Mapping[str, float | None]) -> dict[str, Any]:
    """The record of `trajectory` for `MetricWriter.write_trajectories`; `images` are still u8[height, width, 3]."""
    task = trajectory.task
    place = len(task.images)
    turns = []
    for turn in trajectory.turns:
        has_image = turn.observation is not None and turn.observation.image is not None
        turns.append(_turn(turn, place if has_image else None))
        place += has_image
    return {
        "schema": SCHEMA,
        "task_id": task.task_id,
        "index": task.index,
        "task_type": task.task_type,
        "question": task.question,
        "is_video": task.is_video,
        "gold": task.answer,
        "sample": trajectory.sample,
        "status": trajectory.status,
        "answer": trajectory.answer,
        "tokens": len(trajectory.tokens),
        "policy_tokens": int(trajectory.policy.sum()),
        "turns": turns,
        "images": list(trajectory.images),
        "numbers": dict(numbers),
    }


def as_text(record: Mapping[str, Any]) -> str:
    """A record as Markdown, for TensorBoard and the terminal."""
    lines = [f"**{record['question']}** (right answer: {record['gold']})", ""]
    for turn in record["turns"]:
        lines.append(f"- policy: `{turn['text']}`")
        if turn["error"]:
            lines.append(f"- refused: {turn['error']}")
        if turn["observation"]:
            lines.append(f"- tool: `{turn['observation']['text']}`")
    numbers = ", ".join(f"{name} {value:.3g}" for name, value in sorted(record["numbers"].items()) if value is not None)
    return "\n".join([*lines, "", f"{record['status']}; {numbers}"])


def _turn(turn: "Turn", image: int | None) -> dict[str, Any]:
    seen = turn.observation
    return {
        "text": turn.text,
        "thought": turn.thought,
        "call": None if turn.call is None else {"name": turn.call.name, "arguments": dict(turn.call.arguments)},
        "answer": turn.answer,
        "error": turn.error,
        "observation": None
        if seen is None
        else {
            "text": seen.text,
            "ok": seen.ok,
            "region": None if seen.region is None else list(seen.region),
            "image": image,
        },
    }
