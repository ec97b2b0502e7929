"""Table of finished SFT runs for a page: `python -m docs.make_sft_results curriculum=runs/a,runs/b uniform=...`.

Each argument is a name and its runs. Reads `summary.json` and `metrics.jsonl` of each workdir and prints Markdown:
test accuracy of the chosen adapter, overall, by difficulty and by task type, then what the curriculum did.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from pixelis_jax.cli import OK, run_cli
from pixelis_jax.types import UserError

Summary = dict[str, Any]


def shares(found: Mapping[str, Any]) -> dict[str, tuple[float, int]]:
    """Row -> (share of right answers, questions) of one evaluation."""
    parts = {**found["by_category"], **found["by_task"]}
    count = sum(n for _, n in found["by_category"].values())
    return {"all": (found["overall"], count), **{name: (share, n) for name, (share, n) in parts.items()}}


def table(groups: Mapping[str, Sequence[Summary]]) -> str:
    """One row a part of the test questions; the start first, then the runs of each group and their mean."""
    start = shares(next(iter(groups.values()))[0]["test"]["start"])
    titles = ["test accuracy", "questions", "start"]
    for name, runs in groups.items():
        titles += [*(f"{name} {s['seed']}" for s in runs), "mean"]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for row, (share, count) in start.items():
        cells = [row.replace("_", " "), str(count), f"{share:.3f}"]
        for runs in groups.values():
            values = [shares(s["test"][s["chosen"]])[row][0] for s in runs]
            cells += [*(f"{v:.3f}" for v in values), f"**{mean(values):.3f}**"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def told(name: str, summary: Summary) -> str:
    """What one run did, in a line."""
    moves = [f"step {t['step']}: {t['source']} -> {t['target']} ({t['cause']})" for t in summary["transitions"]]
    off = summary["test"]["tools_off"]["overall"]
    return (
        f"- {name}, seed {summary['seed']}: {'; '.join(moves) or 'no change of stage'}. Chosen: {summary['chosen']};"
        f" tools off {off:.3f}; {summary['steps']} steps, {summary['wall_s']:.0f} s"
    )


def curve(workdir: Path) -> str:
    """Validation accuracy by step, in a line."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    points = [(r["step"], r["eval/accuracy"]) for r in lines if r.get("eval/accuracy") is not None]
    return ", ".join(f"{step}: {accuracy:.2f}" for step, accuracy in points)


def read(workdir: str) -> Summary:
    """summary.json of a finished run."""
    try:
        found = json.loads((Path(workdir) / "summary.json").read_text())
        shares(found["test"][found["chosen"]])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{workdir} holds no finished SFT run ({error}); its own command finishes it") from None
    return dict(found)


def check_alike(runs: Mapping[str, Summary]) -> None:
    """Raises UserError for runs that were not asked the same number of questions of each kind."""
    counts = {path: {row: n for row, (_, n) in shares(run["test"]["start"]).items()} for path, run in runs.items()}
    first = next(iter(counts))
    for path, asked in counts.items():
        if asked != counts[first]:
            raise UserError(f"{first} and {path} were asked different test questions; compare runs on the same data")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and a line a run."""
    parser = argparse.ArgumentParser(prog="python -m docs.make_sft_results", description=(__doc__ or "").split("`")[0])
    parser.add_argument("groups", nargs="+", metavar="NAME=RUN[,RUN...]", help="a name and finished runs' workdirs")
    folders: dict[str, list[str]] = {}
    for group in parser.parse_args(arguments).groups:
        name, _, paths = group.partition("=")
        if not name or not all(paths.split(",")):
            parser.error(f"{group!r} is no group; write it as curriculum=runs/a,runs/b")
        folders[name] = paths.split(",")
    groups = {name: [read(path) for path in paths] for name, paths in folders.items()}
    check_alike({path: run for name in folders for path, run in zip(folders[name], groups[name], strict=True)})
    print(table(groups), end="\n\n")
    for name, paths in folders.items():
        for path, summary in zip(paths, groups[name], strict=True):
            print(told(name, summary))
            print(f"  validation accuracy by step: {curve(Path(path))}")
    return OK


if __name__ == "__main__":
    run_cli(main)
