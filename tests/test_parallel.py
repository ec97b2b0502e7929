"""Meshes: what fits, how leaves are laid out, and that 8 devices give the numbers of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fast_compile
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from meshes import FULL_SHAPE, ONE, SFT_SHAPES, SHAPES, UNEVEN_SHAPE, name_of
from processes import LIMIT_S

from pixelis_jax import parallel
from pixelis_jax.models import lora
from pixelis_jax.parallel import MeshShape, make_mesh
from pixelis_jax.types import UserError

HERE = Path(__file__).parent
# fp32, largest absolute difference from one device: sums are taken in another order, and nothing else differs.
TOLERANCE = 2e-5
REFERENCE = name_of(ONE)
every_mesh = pytest.mark.parametrize("mesh", [*map(name_of, SHAPES), f"uneven {name_of(UNEVEN_SHAPE)}"])


@pytest.fixture(scope="module")
def results():
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=8 {fast_compile.FLAGS}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}",
    }
    command = [sys.executable, str(HERE / "eight_devices.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def pair(results, mesh, part):
    """(numbers of one device, numbers of the mesh) for the same model."""
    one = f"uneven {REFERENCE}" if mesh.startswith("uneven") else REFERENCE
    return results["meshes"][one][part], results["meshes"][mesh][part]


def assert_same_metrics(one, many):
    assert one.keys() == many.keys()
    for name, value in one.items():
        assert many[name] == pytest.approx(value, abs=TOLERANCE, rel=TOLERANCE, nan_ok=True), name


@every_mesh
def test_an_rl_step_gives_the_numbers_of_one_device(results, mesh):
    """Rewards, advantages, loss, every metric and the new adapter, with groups spread over devices."""
    one, many = pair(results, mesh, "rl")
    assert_same_metrics(one["metrics"], many["metrics"])
    for name, values in one["rows"].items():
        assert np.abs(np.array(values) - many["rows"][name]).max() < TOLERANCE, name
    assert np.abs(np.array(one["adapter"]) - many["adapter"]).max() < TOLERANCE
    assert one["moved"] > 100 * TOLERANCE and many["layout_kept"]


@every_mesh
def test_a_rollout_gives_the_tokens_of_one_device(results, mesh):
    """Prefill, a sampled turn, an image appended to the cache, and a turn after it."""
    one, many = pair(results, mesh, "rollout")
    assert one["tokens"] == many["tokens"]
    assert np.unique(one["tokens"]).size > 20 and one["tokens"][0] != one["tokens"][1]
    assert np.abs(np.array(one["logp"]) - many["logp"]).max() < TOLERANCE


@pytest.mark.parametrize("mesh", [name_of(shape) for shape in SFT_SHAPES[1:]])
def test_an_sft_step_gives_the_numbers_of_one_device(results, mesh):
    one, many = pair(results, mesh, "sft")
    assert_same_metrics(one["metrics"], many["metrics"])
    assert np.abs(np.array(one["adapter"]) - many["adapter"]).max() < TOLERANCE
    assert one["moved"] > 100 * TOLERANCE


def test_a_step_of_all_parameters_gives_the_numbers_of_one_device(results):
    """And Adam's moments lie as the parameters do."""
    one, many = (results["full"][name_of(shape)] for shape in (ONE, FULL_SHAPE))
    assert_same_metrics(one["metrics"], many["metrics"])
    assert results["full"]["difference"] < TOLERANCE  # of Adam's first moment, relative to its largest
    assert one["moments_like_params"] and many["moments_like_params"]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_device_holds_its_share(results, shape):
    """Parameters over fsdp x tensor (norms and biases stay whole), the cache over rows and heads."""
    data, fsdp, tensor = shape
    found = results["meshes"][name_of(shape)]
    assert found["rollout"]["cache_parts"] == [data * fsdp, 1, tensor, 1]
    whole = results["meshes"][REFERENCE]["param_bytes"]
    assert whole / (fsdp * tensor) <= found["param_bytes"] < whole / (fsdp * tensor) + 0.25 * whole
    assert found["notes"] == []


@pytest.mark.parametrize("shape", SFT_SHAPES[1:])
def test_a_compiled_step_takes_what_its_device_holds(results, shape):
    """Bytes of the arguments of one device's program: what it does not hold of the parameters is not among them."""
    one, many = pair(results, name_of(shape), "sft")
    spared = results["meshes"][REFERENCE]["param_bytes"] - results["meshes"][name_of(shape)]["param_bytes"]
    assert many["row_parts"] == shape[0] * shape[1]
    assert many["arguments"] <= one["arguments"] - spared


def test_decoding_rows_on_their_own_devices_exchanges_nothing(results):
    """But for one flag a token, whether any row goes on: what a row writes to its cache stays on its device."""
    assert results["meshes"][name_of((8, 1, 1))]["rollout"]["exchanges"] == ["all-reduce pred[]"]


def test_what_does_not_divide_is_said(results):
    heads, *others = results["meshes"][f"uneven {name_of(UNEVEN_SHAPE)}"]["notes"]
    assert heads.startswith("mesh: 1 KV heads do not divide by tensor = 2")
    assert all("weights do not divide" in note for note in others)  # an odd number of tokens


def test_notes_name_rows_and_weights():
    tree = {"embed_tokens": np.zeros((7, 8)), "norm": np.zeros(3)}
    found = parallel.notes(Devices(data=2, fsdp=2), tree, kv_heads=1, rows={"a x b": 6, "c": 8})
    assert found == ["mesh: 6 rows (a x b) do not divide by data x fsdp = 4; every device works on all of them"]
    (found,) = parallel.notes(Devices(tensor=2), tree, kv_heads=2, rows={"a": 3})
    assert found == "mesh: 1 weights do not divide and are held less split, such as embed_tokens"


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
