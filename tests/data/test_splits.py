import json
from collections import Counter

import numpy as np
import pytest

from pixelis_jax.data import splits
from pixelis_jax.types import UserError


def labels(scores):
    limits = splits.thresholds(np.array(scores, np.float64))
    return [splits.category_of(score, limits) for score in scores]


def test_percentiles_and_fences_by_hand():
    """0, .01, ..., 1: quartiles .25 and .75, fences -.5 and 1.5, percentiles .33 and .66."""
    scores = np.arange(101) / 100
    limits = splits.thresholds(scores)
    assert (limits.q1, limits.q3, limits.low, limits.high) == pytest.approx((0.25, 0.75, -0.5, 1.5))
    assert (limits.p33, limits.p66, limits.kept) == (pytest.approx(0.33), pytest.approx(0.66), 101)
    assert Counter(labels(scores)) == {"simple": 34, "medium": 33, "hard": 34}


def test_what_lies_outside_moves_no_threshold_and_is_labelled():
    """.4 .5 .6 .7 and 10: Q1 .5, Q3 .7, so .2 to 1: 10 is outside. Of four, .4 + .99 * .1 and .5 + .98 * .1."""
    limits = splits.thresholds(np.array([0.4, 10.0, 0.5, 0.6, 0.7]))
    assert (limits.q1, limits.q3, limits.low, limits.high) == pytest.approx((0.5, 0.7, 0.2, 1.0))
    assert (limits.p33, limits.p66, limits.kept) == (pytest.approx(0.499), pytest.approx(0.598), 4)
    assert labels([0.4, 10.0, 0.5, 0.6, 0.7]) == ["simple", "hard", "medium", "hard", "hard"]
    assert labels([-10.0, 0.4, 0.5, 0.6, 0.7])[0] == "simple"


def test_a_score_on_a_fence_is_inside():
    """0 1 1 2 and 3.5: Q1 1, Q3 2: the upper fence is 3.5."""
    assert splits.thresholds(np.array([0.0, 1.0, 1.0, 2.0, 3.5])).kept == 5
    assert splits.thresholds(np.array([0.0, 1.0, 1.0, 2.0, 3.51])).kept == 4


@pytest.mark.parametrize("count", [1, 2, 3, 1000])
def test_equal_scores_are_all_simple(count):
    assert labels([0.3] * count) == ["simple"] * count


def test_a_threshold_itself_belongs_to_the_lower_category():
    limits = splits.Thresholds(0, 0, 0, 0, p33=0.4, p66=0.5, kept=9)
    above = [float(np.nextafter(x, 1)) for x in (0.4, 0.5)]
    assert [splits.category_of(x, limits) for x in (0.4, above[0], 0.5, above[1])] == [
        *["simple", "medium", "medium", "hard"]
    ]


def test_no_scores():
    limits = splits.thresholds(np.array([]))
    assert np.isnan(limits.p33) and np.isnan(limits.low) and limits.kept == 0


def test_a_small_and_a_uniform_category_are_warned_of():
    tasks = {
        "simple": Counter(a=10, b=10, c=5),  # 25 of 100: just enough
        "medium": Counter(a=10, b=10, c=4),  # 24 of 100
        "hard": Counter(a=50, b=1, c=0),
    }
    assert splits.warnings(tasks) == [
        "medium has 24 of 100 samples (24.0 %), less than 25 %",
        "hard has 2 task types (a, b), fewer than 3",
    ]
    assert splits.warnings({name: Counter() for name in splits.CATEGORIES}) == ["there are no samples"]
    alone = splits.warnings({"simple": Counter(a=1), "medium": Counter(), "hard": Counter()})
    assert len(alone) == 5 and "medium has 0 task types (none), fewer than 3" in alone


def test_the_image_root_is_the_folder_or_what_its_metadata_names(tmp_path):
    scored, made = tmp_path / "scored", tmp_path / "made"
    scored.mkdir()
    made.mkdir()
    (scored / "simple.jsonl").touch()
    assert splits.image_root(scored) == scored == splits.image_root(scored / "simple.jsonl")
    for others in ('{"other": 1}', "[]"):
        (scored / "metadata.json").write_text(others)
        assert splits.image_root(scored) == scored
    (scored / "metadata.json").write_text('{"image_root": "../made"}')
    assert splits.image_root(scored) == made == splits.image_root(scored / "simple.jsonl")


@pytest.mark.parametrize("text", ["{", '{"image_root": "/etc"}', '{"image_root": 3}', '{"image_root": ""}', "[" * 9999])
def test_damaged_metadata_is_refused(tmp_path, text):
    (tmp_path / "metadata.json").write_text(text)
    with pytest.raises(UserError, match=r"metadata\.json: "):
        splits.image_root(tmp_path)


def test_a_path_inside_is_resolved(tmp_path):
    (tmp_path / "images").mkdir()
    assert splits.resolve(tmp_path, "images/a.png") == tmp_path / "images" / "a.png"
    assert splits.resolve(tmp_path, "images/../images/a.png").name == "a.png"
    (tmp_path / "link.png").symlink_to("images/a.png")
    assert splits.resolve(tmp_path, "link.png") == tmp_path / "link.png"
    assert splits.resolve(tmp_path, "..a.png") == tmp_path / "..a.png"


@pytest.mark.parametrize("name", ["../a.png", "images/../../a.png", "/etc/passwd", "..", "link/a.png", "loop/../../x"])
def test_a_path_that_leaves_is_refused_unless_allowed(tmp_path, name):
    root = tmp_path / "data"
    (root / "images").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="leaves the folder of the data") as raised:
        splits.resolve(root, name)
    assert "\n" not in str(raised.value)
    assert splits.resolve(root, name, allow_outside=True) == root / name


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_no_name_of_a_file(tmp_path, name):
    with pytest.raises(UserError, match="no name of a file"):
        splits.resolve(tmp_path, name, allow_outside=True)


def test_a_root_that_is_reached_by_a_link(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "short").symlink_to("data")
    assert splits.resolve(tmp_path / "short", "a.png") == tmp_path / "short" / "a.png"


def test_metadata_with_a_root_of_its_own_chain(tmp_path):
    """A relative root counts from where the folder really is, as the operating system counts."""
    real = tmp_path / "disk" / "scored"
    real.mkdir(parents=True)
    (tmp_path / "disk" / "made").mkdir()
    (tmp_path / "scored").symlink_to(real)
    (real / "metadata.json").write_text(json.dumps({"image_root": "../made"}))
    assert splits.image_root(tmp_path / "scored") == tmp_path / "disk" / "made"
