"""Questions with their answers and without a dialogue, as RL data has them -> samples without steps."""

from typing import Any

from pixelis_jax.data.cota import UNANSWERED
from pixelis_jax.data.importers import answers, conversations
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, first_of, leftovers, quoted
from pixelis_jax.data.importers.fields import IMAGES, base_record, pictures_of, placed

QUESTIONS = ("question", "problem", "query", "prompt", "text", *conversations.MESSAGES)
REWARD = "reward_model"  # verl's: {"ground_truth": ...}


def fits(record: Record) -> bool:
    """Whether there is a question and something that may be its answer."""
    return bool(first_of(record, QUESTIONS)[0] and (first_of(record, answers.ANSWER_NAMES)[0] or record.get(REWARD)))


def is_unanswered(record: Record) -> bool:
    """Whether there is a question, and nothing, or an empty text or list, in the place of its answer."""
    _, given = _answer(record)
    empty = given is None or given == [] or (isinstance(given, str) and not given.strip())
    return bool(first_of(record, QUESTIONS)[0]) and empty


def convert(record: Record, place: Place, context: Context) -> Record:
    """A record in our form, with an empty trajectory. Raises Refusal."""
    name, asked = first_of(record, QUESTIONS)
    question, parts = _question(asked, name or "question", place)
    answer_name, given = _answer(record)
    unanswered = context.options.unanswered and is_unanswered(record)
    accepted = [] if unanswered else answers.plain(given, place, answer_name)
    choice_name, choices = first_of(record, answers.CHOICE_NAMES)
    image_name, own = first_of(record, IMAGES)
    values = [part for part in parts if part is not None] or own
    used = {name, answer_name, choice_name, "is_video", "answer_type", *((image_name,) if values is own else ())}
    made = base_record(record, place, context, used)
    if unanswered:  # as a wrong answer, which nothing is trained to give
        typed = answers.untyped(question, choices, place) | {"sample_type": "outcome_negative", "answer_loss": False}
        made["metadata"][UNANSWERED] = True
        context.notes["without an answer"] += 1
    else:
        typed = answers.typed(question, accepted[0], choices, place)
    made.update(typed, trajectory=[])
    if record.get("answer_type") is not None and not unanswered:
        made["answer_type"] = record["answer_type"]
    if len(accepted) > 1 and typed["answer_type"] != "choice":
        made["metadata"]["answers"] = accepted
    pictures = pictures_of(values, image_name or "image", place, context)
    is_video = record.get("is_video", False)
    if not isinstance(is_video, bool | None):
        raise Refusal(place.where, "is_video", "must be true or false", quoted(is_video))
    made.update(placed(pictures, is_video=is_video is True or image_name in ("frames", "video")))
    more = leftovers(record, used)
    if more:
        made["metadata"]["other_fields"] = more
    return made


def _answer(record: Record) -> tuple[str, Any]:
    """(field, answer) of a record, with that of its reward model where it has no field of its own."""
    name, given = first_of(record, answers.ANSWER_NAMES)
    reward = record.get(REWARD)
    if not name and isinstance(reward, dict):
        return REWARD, reward.get("ground_truth")
    return name or "answer", given


def _question(value: Any, field: str, place: Place) -> tuple[str, list[Any]]:
    """(the words, the images among them) of a question that is a text or a list of messages. Raises Refusal."""
    parts: list[Any] = []
    if isinstance(value, list):
        asked = [conversations.message(item, f"{field} {number}", place) for number, item in enumerate(value, 1)]
        parts = [image for message in asked if message.role == "user" for image in message.images]
        value = "\n".join(message.text for message in asked if message.role == "user")
    text = answers.without_marks(value) if isinstance(value, str) else ""
    if not text:
        raise Refusal(place.where, field, "missing or empty")
    return text, parts
