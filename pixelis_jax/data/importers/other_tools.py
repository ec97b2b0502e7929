r"""Instructions for other systems in a question: to call their tools, or to write tags of their dialogues.

The rule: a <tools> block, Pixel-Reasoner's last paragraph of guidelines, and each sentence that names another system's
tool, a tag of a dialogue or an empty \boxed{} are removed, and the question is counted. The dialogue of this package
has a system prompt of its own. A question that is itself such a sentence is refused.
"""

import re
from collections.abc import Collection

from pixelis_jax.data.importers.base import Context, Place, Refusal, cut_out, quoted

NOTE = "questions without what they said of other systems' tools and tags"
# Pixel-Reasoner tells the model of its tools and of the form of answers in a last paragraph of each question.
_GUIDELINES, _GUIDED = "Guidelines:", ("`crop_image", "`select_frames", "\\boxed")
_TOOL = re.compile(
    r"\b[a-z0-9]+(?:_[a-z0-9]+){0,6}_tools?\b|\bcrop_image\w*|\bselect_frames\b|\bimage_zoom_in\w*|\bzoom_in\w*\b"
    r"|\bcode_interpreter\b|\btool_calls?\b"
)
_TAG = re.compile(
    r"</?(?:think|thinking|thought|reason|reasoning|answer|tool|tools|tool_call|tool_response|code|rethink|summary"
    r"|caption|conclusion|grounding|observe)\s*/?>|\\boxed\s*\{\s*(?:\.\.\.)?\s*\}",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.?!])[ \t]+|(?<=[。？！])")


def removed(question: str, names: Collection[str], place: Place, context: Context) -> str:
    """The question without such instructions; `names` are tools that the record defines. Raises Refusal."""
    if not any(sign in question for sign in "_<\\"):
        return question
    text = cut_out(question, "tools")[0] if "<tools>" in question else question
    start = text.rfind(_GUIDELINES)
    last = text[max(start, 0) :]
    if start > 0 and "\n\n" not in last and any(words in last for words in _GUIDED):
        text = text[:start].rstrip()
    known = [name for name in names if "_" in name and name in text]
    if _TOOL.search(text) or _TAG.search(text) or known:
        lines = text.split("\n")
        kept = [_kept(line, known, place) for line in lines]
        for number in range(len(kept) - 2, -1, -1):  # "In this form:" before a line that is gone
            if kept[number].rstrip().endswith(":") and lines[number + 1].strip() and not kept[number + 1]:
                kept[number] = ""
        text = "\n".join(kept)
        text = re.sub(r"\n{3,}", "\n\n", text)
    if text == question:
        return question
    text = text.strip()
    if not text and question.strip():
        raise Refusal(place.where, "question", "says nothing but how to use other tools", quoted(question))
    context.notes[NOTE] += 1
    return text


def _kept(line: str, known: Collection[str], place: Place) -> str:
    """A line without the sentences of that kind. Raises Refusal for a question among them."""
    if not _says(line, known):
        return line
    kept = []
    for sentence in _SENTENCE.split(line):
        if not _says(sentence, known):
            kept.append(sentence)
        elif sentence.rstrip().endswith(("?", "？")):
            reason = "the question itself names another system's tool or tag; ask without it"
            raise Refusal(place.where, "question", reason, quoted(sentence))
    return " ".join(kept).strip()


def _says(text: str, known: Collection[str]) -> bool:
    return bool(_TOOL.search(text) or _TAG.search(text) or any(name in text for name in known))
