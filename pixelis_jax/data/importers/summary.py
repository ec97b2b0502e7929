"""What an import counts of its samples, and which of them it shows: answers by type, texts by their look, pictures."""

import dataclasses
import hashlib
import heapq
import re
from collections import Counter

from pixelis_jax.answers import expressions
from pixelis_jax.data.cota import UNANSWERED, Sample

EXAMPLES = 3
_LONG = 100  # characters
_BOX = re.compile(r"[\[(]\s?-?\d+(?:\.\d+)?(?:\s?,\s?-?\d+(?:\.\d+)?){3}\s?[\])]")
_FORMULA = re.compile(r"[\\^=√π]")


def look_of(answer: str) -> str:
    """What an answer that is compared as text looks like: where a wrong reading of the data shows."""
    if _BOX.search(answer):
        return "a box in a text"
    if sum(word.isdigit() for word in re.findall(r"\d+", answer)) >= 4 and not re.search(r"[^\W\d_]", answer):
        return "numbers in a row"
    if len(answer) > _LONG or "\n" in answer:
        return "long"
    if _FORMULA.search(answer) or expressions.looks_like_math(answer):
        return "formula"
    if re.search(r"\d", answer):
        return "with digits"
    if len(answer) == 1:
        return "one character"
    if answer.casefold() in ("yes", "no", "true", "false"):
        return "yes or no"
    return "one word" if len(answer.split()) == 1 else "several words"


@dataclasses.dataclass
class Answers:
    """How many answers of each kind there are, with the first different ones."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Counts the answer of a sample."""
        kind = f"exact, {look_of(sample.ground_truth)}" if sample.answer_type == "exact" else sample.answer_type
        if UNANSWERED in sample.metadata:
            kind = "none"
        self.counts[kind] += 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < EXAMPLES and sample.ground_truth not in shown:
            shown.append(sample.ground_truth)


class Drawn:
    """Samples that are drawn to be shown: those whose ids have the smallest hashes, whatever their number."""

    def __init__(self, most: int) -> None:
        self._most, self._heap = most, list[tuple[int, str, Sample]]()

    def add(self, sample: Sample) -> None:
        """Draws a sample, perhaps in the place of another."""
        digest = int.from_bytes(hashlib.blake2b(sample.sample_id.encode(), digest_size=8).digest(), "big")
        heapq.heappush(self._heap, (-digest, sample.sample_id, sample))
        if len(self._heap) > self._most:
            heapq.heappop(self._heap)

    @property
    def samples(self) -> list[Sample]:
        return [sample for *_, sample in sorted(self._heap, key=lambda item: -item[0])]
