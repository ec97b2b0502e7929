"""Jobs as a user starts them: in a process of their own, and in this one for what is refused."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import fast_compile
import processes
from processes import LIMIT_S

from pixelis_jax import cli, main

ROOT = Path(__file__).parents[1]


class Jobs:
    """Starts jobs with one shared compile cache; a context manager, which kills those that still run at its end."""

    def __init__(self, compile_cache: str) -> None:
        self.environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": compile_cache,
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": fast_compile.FLAGS,
        }
        self._started: list[subprocess.Popen] = []

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(self, *error: object) -> None:
        processes.kill(*self._started)

    def command(self, config, workdir: Path, *more: str, **fields) -> Sequence[str]:
        return [sys.executable, "-m", "pixelis_jax.main", *arguments(config, workdir, **fields), *more]

    def start(self, config, workdir: Path, *more: str, **fields) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = self.command(config, workdir, *more, **fields)
        self._started.append(processes.start(command, env=self.environment, cwd=ROOT, **pipes))
        return self._started[-1]

    def start_two(self, config, workdir: Path, **fields) -> list[subprocess.Popen]:
        """One job as two processes with a device each."""
        address = f"--coordinator_address=127.0.0.1:{free_port()}"
        places = [(address, "--num_processes=2", f"--process_id={i}") for i in range(2)]
        return [self.start(config, workdir, *place, **fields) for place in places]

    def run(self, config, workdir: Path, **fields) -> str:
        """What a job that succeeds prints."""
        process = self.start(config, workdir, **fields)
        (output,) = processes.outputs_of([process])
        assert process.returncode == 0, output[-3000:]
        return output


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def arguments(config, workdir: Path, **fields) -> list[str]:
    """Command line; `a__b=1` stands for `--config.a.b=1`."""
    changed = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    return [f"--config={config}", f"--workdir={workdir}", *changed]


def refusal(monkeypatch, capsys, config, workdir: Path, *more: str, **fields) -> str:
    """The one line that a command ends with which exits 2; `more` are arguments as they are."""
    monkeypatch.setattr(sys, "argv", ["main", *arguments(config, workdir, **fields), *more])
    monkeypatch.setattr(main, "set_up_jax", lambda: None)
    assert cli.exit_code(main.main) == cli.USER_ERROR
    text = capsys.readouterr().err
    assert text.count("\n") == 1, text
    return text


def lines(path: Path) -> list[dict]:
    """Records of a JSONL file, a line that is being written left out."""
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def wait_for_step(process: subprocess.Popen, workdir: Path, step: int, *, limit_s: float = LIMIT_S) -> None:
    """Returns as soon as metrics.jsonl has `step`; fails where the process ends or takes too long before."""
    log = workdir / "metrics.jsonl"
    processes.wait_until(process, lambda: any(record["step"] >= step for record in lines(log)), limit_s=limit_s)
