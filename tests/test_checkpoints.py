import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from processes import started

from pixelis_jax import checkpoints as module
from pixelis_jax.checkpoints import MANIFEST, Checkpoints
from pixelis_jax.types import UserError

HOST = {"position": [3, 7], "window": [0.1, None, 1 / 3], "frame": "pixels", "nested": {"n": 2**60}}


def make_state(step: int) -> dict:
    key = jax.random.key(step)
    lora = {"q": {"a": jax.random.normal(key, (4, 8)), "b": jnp.full((8,), step, jnp.bfloat16)}}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return {"lora": lora, "opt": optimizer.init(lora), "step": jnp.int32(step), "key": key}


def bits(tree: object) -> list[bytes]:
    return [np.asarray(jax.random.key_data(x) if "key" in str(x.dtype) else x).tobytes() for x in jax.tree.leaves(tree)]


def saved(workdir: Path, *steps: int, **options: object) -> Checkpoints:
    checkpoints = Checkpoints(workdir, **options)
    for step in steps:
        checkpoints.save(step, make_state(step), HOST | {"step": step})
    return checkpoints


def test_state_and_host_come_back_exactly(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2).close()
    step, state, host = Checkpoints(tmp_path).restore(make_state(0))
    assert step == 2
    assert bits(state) == bits(make_state(2))
    assert jax.tree.structure(state) == jax.tree.structure(make_state(2))
    assert host == HOST | {"step": 2}


def test_an_abstract_tree_serves_as_well_and_a_step_can_be_named(tmp_path: Path) -> None:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one), jax.eval_shape(make_state, 0))
    step, state, _ = saved(tmp_path, 1, 2).restore(like, step=1)
    assert step == 1 and bits(state) == bits(make_state(1))


def test_one_field_is_read_without_knowing_the_others(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2).close()
    step, lora, host = Checkpoints(tmp_path).restore_part("lora", 1)
    assert step == 1 and host == HOST | {"step": 1}
    assert bits(lora) == bits(make_state(1)["lora"]) and all(type(x) is np.ndarray for x in jax.tree.leaves(lora))
    assert Checkpoints(tmp_path).restore_part("lora")[0] == 2
    assert Checkpoints(tmp_path / "other").restore_part("lora") is None
    with pytest.raises(UserError, match="no 'adapter'; it holds key, lora, opt, step"):
        Checkpoints(tmp_path).restore_part("adapter")
    corrupt = next((tmp_path / "checkpoints" / "2" / "state").rglob("*"))
    shutil.rmtree(corrupt) if corrupt.is_dir() else corrupt.unlink()
    with pytest.raises(UserError, match="is corrupt"):
        Checkpoints(tmp_path).restore_part("lora")


def test_nothing_saved_is_none_and_an_unknown_step_is_an_error(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).restore(make_state(0)) is None
    with pytest.raises(UserError, match=r"no whole step 7; restore_step can be 1, 2"):
        saved(tmp_path, 1, 2).restore(make_state(0), step=7)


def test_a_lasting_step_is_never_dropped(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in range(1, 6):
        checkpoints.save(step, make_state(step), HOST, lasting=step == 2)
    assert checkpoints.steps() == [2, 5]
    assert checkpoints.restore(make_state(0), step=2)[0] == 2


def test_keep_and_keep_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, keep_best=True)
    scores = {1: 0.2, 2: 0.9, 3: 0.5, 4: float("nan"), 5: None}
    for step, score in scores.items():
        checkpoints.save(step, make_state(step), HOST, score=score)
    assert checkpoints.steps() == [2, 4, 5]
    assert checkpoints.best_step() == 2
    assert saved(tmp_path / "b", 1, 2, 3, keep=1).steps() == [3]
    with pytest.raises(UserError, match=r"checkpoint\.keep is 0"):
        Checkpoints(tmp_path, keep=0)


