import dataclasses
import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
import rl_batch
from flax import traverse_util

from pixelis_jax import parallel
from pixelis_jax.adapters import Trained
from pixelis_jax.export import write_merged
from pixelis_jax.models import lora, peft, weights
from pixelis_jax.models.lora import LoraConfig
from pixelis_jax.models.policy import abstract_params, init_params
from pixelis_jax.models.vlm import VLM
from pixelis_jax.train_step import RLStep
from pixelis_jax.types import TrajectoryBatch, UserError

LORA = LoraConfig(rank=4, alpha=6.0)
VISION = LoraConfig(
    rank=2, alpha=4.0, targets=("visual/blocks_1/.*/(qkv|down_proj)", "visual/merger_mlp_2", "layers_[02]/.*q_proj")
)
ROOT = LoraConfig(rank=4, alpha=3.0, targets=(*LORA.targets, "visual/.*/qkv"), rslora=True, dropout=0.25)


@functools.cache
def abstract() -> dict:
    return abstract_params(VLM(reference.small_config()))


@functools.cache
def random_adapter(config: LoraConfig) -> dict:
    """Both factors random, so that the adapter does something."""
    adapter = lora.init(jax.random.key(1), abstract(), config)
    leaves, tree = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    return jax.tree.unflatten(tree, [jax.random.normal(k, x.shape) * 0.2 for k, x in zip(keys, leaves, strict=True)])


def exported(directory: Path, config: LoraConfig = LORA) -> Path:
    peft.save(directory, random_adapter(config), lora=config, base_name="some/base")
    return directory


def change(directory: Path, **fields: object) -> None:
    file = directory / peft.CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def rewrite(directory: Path, change_tensors) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(directory / peft.WEIGHTS)
    change_tensors(tensors)
    save_file(tensors, directory / peft.WEIGHTS)


@pytest.mark.parametrize("config", [LORA, VISION, ROOT, LoraConfig(1, 0.3, ("layers_2/mlp/up_proj",))])
def test_save_then_load_is_the_identity(tmp_path: Path, config: LoraConfig) -> None:
    adapter = random_adapter(config)
    peft.save(tmp_path, adapter, lora=config, base_name="some/base")
    again, back = peft.load(tmp_path, abstract())
    assert jax.tree.structure(again) == jax.tree.structure(adapter)
    for x, y in zip(jax.tree.leaves(adapter), jax.tree.leaves(again), strict=True):
        assert y.dtype == jnp.float32 and np.asarray(x).tobytes() == np.asarray(y).tobytes()
    assert dataclasses.replace(back, targets=config.targets) == config
    same_layers = lora.init(jax.random.key(0), abstract(), back)
    assert jax.tree.structure(same_layers) == jax.tree.structure(adapter)


@pytest.mark.parametrize("config", [LORA, ROOT])
def test_a_config_comes_back_as_it_was(tmp_path: Path, config: LoraConfig) -> None:
    assert peft.load(exported(tmp_path, config), abstract())[1] == config
    first = (tmp_path / peft.CONFIG).read_bytes(), (tmp_path / peft.WEIGHTS).read_bytes()
    adapter, again = peft.load(tmp_path, abstract())
    peft.save(tmp_path, adapter, lora=again, base_name="some/base")
    assert ((tmp_path / peft.CONFIG).read_bytes(), (tmp_path / peft.WEIGHTS).read_bytes()) == first


def test_files_and_keys_are_those_of_peft(tmp_path: Path) -> None:
    from safetensors import safe_open

    exported(tmp_path, LoraConfig(4, 8.0, ("layers_0/self_attn/q_proj",)))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["bias"]) == ("LORA", 4, 8, "none")
    assert config["target_modules"] == ["model.language_model.layers.0.self_attn.q_proj"]
    assert config["base_model_name_or_path"] == "some/base"
    with safe_open(tmp_path / "adapter_model.safetensors", "np") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    name = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    assert shapes == {f"{name}.lora_A.weight": [4, 64], f"{name}.lora_B.weight": [64, 4]}


