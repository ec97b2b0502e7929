"""How every command ends: one line for what the user can mend, a traceback only for what we have to.

Imports jax only where an error of its kind may have come up, so that `--help` is quick.
"""

import errno
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pixelis_jax.metrics.files import FULL_DISK, LIMIT_REACHED

OK, USER_ERROR, OUT_OF_MEMORY, INTERRUPTED, CLOSED_PIPE = 0, 2, 3, 128 + signal.SIGINT, 128 + signal.SIGPIPE

TRAINING_REMEDY = (
    "raise optimizer.micro_batches, or lower sampling.context_tokens, image.max_pixels, eval.batch, lora.rank and what"
    " a step holds (rft: rollout.prompts, rollout.group_size; sft: data.batch_tokens; habit and pretrain: data.scenes),"
    " each as --config.NAME=VALUE"
)
_NO_MEMORY = ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY", "ut of memory")
# What a path can be wrong about, besides permissions and a full disk.
_BAD_PATHS = {errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOLCK}


def run_cli(main: Callable[[], int | None], *, memory_remedy: str = TRAINING_REMEDY) -> NoReturn:
    """Ends the process with the exit code of `main`: 0, or what `exit_code` says.

    `memory_remedy` tells the user what to do when memory runs out.
    """
    _open_streams()
    _plain_warnings()
    sys.exit(exit_code(lambda: _checked(main), memory_remedy=memory_remedy))


def _open_streams() -> None:
    """Stdout and stderr that can take every text: a closed one swallows it, a poor encoding gets escapes."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:  # or the next file that is opened would become stdout
        pass
    os.close(spare)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  open as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Plain(logging.Formatter):
    """`warning: text`, whichever library's logger it comes from."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {super().format(record)}"


def _plain_warnings() -> None:
    """Warnings read like the other lines of a command, without the name of a logging library in front."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Plain())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def _checked(main: Callable[[], int | None]) -> int | None:
    """`main`, unless an argument is no text: bytes that are not UTF-8 would fail much later, in a library."""
    for argument in sys.argv[1:]:
        if any("\ud800" <= c <= "\udfff" for c in argument):
            from pixelis_jax.types import UserError  # here, since it loads jax

            raise UserError(
                f"argument {argument!a:.200} is not valid UTF-8; rename the file, or set PYTHONUTF8=1 where the"
                " locale is the reason"
            )
    return main()


def exit_code(main: Callable[[], int | None], *, memory_remedy: str = TRAINING_REMEDY) -> int:
    """Runs `main` and turns errors that are not ours into one line on stderr.

    2 for a UserError, a full disk and a path that can't be read or written; 3 for memory of host or device; 130 for
    Ctrl-C. Other errors pass with their traceback.
    """
    try:
        return main() or OK
    except KeyboardInterrupt as error:
        return _say(f"interrupted: {error}" if str(error) else "interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has gone (`... | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except Exception as error:
        found = _explain(error, memory_remedy)
        if found is None:
            raise
        return _say(*found)


def _explain(error: Exception, memory_remedy: str) -> tuple[str, int] | None:
    """(message, exit code) of an error that the user can do something about."""
    if _is_user_error(error):
        return str(error), USER_ERROR
    full = isinstance(error, OSError) and error.errno in FULL_DISK
    if full or "No space left on device" in str(error):
        limited = isinstance(error, OSError) and error.errno != errno.ENOSPC
        told = LIMIT_REACHED if limited else "the disk is full; free some space"
        return f"{_file_of(error) or error}: {told}, then run it again", USER_ERROR
    if isinstance(error, PermissionError) and _file_of(error):
        return f"{_file_of(error)}: {error.strerror}; change its permissions or name another place", USER_ERROR
    if isinstance(error, OSError) and error.errno in _BAD_PATHS:
        return f"{_file_of(error) or 'a file'}: {error.strerror}; name another place", USER_ERROR
    if isinstance(error, MemoryError):
        return f"out of memory; {memory_remedy}", OUT_OF_MEMORY
    if _is_device_error(error) and any(s in str(error) for s in _NO_MEMORY):
        return f"out of device memory ({_first_line(error)}); {memory_remedy}", OUT_OF_MEMORY
    return None


def _is_user_error(error: Exception) -> bool:
    from pixelis_jax.types import UserError  # here, since it loads jax

    return isinstance(error, UserError)


def _is_device_error(error: Exception) -> bool:
    """Whether it is from JAX's runtime, which raises a plain ValueError too where an array can't be placed."""
    import jax

    return isinstance(error, jax.errors.JaxRuntimeError) or str(error).startswith("RESOURCE_EXHAUSTED")


def _file_of(error: Exception) -> str | None:
    name = error.filename if isinstance(error, OSError) else None
    return os.fsdecode(name) if isinstance(name, str | bytes) else None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200]


def _say(message: str, code: int) -> int:
    print(f"{program()}: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


def python() -> str:
    """How a shell calls this Python: `python` where that is the one, else its path, from here where it lies below."""
    found = shutil.which("python")
    if found and os.path.abspath(found) == os.path.abspath(sys.executable):
        return "python"
    path = os.path.relpath(sys.executable)
    return sys.executable if path.startswith(os.pardir) else path


def program() -> str:
    """What the user called: `pixelis_jax.export` for `python -m pixelis_jax.export`, else the script's name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).name
