import errno
import os
import subprocess
import sys

import jax
import pytest

from pixelis_jax import cli
from pixelis_jax.types import UserError


def ending(error: BaseException | None, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """(exit code, stderr) of a command that raises `error`."""

    def main() -> None:
        if error is not None:
            raise error

    code = cli.exit_code(main)
    return code, capsys.readouterr().err


def test_success_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(None, capsys) == (0, "")
    assert cli.exit_code(lambda: 5) == 5


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UserError("lora.rank 0:\n  must be at least 1"), 2, [": lora.rank 0: must be at least 1"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
        (KeyboardInterrupt("7 are kept"), 130, ["interrupted: 7 are kept"]),
        (MemoryError(), 3, ["out of memory", "rollout.prompts", "optimizer.micro_batches"]),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nAllocator report"),
            3,
            ["allocating 9 bytes", "rollout.group_size", "sampling.context_tokens", "image.max_pixels"],
        ),
        (OSError(errno.ENOSPC, "No space left on device", "a/b.jsonl"), 2, ["a/b.jsonl: the disk is full"]),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: x: No space left on device"), 2, ["the disk is full"]),
        (OSError(errno.EFBIG, "File too large", "a/b.jsonl"), 2, ["a/b.jsonl: the file size limit", "ulimit -f"]),
        (ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), 3, ["out of device memory", "lora.rank"]),
        (FileExistsError(errno.EEXIST, "File exists", "a/file"), 2, ["a/file: File exists; name another place"]),
        (OSError(errno.EROFS, "Read-only file system", "/ro"), 2, ["/ro: Read-only file system"]),
        (PermissionError(errno.EACCES, "Permission denied", "/runs"), 2, ["/runs: Permission denied"]),
    ],
)  # fmt: skip
def test_what_the_user_can_mend_is_one_line(error, code, words, capsys: pytest.CaptureFixture[str]) -> None:
    got, text = ending(error, capsys)
    assert got == code and text.count("\n") == 1
    assert text.startswith(f"{cli.program()}: ") and all(word in text for word in words)


@pytest.mark.parametrize(
    "error", [ValueError("ours"), jax.errors.JaxRuntimeError("INTERNAL: ours"), OSError(errno.EIO, "ours")]
)
def test_our_own_faults_keep_their_traceback(error: Exception) -> None:
    def main() -> None:
        raise error

    with pytest.raises(type(error), match="ours"):
        cli.exit_code(main)


def test_a_real_allocation_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.exit_code(lambda: jax.numpy.zeros(2**48).block_until_ready() and None, memory_remedy="use less")
    assert code == 3 and capsys.readouterr().err.endswith("use less\n")


def test_the_wrapper_exits_and_loads_no_jax() -> None:
    program = "import sys; from pixelis_jax.cli import run_cli\nrun_cli(lambda: 7 if 'jax' not in sys.modules else 1)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 7


def test_a_closed_pipe_is_silent() -> None:
    talk = "[print('x' * 100, flush=True) for _ in range(9999)]"
    program = f"from pixelis_jax.cli import run_cli; run_cli(lambda: {talk} and None)"
    done = subprocess.run(f'{sys.executable} -c "{program}" | head -1', shell=True, capture_output=True, text=True)
    assert done.stdout == "x" * 100 + "\n" and done.stderr == ""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-"])
def test_closed_streams_change_nothing_else(tmp_path, closed: str) -> None:
    """The file that is opened next must not become stdout."""
    program = (
        "import sys; from pixelis_jax.cli import run_cli; file = open(sys.argv[1], 'w')\n"
        "run_cli(lambda: print('out') or print('err', file=sys.stderr) or file.write('x') + 6)"
    )
    done = subprocess.run(
        f'"{sys.executable}" -c "{program}" "{tmp_path}/file" {closed}', shell=True, capture_output=True, text=True
    )
    assert done.returncode == 7 and (tmp_path / "file").read_text() == "x"


def test_a_poor_encoding_of_stdout_gets_escapes() -> None:
    program = "from pixelis_jax.cli import run_cli; run_cli(lambda: print('\\xfc\\u4e2d'))"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "\\xfc\\u4e2d\n")


def test_an_argument_that_is_no_text_is_refused_before_anything_runs() -> None:
    program = "from pixelis_jax.cli import run_cli; run_cli(lambda: print('ran'))"
    done = subprocess.run([sys.executable, "-c", program, b"--workdir=a\xff"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert r"argument '--workdir=a\udcff' is not valid UTF-8" in done.stderr