def test_half_precision_is_rounded_once(tmp_path: Path) -> None:
    adapter = random_adapter(LORA)
    peft.save(tmp_path, adapter, lora=LORA, base_name="b", dtype=jnp.bfloat16)
    again, _ = peft.load(tmp_path, abstract())
    for x, y in zip(jax.tree.leaves(adapter), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(x.astype(jnp.bfloat16).astype(jnp.float32), y)


def test_rslora_scales_by_the_root_of_the_rank(tmp_path: Path) -> None:
    change(exported(tmp_path), use_rslora=True, lora_alpha=6)
    assert peft.load(tmp_path, abstract())[1].scale == pytest.approx(6 / 4**0.5)
    assert (LoraConfig(16, 8.0).scale, LoraConfig(16, 8.0, rslora=True).scale) == (0.5, 2.0)


def broken(directory: Path, how: str) -> None:
    """One fault in an exported directory."""
    file = directory / peft.WEIGHTS
    key = "base_model.model.model.language_model.layers.1.mlp.up_proj.lora_B.weight"
    if how == "no config":
        (directory / peft.CONFIG).unlink()
    elif how == "no weights":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "config cut":
        (directory / peft.CONFIG).write_text('{"r": 4')
    elif how == "key missing":
        rewrite(directory, lambda t: t.pop(key))
    elif how == "key unknown":
        rewrite(directory, lambda t: t.update({key.replace("up_proj", "side_proj"): t[key]}))
    elif how == "layer too many":
        rewrite(directory, lambda t: t.update({key.replace("layers.1", "layers.9"): t[key]}))
    elif how == "key not asked for":
        extra = key.replace("language_model.layers.1.mlp", "visual.blocks.0.mlp")
        pair = {extra: np.zeros((96, 4), np.float32), extra.replace("lora_B", "lora_A"): np.zeros((4, 64), np.float32)}
        rewrite(directory, lambda t: t.update(pair))
    elif how == "other base":
        rewrite(directory, lambda t: t.update({key: np.zeros((81, 4), np.float32)}))
    elif how in ("not finite", "whole numbers"):
        value = np.full((80, 4), np.inf, np.float32) if how == "not finite" else np.ones((80, 4), np.int32)
        rewrite(directory, lambda t: t.update({key: value}))
    elif how == "a number":
        rewrite(directory, lambda t: t.update({key: np.ones((), np.float32)}))
    elif how == "twice":
        rewrite(directory, lambda t: t.update({key.replace("model.language_model.", "model.", 1): t[key]}))
    elif how == "other rank":
        change(directory, r=8)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no config", "adapter_config.json: not there"),
        ("no weights", "adapter_model.safetensors: not there"),
        ("truncated", "truncated or not safetensors"),
        ("empty", "truncated or not safetensors"),
        ("config cut", "not valid JSON"),
        ("key missing", "layers_1/mlp/up_proj/b is missing"),
        ("key unknown", "side_proj.lora_B.weight' has no linear layer"),
        ("layer too many", "layers.9.mlp.up_proj.lora_B.weight' is of layer 9, and this base model has layers 0 to 2"),
        ("key not asked for", "do not name it"),
        ("other base", "has shape [81, 4] in place of [80, 4]; it was made for another base model"),
        ("not finite", "layers.1.mlp.up_proj.lora_B.weight' holds values that are no finite floats"),
        ("whole numbers", "layers.1.mlp.up_proj.lora_B.weight' holds values that are no finite floats"),
        ("other rank", "adapter_config.json says rank 8"),
        ("a number", "has shape [] in place of [80, 4]"),
        ("twice", "up_proj.lora_B.weight' stands twice, under two names"),
    ],
)
def test_a_bad_directory_is_named(tmp_path: Path, how: str, words: str) -> None:
    broken(exported(tmp_path), how)
    with pytest.raises(UserError) as caught:
        peft.load(tmp_path, abstract())
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"target_modules": ["q_proj", "w_proj"]},
            "target module 'w_proj' is not in this base model; it has 0, 2, down_proj",
        ),
        ({"target_modules": r".*\.nothing"}, "is not in this base model"),
        ({"target_modules": None}, "target_modules is missing"),
        ({"target_modules": 3}, "target_modules must be names"),
        ({"target_modules": ["q_proj", 3]}, "target_modules must be names"),
        ({"target_modules": "("}, "'(' is no regular expression"),
        ({"exclude_modules": {"a": 1}}, "exclude_modules must be names"),
        ({"layers_to_transform": ["a"]}, "layers_to_transform must be integers"),
        ({"r": True}, "r must be an integer above 0"),
        ({"r": 0}, "r must be an integer above 0"),
        ({"lora_alpha": 0}, "lora_alpha must be a number above 0"),
        ({"use_rslora": "false"}, "use_rslora must be true or false"),
        ({"r": -2}, "r must be an integer above 0"),
        ({"lora_dropout": 1.0}, "lora_dropout must be a number from 0 to below 1"),
        ({"lora_dropout": "half"}, "lora_dropout must be a number from 0 to below 1"),
        ({"lora_alpha": float("inf")}, "lora_alpha must be a number above 0"),
        ({"base_model_name_or_path": 3}, "base_model_name_or_path must be a name"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is True, which this program does not compute"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"invented_by_a_later_version": 1}, "invented_by_a_later_version"),
    ],
)
def test_a_config_that_means_something_else_is_refused(tmp_path: Path, fields: dict, words: str) -> None:
    change(exported(tmp_path), **fields)
    with pytest.raises(UserError) as caught:
        peft.load(tmp_path, abstract())
    assert words in str(caught.value)


