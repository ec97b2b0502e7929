import json
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from pixelis_jax import config as module
from pixelis_jax.config import Change, diff, flatten, from_argv, load, override, to_json
from pixelis_jax.types import UserError

FILE = """
from ml_collections import ConfigDict

def get_config(variant=""):
    return ConfigDict({"seed": 0, "optimizer": {"learning_rate": 1e-3, "steps": 4, "on": True},
                       "lora": {"targets": ("q_proj", "v_proj"), "name": "a"}, "variant": variant})
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(FILE)
    return path


def test_variant_overrides_and_other_arguments(file: Path) -> None:
    arguments = [f"--config={file}:smoke", "--workdir=runs/a", "--config.optimizer.steps", "9", "--config.seed=-3"]
    config, rest = from_argv([*arguments, "--config.optimizer.learning_rate=2", "--config.lora.targets=('k',)", "x"])
    assert (config.variant, config.seed, config.optimizer.steps) == ("smoke", -3, 9)
    assert config.optimizer.learning_rate == 2.0 and isinstance(config.optimizer.learning_rate, float)
    assert config.lora.targets == ("k",)
    assert rest == ["--workdir=runs/a", "x"]
    assert config.is_locked and config.optimizer.is_locked


def test_booleans(file: Path) -> None:
    assert from_argv([f"--config={file}", "--config.optimizer.on=false"])[0].optimizer.on is False
    assert from_argv([f"--config={file}", "--config.optimizer.on", "--workdir=x"])[0].optimizer.on is True


def test_the_loaded_config_is_not_changed_by_overrides(file: Path) -> None:
    config = load(str(file))
    changed = override(config, ["--config.seed=5", "--config.optimizer.steps=9"])
    assert (changed.seed, changed.optimizer.steps) == (5, 9)
    assert (config.seed, config.optimizer.steps) == (0, 4)


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--config.optimizer.learning_rat=1", "did you mean optimizer.learning_rate?"),
        ("--config.optimiser.steps=1", "did you mean optimizer.steps?"),
        ("--config.learning_rate=1", "did you mean optimizer.learning_rate?"),
        ("--config.workdir=/tmp/x", "give it as --workdir=DIR"),
        ("--config.zzz=1", "there are: lora.name, lora.targets"),
        ("--config.optimizer.steps=many", "type int, such as 4"),
        ("--config.optimizer.steps=1.5", "type int, such as 4"),
        ("--config.optimizer.on=perhaps", "type bool, such as True"),
        ("--config.optimizer=3", "group of fields"),
    ],
)
def test_a_wrong_override_names_field_and_remedy(file: Path, argument: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        from_argv([f"--config={file}", argument])
    assert told in str(error.value) and argument.split("=")[0] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_stays_with_its_job() -> None:
    for value in ("sft", "rl"):
        with pytest.raises(
            UserError, match=rf"--config\.job={value}: this config is of the job 'rft'; .*configs/sft\.py"
        ):
            from_argv(["--config=configs/rft.py", f"--config.job={value}"])
    assert from_argv(["--config=configs/rft.py", "--config.job=rft"])[0].job == "rft"


def test_a_wrong_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no config: name one"):
        from_argv(["--workdir=x"])
    with pytest.raises(
        UserError, match=r"configs/prerain\.py: there is no such file; did you mean configs/pretrain\.py"
    ):
        load("configs/prerain.py")
    broken = tmp_path / "broken.py"
    broken.write_text("def get_config(:\n")
    with pytest.raises(UserError, match=r"broken\.py, line 1"):
        load(str(broken))
    broken.write_text("x = 1\n")
    with pytest.raises(UserError, match="no function get_config"):
        load(str(broken))


def test_a_packaged_config_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert module._locate("configs/__init__.py").is_file()


def test_flatten_to_json_and_diff() -> None:
    old = ConfigDict({"a": {"b": (1, 2), "c": 1.0}, "d": None})
    new = ConfigDict({"a": {"b": (1, 3), "c": 1.0}, "e": "x"})
    assert flatten(old) == {"a.b": (1, 2), "a.c": 1.0, "d": None}
    assert json.loads(json.dumps(to_json(old))) == to_json(old) == {"a": {"b": [1, 2], "c": 1.0}, "d": None}
    changes = diff(to_json(old), to_json(new))
    assert changes == [Change("a.b", [1, 2], [1, 3]), Change("d", None, None), Change("e", None, "x")]
    assert str(changes[0]) == "a.b was [1, 2], now [1, 3]"
    assert diff(to_json(old), to_json(old)) == []


def test_of_a_field_given_twice_the_last_value_counts() -> None:
    """Of tuples too, which the flags library would join."""
    made, _ = from_argv(
        ["--config=configs/rft.py", "--config.seed=1", "--config.seed=2"]
        + [f"--config.rollout.kinds=('{kind}',)" for kind in ("digit", "text")]
    )
    assert made.seed == 2 and made.rollout.kinds == ("text",)
