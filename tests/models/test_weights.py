import json

import jax
import numpy as np
import pytest
import reference
from flax import traverse_util
from safetensors.numpy import load_file, save_file

from pixelis_jax.models import policy as policies
from pixelis_jax.models import weights
from pixelis_jax.models.vlm import VLM
from pixelis_jax.types import UserError

CONFIG = reference.small_config()


@pytest.fixture(scope="module")
def abstract():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = policies.abstract_params(VLM(CONFIG))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)


def test_every_parameter_has_one_key_and_every_key_one_parameter(abstract, golden_weights):
    paths = traverse_util.flatten_dict(abstract, sep="/")
    keys = {path: weights.from_path(path) for path in paths}
    for path, (key, transposed) in keys.items():
        assert weights.to_path(key) == (path, transposed)
    assert len({key for key, _ in keys.values()}) == len(paths) == len(golden_weights)


def test_both_key_layouts_are_read(golden_weights):
    """Keys before transformers 5 and those that transformers 5 holds in memory name the same parameters."""
    for key in golden_weights:
        old = key.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
        assert weights.to_path(old) == weights.to_path(key) is not None


def test_loading_what_was_saved_gives_the_same_bits(ours, abstract, tmp_path):
    weights.save(tmp_path, ours.variables["params"], config=CONFIG)
    again = weights.load(tmp_path, CONFIG, abstract=abstract)
    jax.tree.map(np.testing.assert_array_equal, again, ours.variables["params"])


def test_the_host_holds_a_piece_of_a_tensor(monkeypatch):
    monkeypatch.setattr(weights, "PIECE_BYTES", 40)
    values, sizes = np.arange(30, dtype=np.float32).reshape(10, 3), []

    def read(index):
        sizes.append(values[index].nbytes)
        return values[index]

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    np.testing.assert_array_equal(weights._in_pieces(values.shape, device, read, values.dtype), values)
    assert sizes == [36, 36, 36, 12]


def test_pieces_give_the_saved_bits(ours, abstract, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PIECE_BYTES", 1)  # a row each
    weights.save(tmp_path, ours.variables["params"], config=CONFIG)
    again = weights.load(tmp_path, CONFIG, abstract=abstract)
    jax.tree.map(np.testing.assert_array_equal, again, ours.variables["params"])


def test_saving_what_was_loaded_gives_the_same_tensors(ours, golden_directory, tmp_path):
    weights.save(tmp_path, ours.variables["params"], config=CONFIG)
    saved, source = load_file(tmp_path / weights.WEIGHTS), load_file(golden_directory / weights.WEIGHTS)
    source = {
        k.replace("model.visual.", "visual.").replace("model.language_model.", "model."): v for k, v in source.items()
    }
    assert set(saved) == set(source)
    for key, value in saved.items():
        np.testing.assert_array_equal(value, source[key])


def test_large_models_are_saved_in_shards_that_load_again(ours, abstract, tmp_path):
    weights.save(tmp_path, ours.variables["params"], config=CONFIG, shard_bytes=200_000)
    names = sorted(file.name for file in tmp_path.iterdir())
    count = len(names) - 1
    assert count > 2 and names[0] == f"model-00001-of-{count:05d}.safetensors" and names[-1] == weights.INDEX
    index = json.loads((tmp_path / weights.INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in jax.tree.leaves(ours.variables["params"]))
    jax.tree.map(
        np.testing.assert_array_equal, weights.load(tmp_path, CONFIG, abstract=abstract), ours.variables["params"]
    )


def changed(golden_weights, tmp_path, **changes):
    """A checkpoint with keys replaced (None: left out)."""
    tensors = reference.floats(golden_weights) | changes
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items() if v is not None}, tmp_path / weights.WEIGHTS)
    return tmp_path


NORM = "model.language_model.norm.weight"
QUERY = "model.language_model.layers.0.self_attn.q_proj.weight"
PATCHES = "model.visual.patch_embed.proj.weight"


@pytest.mark.parametrize("key", [QUERY, PATCHES])
def test_as_many_numbers_in_another_shape_are_refused(golden_weights, abstract, tmp_path, key):
    """A patch embedding with its channels last, as some conversions store it, would load and see noise."""
    value = reference.floats(golden_weights)[key]
    other = np.moveaxis(value, 1, -1) if value.ndim > 2 else value.reshape(len(value), -1, 2)
    with pytest.raises(UserError, match=rf"{key}' has shape \({len(value)}, .*, the config asks for"):
        weights.load(changed(golden_weights, tmp_path, **{key: other}), CONFIG, abstract=abstract)


