"""Gold and said boxes in one frame, whatever size the picture was seen at."""

import numpy as np
import pytest

from pixelis_jax.answers import boxes, frames
from pixelis_jax.rewards.verifiers import in_policy_frame, verify
from pixelis_jax.types import Task, UserError

SIZE, SEEN = (1500, 2000), (840, 1148)  # of the specification's example
GOLD = "[1000, 750, 1500, 1125]"


def task(gold=GOLD, sizes=(SIZE,), tolerance=0.0, **metadata):
    images = tuple(np.broadcast_to(np.zeros(3, np.uint8), (*size, 3)) for size in sizes)
    fields = {"answer_type": "iou", "tolerance": tolerance, "metadata": metadata}
    return Task("t1", 0, "x", "Where?", images, gold, **fields)


@pytest.mark.parametrize(
    ("shown", "said", "other"),
    [
        (SEEN, "[574, 420, 861, 630]", GOLD),  # pixels of the picture as it was seen; GOLD itself is the wrong frame
        ((1000, 1000), "[500, 500, 750, 750]", "[574, 420, 861, 630]"),  # thousandths
        (SIZE, GOLD, "[574, 420, 861, 630]"),  # not resized
        ((1000, 1000), '```json\n[{"bbox_2d": [500, 500, 750, 750]}]\n```', GOLD),
        (SEEN, "<|box_start|>(574,420),(861,630)<|box_end|>", "[500, 500, 750, 750]"),
    ],
)
def test_a_box_is_right_in_the_policys_frame_alone(shown, said, other):
    assert verify(task(), said, shown=[shown]) == pytest.approx(1)
    assert verify(task(), other, shown=[shown]) < 0.65
    assert verify(task(tolerance=0.9), said, shown=[shown]) == 1 > verify(task(tolerance=0.9), other, shown=[shown])


def test_a_rounded_box_loses_at_most_what_rounding_takes():
    """Each side moves by at most half a pixel of 200, and there are four."""
    for gold in ("[1001, 751, 1401, 1103]", "[3, 5, 403, 364]", "[1591.3, 1133.9, 1992.4, 1492.1]"):
        said = frames.to_frame(gold, SIZE, SEEN, whole=True)
        assert 1 - 4 * 0.5 / 200 <= verify(task(gold), said, shown=[SEEN]) <= 1


@pytest.mark.parametrize(
    ("gold", "metadata"),
    [
        ("[500, 500, 750, 750]", {"answer_frame": "norm1000"}),
        ("[500, 500, 750, 750]", {"coordinates": "norm1000"}),
        ("[0.5, 0.5, 0.75, 0.75]", {"answer_frame": "relative"}),
        ("[574, 420, 861, 630]", {"answer_frame": [840, 1148]}),
        ("[574, 420, 861, 630]", {"seen_size": [840, 1148]}),
        ("[574, 420, 861, 630]", {"seen_sizes": [[840, 1148]]}),
        (GOLD, {"answer_frame": "pixels", "seen_size": [840, 1148]}),
        (GOLD, {"answer_frame": "pixels", "coordinates": "norm1000"}),
        (GOLD, {}),
    ],
)
def test_the_frame_of_a_gold_box_is_declared(gold, metadata):
    asked = task(gold, **metadata)
    assert verify(asked, "[574, 420, 861, 630]", shown=[SEEN]) == pytest.approx(1)
    assert verify(asked, "[500, 500, 750, 750]", shown=[(1000, 1000)]) == pytest.approx(1)
    assert verify(asked, gold) == 1  # its own answer, where no frame is known
    assert boxes.parse(in_policy_frame(asked, [SEEN])) == pytest.approx((574, 420, 861, 630))


def test_the_box_of_the_second_picture():
    asked = task(GOLD, sizes=((400, 400), SIZE), target_image=2)
    assert verify(asked, "[574, 420, 861, 630]", shown=[(392, 392), SEEN]) == pytest.approx(1)
    first = task("[100, 100, 200, 200]", sizes=((400, 400), SIZE))
    assert verify(first, "[98, 98, 196, 196]", shown=[(392, 392), SEEN]) == pytest.approx(1)


def test_further_accepted_boxes_stand_in_the_same_frame():
    asked = task(GOLD, answers=("[0, 0, 100, 100]",))
    assert verify(asked, "[0, 0, 57.4, 56]", shown=[SEEN]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"target_image": 2}, "task t1: metadata: target_image 2 is none of 1 to 1"),
        ({"target_image": "1"}, "target_image '1' is none of"),
        ({"answer_frame": "percent"}, "answer_frame 'percent' is no known frame; use pixels, norm1000, relative or"),
        ({"answer_frame": [0, 5]}, "is no known frame"),
        ({"answer_frame": 1000}, "is no known frame"),
    ],
)
def test_an_unknown_frame_is_named(metadata, message):
    with pytest.raises(UserError, match="t1") as error:
        verify(task(**metadata), "[1, 2, 3, 4]", shown=[SEEN])
    assert message in str(error.value)


def test_only_boxes_move():
    assert frames.to_frame("no box", SIZE, SEEN) == "no box"
    assert frames.to_frame("(1, 2, 3, 4)", SIZE, SIZE) == "(1, 2, 3, 4)"  # as it was written
    assert frames.to_frame("[0, 0, 1, 1]", SIZE, SEEN, whole=True) == "[0, 0, 1, 1]"  # it still holds something
    numeric = Task("t", 0, "x", "How many?", (np.zeros((9, 9, 3), np.uint8),), "4", "numeric")
    assert verify(numeric, "4", shown=[SEEN]) == 1 and in_policy_frame(numeric, [SEEN]) == "4"
