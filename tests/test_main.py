"""The command line of the jobs, before any of them starts."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import pytest
from jobs import ROOT, refusal
from processes import LIMIT_S

from pixelis_jax import cli, main


def run(*arguments: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *options, "-m", "pixelis_jax.main", *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)


def test_help_is_quick_and_names_the_jobs():
    """Quick: it imports nothing of the jobs, on whatever machine."""
    done = run("--help", options=["-X", "importtime"])
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    slow = {"transformers", "tokenizers", "orbax.checkpoint", "grain", "rapidocr", "pixelis_jax.train"}
    assert done.returncode == 0 and "argparse" in imported and not imported & slow
    assert all(word in done.stdout for word in ("rft.py", "sft.py", "habit.py", "pretrain.py", "eval.py", "--workdir"))


def test_a_typo_ends_the_process_with_2_and_the_nearest_name(tmp_path: Path):
    done = run("--config=configs/rft.py", f"--workdir={tmp_path / 'run'}", "--config.optimizer.learningrate=1")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "did you mean optimizer.learning_rate?" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "fields", "words"),
    [
        ("configs/rtf.py", {}, ["configs/rtf.py", "did you mean configs/rft.py?"]),
        ("configs/rft.py:smok", {}, ["no variant 'smok'", "'smoke'"]),
        ("configs/rft.py:smoke", {"seed": "one"}, ["--config.seed=one", "int"]),
        ("configs/rft.py:smoke", {"job": "rl"}, ["--config.job=rl", "of the job 'rft'"]),
        ("configs/rft.py:smoke", {"curriculum__stages": "(3,)"}, ["curriculum.stages: 3"]),
        ("configs/rft.py:smoke", {"lora__targets": "('(',)"}, ["lora.targets: '('", "no regular expression"]),
        ("configs/rft.py:smoke", {"model__name": "big"}, ["'big'", "pixelis-tiny"]),
        ("configs/rft.py:smoke", {"model__dtype": "int8"}, ["model.dtype 'int8'", "bfloat16"]),
        ("configs/rft.py:smoke", {"init_from": "nowhere"}, ["nowhere"]),
        ("configs/rft.py:smoke", {"init_from": "", "lora__targets": "('x_proj',)"}, ["x_proj", "q_proj"]),
        (
            "configs/rft.py:smoke",
            {"init_from": "", "lora__targets": "('visual/.*',)"},
            ["visual/patch_embed, which is a convolution", "take 'visual/blocks' and 'visual/.*merger'"],
        ),
        ("configs/rft.py:smoke", {"lora__rank": 4}, ["rank 8", "lora.rank"]),
        ("configs/rft.py:smoke", {"lora__rslora": True}, ["rslora False; set lora.rank, lora.alpha and lora.rslora"]),
        ("configs/rft.py:smoke", {"rollout__group_size": 1}, ["group_size 1"]),
        ("configs/rft.py:smoke", {"algorithm__loss": "clipp"}, ["'clipp'", "did you mean 'clip'?"]),
        ("configs/rft.py:smoke", {"rewards__norm": "batch"}, ["norm 'batch'", "group"]),
        ("configs/rft.py:smoke", {"optimizer__schedule": "linear"}, ["optimizer.schedule 'linear'", "cosine"]),
        ("configs/habit.py:smoke", {"optimizer__warmup_steps": 4}, ["optimizer.warmup_steps 4", "total_steps 4"]),
        ("configs/rft.py:smoke", {"mesh__fsdp": 3}, ["fsdp=3", "config.mesh"]),
        ("configs/rft.py:smoke", {"checkpoint__restore_step": 9}, ["no whole step 9", "restore_step"]),
        ("configs/rft.py:smoke", {"checkpoint__keep": 0}, ["checkpoint.keep is 0"]),
    ],
)  # fmt: skip
def test_what_is_refused_in_one_line(config, fields, words, monkeypatch, capsys, tmp_path):
    text = refusal(monkeypatch, capsys, config, tmp_path, **fields)
    assert all(word in text for word in words), text


def test_a_workdir_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    done = run("--config=configs/eval.py:smoke", f"--workdir={tmp_path / 'file'}")
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert f"{tmp_path / 'file'}: File exists; name another place" in done.stderr


def test_a_device_that_is_not_there_is_one_line(monkeypatch, capsys):
    def devices():
        raise RuntimeError("Unknown backend cuda")

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unchanged")
    assert cli.exit_code(main.set_up_jax) == cli.USER_ERROR
    assert "JAX finds no device" in capsys.readouterr().err


def test_an_unknown_argument_is_refused(monkeypatch, capsys, tmp_path):
    text = refusal(monkeypatch, capsys, "configs/rft.py:smoke", tmp_path, "--steps=3")
    assert "'--steps=3' is unknown; see --help" in text


def test_the_default_workdir_is_named_after_the_config():
    assert main.default_workdir(["--config=configs/rft.py"]) == Path("runs/rft")
    assert main.default_workdir(["--config.seed=1", "--config=a/sft.py:smoke"]) == Path("runs/sft_smoke")


def test_the_default_workdir_knows_both_ways_to_write_the_flag():
    assert main.default_workdir(["--config", "configs/rft.py"]) == Path("runs/rft")


def test_the_compile_cache_is_on_and_can_be_moved(monkeypatch, tmp_path):
    before = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    try:
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        main.set_up_jax()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "pixelis_jax" / "compiled")
        jax.config.update("jax_compilation_cache_dir", "/elsewhere")
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
        main.set_up_jax()
        assert jax.config.jax_compilation_cache_dir == "/elsewhere"
    finally:
        jax.config.update("jax_compilation_cache_dir", before[0])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])