def test_saving_a_whole_step_again_changes_nothing(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    checkpoints.save(1, make_state(9), {"other": 1})
    assert bits(checkpoints.restore(make_state(0))[1]) == bits(make_state(1))


def test_buffers_may_be_donated_after_save(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    state = {"w": jnp.arange(1 << 16, dtype=jnp.float32)}
    before = bits(state)
    checkpoints.save(1, state, {})
    jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 1, s), donate_argnums=0)(state)["w"].block_until_ready()
    like = {"w": jnp.zeros(1 << 16)}
    assert bits(checkpoints.restore(like)[1]) == before


def test_half_written_steps_are_skipped_said_and_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, keep=3)
    (tmp_path / "checkpoints" / "3" / MANIFEST).unlink()
    torn = tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp-12"
    torn.mkdir()
    checkpoints = Checkpoints(tmp_path, keep=3)
    with caplog.at_level("WARNING"):
        assert checkpoints.restore(make_state(0))[0] == 2
    assert caplog.text.count("half-written") == 2
    checkpoints.resume_from(2)
    assert checkpoints.half_written() == []
    checkpoints.save(3, make_state(33), HOST)
    assert bits(checkpoints.restore(make_state(0))[1]) == bits(make_state(33))


def test_steps_after_a_named_one_are_set_aside(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, keep=3)
    for _ in range(2):
        checkpoints.restore(make_state(0), step=1)
        checkpoints.resume_from(1)
        assert checkpoints.steps() == [1]
        checkpoints.save(2, make_state(22), HOST)
    assert bits(checkpoints.restore(make_state(0))[1]) == bits(make_state(22))
    assert sorted(p.name for p in (tmp_path / "checkpoints_set_aside").iterdir()) == ["2", "2.1", "3"]


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif how == "remove":
        path.unlink()
    else:
        place = random.Random(how).randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])


def test_damage_to_any_file_stops_with_path_reason_and_remedy(tmp_path: Path) -> None:
    saved(tmp_path / "good", 1, 2).close()
    good = tmp_path / "good" / "checkpoints" / "2"
    names = [p.relative_to(good) for p in sorted(good.rglob("*")) if p.is_file() and p.stat().st_size]
    assert len(names) > 5
    for name in names:
        for how in ("truncate", "remove", "flip 1", "flip 2"):
            if (name.name, how) == (MANIFEST, "remove"):
                continue  # half-written, tested above
            work = tmp_path / "bad"
            shutil.copytree(tmp_path / "good", work)
            damage(work / "checkpoints" / "2" / name, how)
            with pytest.raises(UserError, match=r"checkpoints/2 is corrupt: .*restore_step=1.*delete that folder"):
                Checkpoints(work).restore(make_state(0))
            assert Checkpoints(work).restore(make_state(0), step=1)[0] == 1
            shutil.rmtree(work)


def test_another_state_is_refused_with_the_leaf(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    other = make_state(0)
    other["lora"]["q"]["a"] = jnp.zeros((2, 8))
    with pytest.raises(UserError, match=r"\['lora'\]\['q'\]\['a'\] is float32\[4, 8\] there and float32\[2, 8\] here"):
        checkpoints.restore(other)


def test_a_full_disk_is_told_before_and_during_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1)
    with monkeypatch.context() as patch:
        usage = namedtuple("usage", "total used free")
        patch.setattr(module.shutil, "disk_usage", lambda _: usage(1, 1, 100))
        with pytest.raises(UserError, match="a checkpoint needs 2 MiB and 0 MiB are free; free some space"):
            checkpoints.save(2, make_state(2), HOST)
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

        patch.setattr(checkpoints._orbax(), "save", full)
        with pytest.raises(UserError, match="disk is full"):
            checkpoints.save(2, make_state(2), HOST)
    assert checkpoints.restore(make_state(0))[0] == 1


