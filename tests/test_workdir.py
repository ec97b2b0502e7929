import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from pixelis_jax.types import UserError
from pixelis_jax.workdir import Workdir, commit

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


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with (
        pytest.raises(UserError, match=rf"in use by process {holder.pid} on \S+; stop it or name another --workdir"),
        Workdir(tmp_path),
    ):
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
        before = (tmp_path / "run.json").read_bytes()
        with pytest.raises(UserError, match=r"lora\.targets was \['q'\], now \['k'\]; lr was 0\.001, now 0\.1\)"):
            workdir.begin(config(lr=0.1, **{"lora.targets": ("k",)}), seed=0, hashes=HASHES)
        with pytest.raises(UserError, match=r"hashes\.model was 'abc', now 'xyz'"):
            workdir.begin(config(), seed=0, hashes={"model": "xyz"})
        with pytest.raises(UserError, match=r"seed was 0, now 1"):
            workdir.begin(config(), seed=1, hashes=HASHES)
        assert (tmp_path / "run.json").read_bytes() == before


def test_fields_that_change_no_result_may_change(tmp_path: Path) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        assert workdir.begin(config(total_steps=20, **{"logging.every": 5}), seed=0, hashes=HASHES)
        assert json.loads((tmp_path / "run.json").read_text())["config"]["total_steps"] == 20


def test_what_is_evaluated_may_change_unless_that_is_the_job(tmp_path: Path) -> None:
    for job in ("rft", "eval"):
        with Workdir(tmp_path / job) as workdir:
            workdir.begin(config(job=job), seed=0, hashes=HASHES)
            changed = config(job=job, **{"eval.scenes": 16})
            if job == "rft":
                assert workdir.begin(changed, seed=0, hashes=HASHES)
            else:
                with pytest.raises(UserError, match=r"eval\.scenes was 8, now 16"):
                    workdir.begin(changed, seed=0, hashes=HASHES)


def test_the_length_of_a_cosine_run_is_part_of_its_result(tmp_path: Path) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(**{"optimizer.schedule": "cosine"}), seed=0, hashes=HASHES)
        with pytest.raises(UserError, match=r"total_steps was 10, now 20"):
            workdir.begin(config(total_steps=20, **{"optimizer.schedule": "cosine"}), seed=0, hashes=HASHES)


def test_more_micro_batches_are_allowed_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        with caplog.at_level("WARNING"):
            assert workdir.begin(config(**{"optimizer.micro_batches": 4}), seed=0, hashes=HASHES)
    assert "optimizer.micro_batches was 1, now 4; the resumed run may differ in the last bits" in caplog.text


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


def test_a_damaged_run_json_stops(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"config": ')
    with Workdir(tmp_path) as workdir, pytest.raises(UserError, match=r"run\.json is damaged"):
        workdir.begin(config(), seed=0, hashes=HASHES)


def test_finished_holds_for_its_number_of_steps(tmp_path: Path) -> None:
    with Workdir(tmp_path) as workdir:
        workdir.begin(config(), seed=0, hashes=HASHES)
        assert not workdir.finished(config())
        workdir.mark_finished(10)
        assert workdir.finished(config()) and not workdir.finished(config(total_steps=20))


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
