r"""Numbers as people write them: `1,234`, `$5`, `12 cm`, `25 percent`, `1/2`, `\frac{1}{2}`, `3 \times 10^5`.

Values are exact fractions, so that 9007199254740992 is not 9007199254740993. What is not surely one number is none:
words ("three"), hedges ("about 5"), a comma that is no thousands separator ("2,5"), counted things ("4 cats").
"""

import dataclasses
import re
from fractions import Fraction

from pixelis_jax.answers import text as texts

MAX_CHARACTERS = 300
MAX_EXPONENT = 308
SLACK, MOST_SLACK = Fraction(1, 10**9), Fraction(1, 10**3)  # relative, and at most: .3333333333 is a third

# A unit and its other names, in any case. A plural s is taken off before a look-up.
_UNITS = """
mm millimeter millimetre 毫米|Mm megameter megametre|cm centimeter centimetre 厘米 公分|dm decimeter decimetre
m meter metre 米|km kilometer kilometre 千米 公里|in inch inches "|ft foot feet '|yd yard|mi mile|mg milligram
Mg megagram|g gram 克|kg kilogram kilo 千克 公斤|t ton tonne 吨
oz ounce|lb|pound|st stone|mL milliliter millilitre 毫升
ML megaliter megalitre|cl|dl|l liter litre 升
gal gallon|ms millisecond|Ms megasecond|s sec second 秒|min minute 分钟
h hr hour 小时|day 天|week 周|month
year yr 年 岁|°c c celsius °celsius 摄氏度|°f f fahrenheit °fahrenheit|° deg degree 度
rad radian|px pixel|dpi|ppi|db decibel|hz hertz|khz kilohertz|mHz millihertz|MHz megahertz|ghz gigahertz|w watt
kw kilowatt|mW milliwatt|MW megawatt|kwh|wh|v volt|kv|mV millivolt|MV megavolt|mA milliampere milliamp|MA megaampere
amp ampere|n newton|kn|j joule|kj|mJ millijoule|MJ megajoule|pa pascal|kpa|mPa millipascal|MPa megapascal|bar
cal calorie|kcal kilocalorie|mol mole|byte|KB kilobyte|MB megabyte|GB gigabyte|TB terabyte|Kb kilobit|Mb megabit
Gb gigabit|Tb terabit|mi/h mph|km/h kph kmh|rpm|ppm|ac acre|ha hectare|kelvin|Ω ohm|kΩ kiloohm kilohm|mΩ milliohm
MΩ megaohm megohm|um μm micrometer micrometre micron|us μs microsecond|ug μg microgram|m^2 sqm|ft^2 sqft
""".replace("\n", "|")
_CURRENCIES = (
    "$ us$ usd dollar|€ eur euro|£ gbp|¥ jpy yen|cny rmb yuan 元|₹ inr rupee|₩ krw won|₽ rub ruble|chf franc|¢ cent"
)


def _table(lines: str) -> dict[str, str]:
    return {name.casefold(): group.split()[0] for group in lines.split("|") for name in group.split()}


