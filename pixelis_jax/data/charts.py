"""Counts as PNG pictures, drawn by matplotlib without a screen. The same counts give the same bytes.

matplotlib is imported when the first picture is drawn, and the user's own settings of it are left out and left alone.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Seven colours that stay apart for colour-blind eyes (Okabe and Ito).
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_WIDTH_IN, _ROW_IN, _DPI = 8.0, 0.36, 110
_LEAST_ROWS = 3  # room for a bar that is alone


def stacked_bars(counts: Mapping[str, Mapping[str, int]], *, title: str, unit: str) -> bytes:
    """One bar a row of `counts`, its parts side by side; parts of one name have one colour."""
    names = list(dict.fromkeys(name for parts in counts.values() for name in parts))

    def draw(axes: "Axes") -> None:
        rows, left = list(counts), [0] * len(counts)
        for number, name in enumerate(names):
            widths = [counts[row].get(name, 0) for row in rows]
            axes.barh(rows, widths, left=left, label=name, color=COLORS[number % len(COLORS)], height=0.7)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_ylim(max(len(counts), _LEAST_ROWS) - 0.5, -0.5)  # the first on top
        axes.set_xlabel(unit)
        if len(names) > 1:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)

    return _png(draw, title=title, height_in=1.6 + _ROW_IN * max(len(counts), _LEAST_ROWS))


def bars(counts: Mapping[str, int], *, title: str, unit: str) -> bytes:
    """One bar a name, with its count behind it."""

    def draw(axes: "Axes") -> None:
        drawn = axes.barh(list(counts), list(counts.values()), color=COLORS[0], height=0.7)
        axes.bar_label(drawn, padding=3)
        axes.margins(x=0.12)
        axes.set_ylim(max(len(counts), _LEAST_ROWS) - 0.5, -0.5)  # the first on top
        axes.set_xlabel(unit)

    return _png(draw, title=title, height_in=1.6 + _ROW_IN * max(len(counts), _LEAST_ROWS))


def grid(table: Sequence[Sequence[int]], names: Sequence[str], *, title: str, rows: str, columns: str) -> bytes:
    """A square table of counts as coloured fields with their numbers; `names` are those of its rows and its columns."""
    most = max(max(line) for line in table)

    def draw(axes: "Axes") -> None:
        axes.imshow(table, cmap="Blues", vmin=0, aspect="auto")
        axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel(columns)
        axes.set_ylabel(rows)
        for i, line in enumerate(table):
            for j, count in enumerate(line):
                axes.text(j, i, str(count), ha="center", va="center", color="white" if 2 * count > most else "black")

    return _png(draw, title=title, height_in=2.0 + 1.5 * _ROW_IN * len(names))


def histogram(
    scores: Sequence[float], *, title: str, label: str, bins: int = 20, marks: Mapping[str, float] | None = None
) -> bytes:
    """Scores in equal bins of 0..1, larger ones in the last, and a vertical line for each of `marks`."""

    def draw(axes: "Axes") -> None:
        axes.hist([min(score, 1.0) for score in scores], bins=bins, range=(0, 1), color=COLORS[0], edgecolor="white")
        for number, (name, place) in enumerate((marks or {}).items()):
            axes.axvline(place, color=COLORS[(number + 1) % len(COLORS)], linestyle="--", label=f"{name} {place:.3f}")
        axes.set_xlabel(label)
        axes.set_ylabel("samples")
        if marks:
            axes.legend(frameon=False)

    return _png(draw, title=title, height_in=3.6)


def _png(draw: Callable[["Axes"], None], *, title: str, height_in: float) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: no window system, and no state of its own

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        figure = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title, loc="left")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        draw(axes)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        return buffer.getvalue()
