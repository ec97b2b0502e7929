import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from processes import started

from pixelis_jax import config as configs
from pixelis_jax.types import UserError
from pixelis_jax.workdir import Workdir, commit, may_change

HOLDER = """
import sys, time
from pixelis_jax.workdir import Workdir
with Workdir(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""
HASHES = {"model": "abc"}


def config(**changes: object) -> ConfigDict:
    made = ConfigDict(
        {
            "job": "rft",
            "lr": 1e-3,
            "total_steps": 10,
            "logging": {"every": 1},
            "eval": {"scenes": 8},
            "lora": {"targets": ("q",)},
            "optimizer": {"schedule": "constant", "micro_batches": 1},
        }
    )
    made.update_from_flattened_dict(changes)
    return made


def log_a_step(workdir: Workdir) -> None:
    (workdir.path / "metrics.jsonl").write_text('{"step": 1}\n')


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with started(command, env=env, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        told = rf"in use by process {holder.pid} on \S+; stop it or name another --workdir"
        with pytest.raises(UserError, match=told), Workdir(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with Workdir(tmp_path) as workdir:
        assert not workdir.begin(config(), seed=0, hashes=HASHES)


def test_run_json_says_what_is_needed_to_do_it_again(tmp_path: Path) -> None:
    with Workdir(tmp_path / "new" / "run") as workdir:
        workdir.begin(config(), seed=3, hashes=HASHES)
        run = json.loads((workdir.path / "run.json").read_text())
    assert run["config"]["lora"] == {"targets": ["q"]} and run["seed"] == 3 and run["hashes"] == HASHES
    assert run["versions"]["jax"] and run["versions"]["python"]
    assert run["devices"]["count"] >= 1 and run["devices"]["kind"]
    assert run["commit"] == commit()


def test_a_changed_config_is_refused_with_all_changed_fields(tmp_path: Path) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        log_a_step(workdir)
        before = (tmp_path / "run.json").read_bytes()
        with pytest.raises(UserError, match=r"lora\.targets was \['q'\], now \['k'\]; lr was 0\.001, now 0\.1\)"):
            workdir.begin(config(lr=0.1, **{"lora.targets": ("k",)}), seed=0, hashes=HASHES)
        with pytest.raises(UserError, match=r"hashes\.model was 'abc', now 'xyz'"):
            workdir.begin(config(), seed=0, hashes={"model": "xyz"})
        with pytest.raises(UserError, match=r"seed was 0, now 1"):
            workdir.begin(config(), seed=1, hashes=HASHES)
        assert (tmp_path / "run.json").read_bytes() == before


def test_a_run_of_an_earlier_version_is_called_that(tmp_path: Path) -> None:
    """The remedy "restore them" would be none: no field can be taken away."""
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        log_a_step(workdir)
        newer = ConfigDict({**config().to_dict(), "a": {"b": 1}, "c": None})
        with pytest.raises(UserError, match=r"an earlier version, whose config has no a\.b, c; go on with"):
            workdir.begin(newer, seed=0, hashes=HASHES)
        newer.lr = 0.1
        with pytest.raises(UserError, match=r"another config \(a\.b was None, now 1; c was None.*lr was 0\.001"):
            workdir.begin(newer, seed=0, hashes=HASHES)


def test_fields_that_change_no_result_may_change(tmp_path: Path) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        assert workdir.begin(config(total_steps=20, **{"logging.every": 5}), seed=0, hashes=HASHES)
        assert json.loads((tmp_path / "run.json").read_text())["config"]["total_steps"] == 20


CHECKPOINT = {"checkpoint.every_steps", "checkpoint.keep", "checkpoint.restore_step"}
LIMIT = "tools.time_limit_s"
# What may change on resume, by job: everything else of the config is bound.
FREE = {
    "rft": CHECKPOINT
    | {"tools.workers", "eval.scenes", "eval.kinds", "eval.modes", "total_steps"}
    | {"logging.rollouts", "logging.rollouts_every_steps"},
    "sft": CHECKPOINT | {"tools.workers", "data.workers", "logging.rollouts", "log_every_steps"},
    "habit": CHECKPOINT
    | {"tools.workers", LIMIT, "data.workers", "eval.scenes", "eval.kinds", "eval.modes", "log_every_steps"},
    "pretrain": CHECKPOINT
    | {"tools.workers", LIMIT, "data.workers", "eval.scenes", "eval.kinds", "eval.modes", "log_every_steps"},
    "eval": CHECKPOINT | {"tools.workers", "total_steps"},
}
MESH = {"mesh.data", "mesh.fsdp", "mesh.tensor"}
ROUNDING = {job: MESH | {"optimizer.micro_batches", "eval.batch"} for job in FREE} | {"eval": MESH}


@pytest.mark.parametrize("job", FREE)
def test_of_each_jobs_fields_these_may_change(job: str) -> None:
    """Each field of each config is decided here: a new one that is bound needs no line, a free one does."""
    made = configs.load(f"configs/{job}.py")
    if job == "pretrain":
        made.cota.samples = 0
    fields = configs.flatten(made)
    found = {kind: {f for f in fields if may_change(f, configs.to_json(made)) == kind} for kind in ("free", "rounding")}
    assert found == {"free": FREE[job], "rounding": ROUNDING[job]}


@pytest.mark.parametrize(
    ("job", "changes", "field", "kind"),
    [
        ("sft", {"curriculum.stages": (), "optimizer.schedule": "constant"}, "eval.samples", ""),  # it picks the best
        ("sft", {"optimizer.schedule": "constant"}, "total_steps", ""),
        ("habit", {"optimizer.schedule": "constant"}, "total_steps", "free"),
        ("habit", {}, "total_steps", ""),
        ("rft", {"optimizer.schedule": "cosine"}, "total_steps", ""),
        ("rft", {"algorithm.aggregation": "bnpo"}, "optimizer.micro_batches", ""),
        ("rft", {}, "optimizer.micro_batches", "rounding"),
        ("pretrain", {"cota.samples": 8}, "mesh.fsdp", ""),
        ("sft", {}, "sampling.max_turns", ""),
        ("sft", {}, "image.crop_max_pixels", ""),
        ("sft", {}, "curriculum.evaluation_frequency", ""),
        ("rft", {}, "evaluation", ""),  # no field: its name only begins like a group's
    ],
)
def test_what_decides_a_curriculum_or_a_result_is_bound(job: str, changes: dict, field: str, kind: str) -> None:
    made = configs.load(f"configs/{job}.py")
    made.update_from_flattened_dict(changes)
    assert may_change(field, configs.to_json(made)) == kind


def test_a_run_of_sft_keeps_its_held_out_questions(tmp_path: Path) -> None:
    made = configs.load("configs/sft.py:smoke")
    with Workdir(tmp_path) as workdir:
        workdir.begin(made, seed=0, hashes=HASHES)
        log_a_step(workdir)
        for name in ("samples", "test_samples"):  # a small category gives both a share of what it has
            changed = configs.override(made, [f"--config.eval.{name}=7"])
            with pytest.raises(UserError, match=rf"eval\.{name} was 6, now 7"):
                workdir.begin(changed, seed=0, hashes=HASHES)


def test_what_is_evaluated_may_change_unless_that_is_the_job(tmp_path: Path) -> None:
    for job in ("rft", "eval"):
        with Workdir(tmp_path / job) as workdir:
            workdir.begin(config(job=job), seed=0, hashes=HASHES)
            log_a_step(workdir)
            changed = config(job=job, **{"eval.scenes": 16})
            if job == "rft":
                assert workdir.begin(changed, seed=0, hashes=HASHES)
            else:
                with pytest.raises(UserError, match=r"eval\.scenes was 8, now 16"):
                    workdir.begin(changed, seed=0, hashes=HASHES)


def test_the_length_of_a_cosine_run_is_part_of_its_result(tmp_path: Path) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(**{"optimizer.schedule": "cosine"}), seed=0, hashes=HASHES)
        log_a_step(workdir)
        with pytest.raises(UserError, match=r"total_steps was 10, now 20"):
            workdir.begin(config(total_steps=20, **{"optimizer.schedule": "cosine"}), seed=0, hashes=HASHES)


def test_more_micro_batches_are_allowed_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        with caplog.at_level("WARNING"):
            assert workdir.begin(config(**{"optimizer.micro_batches": 4}), seed=0, hashes=HASHES)
    assert "optimizer.micro_batches was 1, now 4; the resumed run may differ in the last bits" in caplog.text


def test_other_devices_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        file = tmp_path / "run.json"
        run = json.loads(file.read_text())
        file.write_text(json.dumps(run | {"devices": run["devices"] | {"count": 64}}))
        with caplog.at_level("WARNING"):
            workdir.begin(config(), seed=0, hashes=HASHES)
    assert f"devices.count was 64, now {run['devices']['count']}; the resumed run may differ" in caplog.text


def test_another_pillow_is_said_to_make_other_pixels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        file = tmp_path / "run.json"
        run = json.loads(file.read_text())
        file.write_text(json.dumps(run | {"versions": run["versions"] | {"pillow": "13.0.0"}}))
        with caplog.at_level("WARNING"):
            workdir.begin(config(), seed=0, hashes=HASHES)
    assert f"versions.pillow was '13.0.0', now {run['versions']['pillow']!r}; pictures may be resized" in caplog.text


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"mine": 1}\n')
    with Workdir(tmp_path) as workdir, pytest.raises(UserError, match=r"has no run\.json but holds metrics\.jsonl"):
        workdir.begin(config(), seed=0, hashes=HASHES)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"mine": 1}\n'


def test_other_versions_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        run = json.loads((tmp_path / "run.json").read_text())
        run["versions"]["jax"] = "0.1"
        (tmp_path / "run.json").write_text(json.dumps(run))
        with caplog.at_level("WARNING"):
            assert workdir.begin(config(), seed=0, hashes=HASHES)
    assert "jax was '0.1'" in caplog.text


@pytest.mark.parametrize(
    "saved",
    ["metrics.jsonl", "checkpoints/3/manifest.json", "checkpoints_set_aside/3/manifest.json", "finished.json"],
)
def test_a_start_that_did_no_step_may_be_corrected(
    tmp_path: Path, saved: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Until there is something of the first config, the second one takes its place."""
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        (tmp_path / "metrics.jsonl").touch()
        with caplog.at_level("WARNING"):
            assert not workdir.begin(config(lr=0.1), seed=1, hashes={"model": "xyz"})
        assert "lr was 0.001, now 0.1" in caplog.text and "no step of it was done" in caplog.text
        run = json.loads((tmp_path / "run.json").read_text())
        assert (run["config"]["lr"], run["seed"], run["hashes"]) == (0.1, 1, {"model": "xyz"})
        (tmp_path / saved).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / saved).write_text('{"step": 1}\n')
        with pytest.raises(UserError, match=r"lr was 0\.1, now 0\.001"):
            workdir.begin(config(), seed=1, hashes={"model": "xyz"})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ("text", "is damaged (Expecting"),
        ([], "is damaged (not a JSON object)"),
        (None, "is damaged (not a JSON object)"),
        ({}, "has version None, this program reads 1"),
        ({"version": 2}, "has version 2, this program reads 1"),
        ({"config": 3}, "is damaged (config is 3)"),
        ({"seed": "0"}, "is damaged (seed is '0')"),
        ({"versions": None}, "is damaged (versions is None)"),
        ({"devices": []}, "is damaged (devices is [])"),
        ({"hashes": "abc"}, "is damaged (hashes is 'abc')"),
    ],
)  # fmt: skip
def test_a_damaged_run_json_stops(tmp_path: Path, changes: object, told: str) -> None:
    path = tmp_path / "run.json"
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        workdir.mark_finished(10)
        if changes == "text":
            path.write_text('{"config": ')
        else:
            path.write_text(json.dumps(json.loads(path.read_text()) | changes if changes else changes))
        for call in (lambda: workdir.begin(config(), seed=0, hashes=HASHES), lambda: workdir.finished(config())):
            with pytest.raises(UserError) as error:
                call()
            assert f"{path} {told}" in str(error.value) and "restore it, or choose another" in str(error.value)


