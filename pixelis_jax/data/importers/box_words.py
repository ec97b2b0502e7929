"""What the words of a question say of boxes: the order of their numbers, their frame, the picture they are about."""

import re
from collections.abc import Sequence

from pixelis_jax.answers.boxes import Box, Size

Order = tuple[str, str, str, str]  # what the four numbers are
CORNERS: Order = ("x1", "y1", "x2", "y2")
_SIZED: Order = ("x1", "y1", "w", "h")
_CENTRED: Order = ("cx", "cy", "w", "h")
_ORDERS = {
    **dict.fromkeys(("xyxy", "x1y1x2y2", "ltrb", "pascal_voc", "voc", "albumentations", "corners"), CORNERS),
    **dict.fromkeys(("xywh", "ltwh", "coco"), _SIZED),
    **dict.fromkeys(("cxcywh", "xcycwh", "ccwh", "yolo"), _CENTRED),
    **dict.fromkeys(("yxyx", "y1x1y2x2"), ("y1", "x1", "y2", "x2")),
}
SHARES = ("yolo", "albumentations")  # formats whose numbers are shares of the picture
_SPELLINGS = {
    "x1": r"x[ _-]?1|x[ _-]?0|x[ _-]?min|min[ _-]?x|x[ _-]?left|left[ _-]?x|left|xtl",
    "y1": r"y[ _-]?1|y[ _-]?0|y[ _-]?min|min[ _-]?y|y[ _-]?top|top[ _-]?y|top|ytl|upper",
    "x2": r"x[ _-]?2|x[ _-]?max|max[ _-]?x|x[ _-]?right|right[ _-]?x|right|xbr",
    "y2": r"y[ _-]?2|y[ _-]?max|max[ _-]?y|y[ _-]?bottom|bottom[ _-]?y|bottom|ybr|lower",
    "cx": r"c[ _-]?x|x[ _-]?c|x[ _-]?cent(?:er|re)|cent(?:er|re)[ _-]?x",
    "cy": r"c[ _-]?y|y[ _-]?c|y[ _-]?cent(?:er|re)|cent(?:er|re)[ _-]?y",
    "w": r"width|w",
    "h": r"height|h",
    "x": r"x",
    "y": r"y",
}
_NAMES = ("cx", "cy", "x1", "y1", "x2", "y2", "w", "h", "x", "y")  # in the order in which they are tried
_NAME = f"(?<![a-z0-9])({'|'.join(_SPELLINGS[name] for name in _NAMES)})(?![a-z0-9])"
_GAP = r"[>\])}\"'$]{0,3}(?:\s{0,3}[,;，、]|\s)\s{0,3}(?:and\s{1,3})?[<\[({\"'$]{0,3}"
_LISTED = re.compile(rf"[\[({{<]{{0,3}}{_NAME}{_GAP}{_NAME}{_GAP}{_NAME}{_GAP}{_NAME}[\])}}>]{{0,3}}", re.IGNORECASE)
_WORD = re.compile(
    r"(?<![a-z])(?:(xywh|xyxy|yxyx|cxcywh|xcycwh|ltwh|ltrb)(?![a-z])"
    r"|(?:ms[ -]?)?(coco|yolo|pascal[ _-]?voc|voc)(?:[ -]style)? (?:bbox |box |bounding[ -]box )?format\b)",
    re.IGNORECASE,
)

_CORNER = re.compile(
    r"(?:the )?(?:top|upper|left)[- ](?:left|top) (?:corner|point|coordinates?)(?: \(x, ?y\))?,? (?:and|plus|with)"
    r" (?:the |its )?(?:size|dimensions?|width(?: and |, ?)height)(?: \(w, ?h\))?",
    re.IGNORECASE,
)

_TO = r"\s{0,3}(?:-|–|—|~|to|and|,|\.\.\.?|到|至|，)\s{0,3}"
_RANGES = {
    "norm1000": rf"[\[(]?\s{{0,3}}0{_TO}(?:1[,]?000|999)(?![\d]|\.\d)",
    "percent": rf"[\[(]?\s{{0,3}}0{_TO}100(?!\d|\.\d)",
    "relative": rf"[\[(]?\s{{0,3}}0(?:\.0{{1,4}})?{_TO}1(?:\.0{{1,4}})?(?!\d|\.\d)",
}
_ABOUT = (
    r"(?:\b(?:re)?(?:normali[sz]ed|scaled|relative|rang(?:e|es|ing)|coordinates?|percent(?:ages?)?)\b"
    r"|归一化|坐标|范围)[^.?!。？！\n\d]{0,40}?"
)
_RANGED = {name: re.compile(f"{_ABOUT}{spelled}", re.IGNORECASE) for name, spelled in _RANGES.items()}
_THOUSANDTHS = re.compile(
    r"\bthousandths\b|千分|(?<![\d.])0\s?(?:-|–|to)\s?(?:1,?000|999)(?!\d|\.\d)|(?<!\d)1000\s?[x×]\s?1000(?!\d)",
    re.IGNORECASE,
)
_NORMALIZED = re.compile(r"\b(?:normali[sz]ed|relative (?:box )?coordinates?)\b|归一化|相对坐标", re.IGNORECASE)
_PIXELS = re.compile(
    r"\bpixel (?:coordinates?|units?|values?)\b|\bin (?:absolute )?pixels\b|\babsolute coordinates?\b|像素",
    re.IGNORECASE,
)

