"""Modules import downward only, in the order of the design; readers of run files import little."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pixelis_jax"
LEVELS = (
    ("types", "masked", "update", "functions", "answers"),
    ("metrics", "cli"),
    ("parallel", "hosts"),
    ("models",),
    ("tools",),
    ("data",),
    ("rollout",),
    ("rewards",),
    ("algorithms",),
    ("curriculum",),
    (
        "checkpoints",
        "config",
        "workdir",
        "adapters",
        "evaluation",
        "held_out",
        "left_out",
        "tiny",
        "reading",
        "train_step",
        "dynamic",
    ),
    ("as_trained", "asking"),
    ("assembly", "limits", "runtime", "offline", "online", "programs", "sft", "summary"),
    ("train",),
    ("main", "cota", "export", "plan", "predict", "analyze"),
)
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
READERS = {"monitor": {"types", "metrics", "curriculum"}, "reports": {"types", "metrics", "curriculum"}}
NEEDED_BY_NONE = {"torch", "peft", "trl", "tensorflow", "sklearn", "skimage"}  # test and tool-making extras only


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downward(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    assert part in LEVEL or part in READERS, f"{part} has no place in the order: give it one here and in the design"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "pixelis_jax" or parts[1] in (part, "__version__"):
            continue
        if part in READERS:
            assert parts[1] in READERS[part], f"{path.name} imports {name}"
        else:
            assert LEVEL[parts[1]] <= LEVEL[part], f"{path.name} imports {name}, which stands above it"


def test_run_time_needs_no_extra() -> None:
    tools = {"make_assets.py", "sam2.py"}  # run once by hand, its results are in the package; a backend by choice
    for path in PACKAGE.rglob("*.py"):
        if path.name not in tools:
            assert not NEEDED_BY_NONE & {name.split(".")[0] for name in imports(path)}, path