def test_weights_that_a_narrower_type_cannot_hold_are_not_written(ours, tmp_path):
    params = jax.tree.map(np.array, ours.variables["params"])
    params["language_model"]["norm"]["scale"][3] = 1e6
    params = jax.device_put(params)
    with pytest.raises(UserError, match=r"'model\.norm\.weight' does not fit into float16; use bfloat16"):
        weights.save(tmp_path, params, config=CONFIG, dtype=np.float16)
    assert not list(tmp_path.glob("*.safetensors"))
    weights.save(tmp_path, params, config=CONFIG, dtype=jax.numpy.bfloat16)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({NORM: None}, "1 weights are missing, first 'model.norm.weight'"),
        ({"model.language_model.extra.weight": np.zeros(3, np.float32)}, "extra.weight' has no place in this model"),
        ({NORM: np.zeros(5, np.float32)}, r"norm.weight' has shape \(5,\), the config asks for \(64,\)"),
        ({"model.norm.weight": np.zeros(64, np.float32)}, "norm.weight' stands twice"),
        ({NORM: np.full(64, np.nan, np.float32)}, "model.norm.weight' holds values that are not finite"),
        ({NORM: np.zeros(64, np.int8)}, "norm.weight' is of type I8; supported are F32, F16, BF16"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(golden_weights, abstract, tmp_path, changes, message):
    with pytest.raises(UserError, match=message) as error:
        weights.load(changed(golden_weights, tmp_path, **changes), CONFIG, abstract=abstract)
    assert str(tmp_path) in str(error.value)


def test_a_truncated_file_is_named(golden_directory, abstract, tmp_path):
    content = (golden_directory / weights.WEIGHTS).read_bytes()
    for length in (0, 5, len(content) - 1000):
        (tmp_path / weights.WEIGHTS).write_bytes(content[:length])
        with pytest.raises(UserError, match="truncated or not safetensors"):
            weights.load(tmp_path, CONFIG, abstract=abstract)


def test_shards_are_read_by_the_index(golden_weights, abstract, ours, tmp_path):
    tensors = sorted(reference.floats(golden_weights).items())
    shards = {"a.safetensors": dict(tensors[::2]), "b.safetensors": dict(tensors[1::2])}
    for name, part in shards.items():
        save_file({k: np.ascontiguousarray(v) for k, v in part.items()}, tmp_path / name)
    index = {"weight_map": {key: name for name, part in shards.items() for key in part}}
    (tmp_path / weights.INDEX).write_text(json.dumps(index))
    jax.tree.map(
        np.testing.assert_array_equal, weights.load(tmp_path, CONFIG, abstract=abstract), ours.variables["params"]
    )
    more = index["weight_map"] | {"model.more.weight": "b.safetensors"}
    (tmp_path / weights.INDEX).write_text(json.dumps({"weight_map": more}))
    with pytest.raises(UserError, match=r"b\.safetensors: has no key 'model\.more\.weight'"):
        weights.load(tmp_path, CONFIG, abstract=abstract)
    (tmp_path / weights.INDEX).write_text(json.dumps(index))
    save_file({}, tmp_path / weights.WEIGHTS)
    with pytest.raises(UserError, match=r"holds model\.safetensors and the shards of"):
        weights.load(tmp_path, CONFIG, abstract=abstract)
    (tmp_path / weights.WEIGHTS).unlink()
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(UserError, match=r"b\.safetensors: not there"):
        weights.load(tmp_path, CONFIG, abstract=abstract)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "weight_map must name a file"),
        ('{"weight_map": []}', "weight_map must name a file"),
        ('{"weight_map": {"a": 1}}', "weight_map must name a file"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "weight_map must name a file"),
    ],
)
def test_a_damaged_index_is_one_line_with_its_name(abstract, tmp_path, text, words):
    (tmp_path / weights.INDEX).write_text(text)
    with pytest.raises(UserError, match=words) as error:
        weights.load(tmp_path, CONFIG, abstract=abstract)
    assert str(error.value).startswith(str(tmp_path / weights.INDEX)) and "\n" not in str(error.value)
