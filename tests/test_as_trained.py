"""What a config leaves open is what the adapter or the model was trained with, and an override is said."""

import json
import shutil
from pathlib import Path

import pytest
import small_model

from pixelis_jax import as_trained, config, export, limits
from pixelis_jax.config import OPEN, flatten, is_open
from pixelis_jax.models import peft
from pixelis_jax.tools import TOOLS
from pixelis_jax.types import UserError
from pixelis_jax.workdir import Workdir

OWN = {"tools": {"names": ["ZOOM_IN", "READ_TEXT"]}, "temperature": 0.5, "dtype": "bfloat16", "quantize": "int8"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model.write_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A run that was trained with settings that no config has by default."""
    made = small_model.write_workdir(tmp_path_factory.mktemp("runs") / "rft", model, steps=(2,))
    file = made / "run.json"
    run = json.loads(file.read_text())
    run["config"]["tools"] = OWN["tools"]
    run["config"]["sampling"] |= {"temperature": OWN["temperature"]}
    run["config"]["model"] |= {"dtype": OWN["dtype"], "quantize": OWN["quantize"]}
    run["config"]["lora"] |= {"rslora": True}
    file.write_text(json.dumps(run))
    return made


def resolve(path: str, **fields: object) -> as_trained.Resolved:
    changed = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    return as_trained.resolve(config.override(config.load(path), changed))


def as_this_run(found: dict, model: Path) -> None:
    """Every open field has the value of `workdir`."""
    assert found["model.name"] == str(model) and found["tools.names"] == ("ZOOM_IN", "READ_TEXT")
    assert (found["model.dtype"], found["model.quantize"], found["sampling.temperature"]) == ("bfloat16", "int8", 0.5)
    assert (found["lora.rank"], found["lora.alpha"], found["lora.rslora"]) == (2, 6.0, True)
    assert found["lora.targets"] == small_model.LORA.targets
    for group in ("image", "sampling"):
        for name, value in small_model.SETTINGS[group].items():
            assert found[f"{group}.{name}"] == value


@pytest.mark.parametrize("name", ["configs/eval.py", "configs/rft.py", "configs/sft.py", "configs/habit.py"])
def test_a_job_on_a_run_takes_all_from_it(name: str, workdir: Path, model: Path) -> None:
    """An evaluation once had its own tools and budgets: .047 in place of .422, and nothing was said."""
    resolved = resolve(name, init_from=workdir)
    as_this_run(flatten(resolved.config), model)
    limits.check(resolved.config)
    assert resolved.notes == (
        f"as {workdir} was trained: tools ZOOM_IN, READ_TEXT; pictures up to 12544 px; those of tools up to 4703 px;"
        " 6 tokens a turn; 512 a dialogue; 2 turns; bfloat16; int8",
    )


def test_an_exported_adapter_carries_it_along(workdir: Path, model: Path, tmp_path: Path) -> None:
    export.main([f"--workdir={workdir}", "--to=peft", f"--out={tmp_path / 'adapter'}"])
    as_this_run(flatten(resolve("configs/eval.py", init_from=tmp_path / "adapter").config), model)


def test_what_the_config_sets_wins_and_is_said(workdir: Path) -> None:
    resolved = resolve("configs/eval.py", init_from=workdir, sampling__max_turns=5, tools__names="('ZOOM_IN',)")
    assert resolved.config.sampling.max_turns == 5 and resolved.config.tools.names == ("ZOOM_IN",)
    assert resolved.config.sampling.max_new_tokens == 6
    assert resolved.notes[-1] == (
        f"set by this config, and otherwise than {workdir} was trained: tools.names ('ZOOM_IN',) (('ZOOM_IN',"
        " 'READ_TEXT') there), sampling.max_turns 5 (2 there)"
    )
    same = resolve("configs/eval.py", init_from=workdir, sampling__max_turns=2)
    assert len(same.notes) == 1  # it is what it would have been


def test_the_tools_are_those_that_the_model_knows() -> None:
    """RFT on pixelis-tiny-tools once offered ZOOM_IN alone, and 55 to 61 of 64 rows were left out."""
    resolved = resolve("configs/rft.py", model__name="pixelis-tiny-tools", init_from="")
    assert resolved.config.tools.names == tuple(TOOLS)
    assert (resolved.config.sampling.max_turns, resolved.config.sampling.context_tokens) == (10, 768)
    assert resolve("configs/sft.py").config.model.name == "pixelis-tiny-tools"


def test_a_foreign_adapter_on_a_foreign_model_gets_defaults_and_that_is_said(
    workdir: Path, model: Path, tmp_path: Path
) -> None:
    export.main([f"--workdir={workdir}", "--to=peft", f"--out={tmp_path / 'adapter'}"])
    (tmp_path / "adapter" / "pixelis.json").unlink()  # as PEFT writes one
    bare = shutil.copytree(model, tmp_path / "bare")
    (bare / "pixelis.json").unlink(missing_ok=True)
    recorded = json.loads((tmp_path / "adapter" / peft.CONFIG).read_text())
    (tmp_path / "adapter" / peft.CONFIG).write_text(json.dumps(recorded | {"base_model_name_or_path": str(bare)}))
    resolved = resolve("configs/eval.py", init_from=tmp_path / "adapter")
    found = flatten(resolved.config)
    assert found["lora.targets"] == small_model.LORA.targets and found["lora.rank"] == 2
    assert found["image.max_pixels"] == 448 * 448 and found["tools.names"] == ("ZOOM_IN",)
    assert resolved.notes[0].startswith(f"{bare} does not record how it was used, so these are defaults: tools ZOOM_IN")


def test_a_published_shape_gives_way_to_the_model_of_the_run(workdir: Path, model: Path) -> None:
    resolved = resolve("configs/rft.py:qwen2_5_vl_3b", init_from=workdir)
    assert resolved.config.model.name == str(model)
    assert resolve("configs/rft.py:qwen2_5_vl_3b").config.model.name == "qwen2_5_vl_3b"  # for plan


@pytest.mark.parametrize("job", ["rft", "sft", "eval", "habit"])
def test_nothing_stays_open(job: str) -> None:
    found = flatten(resolve(f"configs/{job}.py").config)
    assert [f for f in OPEN if is_open(f, found[f])] == ["image.coordinates"]  # the model family's own
    assert set(as_trained.FALLBACK) == set(OPEN) - {"model.name"}


def test_an_adapter_that_names_no_base_asks_for_it(workdir: Path, tmp_path: Path) -> None:
    export.main([f"--workdir={workdir}", "--to=peft", f"--out={tmp_path / 'adapter'}"])
    file = tmp_path / "adapter" / peft.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": None}))
    with pytest.raises(UserError, match=r"adapter names no base model; give it with --config\.model\.name=DIR"):
        resolve("configs/eval.py", init_from=tmp_path / "adapter")


def test_a_run_that_is_finished_needs_nothing_that_it_started_from(workdir: Path, model: Path, tmp_path: Path) -> None:
    made, start = resolve("configs/eval.py", init_from=workdir).config, config.load("configs/eval.py")
    start = config.override(start, [f"--config.init_from={workdir}"])
    with Workdir(tmp_path / "eval") as run:
        run.begin(made, seed=0, hashes={})
        run.mark_finished(0)
    assert Workdir(tmp_path / "eval").finished(start)
    other = config.override(start, ["--config.sampling.max_turns=5"])
    with pytest.raises(UserError, match=r"sampling\.max_turns was 2, now 5"):
        Workdir(tmp_path / "eval").finished(other)
