"""A box that the policy says is compared in the frame in which it saw the picture: a rollout from end to end."""

import dataclasses

import numpy as np
import pytest

from pixelis_jax.answers import frames
from pixelis_jax.evaluation import Outcome
from pixelis_jax.rewards.task import Verified

GOLD = "[20, 10, 60, 50]"  # pixels of the original


def boxed(task, **metadata):
    return dataclasses.replace(task, answer=GOLD, answer_type="iou", metadata=metadata)


def test_a_said_box_is_right_in_the_frame_that_was_seen(script, demo_tasks):
    """One of 140 x 190 px is seen at 56 x 84, so its own numbers are wrong there; of two pictures the second."""
    tasks = [boxed(demo_tasks[0]), *demo_tasks[1:3], boxed(demo_tasks[3], target_image=2)]
    sizes = {0: (140, 190), 3: (90, 60)}
    seen = {i: script.policy.processor.fit_overview(*size) for i, size in sizes.items()}
    assert seen[0] == (56, 84)
    said = {i: frames.to_frame(GOLD, sizes[i], seen[i], whole=True) for i in sizes}
    short = {i: box.replace(" ", "") for i, box in said.items()}  # turns are short
    answers = [f"<answer>{short[i]}</answer>" if i in short else "<answer>7</answer>" for i in range(4)]
    opening = "<think>Now I can read it.</think>"
    right = script(tasks, [[answer] for answer in answers], prefix=opening).trajectories
    wrong = script(tasks, [["<answer>20 10 60 50</answer>"]] * 4, prefix=opening).trajectories
    assert [t.status for t in (*right, *wrong)] == ["answered"] * 8
    assert [len(t.shown_sizes) for t in right] == [len(t.task.images) for t in right]
    assert right[0].shown_sizes == (seen[0],) and right[3].shown_sizes[1] == seen[3]
    scores = Verified()([right[0], wrong[0], right[3]])
    np.testing.assert_allclose(scores, [Outcome.of(t).score for t in (right[0], wrong[0], right[3])], rtol=1e-6)
    width, height = 40 * 84 / 190, 40 * 56 / 140  # as seen; each border moves by half a pixel at most
    assert (width - 1) * (height - 1) / ((width + 1) * (height + 1)) <= scores[0] <= 1 and scores[1] < 0.2
    assert scores[2] > 0.9
    exact = frames.to_frame(GOLD, sizes[0], seen[0])
    turns = (dataclasses.replace(right[0].turns[0], answer=exact),)
    assert Verified()([dataclasses.replace(right[0], turns=turns)])[0] == pytest.approx(1)
