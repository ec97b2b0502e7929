"""Our model against the reference implementation, layer by layer; needs torch (the `parity` extra)."""

import dataclasses

import jax
import numpy as np
import pytest
import reference

from pixelis_jax.models import image_processor
from pixelis_jax.models.vision import VisionTower

torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra (torch)")
import torch_reference  # noqa: E402  only where torch is

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def theirs(golden_weights):
    return torch_reference.build(reference.config_json(), reference.floats(golden_weights))


def test_the_reference_holds_the_keys_of_the_golden_file(golden_weights):
    shapes = torch_reference.shapes(reference.config_json())
    assert {key: value.shape for key, value in golden_weights.items()} == shapes


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("case", reference.CASES)
def test_logits(ours, theirs, case, side):
    expected = torch_reference.logits(theirs, torch_reference.inputs(case, side=side))
    for i, logits in enumerate(ours.logits(case, side=side)):
        row = expected[i, : len(logits)] if side == "right" else expected[i, -len(logits) :]
        assert np.abs(logits - row).max() < TOLERANCE


@pytest.mark.parametrize("case", reference.CASES)
def test_greedy_text(ours, theirs, case):
    expected = torch_reference.greedy(theirs, torch_reference.inputs(case, side="left"), tokens=8)
    assert ours.greedy(case).tolist() == expected.tolist()


def test_the_golden_file_is_what_the_reference_says_now(golden, theirs):
    for case in reference.CASES:
        logits = torch_reference.logits(theirs, torch_reference.inputs(case, side="left"))
        for i, row in enumerate(reference.token_rows(case)[0]):
            assert np.abs(golden[f"{case}/{i}/logits"] - logits[i, -len(row) :]).max() < TOLERANCE


def hooked(modules):
    """A list that fills with the modules' outputs on the next forward."""
    seen = []

    def keep(module, args, out):
        seen.append((out[0] if isinstance(out, tuple) else out).detach().numpy())

    for module in modules:
        module.register_forward_hook(keep)
    return seen


def test_every_vision_layer(ours, golden_weights):
    theirs = torch_reference.build(reference.config_json(), reference.floats(golden_weights))
    tower = theirs.model.visual
    seen = hooked([*tower.blocks, tower.merger])
    inputs = torch_reference.pixels(reference.images())
    with torch.no_grad():
        tower(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
    images = reference.token_rows("no_image")[1]
    _, kept = jax.jit(
        lambda x: ours.model.apply(
            ours.variables, x, method="encode_images", capture_intermediates=True, mutable=["intermediates"]
        )
    )(images)
    blocks = kept["intermediates"]["visual"]
    valid = np.asarray(images.valid).reshape(-1)
    for i in range(ours.config.vision.depth):
        out = np.asarray(blocks[f"blocks_{i}"]["__call__"][0]).reshape(len(valid), -1)[valid]
        assert np.abs(out - seen[i]).max() < TOLERANCE, f"block {i}"
    merged = np.asarray(blocks["__call__"][0]).reshape(-1, ours.config.vision.out_hidden_size)
    assert np.abs(merged[valid[::4]] - seen[-1]).max() < TOLERANCE


def test_the_merger_alone(ours, theirs):
    """Behind the patch embedding, without a block between: a tower of depth 0."""
    pictures, vision = reference.images(), ours.config.vision
    inputs = torch_reference.pixels(pictures)
    with torch.no_grad():
        expected = theirs.model.visual.merger(theirs.model.visual.patch_embed(inputs["pixel_values"])).numpy()
    tower = VisionTower(dataclasses.replace(vision, depth=0))
    images = reference.token_rows("no_image")[1]
    table = np.asarray(tower.apply({"params": ours.variables["params"]["visual"]}, images))
    out = [table[i, image_processor.token_rows(image.shape[:2], vision)] for i, image in enumerate(pictures)]
    assert expected.std() > 0.01 and np.abs(np.concatenate(out) - expected).max() < TOLERANCE


def test_every_decoder_layer(ours, golden_weights):
    theirs = torch_reference.build(reference.config_json(), reference.floats(golden_weights))
    seen = hooked(theirs.model.language_model.layers)
    torch_reference.logits(theirs, torch_reference.inputs("mixed_batch", side="right"))
    rows, _ = reference.token_batch("mixed_batch")
    _, kept = jax.jit(
        lambda *args: ours.model.apply(
            ours.variables, *args, method="forward_logits", capture_intermediates=True, mutable=["intermediates"]
        )
    )(rows, ours.features())
    for i in range(ours.config.text.num_hidden_layers):
        out = kept["intermediates"]["language_model"][f"layers_{i}"]["__call__"][0][0]
        assert np.abs(np.asarray(out) - seen[i])[rows.valid].max() < TOLERANCE, f"layer {i}"
