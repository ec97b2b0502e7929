"""What `plan` says of a job's state is where the job puts it: every leaf, on meshes of 8 simulated devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fast_compile
import pytest
from corpus_files import write_folder
from processes import LIMIT_S

HERE = Path(__file__).parent
SHAPES = [(8, 1, 1), (1, 1, 8), (2, 2, 2)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("layouts") / "data")
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {fast_compile.FLAGS}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}",
    }
    command = [sys.executable, str(HERE / "layouts_of_jobs.py"), str(folder)]
    done = subprocess.run(command, env=environment, cwd=HERE.parent, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("job", ["rft", "sft", "habit"])
def test_a_plan_lays_the_state_out_as_the_job_does(found, job, shape):
    """Shape, dtype and sharding of parameters, moments, average, replay buffer and dynamics model."""
    layouts = found[f"{job} {shape}"]
    assert layouts["plan"] == layouts["job"] and len(layouts["job"]) > 100


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("job", ["rft", "sft", "habit", "pretrain"])
def test_what_can_be_split_is_split(found, job, shape):
    """The LoRA matrix b of q_proj, [8, 96 or more], like its layer's outputs: over tensor; kernels over both."""
    layout, (_, fsdp, tensor) = found[f"{job} {shape}"], shape
    state = layout["job"]
    name = "q_proj']['kernel']" if job == "pretrain" else "q_proj']['b']"
    parts = [fsdp, tensor] if job == "pretrain" else [1, tensor]
    own = {path: values for path, values in state.items() if path.endswith(name)}
    assert len(own) >= 3 * 4  # of four layers: the parameter and both moments
    assert all(values[2] == parts for values in own.values())
    assert all(values[2] == [1] * len(values[0]) for path, values in state.items() if "replay" in path)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_lies_as_what_is_trained(found, shape):
    """Else each step would gather the one, or split the other, anew."""
    layout = found[f"rft {shape}"]
    trained = {p.removeprefix(".trainable['lora']"): v for p, v in layout["job"].items() if p.startswith(".trainable")}
    assert layout["start"] == trained
