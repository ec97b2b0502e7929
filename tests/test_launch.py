"""The launch scripts, as far as they can be tried without installing anything."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
from processes import LIMIT_S, started, wait_until

from launch import pytest_eta

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


class Environment:
    """A virtual environment whose pip and commands are shell lines; what they were asked for stands in `calls`.

    Anything else goes to the Python that runs this test. torch is installed once pip was asked for it. It has no CUDA
    plugin, which is asked for where there is a GPU alone.
    """

    def __init__(self, folder: Path, install: str = ":", versions: str = "echo 'Available versions: 2.13.0'") -> None:
        self.path, self.log = folder / "venv", folder / "calls"
        (self.path / "bin").mkdir(parents=True)
        (self.path / "pyvenv.cfg").write_text(f"version = {sys.version.split()[0]}\n")
        body = f"""
            case "$*" in
              "-m pip install"*) echo "$*" >>"{self.log}"; {install} ;;
              "-m pip index"*) {versions} ;;
              "-m pip --version") echo pip 26 ;;
              "-m pip show"*) exit 1 ;;
              *'version("torch")'*) grep -qs torch== "{self.log}" && echo 2.13.0 ;;
              "-m "*) echo "$PWD: $*" >>"{self.log}" ;;
              *) exec "{sys.executable}" "$@" ;;
            esac"""
        fake_python(self.path / "bin", body)

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def run(self, script: Path, *arguments: str, **fields) -> subprocess.CompletedProcess[str]:
        options = {"env": os.environ | {"PIXELIS_VENV": str(self.path)}} | fields
        return subprocess.run([str(script), *arguments], capture_output=True, text=True, timeout=LIMIT_S, **options)


LOCAL, TEST = ROOT / "launch" / "local.sh", ROOT / "launch" / "test.sh"


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


def test_missing_parents_of_the_environment_are_no_matter(tmp_path: Path) -> None:
    done = setup("need_mb=999999999; set_up ''", PIXELIS_VENV=str(tmp_path / "no" / "such" / "venv"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "too full" in done.stderr


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(...)'", "no network"),
        ("HTTPSConnectionPool(host='x', port=443): Max retries exceeded (Caused by SSLError(...))", "certificate"),
        ("ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/x'", "may not write"),
        ("ERROR: No matching distribution found for jax==9.9.9", "lacks a pinned package"),
        ("ERROR: something else", "pip.log"),
        ("nothing that looks like an error, \\377", "pip.log"),
    ],
)
@pytest.mark.parametrize("script", [LOCAL, TEST], ids=["local", "test"])
def test_a_failed_pip_is_explained(script: Path, tmp_path: Path, printed: str, told: str) -> None:
    environment = Environment(tmp_path, install=f'printf "{printed}\\n"; exit 1')
    done = environment.run(script)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("[setup] error: ") and told in error
    assert len(environment.calls) == 1, "it went on"


def test_a_pip_that_waits_for_the_network_says_so_once(tmp_path: Path) -> None:
    done = setup("yes 'WARNING: Retrying (...)' | head -5 | show_progress 10", PIXELIS_VENV=str(tmp_path))
    assert done.stderr.count("does not answer") == 1


LONG = "; seq 20000"  # more than a pipe holds: a reader that leaves early would end pip by SIGPIPE


@pytest.mark.parametrize(
    ("versions", "wanted"),
    [
        ("echo 'Available versions: 2.15.0, 2.13.0+cpu, 2.13.0'" + LONG, "torch==2.13.0+cpu"),
        ("echo 'Available versions: 2.15.0, 2.13.0, 2.13.0+cpu.cxx11.abi'", ""),
        ("exit 1", ""),
    ],
)
def test_parity_takes_torch_for_the_cpu_or_says_that_there_is_none(tmp_path: Path, versions: str, wanted: str) -> None:
    environment = Environment(tmp_path, versions=versions)
    for _ in range(2):  # the second time, everything is installed
        done = setup("uname() { echo Linux; }; set_up test", PIXELIS_VENV=str(environment.path))
        assert done.returncode == 0
        assert ("live parity tests are skipped, golden ones run" in done.stderr) == (not wanted)
    installed = [call.split()[-1] for call in environment.calls]
    assert installed == [".[test,tools]", *([wanted, ".[parity]"] if wanted else [])]


def test_called_through_a_link_from_another_folder(tmp_path: Path) -> None:
    """Paths that the user gives start where the user is."""
    folder = tmp_path / "a folder"
    environment = Environment(folder)
    (folder / "mine.py").touch()
    (folder / "link").symlink_to(LOCAL)
    given = ["--workdir=runs/x", "--config=mine.py:smoke", "--config=configs/rft.py", "--config.init_from=here", "--x="]
    done = environment.run(folder / "link", *given, cwd=folder, env=os.environ | {"PIXELIS_VENV": "venv"})
    assert done.returncode == 0, done.stderr
    assert environment.calls[-1] == (
        f"{ROOT}: -m pixelis_jax.main --config=configs/rft.py --workdir={folder}/runs/x --config={folder}/mine.py:smoke"
        " --config=configs/rft.py --config.init_from=here --x="
    )
    environment.run(folder / "link", "--workdir=runs/x", cwd=ROOT)
    assert environment.calls[-1].endswith(" --workdir=runs/x")


def test_arguments_of_test_sh_go_to_pytest(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    (tmp_path / "link").symlink_to(TEST)
    done = environment.run(tmp_path / "link", "tests/test_main.py", "-k", "a or b", "-n", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert environment.calls[-1].startswith(f"{ROOT}: -m pytest ")
    assert environment.calls[-1].endswith(" tests/test_main.py -k a or b -n 0")


@pytest.mark.parametrize("broken", ["no python", "another version", "no pip"])
def test_a_broken_environment_is_made_anew(tmp_path: Path, broken: str) -> None:
    good = Environment(tmp_path / "good")
    path = tmp_path / "venv"
    (path / "bin").mkdir(parents=True)
    (path / "pyvenv.cfg").write_text(f"home = /x\nversion = {'3.9.2' if broken == 'another version' else '3.11.7'}\n")
    (path / ".pixelis-installed-test").write_text("old")
    if broken == "no python":
        (path / "bin" / "python").symlink_to(tmp_path / "gone")
    else:
        fake_python(path / "bin", 'case "$*" in *sys.version_info*) echo 311;; *) exit 1;; esac')
    remake = f'rm -r "{path}"; cp -r "{good.path}" "{path}"'
    base = fake_python(tmp_path, f'case "$*" in "-m venv"*) {remake};; *) exec "{good.path}/bin/python" "$@";; esac')
    done = setup("set_up ''", PIXELIS_VENV=str(path), PIXELIS_PYTHON=str(base))
    assert done.returncode == 0, done.stderr
    told = {"no python": "does not run", "another version": "was made with Python 3.9", "no pip": "has no pip"}
    assert told[broken] in done.stderr and "making the virtual environment" in done.stderr
    assert good.calls[-1].endswith("-e .[tools]")


def test_ctrl_c_says_how_to_go_on_and_the_next_run_does(tmp_path: Path) -> None:
    environment = Environment(tmp_path, install=f'[ -e "{tmp_path}/again" ] || sleep 30')
    script = "set -euo pipefail; source launch/setup.sh; set_up ''"
    command = ["env", "--default-signal=INT", "bash", "-c", script]  # tests in the background would ignore it
    options = {"cwd": ROOT, "env": os.environ | {"PIXELIS_VENV": str(environment.path)}, "text": True}
    with started(command, stderr=subprocess.PIPE, **options) as process:
        wait_until(process, lambda: bool(environment.calls))
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert (
        error.splitlines()[-1] == "[setup] error: interrupted: run the same command again, it goes on where it stopped"
    )
    (tmp_path / "again").touch()
    for _ in range(2):
        assert subprocess.run(command, stderr=subprocess.DEVNULL, **options).returncode == 0
    assert len(environment.calls) == 2, "once interrupted, once whole, then nothing to do"


def test_a_tested_python_is_preferred_and_a_newer_one_tried(tmp_path: Path) -> None:
    names = {"python3": 314, "python3.13": 309, "python3.12": 312, "python3.11": 311}
    for name, line in names.items():
        fake_python(tmp_path, f"echo {line}").rename(tmp_path / name)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert setup("find_python", PATH=path).stdout == "python3.12\n"
    for name in ("python3.12", "python3.11"):
        shutil.copy(tmp_path / "python3.13", tmp_path / name)
    done = setup("find_python", PATH=path)
    assert done.stdout == "python3\n" and "newer than what was tested" in done.stderr


def test_a_named_python_may_have_spaces_and_start_at_the_caller(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    fake_python(tmp_path / "a b", "echo 312")
    done = setup(f"caller='{tmp_path}'; find_python", PIXELIS_PYTHON="a b/python")
    assert done.stdout == f"{tmp_path}/a b/python\n"


def test_the_locale_does_not_matter(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "\N{LATIN SMALL LETTER E WITH ACUTE}", install="echo 'Collecting \N{BULLET}'")
    done = environment.run(LOCAL, env=os.environ | {"PIXELIS_VENV": str(environment.path), "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr


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


def test_progress_of_the_tests_adds_up_expected_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow file of two tests and another of four: one slow test done is 40 of 85 s."""
    monkeypatch.setattr(pytest_eta, "FILE_S", {"slow.py": 80})
    monkeypatch.setattr(pytest_eta, "OTHER_S", 5)
    monkeypatch.setattr(pytest_eta, "EVERY_S", 0)
    clock, written = iter([100.0, 180.0]), []
    monkeypatch.setattr(pytest_eta.time, "monotonic", lambda: next(clock))

    class Config:
        class pluginmanager:
            @staticmethod
            def get_plugin(name: str):
                return type("Reporter", (), {"write_line": staticmethod(written.append)})

    eta = pytest_eta.Eta(Config, ["slow.py::a", "slow.py::b", *(f"quick.py::{i}" for i in range(4))])
    eta.pytest_runtest_logfinish("slow.py::a")
    assert written[-1] == "[test] 1 of 6 tests, 80 s, ETA about 90 s"