UNITS = _table(_UNITS)
CURRENCIES = _table(_CURRENCIES)
# What Chinese puts between a number and what is counted: no unit.
COUNTERS = frozenset("个只条辆本张头匹名位棵朵座台件枚块支把双对群颗人次层间根片套架艘艇")
_NAMESAKES = ({"pound", "£"}, {"pound", "lb"})  # "5 pounds" is either
# What follows m (milli) or M (mega), where that letter's case counts; the case of the others never does.
_PREFIXED = {name.casefold(): name for name in "m g s L W Wh V A J N Pa Hz bar Ω".split()}
_CARELESS = {"MM": "mm", "MG": "mg", "MS": "ms", "mhz": "MHz", "K": "kelvin"}  # as they stand: no other unit is meant
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*(-?[\d.,]+)\s*\}\s*\{\s*([\d.,]+)\s*\}|(\d)\s*(\d)(?!\d))")
_POWER = re.compile(
    r"(?:^|\s*(?:\\times|\\cdot|×|·|\*|(?<=[\d\s])x(?=[\d\s]))\s*)10\s*\^\s*(?:\{\s*([+-]?\d+)\s*\}|([+-]?\d+))",
    re.IGNORECASE,
)
_NAMED = re.compile(r"^(?:[a-z]\s*)?=\s*", re.IGNORECASE)
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|\\degree\b|\\circ\b")
_GREEK = re.compile(r"\\(mu|Omega)\b\s*")
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)?(?:\.\d*)?"
_NUMBER = re.compile(
    r"(?P<whole>\d+)\s+(?P<over>\d+)\s*/\s*(?P<under>\d+)"
    rf"|(?P<a>{_DIGITS})\s*/\s*(?P<b>{_DIGITS})"
    rf"|(?P<value>{_DIGITS})(?:e(?P<exponent>[+-]?\d+))?",
    re.ASCII | re.IGNORECASE,
)
_EMPHASISED = re.compile(r"^([*_]{1,2})([^*_]+)\1(?=\s)")  # "**5** cm"
_BRACKETED = re.compile(r"\(([^()]*)\)|\{([^{}]*)\}")
_PERCENT = re.compile(r"\s*(?:%|percent|per cent|pct\.?)", re.IGNORECASE)
_LARGE = re.compile(r"\d(?:\s*[MBGT]|K)\.?$")  # "5M" is five million to most, not five metres; "5 K" is kelvin


@dataclasses.dataclass(frozen=True)
class Number:
    """`value` as it is written: 25 of "25 %". `unit` is one name for all its spellings, a currency too; "" without."""

    value: Fraction
    percent: bool = False
    unit: str = ""


def parse(text: str) -> Number | None:
    """The number that a text is, as a whole; None for all else."""
    if len(text) > MAX_CHARACTERS or not any(c.isnumeric() for c in text):
        return None
    bare = _EMPHASISED.sub(r"\2", texts.unwrap(texts.normalise_marks(text)))
    if inner := _BRACKETED.fullmatch(bare):
        bare = texts.unwrap(inner[1] or inner[2] or "")
    if _LARGE.search(bare):
        return None
    bare = _plain(bare)
    sign, bare = _sign(bare)
    currency, bare = _leading_currency(bare)
    if currency and not sign:
        sign, bare = _sign(bare)
    match = _NUMBER.match(bare)
    value = _value(match) if match else None
    if match is None or value is None:
        return None
    rest = bare[match.end() :]
    percent = _PERCENT.match(rest)
    rest = rest[percent.end() :] if percent else rest
    unit = unit_of(rest.strip())
    if unit is None or (currency and unit and unit != currency) or (percent and (unit or currency)):
        return None
    return Number(-value if sign == "-" else value, percent is not None, unit or currency)


def unit_of(text: str) -> str | None:
    """One name for a unit or a currency however it is spelt, products and quotients too; "" for "", None for others."""
    text = text.strip().removesuffix(".").strip()
    if not text or text in COUNTERS:
        return ""
    known = _unit(text)
    if known is not None:
        return known
    parts = re.split(r"\s*(/|\bper\b|·|\*)\s*", text, flags=re.IGNORECASE)
    names = [_unit(part) for part in parts[::2]]
    if len(names) < 2 or None in names:
        return None
    signs = ["/" if sign.lower() in ("/", "per") else "*" for sign in parts[1::2]]
    return "".join(f"{name}{sign}" for name, sign in zip(names, [*signs, ""], strict=True))


def equal(a: Number, b: Number, *, tolerance: float = 0.0) -> bool:
    """Whether |a - b| <= tolerance. Units must be the same where both have one; nothing is converted.

    Where one alone is a percentage, 50 and .5 both read as 50 %.
    """
    return any(within(p, g, tolerance=tolerance) for p, g in readings(a, b))