@pytest.mark.parametrize("text", ["{}", "[]", '{"total_steps": "10"}', '{"total_steps": true}', "[" * 100_000])
def test_a_damaged_finished_json_stops(tmp_path: Path, text: str) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        (tmp_path / "finished.json").write_text(text)
        with pytest.raises(UserError, match=r"finished\.json is damaged"):
            workdir.finished(config())


@pytest.mark.parametrize("wall_s", ["-1", "NaN", "Infinity", "1" + "0" * 400, '"1"', "null"])
def test_a_damaged_wall_json_stops_and_leaves_no_lock(tmp_path: Path, wall_s: str) -> None:
    (tmp_path / "wall.json").write_text(f'{{"wall_s": {wall_s}}}')
    with pytest.raises(UserError, match=r"wall\.json is damaged .*remove it"), Workdir(tmp_path):
        pass
    (tmp_path / "wall.json").write_text("[]")
    with pytest.raises(UserError, match=r"wall\.json is damaged \(not a JSON object\)"), Workdir(tmp_path):
        pass
    (tmp_path / "wall.json").unlink()
    with Workdir(tmp_path) as workdir:
        assert workdir.wall_s() < 30.0


@pytest.mark.parametrize("name", ["lock", "wall.json", "run.json", "metrics.jsonl"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=rf"{name} is no regular file"), Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)


