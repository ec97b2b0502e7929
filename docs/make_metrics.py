"""Writes docs/metrics.md from pixelis_jax/metrics/names.py: `python -m docs.make_metrics` in the repository's root."""

from pathlib import Path

from pixelis_jax.metrics.names import TABLE

HEAD = """# Metrics

Made by `python -m docs.make_metrics` from `pixelis_jax/metrics/names.py`; change it there.

`{op}` stands for each operation in lower case (one that no tool has yet stays 0), `{component}` for each reward
component, `{turn}` for an assistant turn, `{task}` for a task type (`text_extraction`: digits and codes), `{window}`
for a number of training steps, `{source}` for a smoothed metric, `{statistic}` for min, mean or max, `{violation}`,
`{reason}` and `{phase}` for what their row tells. Rows of the second table depend on the machine's speed and stand in
`perf.jsonl`; those of the first are bitwise the same after a kill and a resume and stand in `metrics.jsonl`. A value
that does not exist is `null`.
"""


def markdown() -> str:
    """Both tables, in the order of names.py."""
    parts = [HEAD]
    for title, bitwise in (("metrics.jsonl", True), ("perf.jsonl", False)):
        rows = [
            f"| `{row.name}` | {row.unit} | {row.meaning.replace('|', chr(92) + '|')} |"
            for row in TABLE
            if row.bitwise == bitwise
        ]
        parts.append("\n".join([f"## {title}", "", "| name | unit | meaning |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    (Path(__file__).parent / "metrics.md").write_text(markdown())
