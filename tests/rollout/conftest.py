import pytest
from scripted import ANSWER, LOOK, Script


@pytest.fixture(scope="session")
def script(small_policy):
    return Script(small_policy)


@pytest.fixture(scope="session")
def demo_tasks(task):
    return [task(0, (140, 190)), task(1, (100, 60)), task(2), task(3, (60, 90), (90, 60))]


@pytest.fixture(scope="session")
def demo(script, demo_tasks):
    """Rows: two looks; one look; an answer without an image; one look at two images. Scripted, otherwise real."""
    first, second = LOOK % (4, 8, 40, 50), LOOK % (0, 0, 30, 20)
    return script(demo_tasks, [[first, second, ANSWER], [first, ANSWER], [ANSWER], [first, ANSWER]])
