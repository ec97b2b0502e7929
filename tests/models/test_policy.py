"""Names of models, and directories that lack a file."""

import os

import pytest

from pixelis_jax.models import policy as policies
from pixelis_jax.types import UserError


@pytest.mark.parametrize("name", ["", "nowhere", "~nouser/model", "x" * 300, "a\0b", "loop", "file"])
def test_what_is_no_model_is_one_short_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a bundled model") as error:
        policies.resolve(name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert policies.resolve("~/model") == tmp_path / "model"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_the_hash_names_a_missing_file(tmp_path, missing):
    for name in {"config.json", "tokenizer.json"} - {missing}:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=rf"{missing}: not there"):
        policies.content_hash(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["preprocessor_config.json", "processor_config.json", "generation_config.json", "chat_template.jinja",
     "chat_template.json", "config.json", "tokenizer.json", "model.safetensors"],
)  # fmt: skip
def test_the_hash_covers_what_decides_what_the_model_sees_and_says(tmp_path, name):
    for needed in ("config.json", "tokenizer.json"):
        (tmp_path / needed).touch()
    seen = {policies.content_hash(tmp_path)}
    for content in ("{}", "[]"):
        (tmp_path / name).write_text(content)
        seen.add(policies.content_hash(tmp_path))
    assert len(seen) == 3
    (tmp_path / "README.md").write_text("other words")
    assert policies.content_hash(tmp_path) in seen
