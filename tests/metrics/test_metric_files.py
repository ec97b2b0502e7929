import errno
import os
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
    with pytest.raises(UserError, match=r"m\.jsonl.*remove"):
        files.cut_back(path, 1)
    assert path.read_text() == "hello\n"


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