def readings(a: Number, b: Number) -> list[tuple[Fraction, Fraction]]:
    """(a, b) pairs of values to compare; none where their units differ."""
    if a.unit and b.unit and a.unit != b.unit and {a.unit, b.unit} not in _NAMESAKES:
        return []
    if a.percent == b.percent:
        return [(a.value, b.value)]
    return [(a.value, b.value), (a.value / 100, b.value) if a.percent else (a.value, b.value / 100)]


def within(a: Fraction, b: Fraction, *, tolerance: float) -> bool:
    """|a - b| <= tolerance, exactly in decimals; two whole numbers exactly, others up to what a float loses."""
    difference = abs(a - b)
    bound = Fraction(str(tolerance))
    if difference <= bound:
        return True
    if a.denominator == b.denominator == 1:
        return False
    return difference <= bound + min(SLACK * max(Fraction(1), abs(b)), MOST_SLACK)


def _plain(text: str) -> str:
    """LaTeX of numbers as plain text; then one form for signs, digits and spaces. Case stays."""
    text = _DEGREES.sub("°", text.replace("{,}", ","))
    text = _GREEK.sub(lambda m: "μ" if m[1] == "mu" else "Ω", text)
    text = _FRACTION.sub(lambda m: f" {m[1] or m[3]}/{m[2] or m[4]}", text)
    text = texts.normalise(text, fold=False)
    text = _NAMED.sub("", text)
    return _POWER.sub(lambda m: f"{'' if m.start() else 1}e{m[1] or m[2]}", text)


def _sign(text: str) -> tuple[str, str]:
    sign = text[:1] if text[:1] in ("+", "-") else ""
    return sign, text[len(sign) :].lstrip()


def _leading_currency(text: str) -> tuple[str, str]:
    match = re.match(r"(us\$|[$€£¥₹₩₽¢]|usd|eur|gbp|jpy|inr|cny|rmb|chf)\s*(?=[-+\d.])", text, re.IGNORECASE)
    return (CURRENCIES[match[1].lower()], text[match.end() :]) if match else ("", text)


def _value(match: re.Match[str]) -> Fraction | None:
    """The value of a match of `_NUMBER`; None where it has no digit, divides by zero, or is too large."""
    if match["whole"]:
        over, under = int(match["over"]), int(match["under"])
        return int(match["whole"]) + Fraction(over, under) if under else None
    if match["b"] is not None:
        over_, under_ = _decimal(match["a"]), _decimal(match["b"])
        return None if over_ is None or not under_ else over_ / under_
    value, exponent = _decimal(match["value"]), match["exponent"] or "0"
    if value is None or len(exponent) > 5 or abs(int(exponent)) > MAX_EXPONENT:
        return None
    return value * Fraction(10) ** int(exponent)


def _decimal(digits: str) -> Fraction | None:
    bare = digits.replace(",", "").replace(" ", "")
    return Fraction(bare) if any(c.isdigit() for c in bare) else None


def _unit(name: str) -> str | None:
    for table in (UNITS, CURRENCIES):
        for spelling in (name, re.sub("[sS]$", "", name), name.replace("° ", "°"), re.sub("(?i)degrees? ", "°", name)):
            if found := _cased(spelling) or table.get(spelling.casefold()):
                return found
    power = re.fullmatch(r"(?i)(?:(square|sq|cubic|cu)\.?\s*(.+)|(.+?)\s*(?:\^\s*)?\{?([23])\}?)", name)
    if power:
        inner = _unit(power[2] or power[3])
        return f"{inner}^{power[4] or ('2' if power[1].lower().startswith('sq') else '3')}" if inner else None
    return None


def _cased(name: str) -> str | None:
    """The unit of a spelling whose case decides: milli or mega by its m or M, bits or bytes by its b or B."""
    first, rest = name[:1], name[1:].casefold()
    if name in _CARELESS:
        return _CARELESS[name]
    if rest == "b" and first in tuple("kmgtKMGT"):
        return first.upper() + name[1]
    return first + _PREFIXED[rest] if first in ("m", "M") and rest in _PREFIXED else None
