"""Which of its choices the answers of a question name, by letter, by text or by number."""

import dataclasses
from collections.abc import Sequence

from pixelis_jax.answers import text as texts
from pixelis_jax.answers.choices import LETTERS, NEEDS_ALL, index_of, indices_of
from pixelis_jax.data.importers import answer_types, choices, choices_in_text, numbered_choices, numbering
from pixelis_jax.data.importers.base import Context, Place, Record, Refusal, quoted
from pixelis_jax.data.importers.choices import Asked, Choices
from pixelis_jax.data.importers.gold_values import SAME_AS_BOOLEAN


def listed(asked: Asked, context: Context, *, chooses: bool) -> tuple[Choices, Asked]:
    """(the choices of a question, the question with them on its lines): the record's, or those that it lists itself.

    Numbered ones, (1), (2), ..., get letters where the answers name them; `chooses` says that an answer names a choice.
    """
    question = asked.question
    if asked.choices.texts:
        question = choices_in_text.shown(question, asked.choices.texts)
        return asked.choices, dataclasses.replace(asked, question=question)
    made = numbered_choices.lettered(question, asked.accepted, chooses=chooses)
    if made is not None:
        context.notes["questions whose choices have numbers: they have letters now"] += 1
        asked = dataclasses.replace(asked, question=made.question, accepted=made.answers)
        return Choices(tuple(choices_in_text.listed(made.question))), asked
    found = choices_in_text.listed(question)
    if not found and numbered_choices.found(question):
        context.notes["questions that list (1), (2), ..., and whose answer is a number or another text"] += 1
    return Choices(tuple(found)), asked


def fields(asked: Asked, listed: Choices, place: Place, context: Context) -> Record:
    """The fields answer, answer_type and choices of a question with choices. Raises Refusal where one names none."""
    all_of = asked.needs_all or answer_types.wants_all(asked.question, asked.answer_type)
    letters = letters_of(asked.accepted, listed, place, context, all_of=all_of)
    if not letters:
        where = "the choices" if asked.choices.texts else "the choices that the question lists"
        reason = f"names none of {where}; give a letter or the text of one, or answer_type exact if it is none"
        raise Refusal(place.where, "answer", reason, quoted(asked.accepted[0]))
    made: Record = {"answer": letters, "answer_type": "choice", "choices": [*listed.texts]}
    if "," not in letters:
        return made
    if all_of:
        context.notes["questions for all right choices: each must be named, and no other"] += 1
        return made | {NEEDS_ALL: True}
    context.notes["questions with several accepted choices: any of them is right"] += 1
    return made


def letters_of(
    accepted: Sequence[str], listed: Choices, place: Place, context: Context, *, all_of: bool = False
) -> str:
    """The letters of the choices that answers name, as "B" or "B, C"; "" where one of them names none. Raises Refusal.

    Of equal choices that a text names the first one counts; comparing takes them for the same. All choices may be right
    where each must be named (`all_of`).
    """
    found: set[int] = set()
    if tuple(accepted) in SAME_AS_BOOLEAN.values():  # of yes and true the choices have one
        accepted = [answer for answer in accepted if index_of(answer, listed.texts) is not None]
    parts = [part for answer in accepted for part in numbering.several(answer)]
    for answer in [letter for part in parts for letter in numbering.letters(part, listed.texts)]:
        named = _named(answer, listed, place, context)
        if not named:
            return ""
        found |= named
    if len(found) == len(listed.texts) and not all_of:
        reason = "every choice is accepted, so that any answer would be right"
        raise Refusal(place.where, "answer", reason, quoted(", ".join(accepted)))
    return ", ".join(LETTERS[index] for index in sorted(found))


def _named(answer: str, listed: Choices, place: Place, context: Context) -> set[int]:
    label = choices.label_of(answer)
    if listed.labels:
        number = numbering.number_of(answer)
        if label in listed.labels:
            counted = listed.labels[0] in ("0", "1") and number is not None
            meaning = context.numbering(place) if counted else ""
            if {numbering.FROM_0: "0", numbering.FROM_1: "1"}.get(meaning, listed.labels[0]) == listed.labels[0]:
                return {listed.labels.index(label)}
        if number is not None and listed.labels[0] in ("0", "1"):  # counted otherwise than the columns have numbers
            index = number - (context.numbering(place) == numbering.FROM_1)
            if context.numbering(place) in (numbering.FROM_0, numbering.FROM_1) and 0 <= index < len(listed.texts):
                context.notes[f"answers that are numbers of choices, counted {context.numbering(place)}"] += 1
                return {index}
    elif (number := numbering.number_of(answer)) is not None:
        if listed.moved and not indices_of(answer, listed.texts):
            reason = "a number of a choice, and the letters of the choices are in another order"
            raise Refusal(place.where, "answer", reason, quoted(answer))
        meaning = numbering.MIXED if listed.moved else context.numbering(place)
        if meaning in (numbering.FROM_0, numbering.FROM_1):
            index = number - (meaning == numbering.FROM_1)
            if not 0 <= index < len(listed.texts):
                reason = f"is no number of a choice, counted {meaning} as in the rest of the file"
                raise Refusal(place.where, "answer", reason, quoted(answer))
            context.notes[f"answers that are numbers of choices, counted {meaning}"] += 1
            return {index}
        if meaning == numbering.OPEN or (meaning == numbering.MIXED and not indices_of(answer, listed.texts)):
            reason = "a number of a choice, and the file does not tell whether from 0 or from 1; say --answer_index=0|1"
            raise Refusal(place.where, "answer", reason, quoted(answer))
    letter, text = numbering.readings(answer, listed.texts)
    if letter is not None and text is not None and letter != text and listed.texts[letter] != listed.texts[text]:
        meaning = context.lettering(place)
        if meaning == numbering.OPEN:
            reason = "the letter of one choice and the text of another, and the file does not tell; say --answer_letter"
            raise Refusal(place.where, "answer", reason, quoted(answer))
        context.notes[f"answers that are both a letter and a text of choices, read as {meaning}"] += 1
        return {letter if meaning == numbering.PLACES else text}
    one = index_of(answer, listed.texts)
    if one is not None:
        return {one}
    several = sorted(indices_of(answer, listed.texts))
    keys = [texts.key(listed.texts[index]) for index in several]
    return {index for index, key in zip(several, keys, strict=True) if keys.index(key) == several.index(index)}
