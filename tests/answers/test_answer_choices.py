"""Which choices an answer names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis_jax.answers.choices import index_of, indices_of

SHAPES = ("a square", "a circle", "a star")
PRICES = ("8.75", "8.79", "8.75")


@pytest.mark.parametrize(
    "said",
    [
        "B", "b", "(B)", "[B]", "{B}", "B.", "B)", "B:", "Ｂ", "（B）", "ⓑ", "**B**", "*B*", "`B`", '"B"', "$B$", "<B>",
        "b.\n",
        r"\boxed{B}", r"\boxed{B}.", r"\boxed{\text{B}}", r"\fbox{B}", r"\text{(B)}", r"\textbf{B}", r"\mathrm{B}",
        r"\boxed{B. a circle}",
        "B - a circle", "B – a circle", "B — a circle", "B: a circle", "B. a circle", "B) A  Circle.", "(B) a circle",
        "(B)a circle",
        "B.a circle", "B, a circle", "B a circle", "**B.** a circle", "**B. a circle**", 'B. "a circle"',
        "a circle (B)",
        "Option B", "option (B)", "Choice B: a circle", "Answer: B", "answer B", "**Answer:** B", "**Answer: B**",
        "Final answer: **B**",
        "The answer is B", "The answer is B.", "The correct option is (B)", "The correct answer is: B. a circle",
        r"The answer is \boxed{B}.",
        "B is correct", "Option B is the right answer", "Letter B", "B (a circle)", "B -> a circle", "B = a circle",
        "B | a circle",
        "(b.)", "【B】", "B、", "### B", "<answer>B</answer>",
        "a circle", "A circle.", "**a circle**", "“a circle”", "a\u00a0circle",
    ],
)  # fmt: skip
def test_b_however_it_is_written(said):
    assert index_of(said, SHAPES) == 1 and indices_of(said, SHAPES) == {1}


@pytest.mark.parametrize(
    "said",
    [
        "B. a square", "B) a square", "(B) not a circle", "not a circle", "circle", "E", "", " ", ".", "Because",
        "the circle is not B", "I think B",
        "B. a circle or a star", "B (a star)", "B is not correct", "It is not B", "B = a star", "Z", "1", "2", "BB",
        "BAD", "B, E", "Bee", "B B",
    ],
)  # fmt: skip
def test_what_names_no_choice(said):
    assert index_of(said, SHAPES) is None and indices_of(said, SHAPES) == frozenset()


@pytest.mark.parametrize(
    "said",
    [
        "B, C", "BC", "CB", "B and C", "B & C", "B;C", "B/C", "B C", "(B), (C)", "(B)(C)", "b, c", "B, and C",
        "B or C", "**B, C**", r"\boxed{B, C}",
        "B,C.", "Answer: B, C", '["B", "C"]', "['B', 'C']", ["B", "C"], ("b", "a star"), "B. a circle, C. a star",
        "B. a circle\nC. a star",
        "a circle; a star", "a circle, a star",
    ],
)  # fmt: skip
def test_several_choices(said):
    assert indices_of(said, SHAPES) == {1, 2}
    assert isinstance(said, list | tuple) or index_of(said, SHAPES) is None


def test_equal_options_are_named_together():
    assert index_of("C", PRICES) == 2 and index_of("8.75", PRICES) == 0
    assert indices_of("C", PRICES) == indices_of("8.75", PRICES) == indices_of("A", PRICES) == {0, 2}
    assert indices_of("8.79", PRICES) == {1} and indices_of("8.8", PRICES) == frozenset()


def test_a_number_names_the_option_of_its_value():
    assert index_of("$8.790", PRICES) == 1 and index_of(r"\frac{1}{2}", ("0.25", "0.5")) == 1
    assert index_of("5", ("5 cm", "6 cm")) == 0 and index_of("5 mm", ("5 cm", "6 cm")) is None
    assert index_of("0.5", ("1/2", "50%")) is None  # both, and their texts differ


def test_a_letter_wins_over_a_text():
    assert index_of("B", ("B", "C", "A")) == 1 and index_of("a", ("an a", "a b")) == 0


def test_texts_with_commas_and_words_that_are_no_letters():
    assert index_of("red, then blue", ("blue, then red", "red, then blue")) == 1
    assert index_of("BAD", ("GOOD", "BAD")) == 1 and index_of("A dog", ("A cat", "A dog")) == 1
    assert indices_of(["B", "fish"], SHAPES) == frozenset() and indices_of([], SHAPES) == frozenset()


def test_without_choices_any_letter_counts():
    assert index_of("(D)", ()) == 3 and index_of("dog", ()) is None and indices_of("A, D", ()) == {0, 3}


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("ABCabc.,:;()[]* \n-") | st.characters(), max_size=10), st.integers(0, 3))
def test_any_text_names_known_choices(said, count):
    shapes = SHAPES[:count]
    assert all(0 <= i < (count or 26) for i in indices_of(said, shapes))
    one = index_of(said, shapes)
    assert one is None or one in indices_of(said, shapes)
