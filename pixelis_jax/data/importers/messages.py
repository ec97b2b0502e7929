"""Dialogues as other data write them, in one form: messages with roles, pairs of question and answer, histories."""

import ast
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pixelis_jax.data.importers import marks, picture_values
from pixelis_jax.data.importers.base import Place, Record, Refusal, first_of, quoted

MESSAGES = (
    "message_list",
    "messages",
    "conversations",
    "conversation",
    "texts",
    "dialogue",
    "dialog",
    "qa_pairs",
    "qas",
    "qa",
    "question_answers",
    "contents",
    "message",
)
ASKED = ("question", "problem", "query", "prompt", "text", "instruction", "user_prompt")
MORE = "input"  # behind Alpaca's instruction
SAID = ("response", "output", "completion", "model_output")  # what an assistant says, reasoning and all
HISTORY = "history"
QUESTIONS, ANSWERS = "questions", "answers"  # lists of the same length
_ROLES = {
    **{"system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant"},
    **{"gpt": "assistant", "model": "assistant", "bot": "assistant", "ai": "assistant", "chatgpt": "assistant"},
    **{"function_call": "call", "tool_call": "call", "tool_calls": "call", "tool": "result", "observation": "result"},
    **{"function": "result", "ipython": "result", "tool_response": "result", "tool_result": "result"},
    **{"function_response": "result", "environment": "result"},
}
# Keys of an object that is a question with its answer.
_PAIRS = (
    *(("user", "assistant"), ("human", "gpt"), ("human", "assistant"), ("question", "answer"), ("query", "response")),
    *(("input", "output"), ("prompt", "response"), ("prompt", "completion"), ("instruction", "output")),
)
_GEMINI = ("inline_data", "inlineData", "file_data", "fileData")  # parts with a picture
_WORDS = ("text", "input_text", "output_text")  # types of parts that are text
_SAYING = ("content", "value")  # where such a part has it that has no `text`
_SPOILT = re.compile(r"\s*(?:array\()?\[?\s*\{\s*['\"](?:role|from|speaker|content|value)['\"]\s*:")
_LISTED = re.compile(r"\s*(?:\[\s*[{\[]|\{)")  # how a list of messages or of pairs, or one message, begins as a text


@dataclasses.dataclass(frozen=True)
class Message:
    """One message: `held` has a value for each mark of a picture without a number, None where the mark has none.

    `box_image` is the picture, from 1, of the last box that a placeholder of the text stood for; 0 without one.
    """

    role: str
    text: str
    held: list[Any]
    calls: list[Record]
    is_video: bool = False
    box_image: int = 0
    is_untrained: bool = False  # the data says that nothing is to be learnt from it

    def replaced(self, text: str, box_image: int) -> "Message":
        """The same message with another text."""
        return dataclasses.replace(self, text=text, box_image=box_image)


def role_of(item: Any) -> str | None:
    """What a message is in our words; None where that is not known."""
    role = first_of(item, ("role", "from", "speaker"))[1] if isinstance(item, dict) else None
    return _ROLES.get(role.strip().lower()) if isinstance(role, str) else None


def find(record: Mapping[str, Any]) -> tuple[str, list[Any], set[str]]:
    """(field, its messages, fields that were read) of a record that holds a dialogue; "" where there is none."""
    name, value = first_of(record, MESSAGES)
    value = unpacked(value)
    if isinstance(value, list) and _has_assistant(value):
        return name, _spread(value), {name}
    asked, question = first_of(record, ASKED)
    question = unpacked(question)
    said, response = first_of(record, SAID)
    response = unpacked(response)
    history = unpacked(record.get(HISTORY))
    history = history if isinstance(history, list) else []
    if asked and said and not _is_empty(response):
        before = question if isinstance(question, list) else [{"role": "user", "content": instruction(record, asked)}]
        behind = response if isinstance(response, list) else [{"role": "assistant", "content": response}]
        return asked, [*_spread(history), *before, *behind], {asked, said, HISTORY, MORE}
    if isinstance(question, list) and _has_assistant(question):
        return asked, question, {asked}
    if not asked and (pairs := _listed(record)):
        return QUESTIONS, pairs, {QUESTIONS, ANSWERS}
    return "", [], set()


