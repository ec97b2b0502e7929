"""Frames of videos against the reference implementation, in both families; needs torch (the `parity` extra)."""

import re

import jax
import numpy as np
import pytest
import small_families as small

from pixelis_jax import tiny
from pixelis_jax.models import families, image_processor
from pixelis_jax.models import tokenizer as bpe
from pixelis_jax.models.config import ModelConfig
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.processor import Processor
from pixelis_jax.models.rows import Row

torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra (torch)")
import torch_families  # noqa: E402  only where torch is
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor  # noqa: E402

TOLERANCE = 1e-4
PADDED, IMAGES = 96, 8  # tokens of a row and images (frame groups are images too): one compiled shape for all cases
# A row is texts, pictures (height, width in blocks) and videos (frames, height, width, frames a second).
CASES = {
    "video": (("Which?", (4, 3, 4, 4.0), "a b"),),
    "odd_frames": ((" ", (5, 2, 7, 8.0), "square"),),
    "between_pictures": (("is", (2, 3), "the", (3, 4, 3, 2.5), "digit", (2, 2, 2, 1.0), (3, 1), "{7}"),),
    "mixed_batch": (("Which", (2, 2), "a"), ("no picture",), ("b", (4, 2, 3, 16.0), "c", (2, 3, 2, 4.0), "d")),
}


@pytest.fixture(scope="module")
def tokenizer():
    return bpe.train(["which digit is inside the blue square? {7}"], vocab_size=300)


def config_of(family, tokenizer):
    """Qwen2.5-VL or Qwen3-VL in small, with the tokenizer's vocabulary."""
    config = tiny.make_config(tokenizer, width=64, layers=3, vision_width=64, vision_depth=3)
    if family == "qwen2_5_vl":
        return config
    vision, text = (getattr(small.VISION_LANGUAGE["qwen3_vl"], name) for name in ("vision", "text"))
    text = type(text)(**vars(text) | {"vocab_size": config.text.vocab_size})
    ids = ("image", "video", "vision_start", "vision_end", "pad", "eos")
    return ModelConfig(vision, text, *(getattr(config, f"{name}_token_id") for name in ids), "qwen3_vl")


class Pair:
    """One model in both implementations."""

    def __init__(self, config, tokenizer, directory):
        self.config, self.vision = config, config.need_vision()
        self.theirs = torch_families.write(directory, config, families.to_json(config))
        self.ours = small.Ours(directory)
        budget = PixelBudget(self.vision.factor**2, (4 * self.vision.factor) ** 2)
        self.processor = Processor(config, tokenizer, overview=budget, crop=budget)
        self._encode = jax.jit(lambda x: self.ours.model.apply(self.ours.variables, x, method="encode_images"))

    def case(self, parts_of_rows):
        """(rows, our feature table, pixels and grids of the reference)."""
        generator, factor = np.random.default_rng(7), self.vision.factor
        shown = [part for parts in parts_of_rows for part in parts if not isinstance(part, str)]
        made = []
        for part in shown:
            frames, height, width = (1, *part) if len(part) == 2 else part[:3]
            made.append(generator.integers(0, 256, (frames, height * factor, width * factor, 3), dtype=np.uint8))
        groups = [image_processor.frame_groups(frames, self.vision) for frames in made]
        flat = [group for of_one in groups for group in of_one]
        places = iter(self.processor.place(flat, crop=False))
        features = self._encode(self.processor.pack(flat, crop=False, count=IMAGES))
        counts, rows = iter(map(len, groups)), []
        for parts in parts_of_rows:
            row = Row()
            for part in parts:
                if isinstance(part, str):
                    row.append_text(self.processor.encode(part))
                    continue
                placed = [next(places) for _ in range(next(counts))]
                if len(part) == 2:
                    self.processor.append_image(row, *placed)
                else:
                    self.processor.append_video(row, placed, frames=part[0], fps=part[3])
            rows.append(row)
        return rows, features, self.pixels(shown, groups)

    def pixels(self, shown, groups):
        """Arguments of the reference: each frame through its own image processor, two of them to a patch."""
        given = {}
        for images in (True, False):
            chosen = [(p, of_one) for p, of_one in zip(shown, groups, strict=True) if (len(p) == 2) is images]
            if not chosen:
                continue
            grids, patches = [], []
            for _, of_one in chosen:
                for group in of_one:
                    frames = [torch_families.pixels([frame], self.vision) for frame in group]
                    split = [f["pixel_values"].reshape(-1, 3, 2, self.vision.patch_size**2) for f in frames]
                    pair = torch.stack([part[:, :, 0] for part in split], dim=2)
                    patches.append(pair.reshape(len(pair), -1))
                grids.append([len(of_one), *frames[0]["image_grid_thw"][0, 1:].tolist()])
            names = ("pixel_values", "image_grid_thw") if images else ("pixel_values_videos", "video_grid_thw")
            given |= dict(zip(names, (torch.cat(patches), torch.tensor(grids)), strict=True))
            if not images and self.config.model_type == "qwen2_5_vl":
                given["second_per_grid_ts"] = torch.tensor([2 / p[3] for p, _ in chosen])
        return given

    def arguments(self, batch):
        tokens = np.asarray(batch.tokens)
        kind = np.where(tokens == self.config.video_token_id, 2, tokens == self.config.image_token_id)
        kind = np.where(batch.valid, kind, 0).astype(np.int32)
        return torch_families.arguments(batch) | {"mm_token_type_ids": torch.tensor(kind)}


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def pair(request, tokenizer, tmp_path_factory):
    return Pair(config_of(request.param, tokenizer), tokenizer, tmp_path_factory.mktemp("family"))


