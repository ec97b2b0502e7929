import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_model
from safetensors.numpy import load_file

from pixelis_jax import adapters, export
from pixelis_jax.models import peft, policy
from pixelis_jax.models.rows import Row, pad_rows
from pixelis_jax.types import UserError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return small_model.write_workdir(tmp_path_factory.mktemp("runs") / "rft", model)


def exported(workdir: Path, out: Path, to: str = "peft", *more: str) -> Path:
    export.main([f"--workdir={workdir}", f"--to={to}", f"--out={out}", *more])
    return out


def same(one: object, two: object) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def logits(policy_: policy.Policy, adapter: object) -> np.ndarray:
    """f32[1, T, V] of a prompt with an image."""
    processor = policy_.processor
    image = np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)
    row = Row()
    processor.append_prompt(row, "which digit?", processor.place([image], crop=False), "")
    variables = {"params": policy_.params} | ({} if adapter is None else {"lora": adapter})
    features = policy_.model.apply(variables, processor.pack([image], crop=False), method="encode_images")
    batch = pad_rows([row], length=len(row), pad=processor.pad)
    return np.asarray(policy_.model.apply(variables, batch, features, method="forward_logits"))


def test_the_last_whole_step_comes_out_exactly(workdir: Path, model: Path, tmp_path: Path, capsys) -> None:
    out = exported(workdir, tmp_path / "deep" / "adapter")
    again, config = peft.load(out, policy.abstract_params(policy.load(str(model)).model))
    wanted = jax.tree.map(lambda x: x * 5, small_model.random_adapter(model))
    assert same(again, wanted) and config == small_model.LORA
    assert json.loads((out / peft.CONFIG).read_text())["base_model_name_or_path"] == str(model)
    recorded = {**small_model.SETTINGS, "model": small_model.PRECISION, "tools": small_model.TOOLS}
    assert adapters.settings_of(out) == {**recorded, "lora": {"targets": list(small_model.LORA.targets)}}
    assert "step 5 of rft" in capsys.readouterr().out
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["adapter"]  # no temporary folder is left


def test_a_step_can_be_named_and_an_unknown_one_is_refused(workdir: Path, model: Path, tmp_path: Path) -> None:
    out = exported(workdir, tmp_path / "a", "peft", "--step=3")
    got = adapters.read(out).adapter
    assert same(got, jax.tree.map(lambda x: x * 3, small_model.random_adapter(model)))
    with pytest.raises(UserError, match=r"no whole step 4; restore_step can be 3, 5"):
        exported(workdir, tmp_path / "b", "peft", "--step=4")
    assert not (tmp_path / "b").exists()


def test_the_merged_model_gives_the_logits_of_base_and_adapter(workdir: Path, model: Path, tmp_path: Path) -> None:
    out = exported(workdir, tmp_path / "m", "merged")
    trained = adapters.read(workdir)
    wanted = logits(policy.load(str(model), lora_scale=trained.lora.scale), trained.adapter)
    merged = policy.load(str(out))
    assert np.abs(wanted - logits(policy.load(str(model)), None)).max() > 0.1
    assert np.abs(wanted - logits(merged, None)).max() < 1e-4
    assert {p.name for p in out.iterdir()} == {p.name for p in model.iterdir()} | {adapters.SETTINGS}
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"


def test_merging_keeps_the_precision_of_the_base_unless_told(tmp_path: Path) -> None:
    half = small_model.write_model(tmp_path / "half", dtype=jnp.float16)
    run = small_model.write_workdir(tmp_path / "run", half, steps=(1,))
    base = load_file(half / "model.safetensors")
    for flags, dtype in (((), np.float16), (("--dtype=float32",), np.float32)):
        merged = load_file(exported(run, tmp_path / f"m{len(flags)}", "merged", *flags) / "model.safetensors")
        assert {v.dtype for v in merged.values()} == {np.dtype(dtype)} and merged.keys() == base.keys()
        changed = {k for k in base if not np.array_equal(base[k].astype(dtype), merged[k])}
        assert len(changed) == 7 * 2  # the seven adapted layers of both decoder layers, nothing else


def test_merged_directory_in_transformers(workdir: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="parity with torch: pip install -e .[parity]")
    from transformers import Qwen2_5_VLForConditionalGeneration

    out = exported(workdir, tmp_path / "m", "merged")
    theirs = Qwen2_5_VLForConditionalGeneration.from_pretrained(out).eval()
    tokens = torch.arange(20, 40)[None]
    with torch.no_grad():
        expected = theirs(input_ids=tokens).logits.numpy()
    ours, row = policy.load(str(out)), Row()
    row.append_text(tokens[0].tolist())
    batch = pad_rows([row], length=len(row), pad=0)
    got = ours.model.apply({"params": ours.params}, batch, jnp.zeros((1, 64)), method="forward_logits")
    assert np.abs(np.asarray(got) - expected).max() < 1e-4


def test_a_peft_directory_can_be_merged_too(workdir: Path, tmp_path: Path) -> None:
    adapter = exported(workdir, tmp_path / "a")
    one, two = exported(workdir, tmp_path / "m1", "merged"), exported(adapter, tmp_path / "m2", "merged")
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="has no steps"):
        exported(adapter, tmp_path / "m3", "merged", "--step=1")