def _listed(record: Mapping[str, Any]) -> list[Any]:
    """The messages of a list of questions beside a list of as many answers (OCR-VQA); none where they are no such."""
    questions, replies = record.get(QUESTIONS), record.get(ANSWERS)
    if not isinstance(questions, list) or not isinstance(replies, list) or len(questions) != len(replies):
        return []
    if not all(isinstance(text, str) for text in questions) or not all(
        isinstance(r, str | int | float) for r in replies
    ):
        return []
    pairs = zip(questions, replies, strict=True)
    return [item for text, reply in pairs for item in zip_roles((text, f"<answer>{reply}</answer>"))]


def instruction(record: Mapping[str, Any], name: str) -> Any:
    """The question field, a list where it holds messages; an instruction with the input that stands behind it."""
    value, more = unpacked(record.get(name)), record.get(MORE)
    if name == "instruction" and isinstance(value, str) and isinstance(more, str) and more.strip():
        return f"{value.rstrip()}\n{more.strip()}"
    return value


def _has_assistant(value: Sequence[Any]) -> bool:
    return any(role_of(item) in ("assistant", "call") or _pair(item) for item in value)


def _is_empty(value: Any) -> bool:
    return value is None or value == [] or (isinstance(value, str) and not value.strip())


def unpacked(value: Any) -> Any:
    """The list of messages that a field has as a text, of JSON or as Python writes it, or as one message alone."""
    found = value
    if isinstance(value, str) and _LISTED.match(value):
        for read in (json.loads, ast.literal_eval):
            try:
                found = read(value.strip())
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    if role_of(found):
        return [found]
    return found if isinstance(found, list) and any(role_of(item) or _pair(item) for item in found) else value


def refuse_spoilt(text: str, field: str, place: Place) -> None:
    """Raises Refusal for the text of messages that is neither JSON nor Python, as tables of arrays have it."""
    if _SPOILT.match(text):
        raise Refusal(place.where, field, "messages in a text that can't be read; write them as JSON", quoted(text))


def _pair(item: Any) -> tuple[Any, Any] | None:
    """(question, answer) of an object or a list that is both; None for anything else."""
    if isinstance(item, list) and len(item) == 2 and all(isinstance(part, str) for part in item):
        return item[0], item[1]
    if not isinstance(item, dict) or "role" in item or "from" in item:
        return None
    names = next((pair for pair in _PAIRS if all(item.get(name) is not None for name in pair)), None)
    return (item[names[0]], item[names[1]]) if names else None


def _spread(value: Sequence[Any]) -> list[Any]:
    """Messages, with two in the place of each pair."""
    found: list[Any] = []
    for item in value:
        pair = _pair(item)
        if pair and isinstance(item, dict) and isinstance(item.get("system"), str) and item["system"].strip():
            found.append({"role": "system", "content": item["system"]})
        found += zip_roles(pair) if pair else [item]
    return found


def zip_roles(pair: tuple[Any, Any]) -> list[Record]:
    """A question and its answer as messages."""
    return [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]