def three(batch):
    return jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[:1], 3 - len(x), axis=0)]), batch)


@pytest.mark.parametrize(("case", "side"), [*((case, "right") for case in CASES), ("mixed_batch", "left")])
def test_logits_and_layers(pair, case, side):
    rows, features, shown = pair.case(CASES[case])
    batch = small.padded(rows, side, PADDED)
    given = pair.arguments(batch) | shown
    expected = torch_families.logits(pair.theirs, given)
    seen, n = pair.ours.see(three(batch), features), len(rows)
    assert expected[batch.valid].std() > 0.3
    assert np.abs(seen.logits[:n] - expected)[batch.valid].max() < TOLERANCE
    for i, layer in enumerate(torch_families.layers(pair.theirs, given)):
        assert np.abs(seen.layers[i][:n] - layer)[batch.valid].max() < TOLERANCE, f"layer {i}"


@pytest.mark.parametrize("case", CASES)
def test_positions(pair, case):
    rows, _, shown = pair.case(CASES[case])
    batch = small.padded(rows, "right", PADDED)
    given = pair.arguments(batch)
    grids = {name: value for name, value in shown.items() if not name.startswith("pixel")}
    expected, _ = pair.theirs.model.get_rope_index(**given, **grids)
    valid = np.asarray(batch.valid)
    for i in range(len(rows)):
        np.testing.assert_array_equal(batch.positions[i][:, valid[i]], expected.numpy()[:, i][:, valid[i]])


def test_greedy_text(pair):
    rows, features, shown = pair.case(CASES["mixed_batch"])
    given = pair.arguments(small.padded(rows, "left", max(map(len, rows)))) | shown
    config = pair.config
    suppress = (config.image_token_id, config.video_token_id)
    tokens = {"tokens": small.GREEDY_TOKENS, "eos": config.eos_token_id, "suppress": suppress}
    expected = torch_families.greedy(pair.theirs, given, **tokens)
    ours = small.greedy(pair.ours.model, pair.ours.variables, rows, features, end=config.eos_token_id)
    assert ours == expected


def test_the_order_of_frames_matters(pair):
    """Both frames of a patch are read, and each group at its own time."""
    rows, features, _ = pair.case(CASES["video"])
    batch = three(small.padded(rows, "right", PADDED))
    plain = pair.ours.see(batch, features).logits
    units = image_processor.rows_per_image(pair.processor.windows([], crop=False), pair.vision)
    table = np.asarray(features).reshape(IMAGES, units, -1)
    swapped = table[[1, 0, *range(2, IMAGES)]].reshape(np.asarray(features).shape)
    assert np.abs(pair.ours.see(batch, swapped).logits - plain)[batch.valid].max() > 0.01


@pytest.mark.parametrize(("frames", "fps"), [(4, 2.0), (5, 24.0), (2, 0.3), (7, 29.97)])
def test_the_times_in_words_are_those_of_the_reference(tokenizer, frames, fps):
    config = config_of("qwen3_vl", tokenizer)
    budget = PixelBudget(32 * 32, 64 * 64)
    processor, row = Processor(config, tokenizer, overview=budget, crop=budget), Row()
    groups = image_processor.frame_groups(np.zeros((frames, 32, 64, 3), np.uint8), config.vision)
    processor.append_video(row, processor.place(groups, crop=False), frames=frames, fps=fps)
    group = r"<([\d.]+) seconds><\|vision_start\|>(?:<\|video_pad\|>){2}<\|vision_end\|>"
    said = re.findall(group, processor.decode(row.tokens))
    expected = Qwen3VLProcessor._calculate_timestamps(None, list(range(frames)), fps, 2)
    assert said == [f"{time:.1f}" for time in expected] and len(said) == len(groups)


def test_text_after_a_long_video_stands_behind_it(tokenizer, tmp_path):
    """As trained. The reference's own ids put it inside of the video; given ours, its logits are ours."""
    pair = Pair(config_of("qwen2_5_vl", tokenizer), tokenizer, tmp_path)
    rows, features, shown = pair.case([["Which?", (4, 1, 2, 0.25), "a b"]])
    batch = small.padded(rows, "right", PADDED)
    positions, last_frame = (
        rows[0].positions(),
        np.nonzero(np.array(rows[0].tokens) == pair.config.video_token_id)[0][-1],
    )
    start = len(pair.processor.encode("Which?")) + 1  # behind <|vision_start|>
    assert positions[:, last_frame].tolist() == [start + 32, start, start + 1]  # 8 s later, at 4 times a second
    assert positions[:, last_frame + 1].tolist() == [start + 33] * 3
    given = pair.arguments(batch) | shown | {"position_ids": torch.tensor(batch.positions).permute(1, 0, 2).long()}
    expected = torch_families.logits(pair.theirs, given)
    seen = pair.ours.see(three(batch), features)
    assert np.abs(seen.logits[:1] - expected)[batch.valid].max() < TOLERANCE
