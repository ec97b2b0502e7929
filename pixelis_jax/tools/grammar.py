"""The text of an assistant turn, both ways; model text is read nowhere else.

    <think>...</think><tool_call>{"name": "...", "arguments": {...}}</tool_call>
    <think>...</think><answer>...</answer>

White space may stand before, between and after the blocks. Everything else is an error in one short sentence, which
goes back to the model. Thought and answer are kept as they stand between their tags.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pixelis_jax.tools.base import Tool, check_arguments, shown
from pixelis_jax.types import ToolCall, Turn

_TAG = re.compile(r"</?(?:think|tool_call|answer|tool_response)>")
_TURN = re.compile(
    r"\s*<think>(?P<thought>.*?)</think>\s*(?:<tool_call>(?P<call>.*?)</tool_call>|<answer>(?P<answer>.*?)</answer>)\s*",
    re.DOTALL,
)


def render(thought: str, call: ToolCall | None = None, answer: str | None = None) -> str:
    """Canonical text of a turn. Raises ValueError on a tag inside, or unless one of `call` and `answer` is given."""
    if (call is None) == (answer is None):
        raise ValueError("a turn has either a call or an answer")
    if call is not None:
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False, allow_nan=False)
        last = ("tool_call", body)
    else:
        last = ("answer", str(answer))
    for text in (thought, last[1]):
        if _TAG.search(text):
            raise ValueError(f"text of a turn contains a tag: {text!r}")
    return f"<think>{thought}</think><{last[0]}>{last[1]}</{last[0]}>"


def parse(text: str, tools: Mapping[str, Tool]) -> Turn:
    """Reads one assistant message without its end-of-turn token. Never raises: `Turn.error` says what is wrong."""
    match = _TURN.fullmatch(text)
    if match is None or any(_TAG.search(part) for part in match.groups() if part is not None):
        thought = match["thought"] if match is not None and not _TAG.search(match["thought"]) else _thought(text)
        return Turn(text, thought, error=_complaint(text))
    thought, body, answer = match["thought"], match["call"], match["answer"]
    if answer is not None:
        if not answer.strip():
            return Turn(text, thought, error="the answer is empty")
        return Turn(text, thought, answer=answer)
    call, error = _call(body, tools)
    return Turn(text, thought, call=call, error=error)


def has_tags(text: str) -> bool:
    """Whether a turn tries to answer or to call, however badly: it has an opening or closing tag of either."""
    return any(kind in tag for tag in _TAG.findall(text) for kind in ("answer", "tool_call"))


def _call(body: str, tools: Mapping[str, Tool]) -> tuple[ToolCall | None, str | None]:
    """(call, None) or (None, complaint) for the text between the tool-call tags."""
    try:
        value = json.loads(body, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        repeated = str(error) if isinstance(error, _RepeatedKeyError) else "the tool call is not valid JSON"
        return None, repeated
    if not isinstance(value, dict):
        return None, "the tool call must be a JSON object"
    for key in ("name", "arguments"):
        if key not in value:
            return None, f"the tool call has no {key!r}"
    extra = [key for key in value if key not in ("name", "arguments")]
    if extra:
        return None, f"the tool call has an unknown key {shown(extra[0])!r}"
    name = value["name"]
    if not isinstance(name, str):
        return None, "the name of a tool must be a string"
    if name not in tools:
        return None, f"there is no tool {shown(name)!r}; tools are {', '.join(tools) or 'none'}"
    wrong = check_arguments(tools[name], value["arguments"])
    return (None, wrong) if wrong else (ToolCall(name, value["arguments"]), None)


class _RepeatedKeyError(ValueError):
    """The same key twice in a JSON object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _RepeatedKeyError("the tool call repeats a key")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _thought(text: str) -> str:
    """The think block a malformed turn begins with, else nothing."""
    match = re.match(r"\s*<think>(.*?)</think>", text, re.DOTALL)
    return match[1] if match and not _TAG.search(match[1]) else ""


def _complaint(text: str) -> str:
    """Why `text` is not a turn."""
    calls, answers = text.count("<tool_call>"), text.count("<answer>")
    if not text.strip():
        return "the turn is empty"
    if calls and answers:
        return "a turn has either a tool call or an answer, not both"
    if calls > 1:
        return "only one tool call a turn"
    if answers > 1:
        return "only one answer a turn"
    if text.count("<think>") != 1 or text.count("</think>") != 1:
        return "a turn begins with one <think>...</think> block"
    if not calls and not answers:
        return "the turn has no tool call and no answer"
    if text.count("</tool_call>") != calls or text.count("</answer>") != answers:
        return "a tag is not closed"
    return "text stands outside the blocks"