_PX = r"(?:\s{0,3}(?:px|pixels?|像素))?"
_BY = rf"(?<!\d)(\d{{2,5}})\s{{0,3}}(?:x|×|\*|by|乘)\s{{0,3}}(\d{{2,5}}){_PX}"
_PICTURE = r"(?:image|picture|photo|photograph|screenshot|frame)"
_HAS = r"size|resolution|dimensions?|is|are|was|has|have|had|a|an|the|of|resized|scaled|to|with"
_SIDE = rf"\b[\s:=]{{0,3}}(?:(?:is|of)\s{{1,3}})?(\d{{2,5}}){_PX}"
_SIZES = [
    re.compile(spelled, re.IGNORECASE)
    for spelled in (
        rf"\b{_PICTURE}(?:'s)?[\s:(]{{0,3}}(?:(?:{_HAS})[\s:=(]{{1,3}}){{0,6}}{_BY}",
        rf"\b(?:size|resolution|dimensions?)\b[\s:=(]{{0,3}}(?:(?:is|are|of)[\s:=(]{{1,3}})?{_BY}",
        rf"{_BY}(?=[ -]{_PICTURE}\b)",
        rf"\bwidth{_SIDE}[\s,;]{{0,3}}(?:and\s{{1,3}})?(?:(?:the|a|its) )?height{_SIDE}",
        rf"图(?:片|像)?的?(?:大小|尺寸|分辨率)(?:为|是|：|:)?\s{{0,3}}{_BY}",
    )
]

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_HANZI = "一二三四五六七八九十"
_SHOWN = rf"(?:{_PICTURE}|figure|page|view)"
_NTH = re.compile(
    rf"\b({'|'.join(_ORDINALS)}|\d{{1,2}}(?:st|nd|rd|th)|last)\s{{1,3}}(?:of the (?:\w{{1,20}} )?)?{_SHOWN}s?\b"
    rf"|\b{_SHOWN}\s{{0,3}}(?:#|no\.?\s{{0,3}}|number\s{{0,3}})?(\d{{1,2}})\b(?!\s{{0,3}}(?:x|×|\*|px|pixel))"
    r"|\b(?:image|picture|photo|figure)\s{1,3}\(?((?-i:[A-H]))\b"
    rf"|第\s{{0,3}}([{_HANZI}两\d]{{1,2}})\s{{0,3}}(?:张|幅|帧|个?图)|图\s{{0,3}}(\d{{1,2}})",
    re.IGNORECASE,
)
_ASKS_PLACE = re.compile(
    r"\b(?:where|locat\w*|bounding|bbox\w*|box(?:es)?|coordinates?|regions?|areas?|positions?|detect\w*|localis\w*|corners?"
    r"|localiz\w*|ground(?:ing)?|rectangles?|find|segment|polygons?|outlines?|contours?)\b"
    r"|在哪|哪里|何处|位置|坐标|框|定位|检测|区域",
    re.IGNORECASE,
)
_ASKS_NUMBERS = re.compile(
    r"\b(?:years?|numbers?|numerals?|values?|digits?|scores?|prices?|ages?|amounts?|percent(?:ages?)?|counts?|steps?"
    r"|how (?:many|much)|sequences?|series|dates?|times?|ratings?|ticks?|labels?|heights?|lengths?|weights?|pages?"
    r"|temperatures?|sizes?|quantit\w+|readings?|solve|roots?|integers?|matri(?:x|ces)|vectors?|means?|averages?"
    r"|sums?|median)\b|年份|哪[一几]?年|数字|数值|多少|几|页码",
    re.IGNORECASE,
)
_ASKS_POINT = re.compile(
    r"\b(?:point(?:s|ing)? (?:to|at|on)|click(?:ed|ing)?|tap|touch|the points?|cent(?:er|re) point|pixel location"
    r"|keypoints?)\b|点击|指出|点坐标|关键点",
    re.IGNORECASE,
)
_NUMBER = r"\s{0,3}-?\d{1,9}(?:\.\d{1,9})?\s{0,3}"
_PAIR = rf"\(({_NUMBER}),({_NUMBER})\)"
_PLAIN = re.compile(rf"[\[(]({_NUMBER}),({_NUMBER}),({_NUMBER}),({_NUMBER})[\])]|{_PAIR}\s{{0,3}},?\s{{0,3}}{_PAIR}")
_AT = re.compile(
    r"\b(?:in|inside|within|at|box|bbox|region|area|located|by|coordinates?|rectangle)\s{0,3}(?:the\s{1,3})?[:=]?\s{0,3}$"
    r"|[在框域]\s{0,3}[:：]?\s{0,3}$",
    re.IGNORECASE,
)