def test_a_file_size_limit_is_told(tmp_path: Path) -> None:
    """As `ulimit -f` sets it, for 4 MB that do not compress."""
    checkpoints, before = saved(tmp_path, 1), resource.getrlimit(resource.RLIMIT_FSIZE)
    large = {"w": jax.random.normal(jax.random.key(0), (1_000_000,))}
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"needs 5 MiB, but the file size limit or the disk quota is reached"):
            checkpoints.save(2, large, HOST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert checkpoints.restore(make_state(0))[0] == 1


@pytest.mark.parametrize("name", ["000002", "\N{ARABIC-INDIC DIGIT TWO}"])
def test_a_renamed_step_is_refused_before_training_starts_anew(tmp_path: Path, name: str) -> None:
    saved(tmp_path, 2).close()
    (tmp_path / "checkpoints" / "2").rename(tmp_path / "checkpoints" / name)
    with pytest.raises(UserError, match=rf"checkpoints/{name} is no name of a step; rename it to 2, or move it away"):
        Checkpoints(tmp_path).restore(make_state(0))


def test_only_folders_named_like_steps_are_taken_for_half_written(tmp_path: Path) -> None:
    for name in ("3", "003", "\N{ARABIC-INDIC DIGIT THREE}", "mine"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [p.name for p in Checkpoints(tmp_path).half_written()] == ["3"]


def test_a_file_in_place_of_the_folder_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(UserError, match=r"checkpoints is no folder; move it away"):
        Checkpoints(tmp_path)


SHARDED = """
import sys, jax, jax.numpy as jnp, numpy as np
from pixelis_jax.checkpoints import Checkpoints
n, mode, workdir = int(sys.argv[1]), sys.argv[2], sys.argv[3]
assert len(jax.devices()) == n
mesh = jax.make_mesh((n,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
want = np.arange(64, dtype=np.float32).reshape(8, 8) / 3
if mode == "save":
    Checkpoints(workdir).save(1, {"w": jax.device_put(want, sharding)}, {})
else:
    got = Checkpoints(workdir).restore({"w": jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=sharding)})[1]["w"]
    assert got.sharding == sharding and np.asarray(got).tobytes() == want.tobytes()
"""


def test_saved_on_four_devices_restored_on_one_and_two(tmp_path: Path) -> None:
    for devices, mode in ((4, "save"), (1, "restore"), (2, "restore")):
        env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
        subprocess.run([sys.executable, "-c", SHARDED, str(devices), mode, str(tmp_path)], env=env, check=True)


SAVER = """
import sys, itertools, jax.numpy as jnp
from pixelis_jax.checkpoints import Checkpoints
like = {"w": jnp.zeros((64, 64)), "n": jnp.int32(0)}
c = Checkpoints(sys.argv[1], keep=1)
found = c.restore(like)
start = 0 if found is None else found[0]
c.resume_from(found and start)
print("ready", start, flush=True)
for step in itertools.count(start + 1):
    c.save(step, {"w": jnp.full((64, 64), step, jnp.float32), "n": jnp.int32(step)}, {"step": step})
    print("saved", step, flush=True)
"""


def test_kill_9_at_any_moment_leaves_the_last_whole_step(tmp_path: Path) -> None:
    like, last, rng = {"w": jnp.zeros((64, 64)), "n": jnp.int32(0)}, 0, random.Random(0)
    for _ in range(6):
        env = os.environ | {"JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", SAVER, str(tmp_path)]
        with started(command, env=env, stdout=subprocess.PIPE, text=True) as job:
            assert int(job.stdout.readline().split()[1]) >= last
            time.sleep(rng.uniform(0.0, 0.5))
            job.send_signal(signal.SIGKILL)
            said = [int(line.split()[1]) for line in job.stdout.read().splitlines()]
            job.wait()
        last = max([last, *said])
        found = Checkpoints(tmp_path).restore(like)
        if last:
            step, state, host = found
            assert step in (last, last + 1)  # a step may be whole and the kill come before it was said
            assert host == {"step": step} and int(state["n"]) == step and bool((state["w"] == step).all())
            last = step
    assert last > 0


def test_the_manifest_is_readable_by_hand(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    manifest = json.loads((tmp_path / "checkpoints" / "1" / MANIFEST).read_text().splitlines()[0])
    assert manifest["tree"]["['lora']['q']['b']"] == "bfloat16[8]"
    assert manifest["files"]["host/metadata"][0] > 10
