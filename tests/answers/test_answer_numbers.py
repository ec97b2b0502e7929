"""Numbers as people write them, exactly."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis_jax.answers import numbers
from pixelis_jax.answers.numbers import Number, parse


@pytest.mark.parametrize(
    ("text", "value", "percent", "unit"),
    [
        ("5", 5, False, ""), ("+5", 5, False, ""), ("5.", 5, False, ""), ("5.0", 5, False, ""),
        (".5", "1/2", False, ""),
        ("-5", -5, False, ""), ("−5", -5, False, ""), ("- 5", -5, False, ""), ("–5", -5, False, ""),
        ("５", 5, False, ""),
        ("1,234", 1234, False, ""), ("1{,}234", 1234, False, ""), ("12 345", 12345, False, ""),
        ("1,234,567.5", "2469135/2", False, ""),
        ("$1,234.00", 1234, False, "$"), (r"\$1,234.00", 1234, False, "$"), ("-$5", -5, False, "$"),
        ("$-5", -5, False, "$"),
        ("€5", 5, False, "€"), ("5 €", 5, False, "€"), ("5 euros", 5, False, "€"), ("USD 5", 5, False, "$"),
        ("5 dollars", 5, False, "$"),
        ("US$5", 5, False, "$"), ("£3.50", "7/2", False, "£"), ("50 cents", 50, False, "¢"),
        ("12 cm", 12, False, "cm"), ("12cm", 12, False, "cm"), ("12 centimeters", 12, False, "cm"),
        (r"12\text{ cm}", 12, False, "cm"),
        ("$12$ cm", 12, False, "cm"), ("$12\\,\\mathrm{cm}$", 12, False, "cm"), ("5 m²", 5, False, "m^2"),
        ("5 m^2", 5, False, "m^2"),
        ("5 square meters", 5, False, "m^2"), ("90°", 90, False, "°"), (r"90^\circ", 90, False, "°"),
        (r"90^{\circ}", 90, False, "°"),
        ("90 degrees", 90, False, "°"), ("20 °C", 20, False, "°c"), ("60 km/h", 60, False, "km/h"),
        ("60 kilometers per hour", 60, False, "km/h"), ("25%", 25, True, ""), ("25 %", 25, True, ""),
        (r"25\%", 25, True, ""),
        ("25 percent", 25, True, ""), ("25 per cent", 25, True, ""), ("25％", 25, True, ""),
        ("1/2", "1/2", False, ""), ("1 / 2", "1/2", False, ""), ("-1/2", "-1/2", False, ""),
        (r"\frac{1}{2}", "1/2", False, ""),
        (r"\dfrac{1}{2}", "1/2", False, ""), (r"\frac12", "1/2", False, ""), (r"-\frac{1}{2}", "-1/2", False, ""),
        ("½", "1/2", False, ""),
        ("1½", "3/2", False, ""), ("1 1/2", "3/2", False, ""), (r"1\frac{1}{2}", "3/2", False, ""),
        (r"$\frac{3}{4}$", "3/4", False, ""),
        ("1e2", 100, False, ""), ("3 × 10^5", 300000, False, ""), (r"3 \times 10^{5}", 300000, False, ""),
        ("2.5x10^-2", "1/40", False, ""),
        ("10^5", 100000, False, ""), ("3×10⁵", 300000, False, ""), (r"\boxed{5}", 5, False, ""),
        (r"\fbox{5}", 5, False, ""),
        ("**5**", 5, False, ""), ("Answer: 5", 5, False, ""), ("x = 5", 5, False, ""), ("= 5", 5, False, ""),
        ("'5'", 5, False, ""),
        ("9007199254740993", 9007199254740993, False, ""), ("٣", 3, False, ""),
    ],
)  # fmt: skip
def test_one_number(text, value, percent, unit):
    assert parse(text) == Number(Fraction(value), percent, unit)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ".", "-", "three", "about 5",
        "5 foo", "5 x 5", "五", "~5", "≈ 5", "2,5", "12,34", "1,234,56", "4 cats", "5 million", "5M",
        "5k", "3:2", "1/0",
        "3/4/2020", "5-6", "5 to 6", "5 or 6", "1 2", "nan", "inf", "1e999", "1e99999999999", "5%%", "$5 cm", "5% cm",
        "Yes, it is",
        "5; 6", "2^3", "A5", "5A1", "v1.2.3", "1" * 301, "a" * 5000, "½½", "²", "x = y", "5 5/0", "0/0",
    ],
)  # fmt: skip
def test_what_is_surely_no_number(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    ("gold", "said", "right"),
    [
        ("12 inches", '12"', True), ("2 moles", "2 mol", True), ("20 °C", "20 degree celsius", True),
        ("3只", "3", True), ("3", "3个", True), ("5 m", "5米", True), ("5米", "5 km", False), ("5公斤", "5 kg", True),
        ("5", "<b>5</b>", True),
        ("5", r"\boxed{5}", True), ("1234", "$1,234.00", True), ("12", "12 cm", True), ("12 cm", "12", True),
        ("12 cm", "12 mm", False),
        ("12 cm", "120 mm", False), ("12 cm", "12 centimetres", True), ("25%", "25 percent", True),
        ("0.5", "1/2", True),
        ("-5", "−5", True), ("9007199254740993", "9007199254740992", False),
        ("9007199254740993", "9007199254740993.0", True),
        ("0.1", "0.1000001", False), ("1/3", "0.3333333333333333", True), ("1/3", "0.333", False),
        ("0.30000000000000004", "0.3", True),
        ("50%", "0.5", True), ("50%", "50", True), ("50%", "5", False), ("$5", "€5", False), ("1e300", "1e300", True),
        ("1000000000000.5", "1000000000001.5", False),
    ],
)  # fmt: skip
def test_equal(gold, said, right):
    assert numbers.equal(parse(said), parse(gold)) == right


def test_the_tolerance_is_met_exactly():
    assert numbers.equal(parse("0.4"), parse("0.3"), tolerance=0.1)
    assert not numbers.equal(parse("0.41"), parse("0.3"), tolerance=0.1)
    assert numbers.equal(parse("9007199254740994"), parse("9007199254740993"), tolerance=1)


@settings(max_examples=60, deadline=None)
@given(st.integers(-(10**30), 10**30))
def test_whole_numbers_are_read_exactly_with_commas_too(n):
    for written in (str(n), f"{n:,}", f"**{n}**", f"{n}.0", f"\\boxed{{{n:,}}}"):
        assert parse(written) == Number(Fraction(n))
    assert not numbers.equal(parse(str(n + 1)), parse(str(n)))


@settings(max_examples=60, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False))
def test_floats_as_python_writes_them(x):
    assert parse(repr(x)).value == Fraction(repr(x))


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("0123456789.,/-+e%$ cm^{}\\") | st.characters(), max_size=12))
def test_any_text_is_a_number_or_none(said):
    found = parse(said)
    assert found is None or numbers.equal(found, found)
