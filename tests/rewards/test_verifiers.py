"""The verifier ladder, by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis_jax.answers.boxes import iou as box_iou
from pixelis_jax.rewards.verifiers import VERIFIERS, agree, anls_score, levenshtein, verify
from pixelis_jax.types import Task, UserError

SHAPES = ("a square", "a circle", "a star")


def task(kind, gold, **fields):
    return Task(task_id="t1", index=0, task_type="x", question="", images=(), answer=gold, answer_type=kind, **fields)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("B", 1), ("b", 1), ("(B)", 1), ("B.", 1), ("b) a dog", 1), ("B: A  dog.", 1), ("option B", 1), ("a dog", 1),
        ("A", 0), ("a cat", 0), ("B) a cat", 0), ("B or C", 0), ("not a dog", 0), ("E", 0), ("", 0), (None, 0),
    ],
)  # fmt: skip
def test_choice(answer, score):
    choices = ("a cat", "a dog", "a cow")
    for gold in ("B", "a dog"):
        assert verify(task("choice", gold, choices=choices), answer) == score


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    [
        ("Blue", " blue ", 1), ("Blue", "blue.", 1), ("Blue", '"Blue"', 1), ("dark  blue", "Dark blue", 1),
        ("blue", "light blue", 0), ("blue", "the answer is blue", 0), ("blue", "", 0), (".", "", 0), (".", ".", 1),
    ],
)  # fmt: skip
def test_exact(gold, answer, score):
    assert verify(task("exact", gold), answer) == score


@pytest.mark.parametrize(
    ("gold", "answer", "tolerance", "score"),
    [
        ("4", "4", 0, 1), ("4", "4.0", 0, 1), ("4", "4.", 0, 1), ("4", "5", 0, 0), ("4", "4 cats", 0, 0),
        ("4", "-4", 0, 0),
        ("4", "five", 0, 0), ("1,234", "1234", 0, 1), ("1234", "1,234", 0, 1), ("1234", "12,34", 0, 0),
        ("0.3", "0.4", 0.1, 1),
        ("0.3", "0.41", 0.1, 0), ("50%", "50 %", 0, 1), ("50%", "0.5", 0, 1), ("0.5", "50%", 0, 1), ("50", "50%", 0, 1),
        ("50%", "5", 0, 0), ("4", "nan", 1e9, 0), ("4", "1e999", 1e9, 0), ("4", "4; 5", 0, 0), ("100", "1e2", 0, 1),
    ],
)  # fmt: skip
def test_numeric(gold, answer, tolerance, score):
    assert verify(task("numeric", gold, tolerance=tolerance), answer) == score


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    [
        ("100", "105", 1), ("100", "95", 1), ("100", "105.1", 0), ("0.1", "0.105", 1), ("0", "0", 1), ("0", "0.001", 0),
        ("-100", "-104", 1), ("-100", "100", 0), ("1,000", "1040", 1), ("20%", "21%", 1),
        ("20%", "20.9", 1), ("Red", "red", 1),
        ("Red", "rad", 0),
    ],
)  # fmt: skip
def test_relaxed(gold, answer, score):
    assert verify(task("relaxed", gold), answer) == score


def test_anls_by_hand():
    assert anls_score("hello", "hello") == 1
    assert anls_score("  HELLO  World ", "hello world") == 1
    assert anls_score("hallo", "hello") == pytest.approx(0.8)
    assert anls_score("ab", "ac") == 0  # distance exactly .5 gives nothing
    assert anls_score("", "") == 1 and anls_score("", "a") == 0
    assert anls_score("x   y", "x y z w") == pytest.approx(0, abs=1e-9)  # spaces collapse before the lengths are taken
    assert anls_score("12345678901", "1234567890") == pytest.approx(10 / 11)


def test_anls_takes_the_best_gold_and_may_be_cut_to_right_or_wrong():
    golds = {"answers": ("hallo", "zzz")}
    assert verify(task("anls", "bye", metadata=golds), "hello") == pytest.approx(0.8)
    assert verify(task("anls", "hello", tolerance=0.8), "hallo") == 1
    assert verify(task("anls", "hello", tolerance=0.9), "hallo") == 0


@settings(max_examples=40, deadline=None)
@given(st.text("ab c", max_size=7), st.text("ab c", max_size=7))
def test_levenshtein_is_a_distance(a, b):
    assert levenshtein(a, b) == levenshtein(b, a) <= max(len(a), len(b))
    assert (levenshtein(a, b) == 0) == (a == b)
    assert levenshtein(a, b) >= abs(len(a) - len(b))


def test_levenshtein_by_hand():
    assert levenshtein("kitten", "sitting") == 3


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("[0, 0, 10, 10]", 1), ("0,0,10,10", 1), ("[5, 0, 15, 10]", 1 / 3), ("[20, 20, 30, 30]", 0),
        ("[10, 0, 0, 10]", 0),
        ("[0, 0, 10]", 0), ("[0, 0, 10, 10, 5]", 0), ("[0, 0, 10, x]", 0), ("[0,0,10,nan]", 0), ("the box", 0), ("", 0),
    ],
)  # fmt: skip
def test_iou(answer, score):
    assert verify(task("iou", "[0, 0, 10, 10]"), answer) == pytest.approx(score)
    assert verify(task("iou", "[0, 0, 10, 10]", tolerance=0.5), answer) == (score >= 0.5)


def test_touching_boxes_share_nothing():
    assert box_iou((0, 0, 1, 1), (1, 0, 2, 1)) == 0


@pytest.mark.parametrize(
    ("kind", "gold", "fields", "said", "score"),
    [
        ("exact", "red", {}, "**red**", 1), ("exact", "red", {}, "“red”", 1),
        ("exact", "dark red", {}, "dark\u00a0red", 1),
        ("exact", "café", {}, "cafe\u0301", 1), ("exact", r"\fbox{5}", {}, "5", 1),
        ("exact", "red", {}, r"\boxed{\text{red}}", 1),
        ("numeric", "5", {}, r"\boxed{5}", 1), ("numeric", "1234", {}, "$1,234.00", 1),
        ("numeric", "12", {}, "12 cm", 1),
        ("numeric", "25%", {}, "25 percent", 1), ("numeric", "0.5", {}, "1/2", 1), ("numeric", "-5", {}, "−5", 1),
        ("numeric", "9007199254740993", {}, "9007199254740992", 0), ("numeric", r"\$1,234.00", {}, "1234", 1),
        ("numeric", "12 cm", {}, "12 mm", 0), ("relaxed", "$100", {}, "105 dollars", 1),
        ("relaxed", "100 cm", {}, "100 mm", 0),
        ("numeric", r"\frac{1}{2}", {}, "0.5", 1), ("anls", "STOP", {}, "**stop**", 1),
        ("math", r"\frac{1}{2}", {}, r"\dfrac{1}{2}", 1), ("math", r"3\sqrt{2}", {}, r"3 \sqrt{2}", 1),
        ("math", "x^2", {}, "$x^2$", 1),
        ("math", "x^2", {}, "x^3", 0), ("math", "red", {}, "Red.", 1),
        ("exact", r"\frac{1}{2}", {}, r"\dfrac{1}{2}", 0),
        ("choice", "B", {"choices": SHAPES}, r"\boxed{B}", 1), ("choice", "B", {"choices": SHAPES}, "B - a circle", 1),
        ("choice", "B", {"choices": SHAPES}, "（B）", 1), ("choice", "B", {"choices": SHAPES}, "B. a square", 0),
        ("choice", "C", {"choices": ("8.75", "8.79", "8.75")}, "8.75", 1),
        ("choice", "C", {"choices": ("8.75", "8.79", "8.75")}, "A", 1),
        ("choice", "C", {"choices": ("8.75", "8.79", "8.75")}, "8.79", 0),
        ("iou", "[10, 20, 60, 70]", {}, "(10, 20, 60, 70)", 1),
        ("iou", "[10, 20, 60, 70]", {}, '{"bbox_2d": [10, 20, 60, 70]}', 1),
        ("iou", "<|box_start|>(10,20),(60,70)<|box_end|>", {}, "[[10, 20, 60, 70]]", 1),
        # By rule: a number is written in digits, without a hedge, a decimal comma or a sentence around it.
        ("numeric", "3", {}, "three", 0), ("numeric", "5", {}, "about 5", 0), ("numeric", "2.5", {}, "2,5", 0),
        ("exact", "yes", {}, "Yes, it is", 0), ("numeric", "5000000", {}, "5 million", 0),
        ("numeric", "5", {}, "The answer is 5", 0),
    ],
)  # fmt: skip
def test_what_a_policy_says(kind, gold, fields, said, score):
    """The table "How answers are compared" in docs/cota.md."""
    asked = task(kind, gold, **fields)
    assert verify(asked, said) == score and verify(asked, gold) == 1


@pytest.mark.parametrize(
    ("gold", "said", "score"),
    [
        ("5 mW", "5 MW", 0), ("5 MW", "5 mW", 0), ("5 MPa", "5 mPa", 0), ("5 mg", "5 Mg", 0), ("5 MHz", "5 mHz", 0),
        ("5 mm", "5 Mm", 0), ("5 ms", "5 Ms", 0), ("5 GB", "5 Gb", 0), ("5 mm^2", "5 Mm²", 0), ("5 mg/l", "5 Mg/L", 0),
        ("5 MW", "5 megawatts", 1), ("5 mW", "5 megawatts", 0), ("5 mL", "5 ml", 1), ("5 mPa", "5 mpa", 1),
        ("5 cm", "5 CM", 1), ("5 kg", "5 Kg", 1), ("5 km", "5 KM", 1), ("5 px", "5 PX", 1), ("5 hours", "5 Hours", 1),
        ("5 HOURS", "5 h", 1), ("5 mm", "5 MM", 1), ("5 mg", "5 MG", 1), ("5 MHz", "5 mhz", 1), ("5 kB", "5 KB", 1),
        ("5 usd", "USD 5", 1), ("5%", "5 PERCENT", 1), ("100", "1E2", 1), ("20 °C", "20 °c", 1), ("5", "X = 5", 1),
        ("60 km/h", "60 KM PER HOUR", 1), ("5 m^2", "5 Square Meters", 1), ("300000", "3 X 10^5", 1),
    ],
)  # fmt: skip
def test_case_of_a_unit_counts_where_it_decides(gold, said, score):
    for kind in ("numeric", "relaxed", "math"):
        assert verify(task(kind, gold), said) == score
    assert agree(task("numeric", gold), gold, said) == score


@pytest.mark.parametrize(
    ("gold", "said", "score"),
    [
        ("5", "(5)", 1), ("5", "{5}", 1), ("5", "(6)", 0), ("-5", "(-5)", 1), ("5 cm", "(5 cm)", 1), ("5", "(5", 0),
        ("5 cm", "**5** cm", 1), ("5 cm", "**5** mm", 0), ("5 lb", "5 pounds", 1), ("£5", "5 pounds", 1),
        ("£5", "5 lb", 0), ("5 kg", "5 pounds", 0), ("$5", "5 pounds", 0), ("5 pounds", "5 lbs", 1),
        ("5 mph", "5 miles per hour", 1), ("5 kph", "5 km/h", 1), ("5 mph", "5 km/h", 0), ("5元", "5 yuan", 1),
        ("5 yuan", "5元", 1), ("5元", "$5", 0), ("5 K", "5 kelvin", 1), ("5 K", "5 °C", 0), ("5000", "5 K", 0),
        ("5 Ω", "5 ohms", 1), ("5 Ω", r"$5\,\Omega$", 1), ("5 MΩ", "5 mΩ", 0), ("5 kΩ", "5 Ω", 0), ("5 μm", "5 um", 1),
        ("5 um", "5 µm", 1), ("5 μm", r"5 \mu m", 1), ("5 μm", "5 mm", 0),
    ],
)  # fmt: skip
def test_units_and_marks_around_numbers(gold, said, score):
    assert verify(task("numeric", gold), said) == score == verify(task("relaxed", gold), said)


@pytest.mark.parametrize("said", ["5K", "5k", "5 k", "5 M", "((5", "(5) (6)", "()"])
def test_letters_of_size_and_half_brackets_are_no_number(said):
    assert verify(task("numeric", "5"), said) == 0


def test_choices_that_differ_in_the_case_of_a_unit():
    asked = task("choice", "A", choices=("5 mW", "5 MW"))
    assert [verify(asked, said) for said in ("A", "5 mW", "B", "5 MW")] == [1, 1, 0, 0]
    assert [verify(asked, f"The answer is {said}.") for said in ("5 mW", "5 MW")] == [1, 0]


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("The answer is blue.", 1), ("So, the answer is B.", 1), ("Therefore, the answer is B.", 1), ("B!", 1),
        ("Thus the correct answer is: B. blue", 1), ("So the answer is blue", 1), ("**The answer is B!**", 1),
        ("答案：B", 1), ("答案是B", 1), ("选B", 1), ("选项B", 1), ("B、blue", 1), ("正确答案是B。", 1),
        ("因此，答案为 B", 1), ("答案是blue", 1), ("答案：B、blue", 1),
        ("The answer is red.", 0), ("So, the answer is A.", 0), ("B is not correct", 0), ("not B", 0), ("A or B", 0),
        ("the answer is not B", 0), ("So, the answer is not B", 0), ("The answer is not blue.", 0), ("A!", 0),
        ("The answer is A or B", 0), ("B、red", 0), ("答案不是B", 0), ("不选B", 0), ("选项B不正确", 0), ("答案是A", 0),
        ("选A、B", 0), ("So B is wrong", 0), ("The answer is", 0),
        ("The answer is " * 2000, 0), ("Option 2", 0),
    ],
)  # fmt: skip
def test_a_choice_in_a_short_sentence(said, score):
    assert verify(task("choice", "B", choices=("red", "blue")), said) == score


@pytest.mark.parametrize(
    ("gold", "more"), [("B, C", ()), ("BC", ()), ("B", ("C",)), ('["B", "C"]', ()), ("a circle", ("a star",))]
)
def test_several_accepted_choices(gold, more):
    """Whoever names one of them or more, and no other, is right."""
    asked = task("choice", gold, choices=SHAPES, metadata={"answers": more})
    assert [verify(asked, said) for said in ("B", "C", "B, C", "BC", "a star", gold)] == [1] * 6
    assert [verify(asked, said) for said in ("A", "A, B", "ABC", "B, D", "")] == [0] * 5


def test_every_gold_scores_one():
    cases = [
        ("choice", "a cat", ("a cat",)),
        ("exact", "X", ()),
        ("numeric", "7%", ()),
        ("relaxed", "0", ()),
        ("anls", "", ()),
    ]
    for kind, gold, choices in (*cases, ("iou", "[1,2,3,4]", ())):
        assert verify(task(kind, gold, choices=choices), gold) == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (task("exakt", "x"), "task t1: answer_type 'exakt' is unknown; use exact"),
        (task("numeric", "many"), "answer 'many' is not a number"),
        (task("iou", "[3,3,1,1]"), "is not a box"),
        (task("choice", "a fish", choices=("a cat", "a dog")), "names none of its choices"),
    ],
)
def test_bad_tasks_are_named(bad, message):
    with pytest.raises(UserError, match="t1") as error:
        verify(bad, "1")
    assert message in str(error.value) and "\n" not in str(error.value)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12), st.sampled_from([*VERIFIERS]))
def test_any_text_gives_a_score_and_no_error(text, kind):
    gold = "[1,2,3,4]" if kind == "iou" else "7" if kind != "choice" else "a"
    assert 0 <= verify(task(kind, gold, choices=("a", "b")), text) <= 1
