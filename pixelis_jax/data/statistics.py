"""What a set of CoTA samples is made of, counted in one pass: for report.md and the pictures beside it."""

import array
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pixelis_jax.data import charts, inputs
from pixelis_jax.data.cota import SAMPLE_TYPES, TASK_TYPES, Sample
from pixelis_jax.metrics.files import atomic_write
from pixelis_jax.types import OPS, UserError

REPORT = "report.md"
PLOTS = {
    "plot_task_types.png": "Task types and sample types",
    "plot_steps.png": "Steps a sample",
    "plot_operations.png": "Operations",
    "plot_pairs.png": "One operation after another",
    "plot_answer_types.png": "Answer types",
    "plot_images.png": "Images a sample",
    "plot_difficulty.png": "Difficulty",
}


@dataclasses.dataclass
class Statistics:
    """Counts over samples. THINK is a step and no operation; pairs are operations that follow each other but for it."""

    types: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)  # (task type, sample type)
    steps: Counter[int] = dataclasses.field(default_factory=Counter)
    thoughts: int = 0  # THINK steps
    untrained: int = 0  # steps with loss False
    operations: Counter[str] = dataclasses.field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    answer_types: Counter[str] = dataclasses.field(default_factory=Counter)
    images: Counter[int] = dataclasses.field(default_factory=Counter)
    videos: int = 0
    scores: "array.array[float]" = dataclasses.field(default_factory=lambda: array.array("d"))

    @property
    def samples(self) -> int:
        return self.types.total()

    def add(self, sample: Sample) -> None:
        """Counts one sample."""
        self.types[sample.task_type, sample.sample_type] += 1
        self.steps[len(sample.trajectory)] += 1
        operations = [step.action for step in sample.trajectory if step.action != "THINK"]
        self.thoughts += len(sample.trajectory) - len(operations)
        self.untrained += sum(not step.loss for step in sample.trajectory)
        self.operations.update(operations)
        self.pairs.update(itertools.pairwise(operations))
        self.answer_types[sample.answer_type] += 1
        self.images[len(sample.image_paths)] += 1
        self.videos += sample.is_video
        if sample.difficulty_score is not None:
            self.scores.append(sample.difficulty_score)


def gather(samples: Iterable[Sample]) -> Statistics:
    """The statistics of samples, of which one at a time is in memory."""
    statistics = Statistics()
    for sample in samples:
        statistics.add(sample)
    return statistics


def report(samples: Path, out: Path) -> Statistics:
    """Writes report.md and its pictures about a file of samples, or a folder with such files, into the folder `out`.

    Each file appears whole, report.md last. Lines that can't be read are counted in it. Raises UserError where there
    is no file.
    """
    files = inputs.sample_files(samples)
    lines = sum(inputs.digest(file)[1] for file in files)
    statistics, refused = Statistics(), 0
    for _, item in inputs.read(files, label="statistics, samples", lines=lines):
        if isinstance(item, UserError):
            refused += 1
        else:
            statistics.add(item)
    pictures = plots(statistics)
    for name, png in pictures.items():
        atomic_write(out / name, png)
    for name in PLOTS.keys() - pictures.keys():  # of an earlier report
        (out / name).unlink(missing_ok=True)
    note = [f"{refused} lines could not be read and are not counted.", ""] if refused else []
    text = [f"# Samples of {samples.name}", "", *note, *section(statistics, pictures)]
    atomic_write(out / REPORT, "\n".join(text))
    return statistics


