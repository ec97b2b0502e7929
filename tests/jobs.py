"""Jobs as a user starts them: in a process of their own, and in this one for what is refused."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import fast_compile

from pixelis_jax import cli, main

ROOT = Path(__file__).parents[1]
LIMIT_S = 300


class Jobs:
    """Starts jobs with one shared compile cache."""

    def __init__(self, compile_cache: str) -> None:
        self.environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": compile_cache,
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": fast_compile.FLAGS,
        }

    def start(self, config, workdir: Path, *more: str, **fields) -> subprocess.Popen:
        command = [sys.executable, "-m", "pixelis_jax.main", *arguments(config, workdir, **fields), *more]
        return subprocess.Popen(
            command, env=self.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def start_two(self, config, workdir: Path, **fields) -> list[subprocess.Popen]:
        """One job as two processes with a device each."""
        address = f"--coordinator_address=127.0.0.1:{free_port()}"
        places = [(address, "--num_processes=2", f"--process_id={i}") for i in range(2)]
        return [self.start(config, workdir, *place, **fields) for place in places]

    def run(self, config, workdir: Path, **fields) -> str:
        """What a job that succeeds prints."""
        process = self.start(config, workdir, **fields)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output[-3000:]
        return output


def outputs_of(processes: list[subprocess.Popen], limit_s: float = LIMIT_S) -> list[str]:
    """What processes that belong together print; none is left running."""
    try:
        return [process.communicate(timeout=limit_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


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


def wait_for_step(process: subprocess.Popen, workdir: Path, step: int) -> None:
    """Returns as soon as metrics.jsonl has `step`; fails where the process ends or takes too long before."""
    end = time.monotonic() + LIMIT_S
    while not any(record["step"] >= step for record in lines(workdir / "metrics.jsonl")):
        assert process.poll() is None and time.monotonic() < end, process.communicate()[0][-3000:]
        time.sleep(0.01)
