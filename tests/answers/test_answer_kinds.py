"""Of what kind an answer is."""

import pytest

from pixelis_jax.answers.kinds import agree, kind_of


@pytest.mark.parametrize(
    ("answer", "options", "kind"),
    [
        ("red", (), "exact"), ("5", (), "numeric"), (r"\$1,234.00", (), "numeric"), (r"\frac{1}{2}", (), "numeric"),
        ("12 cm", (), "numeric"),
        (r"3\sqrt{2}", (), "math"), ("x^2", (), "math"), ("[31.25, 60.5, 250.75, 410.5]", (), "iou"),
        ("1, 2, 3, 4", (), "exact"),
        ("<|box_start|>(120,340),(410,655)<|box_end|>", (), "iou"), ('{"bbox_2d": [1, 2, 3, 4]}', (), "iou"),
        ("[4, 3, 2, 1]", (), "exact"),
        ("B", ("red", "blue"), "choice"), ("blue", ("red", "blue"), "choice"),
        ("BC", ("red", "blue", "green"), "choice"),
        ("C", ("red", "blue"), "exact"), ("2,5", (), "exact"), ("three", (), "exact"), ("2020-01-02", (), "exact"),
    ],
)  # fmt: skip
def test_kinds(answer, options, kind):
    assert kind_of(answer, options) == kind


@pytest.mark.parametrize(
    ("a", "b", "options", "same"),
    [
        ("red", "“Red”", (), True), ("red", "blue", (), False), ("5", "5.0", (), True), ("5", "6", (), False),
        ("B", "blue", ("red", "blue"), True),
        ("B", "A", ("red", "blue"), False), ("[1,2,3,4]", "(1, 2, 3, 4)", (), True),
        ("[1,2,3,4]", "[1,2,3,5]", (), False),
        (r"3\sqrt{2}", "3√2", (), True), ("A", "C", ("8.75", "8.79", "8.75"), True), ("E", "e", ("red", "blue"), True),
        ("E", "B", ("red", "blue"), False),
    ],
)  # fmt: skip
def test_agreement(a, b, options, same):
    assert agree(a, b, options) == same == agree(b, a, options)
