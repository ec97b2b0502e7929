"""Names of the hub: what is fetched, and one line where it can't be."""

import fnmatch
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors

from pixelis_jax.models import hub
from pixelis_jax.models import policy as policies
from pixelis_jax.types import UserError

NAME = "Qwen/Qwen2.5-VL-3B-Instruct"
REPOSITORY = (  # the files of a checkpoint such as the hub has them
    "config.json", "generation_config.json", "preprocessor_config.json", "chat_template.json", "tokenizer.json",
    "tokenizer_config.json", "vocab.json", "merges.txt", "model.safetensors.index.json",
    "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
)  # fmt: skip
ANSWER = SimpleNamespace(request=None, headers={})  # of a server, as much of it as the library's errors read
NOT_FETCHED = ("README.md", "pytorch_model.bin", "original/consolidated.safetensors", "tf_model.h5", "run.py")


def answered(monkeypatch, answer):
    """snapshot_download answers with a folder or raises; returns the list of its calls."""
    calls = []

    def snapshot_download(*args, **options):
        calls.append((args, options))
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_a_name_of_the_hub_gives_its_folder_in_the_cache(monkeypatch, tmp_path):
    calls = answered(monkeypatch, tmp_path)
    assert policies.resolve(NAME) == tmp_path
    ((args, options),) = calls
    assert args == (NAME,)
    fetched = [f for f in (*REPOSITORY, *NOT_FETCHED) if any(fnmatch.fnmatch(f, pattern) for pattern in hub.FILES)]
    assert tuple(fetched) == REPOSITORY and options == {"allow_patterns": list(hub.FILES)}


def test_a_folder_comes_first(monkeypatch, tmp_path):
    calls = answered(monkeypatch, tmp_path / "cache")
    (tmp_path / NAME).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert str(policies.resolve(NAME)) == NAME and not calls


@pytest.mark.parametrize(
    "name", ["model", "./a/b", "/a/b", "a/b/c", "~/a", "a/", "/b", "a b/c", "../a", "-a/b", "a\n/b"]
)
def test_what_can_be_no_name_of_the_hub_is_not_asked_for(monkeypatch, tmp_path, name):
    calls = answered(monkeypatch, tmp_path)
    with pytest.raises(UserError, match="not a bundled model"):
        policies.resolve(name)
    assert not calls


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (
            errors.RepositoryNotFoundError("404\nlong", response=ANSWER),
            "is no directory and not on the hub; check",
        ),
        (errors.GatedRepoError("403\nlong", response=ANSWER), "is gated on the hub; accept its terms"),
        (errors.LocalEntryNotFoundError("none"), "the hub can't be reached; give a directory, or fetch it"),
        (errors.HFValidationError("bad"), "is no directory and not on the hub"),
        (
            errors.HfHubHTTPError("500\nserver", response=ANSWER),
            r"can't be fetched from the hub \(500 server\)",
        ),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_what_goes_wrong_is_one_line(monkeypatch, raised, words):
    answered(monkeypatch, raised)
    with pytest.raises(UserError, match=words) as error:
        policies.resolve(NAME)
    assert str(error.value).startswith(f"model {NAME!r} ") and "\n" not in str(error.value)


def test_offline_the_cache_is_used_and_what_it_lacks_is_one_line(monkeypatch, tmp_path):
    """The library itself, told that there is no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="not in the hub's cache, and the hub can't be reached") as error:
        policies.resolve(NAME)
    assert "\n" not in str(error.value)
    commit, folder = "0" * 40, tmp_path / "models--Qwen--Qwen2.5-VL-3B-Instruct"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    assert policies.resolve(NAME) == folder / "snapshots" / commit
