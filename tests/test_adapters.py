"""What is kept of a run beside Hugging Face's files, and which adapter goes with which base."""

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import small_model

from pixelis_jax import adapters, config, export, tiny
from pixelis_jax.models import peft, policy
from pixelis_jax.tools import TOOLS
from pixelis_jax.types import UserError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model.write_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return small_model.write_workdir(tmp_path_factory.mktemp("runs") / "rft", model, steps=(2,))


@pytest.fixture
def adapter(workdir: Path, tmp_path: Path) -> Path:
    export.main([f"--workdir={workdir}", "--to=peft", f"--out={tmp_path / 'adapter'}"])
    return tmp_path / "adapter"


def change(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


BUNDLED = policy.BUNDLED | adapters.BUNDLED


@pytest.mark.parametrize("name", BUNDLED)
def test_what_is_bundled_is_used_as_it_was_trained(name: str) -> None:
    settings = adapters.settings_of(BUNDLED[name])
    run = config.load("configs/pretrain.py")
    trained = {"image": run.image.to_dict(), "sampling": run.sampling.to_dict(), "tools": {"names": ["ZOOM_IN"]}}
    trained["model"] = {"dtype": "float32", "quantize": "none"}
    if name == "pixelis-tiny-sft":
        trained["lora"] = {"targets": ["language_model/.*/(q|k|v|o|gate|up|down)_proj"]}
    if name == "pixelis-tiny-tools":
        trained["tools"] = {"names": list(TOOLS)}
        trained["sampling"] |= {"max_new_tokens": 64, "context_tokens": 768, "max_turns": 10}
    assert settings == trained
    assert settings["image"]["crop_min_pixels"] == 7056


def test_a_config_in_the_current_folder_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading an adapter once executed the user's own file of this name, and took its pixel budgets."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "pretrain.py").write_text("raise AssertionError('executed')\n")
    monkeypatch.chdir(tmp_path)
    bare = shutil.copytree(BUNDLED["pixelis-tiny-sft"], tmp_path / "bare")
    (bare / adapters.SETTINGS).unlink()  # as SFT leaves it: the base's settings are taken
    assert adapters.read(bare).settings["image"]["crop_min_pixels"] == 7056


def test_pretraining_leaves_its_settings(tmp_path: Path, small_policy) -> None:
    processor, run = small_policy.processor, config.load("configs/pretrain.py")
    tiny.write_directory(
        tmp_path, processor.tokenizer, processor.config, overview=processor.overview, settings=config.to_json(run)
    )
    kept = {"image": run.image.to_dict(), "sampling": run.sampling.to_dict(), "tools": {"names": ["ZOOM_IN"]}}
    assert adapters.settings_of(tmp_path) == kept
    assert json.loads((tmp_path / adapters.SETTINGS).read_text())["origin"] == "step 14000 of pretrain"


@pytest.mark.parametrize("given", ["pixelis-tiny", "some/model"])
def test_an_adapter_of_another_base_is_refused_with_both_names(adapter: Path, model: Path, given: str) -> None:
    change(adapter / peft.CONFIG, base_model_name_or_path="some/other-model")
    with pytest.raises(
        UserError, match=f"adapter of 'some/other-model' and not of '{given}'; set model.name"
    ) as caught:
        adapters.read(adapter, base_name=given)
    assert "\n" not in str(caught.value)


def test_the_adapter_that_the_demo_starts_from_is_left_out_for_another_model(model: Path) -> None:
    with pytest.raises(
        UserError, match=r"start without one \(--config\.init_from=\), as configs/rft\.py:qwen2_5_vl_7b"
    ):
        adapters.read(Path("pixelis-tiny-sft"), base_name=str(model))


def test_a_model_is_no_adapter(model: Path) -> None:
    with pytest.raises(UserError, match=r"whole model and no adapter; .* set --config\.model\.name to it"):
        adapters.read(model)


def test_another_folder_of_the_same_name_is_another_base(adapter: Path, model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other" / model.name)
    with pytest.raises(UserError, match="is an adapter of"):
        adapters.read(adapter, base_name=str(other))


@pytest.mark.parametrize("recorded", ["", None, "{}", "{}/", "{}/../tiny", "owner/tiny", "gone/tiny"])
def test_the_same_base_under_another_name_is_taken(adapter: Path, model: Path, recorded: str | None) -> None:
    change(adapter / peft.CONFIG, base_model_name_or_path=recorded and recorded.format(model))
    assert adapters.read(adapter, base_name=str(model)).base_name == str(model)


def test_a_base_that_has_moved_is_taken(adapter: Path, model: Path) -> None:
    change(adapter / peft.CONFIG, base_model_name_or_path="some/other-model")
    assert adapters.read(adapter, base_name=str(model), moved=True).base_name == str(model)
    with pytest.raises(UserError, match="model 'some/other-model' is no directory, not in the hub's cache"):
        adapters.read(adapter)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"version": 9}, "has version 9, this program reads 1"),
        ({"image": 3}, "image.min_pixels is None"),
        ({"image": {}}, "image.min_pixels is None"),
        ({"image": small_model.SETTINGS["image"] | {"crop_max_pixels": "x"}}, "image.crop_max_pixels is 'x'"),
        (
            {"image": small_model.SETTINGS["image"] | {"min_pixels": 50000}},
            "image.min_pixels is above image.max_pixels",
        ),
        ({"sampling": small_model.SETTINGS["sampling"] | {"max_turns": 0}}, "sampling.max_turns is 0"),
    ],
)
def test_damaged_settings_are_one_line(adapter: Path, fields: dict, words: str) -> None:
    change(adapter / adapters.SETTINGS, **fields)
    with pytest.raises(UserError, match=words) as caught:
        adapters.read(adapter)
    assert str(caught.value).startswith(str(adapter / adapters.SETTINGS))


