r"""What stands around an answer, and texts that say the same.

`unwrap` takes off what a writer puts around an answer (`\boxed{}`, `**`, quotes, code fences, one full stop),
`normalise` brings one text to one form, and two answers are the `same` where both together give equal texts.
"""

import html
import re
import unicodedata
from collections.abc import Iterator

QUOTES = {
    '"': '"',
    "'": "'",
    "“": "”",
    "”": "”",
    "„": "“",
    "‘": "’",
    "’": "’",
    "«": "»",
    "「": "」",
    "『": "』",
    "`": "`",
}
_PAIRS = (("$$", "$$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("__", "__"), ("*", "*"), ("_", "_"))
_FENCE = re.compile(r"```[ \t]*[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```|```(.*?)```", re.DOTALL)
_HEADING = re.compile(r"#{1,6}[ \t]+(?=\S)")
_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|math(?:rm|bf|it|sf|tt|normal)|mbox|emph|boldsymbol|displaystyle)\s*\{([^{}]*)\}"
)
_LABEL = re.compile(
    r"(\*\*|__)?(?:(?:the|my)\s+)?(?:(?:final|correct|right|best)\s+)?(?:answer|ans)(?:\s+is)?\s*(?:[:=：]\s*(?(1)\1)|(?(1)\1\s*[:=：]|(?!)))\s*",
    re.IGNORECASE,
)
_INLINE = re.compile(r"\$(\S|\S[^$]*\S)\$(?!\d)")
_SPACE = re.compile(r"\\[ ,;:!]|(?<=\d)~(?=[a-zA-Z\\])|\\q?quad\b")
_HTML = re.compile(r"</?(?:b|i|u|em|strong|p|span|div|font|small|mark|sub)(?:\s[^<>]*)?>", re.IGNORECASE)
_BREAK, _SUP = re.compile(r"<br\s*/?>", re.IGNORECASE), re.compile(r"<sup>([^<>]*)</sup>", re.IGNORECASE)
_EXCLAIMED = re.compile(r"(.*[^\W\d_]{2})[!！]", re.DOTALL)  # of a word: "5!" and "x!" are factorials
_ITEMS = re.compile(r"\s*,\s*")  # of a list in brackets, which is written with and without spaces
_BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)])\s+", re.MULTILINE)
_BETWEEN = re.compile(r"\s*(?:[,;、，；\n]\s*(?:and\s)?|\band\b|&)\s*", re.IGNORECASE)
_ESCAPED = re.compile(r"\\([%$#&_{}])")
_MINUS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2212\ufe58\ufe63\uff0d"), "-")
_PLAIN = _MINUS | {ord(a): b for a, b in zip("“”„‟‘’‚‛′″«»`´", "\"\"\"\"'''''\"\"\"''", strict=True)}
_HIDDEN = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"))
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_VULGAR = re.compile("(?<=[0-9])(?=[¼½¾⅐-⅞])")


def unwrap(text: str) -> str:
    r"""The answer without what wraps it; its own letters, case and inner marks stay. Never empty unless `text` is.

    Taken off again and again: code fences, backticks, quotes, headings, `**`, `_`, `$..$`, `\(..\)`, `\text{}` and its
    like, a label such as "Answer:", one full stop or comma. Of a text with one `\boxed{}` the box alone counts;
    several are each replaced by what they hold, so that "\boxed{4} or \boxed{5}" is no 5.
    """
    bare = _plain_html(text).strip()
    while bare:
        inner = _once(bare).strip()
        if not inner or inner == bare:
            return bare
        bare = inner
    return bare


def _plain_html(text: str) -> str:
    """Without tags of style such as `<b>`, and with the signs that `&amp;` and its like stand for."""
    if "&" in text and ";" in text:
        text = html.unescape(text)
    if "<" not in text:
        return text
    plain = _HTML.sub("", _BREAK.sub(" ", _SUP.sub(r"^\1", text)))
    return plain if plain.strip() else text


def normalise(text: str, *, fold: bool = True) -> str:
    """One form for texts that look alike: NFKC, no case, plain quotes and minus signs, ASCII digits, single spaces.

    Raised digits are kept as powers (`m²` is `m^2`, not `m2`), and `1½` is `1 1/2`. Case stays without `fold`.
    """
    text = _RAISED.sub(lambda m: "^" + unicodedata.normalize("NFKC", m[0]), text)
    text = _VULGAR.sub(" ", text).translate(_HIDDEN).translate(_PLAIN)
    text = unicodedata.normalize("NFKC", text)
    text = unicodedata.normalize("NFKC", text.casefold()) if fold else text
    text = text.translate(_PLAIN).replace("\u2044", "/")
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c, c)) for c in text)
    return " ".join(text.split())


def key(text: str) -> str:
    """What of an answer is compared: unwrapped and normalised, until nothing changes any more."""
    found = _ITEMS.sub(",", text) if text.strip()[:1] in ("[", "(", "{") else text
    while (further := normalise(unwrap(normalise_marks(found)))) not in ("", found):
        found = further
    return found if further else normalise(found)


def items(text: str) -> frozenset[str]:
    """The keys of the parts of a text that lists some: by commas, semicolons, lines or "and"; in any order."""
    bare = _BULLET.sub("", unwrap(text).strip("[](){}"))
    return frozenset(key(part) for part in _BETWEEN.split(bare) if part.strip(" .\t"))


def same(a: str, b: str) -> bool:
    """Whether two answers are the same text."""
    return key(a) == key(b)


def normalise_marks(text: str) -> str:
    r"""LaTeX's own spaces and escaped signs (`\,`, `\%`, `\$`) as plain ones."""
    return _ESCAPED.sub(r"\1", _SPACE.sub(" ", text))


def boxes_in(text: str) -> Iterator[tuple[int, int, str]]:
    r"""(start, end, inside) of each outermost `\boxed{...}` or `\fbox{...}` whose braces close."""
    at = 0
    while match := _BOX.search(text, at):
        depth, at = 1, match.end()
        while at < len(text) and depth:
            if text[at] == "\\":  # an escaped brace is none
                at += 1
            else:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if depth:
            return
        yield match.start(), at, text[match.end() : at - 1]


def _once(text: str) -> str:
    """One layer less, or the text itself."""
    boxes = list(boxes_in(text))
    if len(boxes) == 1:
        return boxes[0][2]
    for start, end, inside in reversed(boxes):
        text = text[:start] + inside + text[end:]
    if boxes:
        return text
    if heading := _HEADING.match(text):
        return text[heading.end() :]
    if tags := _TAGS.fullmatch(text):
        return tags[1]
    if fence := _FENCE.fullmatch(text):
        return fence[1] if fence[1] is not None else fence[2]
    for pattern in (_STYLE, _INLINE):
        if (plain := pattern.sub(r"\1", text)) != text:
            return plain
    for left, right in _PAIRS:
        if len(text) > len(left + right) and text.startswith(left) and text.endswith(right):
            inside = text[len(left) : len(text) - len(right)]
            if left not in inside and right not in inside and inside == inside.strip():
                return inside
    if len(text) > 2 and QUOTES.get(text[0]) == text[-1] and text[-1] not in text[1:-1]:
        return text[1:-1]
    if (label := _LABEL.match(text)) and label.end() < len(text):
        return text[label.end() :]
    if exclaimed := _EXCLAIMED.fullmatch(text):
        return exclaimed[1]
    if text[-1] in ".。,;" and not text.endswith(".."):
        return text[:-1]
    return text
