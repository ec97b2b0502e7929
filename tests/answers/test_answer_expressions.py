"""Expressions that mean the same, by math-verify, in any thread and within bounds."""

import signal
import subprocess
import sys
import threading

import pytest

from pixelis_jax.answers import expressions
from pixelis_jax.answers.expressions import digits, equal, looks_like_math


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        (r"\frac{1}{2}", r"\dfrac{1}{2}"), (r"\frac{1}{2}", r"\tfrac12"), (r"\frac{1}{2}", "0.5"),
        (r"\frac{1}{2}", "1/2"),
        (r"3\sqrt{2}", r"3 \sqrt{2}"), (r"3\sqrt{2}", r"3\sqrt2"), (r"3\sqrt{2}", "3√2"),
        (r"3\sqrt{2}", r"\(3\sqrt{2}\)"),
        (r"3\sqrt{2}", r"$3\sqrt{2}$."), (r"3\sqrt{2}", r"\boxed{3\sqrt{2}}"), (r"3\sqrt{2}", r"3\sqrt{2}\text{ cm}"),
        ("2π", r"2\pi"), ("x^2+1", "1 + x²"), ("2x+1", "1+2x"), ("y=2x+1", "2x+1"), (r"x \le 3", "x ≤ 3"),
        (r"\{1,2\}", r"\{2, 1\}"),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"), (r"2\sqrt{3}", r"\sqrt{12}"), (r"\infty", "∞"),
        ("2^{10}", "1024"),
        (r"\frac{x^2-1}{x-1}", "x+1"), ("red", "**Red**"), ("5", "5.0"), ("sqrt(2)", r"\sqrt{2}"),
        ("x^2+2x+1", "(x+1)^2"), ("x^{10}+1", "x**10 + 1"),
        (r"\sin x", r"\sin(x)"),
    ],
)  # fmt: skip
def test_equal_expressions(gold, said):
    assert equal(gold, said)


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        (r"2\pi", "6.28"), (r"\frac{1}{2}", r"\frac{1}{3}"), ("x", "y"), ("red", "der"), ("dark red", "red dark"),
        (r"3\sqrt{2}", "3"),
        ("3√2", "3"), ("3", "3√2"), ("9007199254740992", "9007199254740993"), ("x_1", "x_2"),
        (r"3\sqrt{2}", r"3\sqrt{2} or 4"),
        ("5", r"\boxed{4} or \boxed{5}"), (r"\pm 3", "3"), ("x^2", "2x"), ("x^2", ""), ("x^2", "}{"),
        ("x^2", "the square of x"), ("3x", "$x$ $3$ 3x"),
    ],
)  # fmt: skip
def test_unequal_expressions(gold, said):
    assert not equal(gold, said)


@pytest.mark.parametrize(
    "said",
    [
        "9^{9^{9}}", "9^9^9^9", "9**9**9", "x^{9^{9^9}}", "9^{{9}^{9}}", "9^{-9^9}", "10000000!", "(10^9)!", "9!!!!",
        r"\binom{99999999}{44444444}",
        r"\sum_{n=1}^{100000000} n", "2^{100000}", "e^{e^{e^{e^{e}}}}", r"9^{9\cdot 9\cdot 9\cdot 9\cdot 9}",
        "x" * 500, "\\frac{" * 80, "{" * 300,
        "((" * 150, "x^{" * 100,
    ],
)  # fmt: skip
def test_what_would_take_for_ever_is_unequal(said):
    """Told before it is computed, or refused by the parser."""
    assert not equal("x^2+1", said)


def test_work_is_bounded_by_calls(monkeypatch, caplog):
    """What the library swallows can't undo it, and the next comparison works."""
    assert equal("x^2-8", "-8+x^2")  # loaded
    monkeypatch.setattr(expressions, "MAX_CALLS", 2000)
    expressions.failures.clear()
    for exponent in (5, 6):
        assert not equal("x^2-7", f"(x+7)^{exponent}")
    assert expressions.failures == {"takes too long": 2} and sys.getprofile() is None
    assert len([r for r in caplog.records if "takes too long" in r.getMessage()]) == 1
    monkeypatch.undo()
    assert equal("x^2-7", "-7 + x^2")


def test_an_error_in_the_library_is_unequal_and_counted(monkeypatch):
    import math_verify

    def fail(*args, **kwargs):
        raise RuntimeError("no")

    monkeypatch.setattr(math_verify, "verify", fail)
    expressions.failures.clear()
    assert not equal("x^2+11", "11+x^2+0") and expressions.failures == {"RuntimeError in math-verify": 1}


def test_it_works_in_threads_and_sets_no_alarm(monkeypatch):
    monkeypatch.setattr(signal, "alarm", lambda seconds: pytest.fail("an alarm"))
    monkeypatch.setattr(signal, "signal", lambda *args: pytest.fail("a handler"))
    found = []
    threads = [threading.Thread(target=lambda i=i: found.append(equal(f"x^2+{i}", f"{i}+x^2"))) for i in range(50, 54)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_digits_by_hand():
    assert digits("10^{2}") == pytest.approx(3.12, abs=0.01)  # log10(10 + 1) times 2 + 1
    assert digits("2^{1000}") < 500
    assert digits("9^{9^9}") > 1e8 and digits("e^{x^2}") < 20 and digits(r"\frac{1}{2}") < 2


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{x}{2}",
        r"\frac{\pi}{2}",
        "3√2",
        r"3\sqrt{2}",
        "x^2",
        "2x+1",
        "y=2x+1",
        "2π",
        "$x^2$",
        r"\boxed{3\sqrt2}",
        r"x\le 3",
        "(1,\\infty)",
        "x ∈ [0,1]",
    ],
)
def test_mathematics(text):
    assert looks_like_math(text)


@pytest.mark.parametrize(
    "text",
    [
        "red", "dark red", "5", "50%", "$5", "12 cm", "5 m²", "1/2", "A-12", "3/4/2020", "10:30", "B2", "555-1234",
        "x", "2-3", "12b", "STOP", "C++",
        "#1", "A+", "1-800-555", "http://x.y", "3x4", "3×4", "A/B", "[1, 2, 3, 4]", "^_^", "", "The area is x^2",
        "x" * 5000, r"\text{red}", r"90^\circ",
    ],
)  # fmt: skip
def test_no_mathematics(text):
    assert not looks_like_math(text)


def test_the_library_is_loaded_late():
    code = (
        "import sys; from pixelis_jax.answers import kinds; kinds.agree('red', 'blue'); print('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