def order_of(word: str) -> Order | None:
    """The order of numbers that a name of a format tells: xywh, coco, "x, y, w, h", ...; None where it tells none."""
    name = re.sub(r"[\s-]+", "_", word.strip().lower())
    if name in _ORDERS:
        return _ORDERS[name]
    listed = _LISTED.fullmatch(word.strip())
    return _ordered(listed) if listed else None


def order(question: str) -> tuple[Order | None, str]:
    """(the order of numbers that a question asks for, its words); None with words that are no order of a box."""
    if listed := _LISTED.search(question):
        return _ordered(listed), listed[0].strip()
    if corner := _CORNER.search(question):
        return _SIZED, corner[0]
    if word := _WORD.search(question):
        return order_of(word[1] or word[2]), word[0]
    return None, ""


def corners(numbers: Sequence[float], told: Order) -> Box | None:
    """Four numbers in an order -> x1, y1, x2, y2; None where these are no area."""
    named = dict(zip(told, numbers, strict=True))
    if "cx" in named:
        named |= {"x1": named["cx"] - named["w"] / 2, "y1": named["cy"] - named["h"] / 2}
    if "w" in named:
        named |= {"x2": named["x1"] + named["w"], "y2": named["y1"] + named["h"]}
    x1, y1, x2, y2 = (round(named[name], 6) for name in CORNERS)
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None


def frame(question: str) -> str:
    """The frame that a question names: norm1000, relative, percent, pixels; normalized without a range; else empty."""
    for name in ("norm1000", "percent", "relative"):
        if _RANGED[name].search(question):
            return name
    named = (("norm1000", _THOUSANDTHS), ("normalized", _NORMALIZED), ("pixels", _PIXELS))
    return next((name for name, pattern in named if pattern.search(question)), "")


def size(question: str) -> Size | None:
    """(height, width) of the picture that a question tells."""
    found = next((match for pattern in _SIZES if (match := pattern.search(question))), None)
    return (float(found[2]), float(found[1])) if found else None


def pictures(question: str, count: int) -> set[int]:
    """The numbers, from 1, of the pictures that a question names, of `count`."""
    return {_number(match, count) for match in _NTH.finditer(question)}


def asks_numbers(question: str) -> bool:
    """Whether the answer of a question is a list of numbers, and no place."""
    return _ASKS_NUMBERS.search(question) is not None and not asks_place(question)


def asks_place(question: str) -> bool:
    """Whether a question asks where something is."""
    return _ASKS_PLACE.search(question) is not None or order(question)[0] is not None


def asks_point(question: str) -> bool:
    """Whether a question asks for a point."""
    return _ASKS_POINT.search(question) is not None


def boxes_in(question: str, *, anywhere: bool = False) -> list[Box]:
    """Four numbers in brackets that stand in a question, behind a word of place or `anywhere`."""
    found = []
    for match in _PLAIN.finditer(question):
        a, b, c, d = (float(number) for number in match.groups() if number is not None)
        if anywhere or (
            _AT.search(question[max(match.start() - 40, 0) : match.start()]) and not asks_numbers(question)
        ):
            found.append((a, b, c, d))
    return found


def _ordered(match: re.Match[str]) -> Order | None:
    """The order of listed names; None where they are not those of a box."""
    names = [_canonical(text) for text in match.groups()]
    names = [{"x": "x1", "y": "y1"}.get(name, name) for name in names]
    for wanted in (CORNERS, _SIZED, _CENTRED):
        if sorted(names) == sorted(wanted):
            first, second, third, fourth = names
            return first, second, third, fourth
    if match[0] and names == ["x1", "y1", "x1", "y1"]:  # (x, y), (x, y)
        return CORNERS
    return None


def _canonical(text: str) -> str:
    return next(name for name in _NAMES if re.fullmatch(_SPELLINGS[name], text, re.IGNORECASE))


def _number(match: re.Match[str], count: int) -> int:
    ordinal, digits, letter, hanzi, figure = match.groups()
    ordinal = ordinal and ordinal.lower()
    if ordinal == "last":
        return count
    if ordinal:
        return _ORDINALS.index(ordinal) + 1 if ordinal in _ORDINALS else int(ordinal[:-2])
    if letter:
        return ord(letter) - ord("A") + 1
    number = digits or figure or hanzi.replace("两", "二")
    return int(number) if number.isdigit() else _HANZI.index(number[-1]) + 1 + 10 * (len(number) > 1)