@pytest.mark.parametrize("name", ["metrics.jsonl", "perf.jsonl", "trajectories.jsonl"])
def test_lines_without_a_step_are_refused_before_any_file_is_cut_back(tmp_path: Path, name: str) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        log_a_step(workdir)
        with (tmp_path / name).open("a") as file:
            file.write('{"step": Infinity}\n')
        with pytest.raises(UserError, match=rf"{name}, line \d: no record of a step"):
            workdir.begin(config(), seed=0, hashes=HASHES)


def test_finished_holds_for_its_number_of_steps(tmp_path: Path) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        assert not workdir.finished(config())
        workdir.mark_finished(10)
        assert workdir.finished(config()) and not workdir.finished(config(total_steps=20))


def test_a_changed_seed_is_told_once(tmp_path: Path) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(seed=0), seed=0, hashes=HASHES)
        workdir.mark_finished(10)
        with pytest.raises(UserError, match=r"another config \(seed was 0, now 3\)"):
            workdir.begin(config(seed=3), seed=3, hashes=HASHES)


def test_what_was_written_after_the_end_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "checkpoints" / "3").mkdir(parents=True)
    (source / "run.json").write_text("{}")
    with Workdir(tmp_path / "run") as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        workdir.mark_finished(10)
        end = (tmp_path / "run" / "finished.json").stat().st_mtime
        os.utime(source / "run.json", (end - 9, end - 9))
        assert not workdir.ended_before(source) and not workdir.ended_before(tmp_path / "nowhere")
        (source / "checkpoints" / "3" / "manifest.json").write_text("{}")
        os.utime(source / "checkpoints" / "3" / "manifest.json", (end + 9, end + 9))
        assert workdir.ended_before(source)


def test_a_run_that_goes_on_is_not_finished(tmp_path: Path) -> None:
    """Else its readers took the result of the shorter run for its own."""
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        workdir.mark_finished(10)
        assert workdir.begin(config(total_steps=20), seed=0, hashes=HASHES)
        assert not (tmp_path / "finished.json").exists()


def test_a_finished_run_of_another_config_is_not_taken_for_this_one(tmp_path: Path) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        workdir.mark_finished(10)
        with pytest.raises(UserError, match=r"another config \(lr was 0\.001, now 0\.1\)"):
            workdir.finished(config(lr=0.1))


def test_wall_time_adds_up_over_attempts(tmp_path: Path) -> None:
    (tmp_path / "wall.json").write_text('{"wall_s": 100.0}')
    with Workdir(tmp_path) as workdir:
        assert 100.0 <= workdir.wall_s() < 130.0
    with Workdir(tmp_path) as workdir:
        assert workdir.wall_s() > 100.0