@pytest.mark.parametrize("processes", ["0", "2"])
def test_progress_and_order_with_and_without_xdist(processes: str, tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_1(): pass\ndef test_2(): pass\n")
    (tmp_path / "test_b.py").write_text("import time\ndef test_1(): time.sleep(1)\ndef test_2(): pass\n")
    changes = 'pytest_eta.EVERY_S = 0\npytest_eta.FILE_S = {"test_b.py": 9}\n'
    (tmp_path / "conftest.py").write_text(f"from launch import pytest_eta\n{changes}")
    options = ["-p", "launch.pytest_eta", "-n", processes, "--dist", "loadfile", "--no-loadscope-reorder", "-v"]
    command = [sys.executable, "-m", "pytest", f"--rootdir={tmp_path}", "-c", "/dev/null", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"\[test\] (\d) of 4 tests, \d+ s, ETA about \d+ s", done.stdout)
    assert told == ["1", "2", "3"]
    if processes == "0":
        assert re.findall(r"test_(\w)\.py::test_\d PASSED", done.stdout) == ["b", "b", "a", "a"]


def test_two_processes_where_there_are_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, processes in ((1, 0), (2, 2), (64, 2)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        assert pytest_eta.pytest_xdist_auto_num_workers() == processes


def test_compiled_functions_are_dropped_with_the_last_test_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = []
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(clear_caches=lambda: cleared.append(1)))
    a, b, c = (types.SimpleNamespace(nodeid=name) for name in ("a.py::1", "a.py::2", "b.py::1"))
    for item, following, count in ((a, b, 0), (b, c, 1), (c, None, 2)):
        list(pytest_eta.pytest_runtest_teardown(item, following))
        assert len(cleared) == count


def test_the_slow_files_exist() -> None:
    assert not [file for file in pytest_eta.FILE_S if not (ROOT / file).is_file()]
