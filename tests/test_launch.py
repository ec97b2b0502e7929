"""The launch scripts, as far as they can be tried without installing anything."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = [*sorted((ROOT / "launch").glob("*.sh")), ROOT / ".ci" / "run"]
PINS = sorted((ROOT / "constraints").glob("*.txt"))


def setup(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `command` in a bash that has sourced launch/setup.sh."""
    script = f"set -euo pipefail; source launch/setup.sh; {command}"
    return subprocess.run(["bash", "-c", script], cwd=ROOT, env=os.environ | env, capture_output=True, text=True)


def fake_python(folder: Path, body: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_scripts_are_executable_and_parse() -> None:
    for script in SCRIPTS:
        assert os.access(script, os.X_OK), script
        assert subprocess.run(["bash", "-n", script]).returncode == 0, script


def test_an_old_python_is_named_with_the_remedy(tmp_path: Path) -> None:
    old = fake_python(tmp_path, "echo 310")
    done = setup("set_up ''", PIXELIS_PYTHON=str(old), PIXELIS_VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "is Python 3.10" in done.stderr and "3.11 or newer" in done.stderr and "apt-get install" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_python_without_venv_module_says_what_to_install(tmp_path: Path) -> None:
    bare = fake_python(tmp_path, 'case "$2" in *ensurepip*) exit 1;; *) echo 312;; esac')
    done = setup("set_up ''", PIXELIS_PYTHON=str(bare), PIXELIS_VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert "no venv module" in done.stderr and "python3-venv" in done.stderr


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = setup("set_up ''", PIXELIS_VENV=str(tmp_path))
    assert done.returncode == 1
    assert "no virtual environment" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_full_disk_is_said_before_anything_is_made(tmp_path: Path) -> None:
    done = setup("need_mb=999999999; set_up ''", PIXELIS_VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert "too full" in done.stderr and "PIXELIS_VENV" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full"),
        ("WARNING: Retrying after NewConnectionError(...)\nERROR: No matching distribution found", "no network"),
        ("ERROR: something else", "pip.log"),
    ],
)
def test_a_failed_pip_is_explained(tmp_path: Path, log: str, told: str) -> None:
    (tmp_path / "pip.log").write_text(log + "\n")
    done = setup("explain_failure", PIXELIS_VENV=str(tmp_path))
    assert done.returncode == 1
    assert told in done.stderr


def test_packages_of_an_interrupted_pip_are_redone(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, files in {"whole-1.dist-info": ["METADATA", "RECORD"], "half-1.dist-info": ["METADATA"]}.items():
        (packages / name).mkdir(parents=True)
        for file in files:
            (packages / name / file).touch()
    assert setup("drop_half_installed", PIXELIS_VENV=str(tmp_path)).returncode == 0
    assert [p.name for p in packages.iterdir()] == ["whole-1.dist-info"]


def test_progress_counts_packages_and_gives_an_eta(tmp_path: Path) -> None:
    lines = "Collecting jax==0.10.2\\nDownloading jax\\nCollecting flax\\nInstalling collected packages: jax, flax\\n"
    done = setup(f"printf '{lines}' | show_progress 10", PIXELIS_VENV=str(tmp_path))
    assert "package 1 of about 10, ETA" in done.stderr
    assert "unpacking 2 packages" in done.stderr


def test_every_dependency_is_pinned_for_each_python_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # packages of cuda13 and tpu differ by machine and jax pins them itself; monitor has an environment of its own
    extras = [v for k, v in project["optional-dependencies"].items() if k not in {"cuda13", "tpu", "monitor"}]
    wanted = {re.split(r"[<>=\[]", d)[0].lower() for group in [project["dependencies"], *extras] for d in group}
    assert [p.name for p in PINS] == ["py311.txt", "py312.txt"]
    for path in PINS:
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), path
        assert wanted <= {line.split("==")[0].lower() for line in lines}, path
