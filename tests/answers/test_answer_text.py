"""What wraps an answer is taken off, and what looks alike is the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis_jax.answers import text


@pytest.mark.parametrize(
    "said",
    [
        "red", "Red", " red ", "red.", "red。", "**red**", "**red**.", "*red*", "__red__", '"red"', "“red”", "‘red’",
        "«red»",
        "„red“", "'red.'", "`red`", "`red`.", "```\nred\n```", "```text\nRed\n```", r"\boxed{red}", r"\boxed {red}",
        r"\fbox{red}",
        r"\boxed{\text{red}}", r"\text{Red}", r"\textbf{red}", r"\mathrm{red}", "$red$", "$$red$$", r"\(red\)",
        r"\[red\]",
        r"The answer is \boxed{red}.", "Answer: red", "answer:red", "**Answer:** red", "**Answer**: red",
        "Final answer: **red**",
        "The answer is: red", "My answer: 'red'", "ｒｅｄ", "re\u200bd", "\ufeffred", r"$\boxed{\text{red}}$", "red\n",
    ],
)  # fmt: skip
def test_red_however_it_is_written(said):
    assert text.same("red", said) and text.same(said, "red")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("dark red", "dark\u00a0red"), ("dark red", "Dark   Red"), ("café", "cafe\u0301"), ("don't", "don’t"),
        ("10-20", "10–20"),
        ("-5 K", "−5 K"), ("straße", "STRASSE"), ("1 1/2", "1½"), ("m^2", "m²"), ("50%", r"50\%"),
        ("$5 off", r"\$5 off"),
        ("file", "ﬁle"), ("٣ apples", "3 apples"), ("a...", "a…"), ("5'10\"", "5′10″"), ("red", "red,"),
        ("red", "## Red"), ("3 cm", r"3\text{ cm}"), ("3 cm", r"3\,cm"),
        ("x and y", "$x$ and $y$"),
    ],
)  # fmt: skip
def test_texts_that_look_alike(a, b):
    assert text.same(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("red", "light red"), ("red", "the answer is red"), ("m2", "m²"), ("5", "~5"), ("it is", "Yes, it is"),
        ("a", "ä"),
        ("5", r"\boxed{4} or \boxed{5}"), ("4", r"\boxed{4} or \boxed{5}"), (".", ""), ("red", ""), ("co-op", "coop"),
        ("a.b", "ab"),
    ],
)  # fmt: skip
def test_texts_that_differ(a, b):
    assert not text.same(a, b) and not text.same(b, a)


def test_case_and_inner_marks_stay_when_unwrapped():
    assert text.unwrap(r"\boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert text.unwrap("**Dark Red**") == "Dark Red"
    assert text.unwrap(r"\fbox{5}") == "5" and text.unwrap(r"\boxed {7}") == "7"
    assert text.unwrap(r"\boxed{\{1, 2\}}") == r"\{1, 2\}"  # an escaped brace closes nothing
    assert text.unwrap(r"first \boxed{1}, then \boxed{2}") == "first 1, then 2"
    assert (
        text.unwrap("$5 to $6") == "$5 to $6"
        and text.unwrap("...") == "..."
        and text.unwrap(r"\boxed{5") == r"\boxed{5"
    )


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("aB1.*_$\"'`\\(){}[] ~^½²−“”\u00a0\n") | st.characters(), max_size=12))
def test_any_text_has_one_key_and_is_itself(said):
    key = text.key(said)
    assert text.key(key) == key and text.same(said, said)
    assert bool(text.unwrap(said)) == bool(said.strip())


@pytest.mark.parametrize("piece", ["*", "\\boxed{", "(", "$", "\\text{", "`", '"', " ", "\\boxed{a}", "~5"])
def test_long_texts_end(piece):
    assert isinstance(text.key(piece * 3000), str)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("<b>red</b>", "red"),
        ("red<br>", "red"),
        ("Tom &amp; Jerry", "Tom & Jerry"),
        ("&quot;red&quot;", "red"),
        ("10 m<sup>2</sup>", "10 m^2"),
        ("red!", "red"),
        ("red！", "red"),
        ("[1,2,3]", "[1, 2, 3]"),
        ("(1,2)", "(1 , 2)"),
    ],
)
def test_markup_that_says_nothing(a, b):
    assert text.same(a, b)


@pytest.mark.parametrize(("a", "b"), [("5!", "5"), ("x!", "x"), ("<red>", "red"), ("AT&T", "ATT"), ("1,2", "1 2")])
def test_signs_that_say_something(a, b):
    assert not text.same(a, b)


@pytest.mark.parametrize(
    "listed", ["red, blue", "blue and red", "Red; Blue.", "[blue, red]", "1. red\n2. blue", "- red\n- blue", "红、blue"]
)
def test_parts_of_a_list(listed):
    assert text.items(listed) == ({"红", "blue"} if "红" in listed else {"red", "blue"})
