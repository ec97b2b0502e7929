"""Planning for devices that are not there: what is compiled, what it needs, and which mesh would do."""

import dataclasses
import os
import re
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest
from processes import LIMIT_S
from resolved import resolved

from pixelis_jax import config as configs
from pixelis_jax import parallel, plan, programs
from pixelis_jax.parallel import MeshShape
from pixelis_jax.types import UserError

ROOT = Path(__file__).parents[1]
SMALL = (
    "--config=configs/rft.py:smoke",
    "--config.sampling.context_tokens=128",
    "--config.sampling.max_turns=2",
    "--config.optimizer.micro_batches=1",
)


SMALL_SFT = (
    "--config=configs/sft.py:smoke",
    "--config.model.name=pixelis-tiny",
    "--config.tools.names=('ZOOM_IN',)",
    "--config.data.row_tokens=256",
    "--config.sampling.context_tokens=256",
)


def planned(*arguments: str, code: int = 0, job: Sequence[str] = SMALL) -> str:
    """What the command prints, in a process of its own: it sets up devices before jax starts."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pixelis_jax.plan", *job, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout


def test_the_cache_is_planned_as_prefill_leaves_it():
    """8 rows x 4096 slots x 4 layers x 2 x 32 numbers, one of two heads a device: 32 MiB, updated in place."""
    lines = planned(
        "--topology=cpu:2",
        "--config.mesh.data=1",
        "--config.mesh.tensor=2",
        "--config.sampling.context_tokens=4096",
        "--config.optimizer.micro_batches=8",
    ).splitlines()
    (decode,) = (line for line in lines if line.startswith("  decode 8 rows"))
    assert "of which KV cache 0.03, outputs 0.00" in decode


def test_four_devices_have_a_plan_of_all_functions_and_a_remedy_where_nothing_fits():
    text = planned("--topology=cpu:4", "--config.mesh.fsdp=2", "--memory_gib=0.001", code=1)
    assert text.startswith("pixelis-tiny on cpu:4, mesh data=2, fsdp=2, tensor=1, 0.001 GiB a device\n")
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["encode", "prefill", "decode", "step"]
    assert "all-reduce" in lines[4] and "of which KV cache" in lines[3]
    assert lines[5].startswith("does not fit: ") and "no mesh of 4 device(s) fits; " in lines[6]
    assert "optimizer.micro_batches" in lines[6]


def test_an_sft_step_has_its_evaluation_and_the_longest_rows():
    """1536 tokens a step are six rows of 256, and 256 have room for one crop beside the overview and the prompt."""
    lines = planned("--topology=cpu:2", "--config.mesh.fsdp=2", job=SMALL_SFT).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["encode", "prefill", "decode", "step"]
    assert lines[4].startswith("  step 6 x 256 tokens, 2 images each: ") and "all-reduce" in lines[4]
    assert lines[5].startswith("fits: step 6 x 256")


def test_rows_without_room_for_pictures_are_refused():
    """Of pixelis-tiny a picture and a tool's are 16 tokens each."""
    config = resolved("configs/sft.py:smoke")
    config.data.row_tokens = 31
    mesh = parallel.make_mesh(MeshShape())
    with pytest.raises(
        UserError, match=r"data\.row_tokens 31 has no room for a picture of 16 tokens and a tool's of 16"
    ):
        list(programs.sources(config, mesh))


def test_what_does_not_divide_is_named():
    """As the job says it when it starts: what is evaluated at a time, too."""
    config = resolved("configs/rft.py:smoke")  # 2 x 4 rows, evaluated 8 at a time, 2 KV heads
    mesh = types.SimpleNamespace(shape={"data": 3, "fsdp": 1, "tensor": 1})
    assert programs.notes(config, mesh) == [
        f"mesh: 8 rows ({name}) do not divide by data x fsdp = 3; every device works on all of them"
        for name in ("eval.batch", "rollout.prompts x rollout.group_size")
    ]


def test_the_cache_is_counted():
    config = resolved("configs/rft.py:smoke")
    decode = next(s for s in programs.sources(config, parallel.make_mesh(MeshShape())) if s.name.startswith("decode"))
    layers, heads, head_dim, rows, f32 = 4, 2, 32, 2 * 4, 4  # of pixelis-tiny and of the smoke variant
    assert decode.cache == 2 * layers * heads * head_dim * config.sampling.context_tokens * rows * f32


def test_neighbours_are_the_other_meshes_nearest_first():
    found = parallel.neighbours(types.SimpleNamespace(devices=np.empty((4, 1, 1))))
    assert found[:2] == [MeshShape(2, 1, 2), MeshShape(2, 2, 1)]
    assert sorted((s.data, s.fsdp, s.tensor) for s in found) == [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1)]


def program(gib, **fields):
    return programs.Program("step", int(gib * 2**30), 0, 0, 0, 0.0, Counter(), 0.0, **fields)


