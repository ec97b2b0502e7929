"""docs/from_pixelis.md: what it says is here, is here."""

import argparse
import re
from pathlib import Path

import pytest

from pixelis_jax import config as configs
from pixelis_jax.metrics import names

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "from_pixelis.md").read_text()
JOBS = ("rft", "sft", "eval")


def cells(title: str) -> list[list[str]]:
    """Cells of the table under a heading, without its head."""
    part = PAGE.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in part.splitlines() if line.startswith("|")]
    return rows[2:]


def test_each_field_is_one_of_a_config() -> None:
    known = set().union(*(configs.flatten(configs.load(f"configs/{job}.py")) for job in JOBS))
    groups = {name.partition(".")[0] for name in known if "." in name}
    ours = " ".join(row[1] for title in ("Scripts", "Flags", "YAML") for row in cells(title))
    ours += PAGE.split("`training_params.yaml`:", 1)[1].split("\n## ", 1)[0]
    found = {(group, name) for group, name in re.findall(r"\b([a-z]+)\.([a-z][a-z_0-9]*)", ours) if group in groups}
    fields = {f"{group}.{name}" for group, name in found} - {"eval.py"}
    assert fields - known - {"curriculum.stages"} == set() and len(fields) > 40


def test_each_metric_is_one_that_is_logged() -> None:
    ours = [name for row in cells("Metrics") for name in re.findall(r"`([^`]+)`", row[1])]
    parts = {"coherence", "curiosity", "penalty", "total"}
    assert [name for name in ours if name not in parts and names.find(name) is None] == []
    assert len(ours) > 25


def test_each_command_and_file_is_there() -> None:
    for module in re.findall(r"python -m ([\w.]+)", PAGE):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module
    for name in re.findall(r"configs/\w+\.py(?::\w+)?", PAGE):
        configs.load(name)
    for name in re.findall(r"`(pixelis_jax/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).is_file()


@pytest.mark.parametrize("title", ["Scripts", "Flags", "YAML", "Metrics", "Numbers"])
def test_tables_are_whole(title: str) -> None:
    rows = cells(title)
    assert rows and len({len(row) for row in rows}) == 1


def test_flags_of_our_commands() -> None:
    from pixelis_jax.cota import generate

    parser = argparse.ArgumentParser()
    generate.add_arguments(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert {"--num_samples", "--out", "--seed", "--trap_share", "--self_correction_share"} <= flags