def test_out_must_be_new_or_empty(workdir: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    exported(workdir, tmp_path / "empty")
    before = {p: p.read_bytes() for p in (tmp_path / "empty").iterdir()}
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        exported(workdir, tmp_path / "empty", "merged")
    assert before == {p: p.read_bytes() for p in (tmp_path / "empty").iterdir()}
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        exported(workdir, tmp_path / "file")


def test_what_a_killed_export_left_is_named_and_kept(workdir: Path, tmp_path: Path, capsys) -> None:
    left = tmp_path / ".export.abc"
    left.mkdir()
    exported(workdir, tmp_path / "out")
    assert f"note: {left} is of an export that was killed or still runs" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [".export.abc", "out"]


def test_out_that_is_a_link_to_an_empty_folder_is_filled(workdir: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    exported(workdir, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / peft.CONFIG).is_file()
    (tmp_path / "dangling").symlink_to("new")
    exported(workdir, tmp_path / "dangling")
    assert (tmp_path / "new" / peft.CONFIG).is_file()


def test_a_long_name_and_a_home_are_names_too(workdir: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    exported(workdir, Path("~") / ("x" * 250))
    assert (tmp_path / ("x" * 250) / peft.CONFIG).is_file()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (".", "--out=. is the current folder; name a new one"),
        ("../here", "--out=../here is the current folder"),
        ("../file", "--out=../file exists and is not an empty folder"),
        ("../loop", "--out=../loop exists and is not an empty folder"),
        ("../file/x", "/file is a file, not a folder; name another place"),
        ("x" * 300, "can't be written (File name too long); name another place"),
    ],
)
def test_a_bad_out_is_one_line(workdir: Path, tmp_path: Path, monkeypatch, out: str, words: str) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError) as caught:
        exported(workdir, Path(out))
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "here", "loop"]


def test_a_folder_that_is_closed_or_busy_is_one_line_with_the_name_given(workdir: Path, tmp_path: Path, monkeypatch):
    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/hidden/.export.x")

    monkeypatch.setattr(export.tempfile, "TemporaryDirectory", closed)  # root may write anywhere
    with pytest.raises(UserError, match=f"^--out={tmp_path / 'o'} can't be written \\(Permission denied\\)"):
        exported(workdir, tmp_path / "o")
    monkeypatch.undo()

    def busy(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "rename", busy)  # a mount point
    with pytest.raises(UserError, match="Device or resource busy"):
        exported(workdir, tmp_path / "o")
    assert not list(tmp_path.iterdir())


def test_a_base_cut_short_is_named(workdir: Path, tmp_path: Path) -> None:
    out = exported(workdir, tmp_path / "a")
    base = shutil.copytree(json.loads((out / peft.CONFIG).read_text())["base_model_name_or_path"], tmp_path / "base")
    (base / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes()[:100])
    with pytest.raises(UserError, match=r"model\.safetensors: truncated"):
        exported(out, tmp_path / "m", "merged", f"--model={base}")


def test_what_is_no_run_is_refused_in_one_line(workdir: Path, model: Path, tmp_path: Path) -> None:
    cases = {"nothing": "is no folder", "bare": "has neither run.json", "young": "no whole checkpoint; let the run"}
    (tmp_path / "bare").mkdir()
    (tmp_path / "young").mkdir()
    shutil.copy(workdir / "run.json", tmp_path / "young")
    for name, words in cases.items():
        with pytest.raises(UserError, match=words):
            exported(tmp_path / name, tmp_path / "out")
    other = small_model.write_model(tmp_path / "other", dtype=jnp.float16)
    with pytest.raises(UserError, match=rf"which was called '{model}' \(the hash differs\)"):
        exported(workdir, tmp_path / "out", "peft", f"--model={other}")
    (tmp_path / "young" / "run.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        exported(tmp_path / "young", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_help_loads_no_jax() -> None:
    program = (
        "import sys; from pixelis_jax import export\n"
        "try: export.main(['--help'])\n"
        "finally: assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "--workdir" in done.stdout and not done.stderr


def test_the_command_ends_with_one_line_and_2(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pixelis_jax.export",
        f"--workdir={tmp_path}",
        "--to=peft",
        f"--out={tmp_path / 'o'}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("pixelis_jax.export: ") and done.stderr.count("\n") == 1


def test_the_export_says_where_its_base_lies_and_that_works_with_peft(
    model: Path, workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bundled name, or a folder relative to where the run was started, means nothing to PEFT."""
    out = exported(workdir, tmp_path / "adapter")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("its base: "))
    assert line.startswith(f"its base: {model.resolve()}; with PEFT: PeftModel.from_pretrained(AutoModelForImageText")
    transformers = pytest.importorskip("transformers")
    reference_peft = pytest.importorskip("peft", reason="parity with torch: pip install -e .[parity]")
    names = {"PeftModel": reference_peft.PeftModel} | {name: getattr(transformers, name) for name in AUTO}
    loaded = eval(line.partition("with PEFT: ")[2], names)
    assert len(reference_peft.get_peft_model_state_dict(loaded)) == len(jax.tree.leaves(adapters.read(out).adapter))
    assert "pixelis-tiny" in export.base_in_python("pixelis-tiny", out).partition(";")[0]


AUTO = ("AutoModelForImageTextToText", "AutoModelForCausalLM")