def test_a_tool_that_is_not_here_is_named(adapter: Path) -> None:
    """As where a tool of the user's own is not installed."""
    change(adapter / adapters.SETTINGS, tools={"names": ["ZOOM_IN", "CONTRAST"]})
    with pytest.raises(UserError, match="there is no tool 'CONTRAST' here"):
        adapters.read(adapter)


def test_a_finished_run_gives_what_it_ended_with(model: Path, tmp_path: Path) -> None:
    """SFT may choose the best adapter, or an average, and not the last; a step that is named is taken as it is."""
    workdir = small_model.write_workdir(tmp_path / "sft", model)
    last = adapters.read(workdir)
    chosen = jax.tree.map(lambda x: x + 1, last.adapter)
    peft.save(workdir / "adapter", chosen, lora=last.lora, base_name=str(model), text_only=False)
    assert adapters.read(workdir).origin == "step 5 of sft"
    (workdir / "finished.json").write_text("{}")
    found = adapters.read(workdir)
    assert found.origin == "the result of sft" and found.lora == last.lora and found.settings == last.settings
    for a, b in zip(jax.tree.leaves(found.adapter), jax.tree.leaves(chosen), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(
        jax.tree.leaves(adapters.read(workdir, step=5).adapter), jax.tree.leaves(last.adapter), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_an_adapter_says_that_its_base_was_quantized(model: Path, tmp_path: Path) -> None:
    workdir = small_model.write_workdir(tmp_path / "rft", model)
    file = workdir / "run.json"
    run = json.loads(file.read_text())
    run["config"]["model"]["quantize"] = "nf4"
    file.write_text(json.dumps(run))
    assert adapters.read(workdir).origin == "step 5 of rft, which was trained over nf4 weights"


def test_a_run_without_an_adapter_names_its_model(workdir: Path, tmp_path: Path) -> None:
    run = shutil.copytree(workdir, tmp_path / "pretrain")
    record = json.loads((run / "run.json").read_text())
    del record["config"]["lora"]
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"holds no adapter .*; give the workdir of a LoRA run"):
        adapters.read(run)
    (run / "model").mkdir()
    with pytest.raises(UserError, match=f"holds no adapter .*; its model is --model={run / 'model'}"):
        adapters.read(run)
    (run / "run.json").write_text("{}")
    with pytest.raises(UserError, match="has version None"):
        adapters.read(run)


# Folders of other programs --------------------------------------------------------------------------------------------
QUANTIZED = (
    "unsloth/tiny-unsloth-bnb-4bit",
    "unsloth/tiny-bnb-4bit",
    "a/Tiny-4bit",
    "Qwen/Tiny-AWQ",
    "Qwen/tiny-GPTQ-Int4",
    "a/tiny-FP8",
)


@pytest.mark.parametrize("recorded", QUANTIZED)
def test_a_base_in_fewer_bits_stands_for_the_model_in_full(adapter: Path, model: Path, recorded: str) -> None:
    """`model` is the folder `tiny`: the same name without its end."""
    change(adapter / peft.CONFIG, base_model_name_or_path=recorded)
    found = adapters.read(adapter, base_name=str(model))
    assert found.base_name == str(model) and found.origin == f"a PEFT folder, trained over {recorded}"


@pytest.mark.parametrize(
    "recorded", ["unsloth/Qwen2.5-VL-3B-Instruct-unsloth-bnb-4bit", "Qwen/Qwen2.5-VL-3B-Instruct-AWQ"]
)
def test_the_first_advice_for_a_quantized_base_works(adapter: Path, model: Path, recorded: str) -> None:
    change(adapter / peft.CONFIG, base_model_name_or_path=recorded)
    with pytest.raises(UserError, match="weights in fewer bits are not read here") as caught:
        adapters.read(adapter, base_name=str(model))
    advice = re.search(
        r"set base_model_name_or_path in (\S+) to '([^']+)', else set model.name to '(.+)'", str(caught.value)
    )
    assert advice is not None and advice[3].endswith("/Qwen2.5-VL-3B-Instruct")
    change(Path(advice[1]), base_model_name_or_path=advice[2])
    assert adapters.read(adapter, base_name=str(model)).base_name == str(model)
    # The other advice: the name of the model in full goes to the hub, or to a folder of that name.
    change(adapter / peft.CONFIG, base_model_name_or_path=recorded)
    folder = shutil.copytree(model, adapter.parent / "Qwen2.5-VL-3B-Instruct")
    assert adapters.read(adapter, base_name=str(folder)).base_name == str(folder)
    with pytest.raises(UserError, match=f"model '{advice[3]}' is no directory, not in the hub's cache"):
        adapters.read(adapter)


def test_a_trainers_folder_names_its_last_checkpoint(adapter: Path, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    for step in (5, 20, 100):
        shutil.copytree(adapter, output / f"checkpoint-{step}")
    (output / "trainer_state.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds checkpoint-100 \(the last of 3\), which is one; give (\S+)$") as caught:
        adapters.read(output, base_name=str(model))
    assert adapters.read(Path(str(caught.value).rpartition(" ")[2]), base_name=str(model)).base_name == str(model)
    shutil.copy(model / "config.json", output / "config.json")
    with pytest.raises(UserError, match="holds checkpoint-100"):
        adapters.read(output, base_name=str(model))


def test_an_adapter_in_a_folder_of_its_own_name(adapter: Path, model: Path, tmp_path: Path) -> None:
    """PEFT saves any adapter but `default` into a folder below the one that it is given."""
    shutil.copytree(adapter, tmp_path / "saved" / "my_adapter")
    with pytest.raises(UserError, match=r"is no adapter, but holds my_adapter, which is one; give \S+saved/my_adapter"):
        adapters.read(tmp_path / "saved", base_name=str(model))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": None}, "config.model.name is None"),
        ({"model": "x"}, "config.model.name is 'x'"),
        ({"model": {"name": 5}}, "config.model.name is 5"),
        ({"lora": None}, "config.lora is None"),
        ({"tools": {"names": [[]]}}, r"tools.names is \[\[\]\]"),
    ],
)
def test_a_damaged_config_of_a_run(model: Path, tmp_path: Path, change: dict, told: str) -> None:
    workdir = small_model.write_workdir(tmp_path / "rft", model, steps=(2,))
    run = json.loads((workdir / "run.json").read_text())
    (workdir / "run.json").write_text(json.dumps(run | {"config": run["config"] | change}))
    with pytest.raises(UserError, match=told):
        adapters.read(workdir)


def test_a_workdir_without_its_config(adapter: Path, model: Path, tmp_path: Path) -> None:
    for name in ("adapter", "rft_adapters_base"):
        shutil.copytree(adapter, tmp_path / "run" / name)
    (tmp_path / "run" / "checkpoints").mkdir()
    with pytest.raises(UserError, match=r"is a workdir without its run\.json; restore that, or give \S+run/adapter$"):
        adapters.read(tmp_path / "run", base_name=str(model))


def test_other_folders_that_are_no_adapter(adapter: Path, model: Path, tmp_path: Path) -> None:
    (adapter / peft.CONFIG).unlink()
    with pytest.raises(UserError, match=r"has the weights of an adapter and no adapter_config\.json"):
        adapters.read(adapter)
    shutil.copytree(model, tmp_path / "full" / "checkpoint-7")
    with pytest.raises(UserError, match=r"full/checkpoint-7 is a whole model; to train from \S+/checkpoint-7, set"):
        adapters.read(tmp_path / "full")
    with pytest.raises(UserError, match=r"has neither run\.json"):
        adapters.read(tmp_path)
