"""Meshes: what fits, how leaves are laid out, and that 8 devices give the numbers of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from pixelis_jax import parallel
from pixelis_jax.models import lora
from pixelis_jax.parallel import MeshShape, make_mesh
from pixelis_jax.types import UserError

HERE = Path(__file__).parent
# fp32, largest absolute difference from one device: sums are taken in another order, and nothing else differs.
TOLERANCE = 2e-5
MESHES = ("one", "data", "all", "sharded")


@pytest.fixture(scope="module")
def results():
    environment = os.environ | {
        # Compiling takes most of the time here, so the compiler does as little as it can.
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "eight_devices.py")], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("mesh", ["data", "all", "sharded"])
@pytest.mark.parametrize("what", ["logp", "metrics", "adapter"])
def test_eight_devices_give_the_numbers_of_one(results, mesh, what):
    one, many = np.array(results["one"][what]), np.array(results[mesh][what])
    assert np.abs(one - many).max() < TOLERANCE
    assert one.std() > 1e-4


def test_the_step_moved_the_adapter(results):
    assert results["one"]["moved"] > 100 * TOLERANCE


def test_an_rl_step_on_eight_devices_gives_the_numbers_of_one(results):
    """Rewards, advantages, loss and adapter: groups are spread over devices, and their means are the same."""
    one, many = results["one"]["rl"], results["data"]["rl"]
    assert one["metrics"].keys() == many["metrics"].keys()
    for name, value in one["metrics"].items():
        assert many["metrics"][name] == pytest.approx(value, abs=TOLERANCE, rel=TOLERANCE), name
    for name, values in one["rows"].items():
        assert np.abs(np.array(values) - many["rows"][name]).max() < TOLERANCE, name
    assert np.abs(np.array(one["adapter"]) - many["adapter"]).max() < TOLERANCE
    assert one["moved"] > 100 * TOLERANCE and many["layout_kept"]


def test_every_device_holds_its_share(results):
    """Kernels over fsdp x tensor, rows over data x fsdp."""
    shares = {name: (1 / results[name]["kernel_share"], 1 / results[name]["row_share"]) for name in MESHES}
    assert shares == {"one": (1, 1), "data": (1, 8), "all": (4, 4), "sharded": (8, 4)}


def test_weights_go_from_the_file_to_each_devices_share(results):
    assert results["loaded"] == {"same": True, "placed": True}


@pytest.mark.parametrize("shape", [MeshShape(2, 1, 1), MeshShape(-1, 2, 1), MeshShape(1, 1, 3), MeshShape(0, 1, 1)])
def test_a_mesh_that_does_not_fit_is_refused(shape):
    with pytest.raises(UserError, match=r"does not fit 1 device\(s\); set config\.mesh"):
        make_mesh(shape, jax.devices()[:1])


class Devices:
    """A mesh's axis sizes, which is all that fitting a spec reads."""

    def __init__(self, **shape):
        self.shape = {"data": 1, "fsdp": 1, "tensor": 1} | shape


def test_a_dimension_that_does_not_divide_stays_whole():
    fit = parallel._fit
    assert fit(PartitionSpec("fsdp", "tensor"), (64, 96), Devices(fsdp=2, tensor=3)) == PartitionSpec("fsdp", "tensor")
    assert fit(PartitionSpec("fsdp", "tensor"), (64, 64), Devices(fsdp=2, tensor=3)) == PartitionSpec("fsdp", None)
    assert fit(PartitionSpec(("data", "fsdp")), (6, 5), Devices(data=2, fsdp=2)) == PartitionSpec(None)


def test_every_parameter_of_a_model_has_the_spec_of_its_kind(small_policy):
    mesh = small_policy.mesh
    specs = {
        "/".join(str(k.key) for k in path): sharding.spec
        for path, sharding in jax.tree_util.tree_leaves_with_path(parallel.param_shardings(mesh, small_policy.params))
    }
    layer = "language_model/layers_0"
    assert specs[f"{layer}/self_attn/q_proj/kernel"] == PartitionSpec("fsdp", "tensor")
    assert specs[f"{layer}/self_attn/o_proj/kernel"] == PartitionSpec("tensor", "fsdp")
    assert specs[f"{layer}/mlp/down_proj/kernel"] == PartitionSpec("tensor", "fsdp")
    assert specs["visual/blocks_0/attn/qkv/kernel"] == PartitionSpec("fsdp", "tensor")
    assert specs["visual/blocks_0/attn/proj/kernel"] == PartitionSpec("tensor", "fsdp")
    assert specs["embed_tokens"] == PartitionSpec("tensor", "fsdp")
    assert specs[f"{layer}/input_layernorm/scale"] == PartitionSpec()
    assert parallel.describe(mesh, small_policy.params) == []


def test_an_adapters_second_factor_is_split_like_its_layers_output(small_policy):
    adapter = lora.init(jax.random.key(0), small_policy.params, lora.LoraConfig(rank=2))
    layer = parallel.param_shardings(small_policy.mesh, adapter)["language_model"]["layers_0"]["self_attn"]
    assert layer["q_proj"]["b"].spec == PartitionSpec(None, "tensor")
    assert layer["q_proj"]["a"].spec == layer["o_proj"]["b"].spec == PartitionSpec()
