import math

import numpy as np
import pytest

from pixelis_jax.data import pixelsearch
from pixelis_jax.data.pixelsearch import oracle
from pixelis_jax.tools import TOOLS, Session, execute, grammar
from pixelis_jax.tools.base import View
from pixelis_jax.types import ToolCall


def fit_overview(height, width):
    scale = math.sqrt(14000 / (height * width))
    return int(height * scale) // 28 * 28, int(width * scale) // 28 * 28


def fit_crop(height, width):
    return 56, 56


def demonstrate(task, *, direct=False, box_noise=0.0, seed=0, coordinates="pixels"):
    return pixelsearch.demonstrate(
        task,
        pixelsearch.generator(seed, task.task_id),
        direct=direct,
        box_noise=box_noise,
        view=View(fit_overview, fit_crop, coordinates),
    )


def looks(kinds=("digit", "text"), count=60):
    return [pixelsearch.make_task(9, "train", index, kinds=kinds) for index in range(count)]


def test_a_look_is_think_zoom_think_and_the_real_tool_result():
    task = looks()[0]
    sample = demonstrate(task)
    assert [step.action for step in sample.trajectory] == ["THINK", "ZOOM_IN", "THINK"]
    assert [sample.trajectory[i].thought for i in (0, 2)] == [oracle.LOOK, oracle.READ]
    assert (sample.answer, sample.ground_truth) == (task.answer, task.answer)
    zoom = sample.trajectory[1]
    session = Session(task.images, [fit_overview(*task.images[0].shape[:2])], fit_crop=fit_crop)
    again = execute(session, ToolCall(zoom.action, zoom.parameters))
    assert zoom.result["text"] == again.text and zoom.result["ok"]
    assert np.array_equal(zoom.observation.image, again.image)


def test_in_thousandths_the_oracle_looks_at_the_same_place():
    """Boxes differ by their rounding: half a seen pixel, 1/112 of a side, on each edge."""
    for task in looks(count=10):
        calls = [demonstrate(task, **frame).trajectory[1] for frame in ({}, {"coordinates": "norm1000"})]
        pixels, thousandths = (call.observation.region for call in calls)
        np.testing.assert_allclose(pixels, thousandths, atol=0.02)
        seen = fit_overview(*task.images[0].shape[:2])
        scaled = np.array(calls[1].parameters["bbox_2d"]) * [*seen[::-1], *seen[::-1]] / 1000
        assert np.abs(scaled - calls[0].parameters["bbox_2d"]).max() <= 1


def test_the_call_of_the_oracle_is_one_the_parser_reads():
    zoom = demonstrate(looks()[0]).trajectory[1]
    call = ToolCall(zoom.action, zoom.parameters)
    assert grammar.parse(grammar.render(oracle.LOOK, call), TOOLS).call == call


@pytest.mark.parametrize(("box_noise", "covered"), [(0.0, 1.0), (0.1, 0.95)])
def test_boxes_cover_the_content(box_noise, covered):
    hits = []
    for task in looks():
        sample = demonstrate(task, box_noise=box_noise)
        x1, y1, x2, y2 = task.metadata["target_box"]
        height, width = task.images[0].shape[:2]
        cx, cy, wide, high = sample.trajectory[1].result["region"]
        middle = ((x1 + x2) / 2 / width, (y1 + y2) / 2 / height)
        share = min(task.images[0].shape[:2]) * 0.02  # half a digit's height and a little
        hits.append(
            abs(middle[0] - cx) <= wide / 2 - share / width and abs(middle[1] - cy) <= high / 2 - share / height
        )
        assert all(isinstance(value, int) for value in sample.trajectory[1].parameters["bbox_2d"])
    assert np.mean(hits) >= covered


def test_without_noise_a_box_is_1_35_times_the_shape():
    box = oracle.look_box((400, 400, 500, 500), (1000, 1000), (200, 200), pixelsearch.generator(0), box_noise=0.0)
    assert box == [76, 76, 104, 104]  # centre 90, side 20 * 1.35 = 27, rounded to even ends
    corner = oracle.look_box((0, 900, 100, 1000), (1000, 1000), (200, 200), pixelsearch.generator(0), box_noise=0.0)
    assert corner == [0, 176, 24, 200]


def test_noise_moves_the_box_and_the_address_decides_how():
    task = looks()[1]
    boxes = {tuple(demonstrate(task, box_noise=0.3, seed=s).trajectory[1].parameters["bbox_2d"]) for s in range(8)}
    assert len(boxes) > 4
    assert demonstrate(task, box_noise=0.3, seed=3) == demonstrate(task, box_noise=0.3, seed=3)


def test_direct_answers_have_no_call():
    habit = demonstrate(looks()[0], direct=True)
    assert [(step.action, step.thought) for step in habit.trajectory] == [("THINK", oracle.SEE)]
    for kind, thought in (("counting", oracle.COUNT), ("attribute", oracle.SEE)):
        sample = demonstrate(looks((kind,), 1)[0])
        assert [(step.action, step.thought) for step in sample.trajectory] == [("THINK", thought)]


def test_thoughts_are_short():
    assert all(len(thought.split()) < 6 for thought in (oracle.LOOK, oracle.READ, oracle.SEE, oracle.COUNT))
