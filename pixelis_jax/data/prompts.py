"""What an RL job asks: prompts without end to train on, and held-out questions that measure it.

Either are PixelSearch's, drawn when they are asked for, or a user's own: the questions of a folder of CoTA samples, as
`cota import` makes it of RL prompts.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from absl import logging

from pixelis_jax.data.corpus import ChangedError, Corpus, Selection, open_corpus, open_sides
from pixelis_jax.data.cota import OWN_TYPE, SAMPLE_TYPES
from pixelis_jax.data.pixelsearch.questions import LOOK_KINDS, make_task
from pixelis_jax.models.processor import Placed, Processor
from pixelis_jax.models.rows import Row
from pixelis_jax.types import Task, UserError

SKIPPED = "skipped"  # metadata of a task: 1 where it stands in for a question that can't be asked
Check = Callable[[Task], str]  # why a task can't be asked; "" where it can


class Prompts(Protocol):
    """Tasks by number, pure functions of it."""

    @property
    def counted(self) -> str:
        """Which of the held-out questions success is counted over, in words."""

    @property
    def held_out_count(self) -> int: ...

    @property
    def epoch(self) -> int:
        """Training questions until they come again; 0: they never do."""

    @property
    def pictures(self) -> int:
        """The most pictures, or frames, that a training question shows."""

    @property
    def unanswered(self) -> int:
        """Training questions whose answer nobody knows."""

    @property
    def columns(self) -> frozenset[str]:
        """Names of what training questions hold beside the fields that are known."""

    @property
    def hashes(self) -> dict[str, str]:
        """Of data that is not bundled, for run.json."""

    def train(self, number: int) -> Task:
        """Training prompt `number`, from 0 without end; the number is its address."""

    def held_out(self, number: int) -> Task:
        """Held-out question 0 .. held_out_count - 1; behind them the last one stands."""

    def notes(self) -> list[str]:
        """What the data holds and what was left out, in lines for the user."""


@dataclasses.dataclass(frozen=True)
class Scenes:
    """PixelSearch: scene `number` of a seed, with one question of the kinds.

    Success is counted over the questions that need a look; where no held-out kind has any, over all.
    """

    seed: int
    kinds: tuple[str, ...]
    held_out_kinds: tuple[str, ...]
    held_out_count: int
    unanswered: int = 0
    epoch: int = 0
    pictures: int = 1
    columns: frozenset[str] = frozenset()

    @property
    def counted(self) -> str:
        return "where a look is needed" if self._looks else "over all questions"

    @property
    def _looks(self) -> bool:
        return any(kind in LOOK_KINDS for kind in self.held_out_kinds)

    @property
    def hashes(self) -> dict[str, str]:
        return {}

    def train(self, number: int) -> Task:
        return make_task(self.seed, "train", number, kinds=self.kinds)

    def held_out(self, number: int) -> Task:
        task = make_task(self.seed, "heldout", number, kinds=self.held_out_kinds)
        return task if self._looks else dataclasses.replace(task, needs_look=True)

    def notes(self) -> list[str]:
        return []


class Questions:
    """The questions of CoTA samples, whatever their dialogues are: each once an epoch, in an order of the epoch's own.

    For one that can't be asked, since its picture is damaged or `check` says so, another one that is drawn stands in;
    its metadata says so. Success is counted over all questions.
    """

    counted = "over all questions"

    def __init__(self, training: Corpus, held_out: Corpus, *, seed: int, held_out_count: int, check: Check) -> None:
        """Raises UserError where no held-out question can be asked."""
        self.seed = seed
        self.training, self.apart = _Side(training, check, "skipped/prompt counts them"), _Side(held_out, check, "")
        self._orders: dict[int, np.ndarray] = {}
        shuffled = np.random.Generator(np.random.Philox(key=len(held_out))).permutation(len(held_out))
        self._numbers: list[int] = []
        self._left_out = 0
        for number in shuffled:  # all over the file: neighbours in it are alike
            if len(self._numbers) == held_out_count:
                break
            if self.apart.task(int(number), 0) is None:
                self._left_out += 1
            else:
                self._numbers.append(int(number))
        if not self._numbers:
            raise UserError(
                f"{held_out.name}: none of its {len(held_out)} held-out questions can be asked; the first one:"
                f" {self.apart.why}"
            )
        self.held_out_count = len(self._numbers)
        self.epoch = len(training)
        self.unanswered = training.unanswered
        self.pictures = training.most_pictures
        self.columns = training.columns

    @property
    def hashes(self) -> dict[str, str]:
        return {"data": self.training.corpus.sha256, "held_out": self.apart.corpus.sha256}

    def train(self, number: int) -> Task:
        """Raises UserError where no question of the folder can be asked."""
        count = len(self.training.corpus)
        epoch, place = divmod(number, count)
        task = self.training.task(int(self._order(epoch)[place]), number)
        if task is not None:
            return task
        others = np.random.Generator(np.random.Philox(key=[self.seed, number])).permutation(count)
        for other in others:
            task = self.training.task(int(other), number)
            if task is not None:
                return dataclasses.replace(task, metadata={**task.metadata, SKIPPED: 1})
        raise UserError(
            f"{self.training.corpus.name}: none of its {count} questions can be asked; the first one:"
            f" {self.training.why}"
        )

    def held_out(self, number: int) -> Task:
        at = min(number, self.held_out_count - 1)
        task = self.apart.task(self._numbers[at], at)
        if task is None:
            raise UserError(f"a held-out question can't be asked any more: {self.apart.why}")
        return task

    def notes(self) -> list[str]:
        training, apart = self.training.corpus, self.apart.corpus
        types = ", ".join(sorted(set(training.task_types)))
        told = [f"data: {len(training)} questions of {training.name} ({types})"]
        if training is not apart:
            told[0] += f" to train on; {len(apart)} of {apart.name} are held out"
        left = ", ".join(f"{count} {reason}" for reason, count in training.left_out.most_common())
        told += [f"data: left out {left}"] if left else []
        if self.unanswered or apart.unanswered:
            count = f"{self.unanswered} training and {apart.unanswered} held-out questions have no answer"
            told.append(f"data: {count}; each counts as a wrong one in success")
        if training is not apart and (shared := shared_pictures(training, apart)):
            told.append(f"data: {shared} held-out pictures are trained on too: success will be too high")
        told.append(f"evaluation: {self.held_out_count} held-out questions of {apart.name}")
        if self._left_out:
            told.append(f"evaluation: {self._left_out} left out that can't be asked")
        return told

    def _order(self, epoch: int) -> np.ndarray:
        """i64[N], kept for the epochs asked for last: a thread ahead may be in another one than dynamic sampling."""
        order = self._orders.get(epoch)
        if order is None:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            order = generator.permutation(len(self.training.corpus))
            self._orders = dict([*self._orders.items()][-3:]) | {epoch: order}
        return order


class _Side:
    """The training or the held-out questions; `why` the first of them could not be asked."""

    def __init__(self, corpus: Corpus, check: Check, where: str) -> None:
        self.corpus, self.check, self.why = corpus, check, ""
        self._told = f"; such questions are left out{where and f', {where}'}"

    def task(self, number: int, address: int) -> Task | None:
        """Sample `number` as a task with an address; None where it can't be asked, which is logged the first time.

        Raises ChangedError where the file of samples was changed.
        """
        try:
            task = self.corpus.task(number)
            why = self.check(task)
        except ChangedError:
            raise
        except UserError as error:
            why = str(error)
        if not why:
            kind = task.metadata[OWN_TYPE]
            return dataclasses.replace(task, index=address, needs_look=True, metadata={**task.metadata, "kind": kind})
        if not self.why:
            logging.warning("%s%s", why, self._told)
            self.why = why
        return None


def shared_pictures(training: Corpus, held_out: Corpus) -> int:
    """Pictures that are both trained on and asked about."""
    same_root = training.root.resolve() == held_out.root.resolve()
    return len(training.pictures & held_out.pictures) if same_root else 0


def open_questions(
    path: str, held_out_path: str, held_out_share: float, *, seed: int, held_out_count: int, check: Check, train: bool
) -> Questions:
    """The questions of a folder; held out are a share of its pictures, or another folder. Raises UserError.

    Where none are trained on, a share of 0 stands for all.
    """
    selection = Selection(SAMPLE_TYPES, held_out_share)
    if not train and not held_out_path and not held_out_share:
        training = held_out = open_corpus(Path(path), selection)
    else:
        training, held_out = open_sides(Path(path), Path(held_out_path) if held_out_path else None, selection)
    return Questions(training, held_out, seed=seed, held_out_count=held_out_count, check=check)


def prompt_tokens(task: Task, processor: Processor, schemas: str) -> int:
    """Tokens of a prompt, its images included."""
    row = Row()
    places = [Placed(processor.fit_overview(*image.shape[:2]), 0) for image in task.images]
    processor.append_prompt(row, task.question, places, schemas)
    return len(row)
