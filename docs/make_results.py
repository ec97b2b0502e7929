"""Table and curve of finished RFT runs, for the README: `python -m docs.make_results runs/seed0 runs/seed1 ...`.

Reads `summary.json` and `metrics.jsonl` of each workdir, prints a Markdown table, and writes docs/curve.svg.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FIELDS = (
    "success_base", "success_before", "success_after", "success_tools_off", "success_forced_direct",
    "success_forced_zoom_before", "success_forced_zoom_after", "success_greedy_before", "success_greedy_after",
    "rapr_before", "rapr_after", "valid_calls_after", "steps", "wall_s",
)  # fmt: skip
COLORS = ("#3366aa", "#cc5533", "#449944", "#885599", "#888888")
WIDTH, HEIGHT, EDGE = 640, 300, 45  # px


def table(summaries: Sequence[dict[str, Any]]) -> str:
    """One row a field, one column a run."""
    lines = ["| `summary.json` | " + " | ".join(f"seed {s['seed']}" for s in summaries) + " |"]
    lines.append("|---|" + "---|" * len(summaries))
    for name in FIELDS:
        form = "g" if name in ("steps", "wall_s") else ".3f"
        lines.append(f"| {name} | " + " | ".join(format(s[name], form) for s in summaries) + " |")
    moves = ["; ".join(f"step {t['step']}: {t['target']} ({t['cause']})" for t in s["transitions"]) for s in summaries]
    lines.append("| curriculum | " + " | ".join(move or "no change" for move in moves) + " |")
    return "\n".join(lines)


def curve(runs: Sequence[tuple[str, Sequence[tuple[int, float]]]]) -> str:
    """An SVG of success over training steps; a run is (label, [(step, success in 0..1), ...])."""
    last = max(step for _, points in runs for step, _ in points)

    def place(step: float, share: float) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * step / last
        return f"{x:.1f},{HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * share:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{EDGE}" y="20">success of training rollouts (mean over 10 steps)</text>',
        f'<text x="{WIDTH - EDGE}" y="{HEIGHT - 8}" text-anchor="end">training step {last}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<polyline points="{place(0, share)} {place(last, share)}" stroke="#dddddd"/>')
        y = place(0, share).split(",")[1]
        parts.append(f'<text x="{EDGE - 6}" y="{y}" text-anchor="end" dominant-baseline="middle">{share:g}</text>')
    for i, (label, points) in enumerate(runs):
        color = COLORS[i % len(COLORS)]
        line = " ".join(place(step, share) for step, share in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{EDGE + 90 * i}" y="{HEIGHT - 8}" fill="{color}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def smooth(points: Sequence[tuple[int, float]], length: int = 10) -> list[tuple[int, float]]:
    """Each point's mean with up to `length` - 1 points before it: [0, 1] -> [0, .5]."""
    out = []
    for i, (step, _) in enumerate(points):
        window = [value for _, value in points[max(0, i + 1 - length) : i + 1]]
        out.append((step, sum(window) / len(window)))
    return out


def read(workdir: Path) -> tuple[dict[str, Any], list[tuple[int, float]]]:
    """(summary, smoothed success by step) of a finished run."""
    summary: dict[str, Any] = json.loads((workdir / "summary.json").read_text())
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return summary, smooth([(m["step"], m["success_rate"]) for m in lines if m.get("success_rate") is not None])


def main(workdirs: Sequence[str]) -> None:
    """Prints the table and writes the picture."""
    if not workdirs:
        sys.exit("name finished workdirs, such as runs/seed0 runs/seed1")
    runs = [read(Path(name)) for name in workdirs]
    print(table([summary for summary, _ in runs]))
    picture = Path(__file__).parent / "curve.svg"
    picture.write_text(curve([(f"seed {summary['seed']}", points) for summary, points in runs]))
    print(
        f"curve: {picture.relative_to(Path.cwd()) if picture.is_relative_to(Path.cwd()) else picture}", file=sys.stderr
    )


if __name__ == "__main__":
    main(sys.argv[1:])
