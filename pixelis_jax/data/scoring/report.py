"""What `cota score` tells of its result: metadata.json for programs, report.md and pictures for people."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pixelis_jax.data import charts, splits, statistics
from pixelis_jax.data.scoring.passes import SHOWN, Kind, Scored, Split
from pixelis_jax.data.splits import CATEGORIES

CATEGORY_PLOT = "plot_categories.png"
PLOTS = (CATEGORY_PLOT, *statistics.PLOTS)
BINS = 20  # of 0..1 in the table of scores


def metadata(scored: Scored, made: Split, warnings: Sequence[str]) -> dict[str, Any]:
    """JSON values. NaN, where there are no scores, becomes null."""
    limits = dataclasses.asdict(made.limits)
    return {
        "thresholds": {name: None if math.isnan(value) else value for name, value in limits.items()},
        "samples": scored.statistics.samples,
        "categories": {
            category: {
                "samples": made.counts[category].total(),
                "by_type": _nested(made.counts[category]),
            }
            for category in CATEGORIES
        },
        "refused": {"count": scored.refused, "first": scored.refused_first},
        "repeated": {"count": scored.repeated, "first": scored.repeated_first},
        "images_outside": scored.outside,
        "warnings": list(warnings),
        "input_files": [dataclasses.asdict(of) | {"file": of.file.name} for of in scored.files],
    }


def _nested(counts: Counter[Kind]) -> dict[str, dict[str, int]]:
    """{task type: {sample type: samples}}."""
    nested: dict[str, dict[str, int]] = {}
    for (task_type, sample_type), count in sorted(counts.items()):
        nested.setdefault(task_type, {})[sample_type] = count
    return nested


def pictures(scored: Scored, made: Split) -> dict[str, bytes]:
    """PNG pictures by file name: the categories, and those of the statistics with the thresholds; none of nothing."""
    if not scored.statistics.samples:
        return {}
    stacked = {category: dict(sorted(made.task_types(category).items())) for category in CATEGORIES}
    marks = {"p33": made.limits.p33, "p66": made.limits.p66}
    return {
        CATEGORY_PLOT: charts.stacked_bars(stacked, title="Categories and task types", unit="samples"),
        **statistics.plots(scored.statistics, marks=marks),
    }


def report(scored: Scored, made: Split, warnings: Sequence[str], names: Iterable[str]) -> str:
    """The Markdown text. `names` are the pictures that stand beside it."""
    shown = [name for name in names if name != CATEGORY_PLOT]
    lines = [
        "# Difficulty of CoTA samples",
        "",
        *(f"- warning: {warning}" for warning in warnings),
        "",
        "## Categories",
        "",
        *_categories(scored, made),
        *([f"![Categories]({CATEGORY_PLOT})", ""] if CATEGORY_PLOT in names else []),
        "## Input",
        "",
        *_input(scored),
        "## Samples",
        "",
        *statistics.section(scored.statistics, shown),
    ]
    return "\n".join(lines)


def _categories(scored: Scored, made: Split) -> list[str]:
    total, limits = scored.statistics.samples, made.limits
    if not total:
        return []
    sums = {category: made.counts[category].total() for category in CATEGORIES}
    kinds = sorted({kind for counts in made.counts.values() for kind in counts})
    return [
        f"Simple up to {limits.p33:.4f}, medium up to {limits.p66:.4f}, hard above: percentiles 33 and 66 of the"
        f" {limits.kept} scores that are no outliers, which would be below {limits.low:.4f} or above {limits.high:.4f}"
        f" (Q1 {limits.q1:.4f}, Q3 {limits.q3:.4f}; 1.5 times their distance beyond these)."
        f" {total - limits.kept} scores lie outside and are labelled too.",
        "",
        *statistics.table(["category", "samples", "share"], statistics.shares(sums)),
        *statistics.table(
            ["task type", "sample type", *CATEGORIES],
            [[*kind, *(made.counts[category][kind] for category in CATEGORIES)] for kind in kinds],
        ),
        *statistics.table(["score", *CATEGORIES], _histogram(scored, made)),
    ]


def _histogram(scored: Scored, made: Split) -> list[list[object]]:
    """[range, simple, medium, hard] of each twentieth, from the lowest score to the highest."""
    counts = Counter(
        (min(int(score * BINS), BINS - 1), splits.category_of(score, made.limits)) for score in scored.statistics.scores
    )
    used = sorted({number for number, _ in counts})
    return [
        [f"{number / BINS:.2f} to {(number + 1) / BINS:.2f}", *(counts[number, category] for category in CATEGORIES)]
        for number in range(used[0], used[-1] + 1)
    ]


def _input(scored: Scored) -> list[str]:
    rows = [[of.file.name, of.samples, of.refused, of.repeated, f"`{of.sha256[:16]}`"] for of in scored.files]
    more = [f"- and {scored.refused - SHOWN} more"] if scored.refused > SHOWN else []
    return [
        *statistics.table(["file", "samples", "refused", "repeated", "SHA-256"], rows),
        *("- `" + line.replace("`", "'") + "`" for line in scored.refused_first),
        *more,
        *([""] if scored.refused else []),
    ]
