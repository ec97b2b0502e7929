"""The choices that a question lists in its own words: `A. red`, `(A) red (B) blue`, `A、红`, `(1) red (2) blue`."""

import re
from collections.abc import Sequence

from pixelis_jax.answers import text as answer_text
from pixelis_jax.answers.choices import LETTERS
from pixelis_jax.data.importers.base import Place, Refusal, quoted

_LINE = re.compile(
    r"^[ \t]*(?:[-*•][ \t]+)?(?:\*\*|__)?(?:[(\[]([A-Za-z])[)\]]|([A-Z]|[a-z](?=[.)]))[.:)、])"
    r"(?:\*\*|__)?[ \t]*(\S.*)$",
    re.MULTILINE,
)
_INLINE = re.compile(
    r"(?<![A-Za-z0-9_])[(\[]([A-Za-z])[)\]]|(?:(?<=[\s?!。;,):])|^)"
    r"([A-Z](?=[.:)、])|[a-z](?=\)))(?:[.:)](?=[\s\u3400-\u9fff])|、)"
)
_OPENS = re.compile(r"(?:^|[^\w\s])\s*$")  # what stands before a first "A." on one line
_FIRST = ("A.", "A)", "A:", "A、", "(a", "A]", "[a", "a)", "a.")  # one of them stands in each list
_JOINS = re.compile(r"\s*[,;、，；]?\s*(?:\b(?:or|and)\b|或者?|还是)?\s*[,;，；]?\s*$", re.IGNORECASE)
_ALL = re.compile(
    r"\b(?:select|choose|mark|check|pick|tick|name|list|identify) (?:all|each|every|the (?:two|three|four))\b"
    r"|\ball (?:that|which|of (?:the|those)\b.*? that) (?:apply|are)\b"
    r"|\b(?:one or more|more than one|multiple|several|two|three) (?:\w+ )?(?:answers?|choices?|options?)\b"
    r"|可多选|多选题|不定项|选出所有|所有正确|哪些",
    re.IGNORECASE,
)
# ASCII for the wide forms of letters, digits and signs; one character each, so that places stay.
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}


def narrow(text: str) -> str:
    """The text with plain letters, digits and signs for wide ones, each at its place."""
    return text.translate(_WIDE)


def wants_all(question: str) -> bool:
    """Whether a question asks for all right choices and not for one of them."""
    return _ALL.search(question) is not None


def listed(question: str) -> list[str]:
    """The choices that a question lists as A, B, ..., on lines of their own or on one line, in one go from A.

    None where there are not two.
    """
    question = narrow(question)
    if not any(sign in question for sign in _FIRST):
        return []
    found = _on_lines(question)
    if len(found) >= 2:
        return found
    matches = list(_INLINE.finditer(question))
    if len(matches) < 2:
        return []
    ends = [match.start() for match in matches[1:]] + [len(question)]
    spans = [question[match.end() : end] for match, end in zip(matches, ends, strict=True)]
    parts = [(match[1] or match[2], _part(span)) for match, span in zip(matches, spans, strict=True)]
    found = _run(parts)
    first = next((match for match in reversed(matches) if (match[1] or match[2]) in "Aa"), None)
    if first is None or (first[2] and not _OPENS.search(question[max(first.start() - 20, 0) : first.start()])):
        return []
    words = [any(map(str.isalnum, text)) and text.lower() not in ("or", "and") for text in found]
    return found if len(found) >= 2 and all(words) else []


def shown(question: str, choices: Sequence[str]) -> str:
    """The question with its choices on lines of their own, unless it lists them already."""
    if not choices or listed(question) == list(choices):
        return question
    return question + "".join(f"\n{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False))


def refuse_other(question: str, given: Sequence[str], place: Place) -> None:
    """Raises Refusal where a question lists choices that are not those that are given, in their order.

    Given ones may be the bare letters, and what stands behind the last one on its line may be more of the question.
    """
    inside = [key(text) for text in listed(question)]
    wanted = [key(text) for text in given]
    if not inside or not wanted or wanted == [letter.lower() for letter in LETTERS[: len(wanted)]]:
        return
    same = inside[:-1] == wanted[:-1] and len(inside) == len(wanted) and inside[-1].startswith(wanted[-1])
    if not same:
        reason = "not those that the question lists, or in another order"
        raise Refusal(place.where, "choices", reason, quoted(", ".join(given)))


def key(text: str) -> str:
    """A choice as it is compared: without what does not tell choices apart."""
    return answer_text.key(" ".join(text.split()).rstrip(".,;").strip())


def _part(span: str) -> str:
    """A choice on one line without what joins it to the next, or ends the sentence."""
    line = span.partition("\n")[0].strip()
    return _JOINS.sub("", line.rstrip("?？。")).rstrip(",;，；").strip()


def _on_lines(question: str) -> list[str]:
    """The choices that stand at the beginnings of lines, with the lines that go on with them.

    Of the last one these are the indented ones, and else as many as each of the others has.
    """
    matches = list(_LINE.finditer(question))
    if not matches:
        return []
    ends = [match.start() for match in matches[1:]] + [len(question)]
    more = [
        [line for line in question[match.end() : end].split("\n") if line.strip()]
        for match, end in zip(matches, ends, strict=True)
    ]
    counts = {len(lines) for lines in more[:-1]}
    own = next((i for i, line in enumerate(more[-1]) if not line[0].isspace()), len(more[-1]))
    more[-1] = more[-1][: max(own, counts.pop() if len(counts) == 1 else 0)]
    texts = [
        " ".join([_unmarked(match[3].strip()), *(line.strip() for line in lines)])
        for match, lines in zip(matches, more, strict=True)
    ]
    return _run([(match[1] or match[2], text) for match, text in zip(matches, texts, strict=True)])


def _unmarked(text: str) -> str:
    """A choice without the end of an emphasis that began in front of its letter."""
    return text[:-2].rstrip() if text.endswith(("**", "__")) and text.count(text[-2:]) % 2 else text


def _run(marks: Sequence[tuple[str, str]]) -> list[str]:
    """The texts of the last run of letters from A on; of lower-case letters too, but of one kind."""
    found: list[str] = []
    upper = True
    for letter, text in marks:
        if letter in "Aa":
            found, upper = [], letter == "A"
        if len(found) < len(LETTERS) and letter.isupper() == upper and letter.upper() == LETTERS[len(found)]:
            found.append(text.strip())
    return found
