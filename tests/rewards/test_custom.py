"""A user's own reward function."""

import numpy as np
import pytest

from pixelis_jax.rewards import custom
from pixelis_jax.types import UserError


def length_of(prompts, completions, wanted):
    return [None if w is None else float(len(c) == w) for c, w in zip(completions, wanted, strict=True)]


def test_columns_reach_the_function_and_none_is_not_applicable():
    scores = custom.evaluate(length_of, ["p"] * 3, ["ab", "abc", "x"], {"wanted": [2, 2, None]})
    np.testing.assert_array_equal(scores, np.float32([1, 0, np.nan]))


def test_load():
    assert custom.load("statistics:mean")([1, 3]) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("statistics.mean", "must be written package.module:function"),
        ("no_such_module_here:f", "can't be imported"),
        ("statistics:meen", "has no function 'meen'"),
        ("math:pi", "has no function 'pi'"),
    ],
)
def test_bad_names(name, message):
    with pytest.raises(UserError, match=message):
        custom.load(name)


@pytest.mark.parametrize(
    ("result", "message"),
    [([1.0], "1 scores for 2"), ([1.0, "x"], "'x' for completion 1"), ([1.0, float("nan")], "nan for completion 1")],
)
def test_bad_results(result, message):
    with pytest.raises(UserError, match=message):
        custom.evaluate(lambda prompts, completions: result, ["p", "p"], ["a", "b"])


def test_bad_columns():
    with pytest.raises(UserError, match="column 'wanted' has 1 values for 2"):
        custom.evaluate(length_of, ["p", "p"], ["a", "b"], {"wanted": [1]})