# What the TPU's compiler says (libtpu 0.0.50), its arguments included, and what an earlier one said.
REFUSAL = """RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO \
temporaries (30.55G) exceeds available HBM (15.75G). HLO module: jit_step.
See https://openxla.org/xla/errors/error_1000 for more details."""
EARLIER = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. \
Used 30.55G of 15.75G hbm. Exceeded hbm capacity by 14.80G."""


def refusing(text, error=jax.errors.JaxRuntimeError):
    """A function of one f32[2**30] argument, 4 GiB, that the compiler refuses with `text`."""

    def refuse():
        raise error(text)

    held = jax.ShapeDtypeStruct((2**30,), np.float32)
    return programs.Source("step", lambda: types.SimpleNamespace(compile=refuse), held)


@pytest.mark.parametrize("text", [REFUSAL, EARLIER])
@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError, ValueError])
def test_what_the_compiler_refuses_has_the_size_that_it_tells(error, text):
    found = programs.compile_ahead(refusing(text, error=error))
    assert found.refused and not found.is_least and not found.fits(2**50)
    assert found.total == int(30.55 * 2**30) and found.arguments == 4 * 2**30
    assert plan._line(found) == "  step: the compiler refuses it: 30.55 GiB (arguments 4.00)"
    assert plan._no_fit(found, 16) == (
        "does not fit: step needs 30.55 GiB a device, and of 16 GiB programs can have 14.72, 15.83 GiB too much"
    )


@pytest.mark.parametrize("text", ["RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem.", "RESOURCE_EXHAUSTED"])
def test_a_refusal_without_a_size_tells_the_least(text):
    found = programs.compile_ahead(refusing(text))
    assert found.refused and found.is_least and found.total == 4 * 2**30
    assert "the compiler refuses it: more than there is (arguments 4.00)" in plan._line(found)
    assert plan._no_fit(found, 16).endswith("needs at least 4.00 GiB a device, and of 16 GiB programs can have 14.72: "
                                            "the compiler refuses it")  # fmt: skip
    assert plan._no_fit(found, 4).endswith(", at least 0.32 GiB too much")


def test_another_error_of_the_compiler_is_not_taken_for_one():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        programs.compile_ahead(refusing("INTERNAL: Used 30.55G of 15.75G hbm"))


def test_a_plan_says_no_by_how_much_and_names_the_nearest_mesh_that_fits(monkeypatch, capsys):
    """Replicated, the step is refused; split in two, its arguments alone are too large; in four, all programs fit."""
    compiled = []

    def sources(config, mesh):
        parts = mesh.shape["fsdp"]
        held = jax.ShapeDtypeStruct((32 * 2**28 // parts,), np.float32)  # 32 GiB whole
        yield programs.Source(f"decode {parts}", lambda: None)
        yield programs.Source("step", lambda: None, held)

    def compile_ahead(source):
        compiled.append(source.name)
        if source.name.startswith("decode"):
            return dataclasses.replace(program(9), name=source.name)
        whole = source.arguments == 32 * 2**30
        return programs.compile_ahead_once(refusing(REFUSAL)) if whole else program(source.arguments / 2**30 + 2)

    monkeypatch.setattr(programs, "compile_ahead_once", programs.compile_ahead, raising=False)
    monkeypatch.setattr(programs, "compile_ahead", compile_ahead)
    monkeypatch.setattr(programs, "sources", sources)
    monkeypatch.setattr(programs, "notes", lambda config, mesh: [])
    devices = [types.SimpleNamespace(id=i) for i in range(4)]
    monkeypatch.setattr(plan, "_devices", lambda *_: devices)
    monkeypatch.setattr(parallel, "make_mesh", mesh_of_four)
    for name in ("JAX_PLATFORMS", "XLA_FLAGS", "TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    arguments = ["--config=configs/rft.py:qwen2_5_vl_7b", "--topology=v5e:2x2", "--config.mesh.fsdp=1"]
    assert plan.main(arguments) == plan.NO_FIT
    told = capsys.readouterr().out.splitlines()
    assert "  step: the compiler refuses it: 30.55 GiB (arguments 4.00)" in told
    assert told[-2].startswith("does not fit: step needs 30.55 GiB a device") and "15.83 GiB too much" in told[-2]
    assert told[-1] == "the nearest mesh that fits: data=1, fsdp=4, tensor=1, 10.00 GiB a device"
    assert compiled == ["decode 1", "step", "step", "decode 4"]  # nothing for the meshes in between


def mesh_of_four(shape, devices=None):
    rest = shape.fsdp * shape.tensor
    axes = {"data": 4 // rest, "fsdp": shape.fsdp, "tensor": shape.tensor}
    return types.SimpleNamespace(shape=axes, devices=np.empty(tuple(axes.values())))


def test_a_mesh_fits_where_all_programs_do(monkeypatch):
    """The step fits in two parts, but decoding does not: the mesh of four is named."""
    needs = {"step": {1: 20, 2: 9, 4: 5}, "decode": {1: 12, 2: 12, 4: 6}}

    def sources(_, mesh):
        for name, sizes in needs.items():
            yield programs.Source(name, lambda gib=sizes[mesh.shape["fsdp"]]: gib)

    monkeypatch.setattr(parallel, "make_mesh", mesh_of_four)
    monkeypatch.setattr(programs, "sources", sources)
    monkeypatch.setattr(programs, "compile_ahead", lambda source: program(source.lower()))
    mesh = types.SimpleNamespace(devices=np.empty((4, 1, 1)))
    assert plan._other_mesh(None, mesh, "step", 10.0).startswith(
        "the nearest mesh that fits: data=1, fsdp=4, tensor=1, 6"
    )


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (10.0, r"the nearest mesh that fits: data=2, fsdp=2, tensor=1, 9\.00 GiB a device"),
        (4.0, r"the nearest mesh that fits: data=1, fsdp=4, tensor=1, 3\.00 GiB a device"),
        (3.2, r"no mesh of 4 device\(s\) fits; data=1, fsdp=4, tensor=1 comes nearest with 3\.00 GiB"),
    ],
)
def test_the_nearest_mesh_that_fits_is_named(monkeypatch, memory, words):
    """9 GiB with the weights in two parts along fsdp, 3 in four, else 12; 8 % of a device are not to be had."""
    needs = {1: 12, 2: 9, 4: 3}
    monkeypatch.setattr(parallel, "make_mesh", lambda shape, _: types.SimpleNamespace(shape=dataclasses.asdict(shape)))
    monkeypatch.setattr(
        programs, "sources", lambda _, mesh: [programs.Source("step", lambda: needs[mesh.shape["fsdp"]])]
    )
    monkeypatch.setattr(programs, "compile_ahead", lambda source: program(source.lower()))
    mesh = types.SimpleNamespace(devices=np.empty((4, 1, 1)))
    assert re.match(words, plan._other_mesh(None, mesh, "step", memory))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("v9:2x2", "use cpu:N, or one of"),
        ("cpu", "use cpu:N"),
        ("cpu:0", "from 1 to 4096"),
        ("v5e:99x99", "from 1 to 4096"),
    ],
)
def test_a_topology_that_is_none_is_refused(text, words):
    with pytest.raises(UserError, match=words):
        plan._topology(text)


def test_topologies_are_counted():
    assert plan._topology("cpu:8") == ("cpu", 8)
    assert plan._topology("v5p:2x2x2") == ("v5p", 8)


def test_collectives_are_counted_by_kind():
    text = """
      %all-gather.3 = f32[8]{0} all-gather(f32[4]{0} %p), dimensions={0}
      %all-reduce-start = f32[8]{0} all-reduce-start(f32[8]{0} %p), to_apply=%add
      %all-reduce-done = f32[8]{0} all-reduce-done(f32[8]{0} %all-reduce-start)
      %fusion = f32[8]{0} fusion(f32[8]{0} %all-gather.3), kind=kLoop
    """
    assert programs._COLLECTIVE.findall(text) == ["all-gather", "all-reduce"]


def test_a_published_shape_needs_no_directory():
    assert programs.model_config("qwen2_5_vl_72b").text.num_hidden_layers == 80
    with pytest.raises(UserError, match="no directory of that name"):
        programs.model_config("qwen9")


def test_other_jobs_are_refused_in_one_line():
    with pytest.raises(UserError, match=r"only configs/rft\.py and configs/sft\.py"):
        plan._refuse(configs.load("configs/habit.py"), [])
    with pytest.raises(UserError, match=r"argument '--mesh=2' is unknown"):
        plan._refuse(configs.load("configs/rft.py"), ["--mesh=2"])


@pytest.mark.parametrize("field", ["model.quantize=int4", "image.coordinates=polar", "rollout.length_buckets=0"])
def test_fields_are_checked_as_a_job_checks_them(field, monkeypatch):
    for name in ("JAX_PLATFORMS", "XLA_FLAGS"):  # which planning sets for its own process
        monkeypatch.setenv(name, os.environ.get(name, ""))
    arguments = ["--config=configs/rft.py:smoke", "--topology=cpu:1", f"--config.{field}"]
    with pytest.raises(UserError, match=re.escape(field.partition("=")[0])):
        plan.main(arguments)


@pytest.mark.parametrize("size", ["0", "-3", "nan", "inf", "much"])
def test_a_memory_that_is_none_is_refused(capsys, size):
    with pytest.raises(SystemExit) as caught:
        plan.parse([f"--memory_gib={size}"])
    assert caught.value.code == 2 and "--memory_gib" in capsys.readouterr().err