def test_saving_with_another_rank_or_on_the_convolution_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lora\.rank is 8"):
        peft.save(tmp_path, random_adapter(LORA), lora=LoraConfig(8), base_name="b")
    config = LoraConfig(2, 2.0, ("visual/patch_embed",))
    with pytest.raises(UserError, match="convolution"):
        peft.save(tmp_path, random_adapter(config), lora=config, base_name="b")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random small model on disk as `transformers` reads it."""
    directory = tmp_path_factory.mktemp("base")
    params = init_params(VLM(reference.small_config()), 5)
    weights.save(directory, params, config=reference.small_config())
    (directory / "config.json").write_text(json.dumps(reference.config_json()))
    return directory


def our_logits(base: Path, adapter: dict | None, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """(logits f32[B, T, V], valid) with one image, two images and none in one batch."""
    config = reference.small_config()
    model = VLM(config, lora_scale=scale)
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), abstract_params(model))
    variables = {"params": weights.load(base, config, abstract=like)}
    variables |= {} if adapter is None else {"lora": adapter}
    rows, images = reference.token_batch("mixed_batch")
    features = model.apply(variables, images, method="encode_images")
    return np.asarray(model.apply(variables, rows, features, method="forward_logits")), rows.valid


def first_step(base: Path, adapter: dict, scale: float) -> tuple[float, float, float]:
    """(mean ratio, k3 to the starting adapter, k3 to the base) of a first RL step that starts from `adapter`."""
    model = VLM(reference.small_config(), lora_scale=scale)
    frozen = {"params": weights.load(base, model.config, abstract=abstract_params(model))}
    rows, images = reference.token_batch("mixed_batch")
    rows = dataclasses.replace(rows, policy=rows.valid & (rows.image_index < 0) & (np.arange(rows.valid.shape[1]) > 0))
    rows = jax.tree.map(lambda x: np.repeat(x, 3, axis=0)[: rl_batch.ROWS], rows)
    through = lora.touches_vision(adapter)
    batch = TrajectoryBatch(
        rows=rows,
        logp_sampler=np.zeros(rows.tokens.shape, np.float32),
        turn_of=np.where(rows.policy, 0, -1),
        features=None if through else model.apply(frozen, images, method="encode_images"),
        rewards=rl_batch.reward_inputs(),
        images=(images,) if through else None,
    )
    step = RLStep(model, optax.sgd(0.1), rl_batch.rl_config())
    mesh = parallel.make_mesh(parallel.MeshShape(data=1), jax.devices()[:1])

    def metrics(other: dict) -> dict:
        state = rl_batch.first_state(mesh, step.config, step.tx, adapter)
        return step.train_step(state, frozen, other, batch, weights=rl_batch.GOAL)[1]

    own, nothing = metrics(adapter), metrics(jax.tree.map(jnp.zeros_like, adapter))
    return float(own["ratio/mean"]), float(own["kl"]), float(nothing["kl"])


def their_logits(model) -> np.ndarray:
    torch = pytest.importorskip("torch")
    rows, _ = reference.token_batch("mixed_batch")
    grids, pixels = reference_pixels()
    used = [i for parts in reference.CASES["mixed_batch"] for i in parts[1::2]]
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor(np.asarray(rows.tokens)).long(),
            attention_mask=torch.tensor(np.asarray(rows.valid)).long(),
            position_ids=torch.tensor(np.asarray(rows.positions)).permute(1, 0, 2).long(),
            pixel_values=torch.cat([pixels[i] for i in used]),
            image_grid_thw=torch.tensor([grids[i] for i in used]),
        )
    return out.logits.float().numpy()


def reference_pixels():
    torch = pytest.importorskip("torch")
    from pixelis_jax.models.config import CLIP_MEAN, CLIP_STD
    from pixelis_jax.models.image_processor import patchify

    vision = reference.small_config().vision
    grids, pixels = [], []
    for image in reference.images():
        patches = patchify(image, vision).astype(np.float32).reshape(-1, 3, 2 * 14 * 14) / 255
        mean, std = (np.array(v, np.float32)[None, :, None] for v in (CLIP_MEAN, CLIP_STD))
        pixels.append(torch.tensor(((patches - mean) / std).reshape(len(patches), -1)))
        grids.append([1, image.shape[0] // 14, image.shape[1] // 14])
    return grids, pixels


REASON = "parity with torch: pip install -e .[parity]"


@pytest.mark.parametrize("config", [LORA, VISION, ROOT], ids=["decoder", "vision too", "rslora"])
def test_peft_reads_our_export_and_gives_our_logits(base: Path, tmp_path: Path, config: LoraConfig) -> None:
    pytest.importorskip("torch", reason=REASON)
    reference_peft = pytest.importorskip("peft", reason=REASON)
    from transformers import Qwen2_5_VLForConditionalGeneration

    peft.save(tmp_path, random_adapter(config), lora=config, base_name=str(base))  # a name would go to the hub
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(base, dtype="float32").eval()
    without = their_logits(plain)
    model = reference_peft.PeftModel.from_pretrained(plain, tmp_path).eval()
    loaded = reference_peft.get_peft_model_state_dict(model)
    assert len(loaded) == len(jax.tree.leaves(random_adapter(config)))
    ours, valid = our_logits(base, random_adapter(config), config.scale)
    theirs = their_logits(model)
    assert np.abs(theirs - without)[valid].max() > 0.05  # the adapter does something
    assert np.abs(ours - theirs)[valid].max() < 1e-4
    # merged into the base, without PEFT
    merged = tmp_path / "merged"
    merged.mkdir()
    write_merged(merged, Trained(random_adapter(config), config, str(base), {}, "a test"), None)
    whole = Qwen2_5_VLForConditionalGeneration.from_pretrained(merged, dtype="float32").eval()
    assert np.abs(ours - their_logits(whole))[valid].max() < 1e-4


@pytest.mark.parametrize(
    ("targets", "options"),
    [
        (["q_proj", "down_proj"], {}),
        ("all-linear", {"use_rslora": True, "lora_alpha": 3, "lora_dropout": 0.1}),
        (r".*language_model.*\.(k_proj|gate_proj)", {"use_rslora": True, "lora_alpha": 3}),
    ],
)
def test_an_adapter_that_peft_made_gives_its_logits_here(
    base: Path, tmp_path: Path, targets: object, options: dict
) -> None:
    """And is then the policy that the KL is measured against: 0 at the first step, not so against the base."""
    torch = pytest.importorskip("torch", reason=REASON)
    reference_peft = pytest.importorskip("peft", reason=REASON)
    from transformers import Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(3)
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(base, dtype="float32").eval()
    shape = {"r": 4, "lora_alpha": 5, "target_modules": targets, "task_type": "CAUSAL_LM"} | options
    config = reference_peft.LoraConfig(**shape)
    model = reference_peft.get_peft_model(plain, config).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    theirs = their_logits(model)
    model.save_pretrained(tmp_path)
    adapter, lora_config = peft.load(tmp_path, abstract())
    ours, valid = our_logits(base, adapter, lora_config.scale)
    assert np.abs(ours - theirs)[valid].max() < 1e-4
    assert (lora_config.rslora, lora_config.dropout) == (bool(options), options.get("lora_dropout", 0.0))
    ratio, kl, kl_to_base = first_step(base, adapter, lora_config.scale)
    assert (ratio, kl) == (1.0, 0.0) and kl_to_base > 1e-4
    # and back out again: the same tensors
    peft.save(tmp_path / "again", adapter, lora=lora_config, base_name=str(base))
    shutil.copy(tmp_path / "adapter_model.safetensors", tmp_path / "theirs.safetensors")
    from safetensors.numpy import load_file

    first, second = load_file(tmp_path / "theirs.safetensors"), load_file(tmp_path / "again" / peft.WEIGHTS)
    assert first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)
    assert len(traverse_util.flatten_dict(adapter)) == len(first)
