"""Published configurations at full size: every key and shape is the reference's. Nothing is allocated."""

import json

import numpy as np
import pytest
from flax import traverse_util
from test_qwen3_vl import QWEN3_VL_4B
from test_text_families import QWEN3_0_6B, SMOLLM2_135M

from pixelis_jax.models import families, weights
from pixelis_jax.models import policy as policies
from pixelis_jax.models.shapes import SHAPES
from pixelis_jax.models.vlm import VLM

torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra (torch)")
import torch_families  # noqa: E402  only where torch is

FILES = {"Qwen3-0.6B": QWEN3_0_6B, "SmolLM2-135M": SMOLLM2_135M, "Qwen3-VL-4B": QWEN3_VL_4B} | {
    name: families.to_json(config) for name, config in SHAPES.items()
}
# What the model cards say, in parameters: 3.75 B, 8.29 B, 33.5 B and 73.4 B of Qwen2.5-VL.
COUNTS = {
    "Qwen3-0.6B": 596_049_920,
    "SmolLM2-135M": 134_515_008,
    "Qwen3-VL-4B": 4_437_815_808,
    "qwen2_5_vl_3b": 3_754_622_976,
    "qwen2_5_vl_7b": 8_292_166_656,
    "qwen2_5_vl_32b": 33_452_718_336,
    "qwen2_5_vl_72b": 73_410_777_344,
}


@pytest.mark.parametrize("name", FILES)
def test_keys_and_shapes(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FILES[name]))
    config = families.from_json(tmp_path / "config.json")
    ours = {}
    for path, leaf in traverse_util.flatten_dict(policies.abstract_params(VLM(config)), sep="/").items():
        key, transposed = weights.from_path(path)
        key = key if config.vision is None else weights.prefixed(key)
        ours[key] = leaf.shape[::-1] if transposed else leaf.shape
    theirs = torch_families.shapes(FILES[name])
    if config.vision is not None:
        patch = "model.visual.patch_embed.proj.weight"
        theirs[patch] = (theirs[patch][0], int(np.prod(theirs[patch][1:])))
    if config.text.tie_word_embeddings:
        theirs.pop("lm_head.weight", None)
    assert ours == theirs
    assert sum(int(np.prod(shape)) for shape in ours.values()) == COUNTS[name]
