"""Names of models, and directories that lack a file."""

import os

import jax
import numpy as np
import pytest
import small_model
from jax.sharding import AxisType, Mesh
from one_tool import ZOOM

from pixelis_jax import parallel
from pixelis_jax.models import policy as policies
from pixelis_jax.rollout import RolloutConfig, Sampler, SamplingConfig
from pixelis_jax.types import Task, UserError


@pytest.mark.parametrize("name", ["", "nowhere", "~nouser/model", "x" * 300, "a\0b", "loop", "file"])
def test_what_is_no_model_is_one_short_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.symlink("loop", "loop")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a bundled model") as error:
        policies.resolve(name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert policies.resolve("~/model") == tmp_path / "model"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_the_hash_names_a_missing_file(tmp_path, missing):
    for name in {"config.json", "tokenizer.json"} - {missing}:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=rf"{missing}: not there"):
        policies.content_hash(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["preprocessor_config.json", "processor_config.json", "generation_config.json", "chat_template.jinja",
     "chat_template.json", "config.json", "tokenizer.json", "model.safetensors"],
)  # fmt: skip
def test_the_hash_covers_what_decides_what_the_model_sees_and_says(tmp_path, name):
    for needed in ("config.json", "tokenizer.json"):
        (tmp_path / needed).touch()
    seen = {policies.content_hash(tmp_path)}
    for content in ("{}", "[]"):
        (tmp_path / name).write_text(content)
        seen.add(policies.content_hash(tmp_path))
    assert len(seen) == 3
    (tmp_path / "README.md").write_text("other words")
    assert policies.content_hash(tmp_path) in seen


MESHES = {
    "explicit": lambda: jax.make_mesh((1, 1, 1), parallel.AXES, devices=jax.devices()[:1]),
    "auto": lambda: jax.make_mesh((1, 1, 1), parallel.AXES, (AxisType.Auto,) * 3, devices=jax.devices()[:1]),
    "one axis": lambda: jax.make_mesh((1,), ("tensor",), devices=jax.devices()[:1]),
    "another order": lambda: jax.make_mesh((1, 1), ("fsdp", "data"), devices=jax.devices()[:1]),
}


@pytest.fixture(scope="module")
def small_model_directory(tmp_path_factory):
    return small_model.write_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("kind", MESHES)
def test_a_users_mesh_samples_like_ours(small_model_directory, kind):
    """`jax.make_mesh` makes Explicit axes, in which sampling can't say how its products lie."""
    task = Task("t", 0, "text_extraction", "which digit?", (np.zeros((60, 90, 3), np.uint8),), "7", needs_look=False)

    def sampled(mesh):
        policy = policies.load(str(small_model_directory), mesh=mesh)
        assert policy.mesh.axis_names == parallel.AXES and set(policy.mesh.axis_types) == {AxisType.Auto}
        config = RolloutConfig(sampling=SamplingConfig(max_new_tokens=6, context_tokens=512), max_turns=1)
        return Sampler(policy, config, tools=ZOOM)([task], lora=None, seed=0, step=0).trajectories[0]

    own = parallel.make_mesh(parallel.MeshShape(), jax.devices()[:1])
    np.testing.assert_array_equal(sampled(MESHES[kind]()).tokens, sampled(own).tokens)


def test_the_devices_of_a_users_mesh_keep_their_axes():
    devices = np.array(jax.devices()[:1] * 6).reshape(2, 3)
    mesh = parallel.with_auto_axes(Mesh(devices, ("tensor", "data")))
    assert dict(mesh.shape) == {"data": 3, "fsdp": 1, "tensor": 2}
    assert all(type_ == AxisType.Auto for type_ in mesh.axis_types)


def test_a_mesh_with_an_axis_of_another_name_is_refused():
    mesh = jax.make_mesh((1, 1), ("data", "model"), devices=jax.devices()[:1])
    with pytest.raises(
        UserError, match=r"no rule speaks of an axis 'model'; the axes are data, fsdp, tensor, as in jax"
    ):
        policies.load("pixelis-tiny", mesh=mesh)
