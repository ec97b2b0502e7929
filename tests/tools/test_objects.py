import numpy as np
import pytest

from pixelis_jax.tools.base import Session, ToolError
from pixelis_jax.tools.objects import Object, recall, remember


def session_of():
    return Session([np.zeros((20, 30, 3), np.uint8)], [(20, 30)], fit_crop=lambda height, width: (height, width))


def box_object(x1, y1, x2, y2, image=1):
    mask = np.zeros((20, 30), bool)
    mask[y1:y2, x1:x2] = True
    return Object(image, mask, (x1, y1, x2, y2))


def test_ids_count_from_one_and_name_what_was_found():
    session, first, second = session_of(), box_object(0, 0, 5, 5), box_object(10, 0, 15, 5)
    assert [remember(session, first), remember(session, second)] == [1, 2]
    assert recall(session, 1) is first and recall(session, 2) is second


def test_the_same_place_of_the_same_image_keeps_its_id():
    session = session_of()
    assert remember(session, box_object(0, 0, 10, 10)) == 1
    assert remember(session, box_object(0, 0, 10, 10)) == 1
    assert remember(session, box_object(0, 0, 10, 9)) == 2  # 0.9 of it
    assert remember(session, box_object(0, 0, 10, 10, image=2)) == 3


def test_a_fork_that_is_dropped_leaves_the_session_as_it_was():
    session = session_of()
    remember(session, box_object(0, 0, 5, 5))
    fork = session.fork()
    assert remember(fork, box_object(10, 0, 15, 5)) == 2
    with pytest.raises(ToolError, match=r"there is no object '2'; objects are 1$"):
        recall(session, 2)


@pytest.mark.parametrize("number", [0, -1, 2, 1.0, True, "1", None, 10**400, [1]])
def test_what_is_no_id_names_those_that_exist(number):
    session = session_of()
    with pytest.raises(ToolError, match="no objects yet"):
        recall(session, number)
    remember(session, box_object(0, 0, 5, 5))
    with pytest.raises(ToolError, match=r"objects are 1$") as raised:
        recall(session, number)
    assert len(str(raised.value)) < 200


def test_of_many_ids_the_last_are_named():
    session = session_of()
    for x in range(20):
        remember(session, box_object(x, 0, x + 1, 1))
    with pytest.raises(ToolError, match=r"objects are \.\.\., 9, 10, .*, 20$"):
        recall(session, 99)
