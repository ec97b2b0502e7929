import errno
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from pixelis_jax.metrics import files
from pixelis_jax.types import UserError


def test_json_lines_are_ordered_exact_and_strict() -> None:
    record = {
        "b": np.float32(0.1),
        "a": 0.1,
        "step": 3,
        "n": float("nan"),
        "list": (1, [True, None]),
        "x": np.arange(2),
    }
    assert files.json_line(record) == (
        '{"step": 3, "a": 0.1, "b": 0.10000000149011612, "list": [1, [true, null]], "n": null, "x": [0, 1]}'
    )


def test_cut_back_drops_later_lines_and_a_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    files.append_lines(path, [{"step": s, "v": s / 3} for s in (1, 2, 2, 3)])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 4, "v')
    assert [r["step"] for r in files.read_jsonl(path)] == [1, 2, 2, 3]
    files.cut_back(path, 3)
    assert path.read_bytes() == whole
    files.cut_back(path, 2)
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])
    files.cut_back(path, -1)
    assert path.read_bytes() == b""


def test_cut_back_refuses_a_file_that_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("hello\n")
    with pytest.raises(UserError, match=r"m\.jsonl, line 1: .*remove"):
        files.cut_back(path, 1)
    assert path.read_text() == "hello\n"


@pytest.mark.parametrize(
    "line", ['{"step": Infinity}', '{"step": "3"}', '{"step": true}', '{"step": 3.5}', "{}", "[]", "3", "[" * 100_000]
)
def test_a_line_of_another_shape_is_named_and_left(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n' + line + "\n")
    before = path.read_bytes()
    for call in (lambda: files.check_steps(path), lambda: files.cut_back(path, 0)):
        with pytest.raises(UserError, match=r"m\.jsonl, line 2: no record of a step .*; remove the line or the file$"):
            call()
    assert path.read_bytes() == before


def test_lines_are_objects(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"a": 1}\n[]\n')
    with pytest.raises(UserError, match="line 2"):
        files.read_jsonl(tmp_path / "m.jsonl")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.jsonl")
    with pytest.raises(UserError, match=r"m\.jsonl is no regular file; remove it"):
        files.check_steps(tmp_path / "m.jsonl")


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    files.atomic_write(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="disk is full"):
        files.atomic_write(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's always-full device")
def test_a_full_disk_is_told_with_path_and_remedy() -> None:
    with pytest.raises(UserError, match=r"/dev/full: the disk is full; free some space"):
        files.append_lines(Path("/dev/full"), [{"step": 1}])


def test_a_file_size_limit_is_no_full_disk(tmp_path: Path) -> None:
    """As `ulimit -f` sets it: 8 bytes fit and the line does not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
    try:
        for write in (
            lambda: files.append_lines(tmp_path / "f", [{"step": 1}]),
            lambda: files.atomic_write(tmp_path / "f", "123456789"),
        ):
            with pytest.raises(UserError, match=r"f: the file size limit or the disk quota is reached; raise it"):
                write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