def message(item: Any, field: str, place: Place) -> Message:
    """The message of a JSON object; `field` names it in errors. Raises Refusal."""
    if not isinstance(item, dict):
        raise Refusal(place.where, field, "must be a JSON object", quoted(item))
    kind = role_of(item)
    if kind is None:
        raise Refusal(place.where, field, "unknown role", quoted(first_of(item, ("role", "from", "speaker"))[1]))
    content = first_of(item, ("content", "value", "text", "parts"))[1]
    if kind == "call" and isinstance(content, dict) and "name" in content:
        content = json.dumps(content, default=str)
    beside = picture_values.listed(first_of(item, ("images", "image"))[1])
    if beside != [None] and kind == "user":  # Ollama's way
        said = content if isinstance(content, list) else [content] if content else []
        content = [*({"type": "image", "image": image} for image in beside), *said]
    text, held, is_video = _content(content, field, place)
    listed = item.get("tool_calls")
    if not isinstance(listed, list | None):
        raise Refusal(place.where, field, "tool_calls must be a list", quoted(listed))
    made = [_function(call, field, place) for call in listed or []]
    if kind == "call":
        text = text if "<tool_call>" in text else f"<tool_call>{text}</tool_call>"
    elif kind != "assistant" and made:
        raise Refusal(place.where, field, "only an assistant calls tools")
    role = "assistant" if kind == "call" else kind
    untrained = item.get("loss") in (False, 0) or item.get("weight") in (False, 0)
    return Message(role, marks.without_ends(text), held, made, is_video, is_untrained=untrained and role == "assistant")


def _function(call: Any, field: str, place: Place) -> Record:
    """A call of the OpenAI form."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise Refusal(place.where, field, "tool_calls must hold JSON objects")
    return {"name": function.get("name"), "arguments": function.get("arguments")}


def _content(content: Any, field: str, place: Place) -> tuple[str, list[Any], bool]:
    """(text, value of each mark, whether pictures are a video's frames) of a message's content. Raises Refusal.

    A picture among the parts becomes a mark at its place, unless the texts have as many marks as there are pictures.
    """
    if content is None:
        return "", [], False
    if isinstance(content, str):
        return content, marks.paths(content), False
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise Refusal(place.where, field, "content must be a text or a list of parts", quoted(content))
    pieces: list[str] = []
    texts: list[str] = []
    held: list[Any] = []
    is_video = False
    for part in content:
        text, images, film = _part(part, field, place)
        is_video |= film
        held += images
        pieces += [text] if text is not None else []
        texts += [text] if text is not None else []
        pieces += [marks.IMAGE] * len(images)
    said = marks.of(texts)
    if not held or not said:
        joined = "\n".join(pieces)
        return joined, held or marks.paths(joined), is_video
    if said != len(held):
        shown = f"{said} marks and {len(held)} images"
        raise Refusal(place.where, field, "marks in its text and images among its parts differ in number", shown)
    return "\n".join(texts), held, is_video


def _part(part: Any, field: str, place: Place) -> tuple[str | None, list[Any], bool]:
    """(text or None, pictures, whether they are frames) of one part. Raises Refusal."""
    if isinstance(part, str):
        return part, [], False
    if not isinstance(part, dict):
        raise Refusal(place.where, field, "a part must be a text or a JSON object", quoted(part))
    saying = ("text", *_SAYING) if part.get("type") in _WORDS else ("text",)
    text = next((part[key] for key in saying if isinstance(part.get(key), str) and part[key]), None)
    if isinstance(part.get("video"), list):
        return text, part["video"], True
    if part.get("video") is not None:
        raise Refusal(place.where, field, "a video file; give its frames as images", quoted(part["video"]))
    _, image = first_of(part, ("image", "image_url", "url", "path", "source", "data", "bytes", *_GEMINI))
    kind = part.get("type")
    mime = first_of(image, ("mime_type", "mimeType"))[1] if isinstance(image, Mapping) else None
    if isinstance(mime, str) and not mime.lower().startswith("image/"):
        raise Refusal(place.where, field, "a part of a kind that is not read", quoted(mime))
    if image is not None and (text is None or kind in ("image", "image_url", "input_image") or "image" in part):
        return text, [image], False
    if kind in ("image", "image_url", "input_image"):
        return text, [None], False
    if text is None and isinstance(kind, str) and kind not in _WORDS:
        raise Refusal(place.where, field, "a part of a kind that is not read", quoted(kind))
    filled = [name for name, value in part.items() if isinstance(value, str | list | dict) and value and name != "type"]
    if text is None and filled:
        raise Refusal(place.where, field, "a part of a kind that is not read", quoted(", ".join(filled)))
    return text, [], False
