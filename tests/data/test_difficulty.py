"""score = clip(0.30 T + 0.25 O + 0.20 R + 0.15 E + 0.10 K, 0.1, 1.0), by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixelis_jax.data import difficulty
from pixelis_jax.data.cota import SAMPLE_TYPES, TASK_TYPES, Sample, Step
from pixelis_jax.data.difficulty import Difficulty
from pixelis_jax.types import OPS

THINK, ZOOM, READ = Step("THINK", thought="Now I look."), Step("ZOOM_IN"), Step("READ_TEXT")
GET, TRACK, OTHER = Step("GET_PROPERTIES"), Step("TRACK_OBJECT"), Step("ROTATE")


def segment(x, y):
    return Step("SEGMENT_OBJECT_AT", {"point": [x, y]})


def sample(*steps, task="object_counting", kind="positive"):
    return Sample(task, "How many?", ("a.png",), steps, "3", "3", sample_type=kind)


GOLDEN = {
    # No step: T .1, O .3, R 0, E 0, K .4: .03 + .075 + 0 + 0 + .04
    "no steps": (sample(), 0.145),
    # L = 1: T .1; O = 1/3 + .2; R = 0; K .3: .03 + .133333 + 0 + 0 + .03
    "one": (sample(READ, task="text_extraction"), 0.193333),
    # One thought: T .1; O = .5/3 + .2 = .366667; q = 1: R = .7; K .4: .03 + .091667 + .14 + 0 + .04
    "one thought": (sample(THINK), 0.301667),
    # L = 2: T = ln 3 / ln 16 = .396241; O = 2.5/6 + .2*2/2 = .616667; q = .5: R = 1; K .7:
    # .118872 + .154167 + .2 + 0 + .07
    "two": (sample(THINK, ZOOM, task="spatial_reasoning"), 0.543039),
    # L = 15: T = 1; O = 5 (.5 + 2 + 1) / 45 + .2*3/15 = .388889 + .04; q = 1/3: R = 1; K .5:
    # .3 + .107222 + .2 + 0 + .05
    "fifteen": (sample(*(THINK, ZOOM, READ) * 5, task="attribute_recognition"), 0.657222),
    # L = 18, and T is no more than 1; O = 21/54 + .2*3/18 = .388889 + .033333: .3 + .105556 + .2 + 0 + .05
    "eighteen": (sample(*(THINK, ZOOM, READ) * 6, task="attribute_recognition"), 0.655556),
    # Two steps that nobody knows count in L only: T .396241; O .3; R 0; K .4: .118872 + .075 + 0 + 0 + .04
    "unknown operations": (sample(OTHER, OTHER), 0.233872),
    # An unknown one between: L = 3, T = ln 4 / ln 16 = .5; n = 2: O = 4/6 + .2*1/2 = .766667; R 0; K .3:
    # .15 + .191667 + 0 + 0 + .03
    "n counts recognised steps": (sample(ZOOM, OTHER, ZOOM, task="text_extraction"), 0.371667),
    # All equal: L = 5: T = ln 6 / ln 16 = .646241; O = 10/15 + .2/5 = .706667; R 0; E = 3 * .2; K .3:
    # .193872 + .176667 + 0 + .09 + .03
    "all equal": (sample(*[ZOOM] * 5, task="text_extraction"), 0.490539),
    # The same point three times: T .5; O = 9/9 + .2/3, so 1; R 0; E = .2 (run) + .4 (two repeat it) + .1; K .6:
    # .15 + .25 + 0 + .105 + .06
    "points": (sample(*[segment(5, 6)] * 3, task="relationship_detection", kind="outcome_negative"), 0.565),
    # L = 4: T = ln 5 / ln 16 = .580482; O = (.5 + 3 + .5 + 3)/12 + .2*3/4 = .583333 + .15; q = .5: R = 1;
    # E = .3 + .15; K 1: .174145 + .183333 + .2 + .0675 + .1
    "corrected": (
        sample(
            THINK,
            segment(1, 1),
            Step("THINK", thought="That doesn't seem right. Wait, actually it moved."),
            TRACK,
            task="temporal_tracking",
            kind="self_correction",
        ),
        0.724978,
    ),
    # A trap with one operation and one thought: T .396241; O = 2.5/6 + .2; R 1; E .25; K .8:
    # .118872 + .154167 + .2 + .0375 + .08
    "trap": (sample(GET, THINK, task="geometric_comparison", kind="trap_logical"), 0.590539),
    # E is no more than 1: ten equal points are 8 runs, 9 repeats: L = 10: T = ln 11 / ln 16 = .864857; O 1; R 0; K .4:
    # .259457 + .25 + 0 + .15 + .04
    "capped": (sample(*[segment(2, 2)] * 10), 0.699457),
    # A sample of somebody else: task and sample type are not known: K .5, and nothing more in E:
    # .118872 + .154167 + .2 + 0 + .05
    "foreign": (sample(THINK, ZOOM, task="poetry", kind="good"), 0.523039),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_scores_by_hand(name):
    made, wanted = GOLDEN[name]
    assert difficulty.score(made).total == pytest.approx(wanted, abs=1e-6)


def test_the_parts_of_one_sample():
    got = difficulty.score(GOLDEN["corrected"][0])
    wanted = Difficulty(length=0.580482, operations=0.733333, reasoning=1.0, errors=0.45, task=1.0)
    for name in ("length", "operations", "reasoning", "errors", "task"):
        assert getattr(got, name) == pytest.approx(getattr(wanted, name), abs=1e-6), name


@pytest.mark.parametrize(
    ("thoughts", "others", "wanted"),
    [
        (0, 4, 0.0),  # q = 0
        (1, 9, 0.5),  # .1 / .2
        (1, 5, 5 / 6),  # (1/6) / .2
        (1, 4, 1.0),  # exactly .2
        (2, 8, 1.0),
        (1, 1, 1.0),
        (3, 2, 1.0),  # exactly .6
        (6, 4, 1.0),
        (7, 3, 0.925),  # 1 - .3 * .1/.4
        (4, 1, 0.85),  # 1 - .3 * .2/.4
        (3, 0, 0.7),  # 1 - .3
    ],
)
def test_the_share_of_thoughts(thoughts, others, wanted):
    got = difficulty.reasoning_part([THINK] * thoughts + [READ] * others)
    assert got == wanted if wanted == 1.0 else got == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("thought", "wanted"),
    [
        ("WAIT, that is the wrong one", 0.3),
        ("Waiting for the bus", 0.0),
        ("I await it", 0.0),
        ("wait_for", 0.0),
        ("Hm -- wait!", 0.3),
        ("wait\nagain", 0.3),
        ("ACTUALLY it is red", 0.3),
        ("factually", 0.0),
        ("A correction is due", 0.3),
        ("Two corrections", 0.0),
        ("Let me try the left one", 0.3),
        ("Let me trying", 0.0),
        ("It doesn't seem right", 0.3),
        ("It does seem right", 0.0),
        ("Wait, wait. Actually, let me try again: correction.", 0.3),
    ],
)
def test_correction_phrases_are_whole_words_and_count_once(thought, wanted):
    """Also in the thought of an operation."""
    assert difficulty.errors_part(sample(Step("THINK", thought=thought))) == wanted
    assert difficulty.errors_part(sample(Step("ZOOM_IN", thought=thought))) == wanted
    assert difficulty.errors_part(sample(*[Step("THINK", thought=thought), ZOOM] * 2)) == wanted


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        *[("positive", 0.0), ("outcome_negative", 0.1), ("self_correction", 0.15), ("trap_perceptual", 0.2)],
        *[("trap_logical", 0.25), ("unheard_of", 0.0)],
    ],
)
def test_the_sample_type_adds_its_own(kind, wanted):
    assert difficulty.errors_part(sample(ZOOM, kind=kind)) == wanted


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ([ZOOM, ZOOM], 0.0),
        ([ZOOM] * 3, 0.2),
        ([ZOOM] * 4, 0.4),
        ([THINK] * 3, 0.2),  # THINK is a recognised step
        ([ZOOM, ZOOM, READ, ZOOM], 0.0),
        ([ZOOM, OTHER, ZOOM, ZOOM], 0.2),  # what nobody knows is passed over
        ([OTHER] * 5, 0.0),
        ([segment(1, 2), READ, segment(1, 2)], 0.2),
        ([segment(1, 2), READ, segment(1.0, 2.0)], 0.2),
        ([segment(1, 2), READ, segment(2, 1)], 0.0),
        ([segment(1, 2), segment(3, 4), READ, segment(1, 2), segment(3, 4)], 0.4),
        ([Step("ZOOM_IN", {"point": [1, 2]}), READ, Step("ZOOM_IN", {"point": [1, 2]})], 0.0),
        # points that are none, in a sample that nobody has validated
        ([Step("SEGMENT_OBJECT_AT", {"point": [[1]]}), READ, Step("SEGMENT_OBJECT_AT", {"point": "x"})], 0.0),
        ([Step("SEGMENT_OBJECT_AT"), READ, Step("SEGMENT_OBJECT_AT")], 0.0),
    ],
)
def test_runs_and_repeated_points(steps, wanted):
    assert difficulty.errors_part(sample(*steps)) == pytest.approx(wanted)


def test_the_task_type_and_the_operations_weights():
    wanted = {"temporal_tracking": 1.0, "geometric_comparison": 0.8, "spatial_reasoning": 0.7}
    wanted |= {"relationship_detection": 0.6, "attribute_recognition": 0.5, "object_counting": 0.4}
    wanted |= {"text_extraction": 0.3}
    assert {task: difficulty.score(sample(task=task)).task for task in TASK_TYPES} == wanted
    alone = {"TRACK_OBJECT": 1.0, "SEGMENT_OBJECT_AT": 1.0, "GET_PROPERTIES": 2 / 3 + 0.2, "ZOOM_IN": 2 / 3 + 0.2}
    alone |= {"READ_TEXT": 1 / 3 + 0.2, "THINK": 0.5 / 3 + 0.2}  # w/3 + .2, at most 1
    assert {name: difficulty.operations_part([Step(name)]) for name in OPS} == pytest.approx(alone)


def test_the_score_is_clipped():
    assert Difficulty(0, 0, 0, 0, 0).total == 0.1
    assert Difficulty(0.2, 0, 0, 0, 0.3).total == 0.1  # .06 + .03
    assert Difficulty(1, 1, 1, 1, 1).total == 1.0
    assert Difficulty(2, 1, 1, 1, 1).total == 1.0


@given(
    st.lists(st.sampled_from([THINK, ZOOM, READ, GET, TRACK, OTHER, segment(1, 1), segment(2, 2)]), max_size=30),
    st.sampled_from(TASK_TYPES),
    st.sampled_from(SAMPLE_TYPES),
)
def test_every_part_is_a_share(steps, task, kind):
    got = difficulty.score(sample(*steps, task=task, kind=kind))
    assert 0.1 <= got.total <= 1
    assert all(0 <= part <= 1 for part in (got.length, got.operations, got.reasoning, got.errors, got.task))
