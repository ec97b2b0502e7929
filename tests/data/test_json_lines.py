import pytest

from pixelis_jax.data import json_lines
from pixelis_jax.types import UserError


def read(tmp_path, content):
    """[(place behind the file's name, value or message)]."""
    path = tmp_path / "f"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    shown = []
    for where, value in json_lines.iter_values(path):
        message = str(value).removeprefix(where + ": ") if isinstance(value, UserError) else value
        shown.append((where.removeprefix(str(path)), message))
    return shown


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_with_any_end_a_mark_and_blank_ones(tmp_path, end, mark):
    text = mark + end.join(["", '{"a": 1}', "  ", '{"a": 2}', "3", ""])
    assert read(tmp_path, text) == [(":2", {"a": 1}), (":4", {"a": 2}), (":5", 3)]
    assert read(tmp_path, text + "4")[-1] == (":6", 4)


@pytest.mark.parametrize("text", ["", "\n", " \r\n\n", "\ufeff", "[]", '{"samples": []}', "[\n]\n"])
def test_nothing(tmp_path, text):
    assert read(tmp_path, text) == []


@pytest.mark.parametrize("mark", ["", "\ufeff", "\n\n"])
@pytest.mark.parametrize(
    "text",
    [
        *['[{"a": 1}, 2]', '[\n{"a": 1},\n2]\n'],
        *['{"metadata": {}, "samples": [{"a": 1}, 2]}', '{"samples":\n[{"a":1},2]}'],
    ],
)
def test_a_document_counts_items(tmp_path, mark, text):
    assert read(tmp_path, mark + text) == [(": sample 1", {"a": 1}), (": sample 2", 2)]


def test_one_object_over_several_lines(tmp_path):
    assert read(tmp_path, '{\n"a": 1\n}\n') == [(": sample 1", {"a": 1})]


def test_a_list_in_jsonl_is_a_line(tmp_path):
    assert read(tmp_path, '[1]\n{"samples": [2]}\n') == [(":1", [1]), (":2", {"samples": [2]})]
    assert read(tmp_path, '{"samples": [2]}\n[1]\n') == [(":1", {"samples": [2]}), (":2", [1])]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"a": "\xff"}', "not UTF-8 text (byte 8 of the line is 0xff)"),
        (b'{"a": "x', "not valid JSON (Unterminated string"),
        (b'{"a": 1', "not valid JSON (Expecting"),
        (b"[" * 100_000, "not valid JSON (nested too deeply)"),
        (b"{'a': 1}", "not valid JSON"),
        (b"\0\0", "not valid JSON"),
        (b'{"a": 1} {"a": 2}', "not valid JSON (Extra data"),
    ],
)
def test_a_bad_line_costs_itself(tmp_path, place, bad, message):
    """First, in the middle, and as a last line that is cut in two."""
    lines = [b'{"a": 1}'] * 2
    lines.insert(place, bad)
    got = read(tmp_path, b"\n".join(lines))
    assert [where for where, _ in got] == [":1", ":2", ":3"]
    assert got[place][1].startswith(message) and "\n" not in got[place][1]
    assert [value for i, (_, value) in enumerate(got) if i != place] == [{"a": 1}] * 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_another_encoding_is_said_once(tmp_path, encoding):
    mark = "\ufeff" if encoding.endswith("be") else ""
    with pytest.raises(UserError, match="is UTF-16 or UTF-32 text; save it as UTF-8"):
        read(tmp_path, (mark + '{"a": 1}\n' * 3).encode(encoding))


def test_what_can_not_be_opened_names_the_file(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.jsonl"):
        with pytest.raises(UserError, match=rf"{path}: can't be read"):
            list(json_lines.iter_values(path))


def test_lines_are_read_as_they_are_asked_for(tmp_path):
    """What is written behind the first lines while they are read is still seen: the file is not in memory."""
    path = tmp_path / "f"
    path.write_text('{"a": 1}\n' * 3)
    values = json_lines.iter_values(path)
    next(values)
    with path.open("a") as file:
        file.write("7\n")
    # The file's buffer had all of it; reading on asks the system for more.
    assert [value for _, value in values][-1] == 7