def section(statistics: Statistics, pictures: Iterable[str]) -> list[str]:
    """Lines of Markdown. `pictures` are names of files beside the report that are shown."""
    total = statistics.samples
    if not total:
        return ["There are no samples.", ""]
    tasks, kinds = (
        _ordered(TASK_TYPES, (t for t, _ in statistics.types)),
        _ordered(SAMPLE_TYPES, (s for _, s in statistics.types)),
    )
    by_type = [[statistics.types[task, kind] for kind in kinds] for task in tasks]
    operations = _ordered(OPS, statistics.operations)
    scores = statistics.scores
    return [
        f"{total} samples, {statistics.videos} of them about videos.",
        "",
        *table(
            ["task type", *kinds, "all"], [[task, *row, sum(row)] for task, row in zip(tasks, by_type, strict=True)]
        ),
        *table(["steps", "samples", "share"], shares({str(n): statistics.steps[n] for n in sorted(statistics.steps)})),
        f"{statistics.thoughts} THINK steps, {statistics.operations.total()} operations, "
        f"{statistics.untrained} steps that are seen and not trained.",
        "",
        *table(["operation", "calls", "share"], shares({name: statistics.operations[name] for name in operations})),
        *table(
            ["operation, then", *operations],
            [[first, *(statistics.pairs[first, second] for second in operations)] for first in operations],
        ),
        *table(["answer type", "samples", "share"], shares(dict(statistics.answer_types.most_common()))),
        *table(["images", "samples", "share"], shares(_image_counts(statistics))),
        f"Difficulty: lowest {min(scores):.3f}, mean {sum(scores) / len(scores):.3f}, highest {max(scores):.3f}"
        f" of {len(scores)} scored samples."
        if scores
        else "Difficulty: no sample has a score.",
        "",
        *(line for name in pictures for line in (f"![{PLOTS.get(name, name)}]({name})", "")),
    ]


def plots(statistics: Statistics, *, marks: Mapping[str, float] | None = None) -> dict[str, bytes]:
    """PNG pictures by file name, of what there is to show. `marks` are lines in that of the difficulty scores."""
    if not statistics.samples:
        return {}
    tasks = _ordered(TASK_TYPES, (task for task, _ in statistics.types))
    kinds = _ordered(SAMPLE_TYPES, (kind for _, kind in statistics.types))
    stacked = {task: {kind: statistics.types[task, kind] for kind in kinds} for task in tasks}
    counts: dict[str, Mapping[str, int]] = {
        "plot_steps.png": {str(n): statistics.steps[n] for n in sorted(statistics.steps)},
        "plot_operations.png": {name: statistics.operations[name] for name in _ordered(OPS, statistics.operations)},
        "plot_answer_types.png": dict(statistics.answer_types.most_common()),
        "plot_images.png": _image_counts(statistics),
    }
    made = {
        "plot_task_types.png": charts.stacked_bars(stacked, title=PLOTS["plot_task_types.png"], unit="samples"),
    }
    for name, of in counts.items():
        if of:
            made[name] = charts.bars(of, title=PLOTS[name], unit="calls" if "operations" in name else "samples")
    if statistics.pairs:
        names = _ordered(OPS, statistics.operations)
        pairs = [[statistics.pairs[first, second] for second in names] for first in names]
        title = PLOTS["plot_pairs.png"]
        made["plot_pairs.png"] = charts.grid(pairs, names, title=title, rows="operation", columns="the next one")
    if statistics.scores:
        title = PLOTS["plot_difficulty.png"]
        made["plot_difficulty.png"] = charts.histogram(statistics.scores, title=title, label="score", marks=marks)
    return {name: made[name] for name in PLOTS if name in made}


def _image_counts(statistics: Statistics) -> dict[str, int]:
    """Samples by their number of images; beyond twenty different ones together."""
    numbers = sorted(statistics.images)
    shown = {str(n): statistics.images[n] for n in numbers[:20]}
    more = sum(statistics.images[n] for n in numbers[20:])
    return shown | ({f"{numbers[20]} and more": more} if more else {})


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table with an empty one behind it; none without rows."""
    if not rows:
        return []
    rule = ["---", *["---:"] * (len(head) - 1)]
    return [*("| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *rows)), ""]


def shares(counts: Mapping[str, int]) -> list[list[object]]:
    """[name, count, share in percent] of each entry: rows for `table`."""
    total = max(sum(counts.values()), 1)
    return [[name, count, f"{100 * count / total:.1f} %"] for name, count in counts.items()]


def _ordered(known: Sequence[str], names: Iterable[str]) -> list[str]:
    """The names that occur: known ones in their order, then others by name."""
    found = set(names)
    return [*(name for name in known if name in found), *sorted(found - set(known))]
