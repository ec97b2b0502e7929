"""Qwen3-VL against the reference implementation; needs torch (the `parity` extra)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_families as small

from pixelis_jax.models import families, image_processor, lora, peft
from pixelis_jax.models import policy as policies
from pixelis_jax.models.qwen3_vision import Merger
from pixelis_jax.models.vlm import VLM

torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra (torch)")
import torch_families  # noqa: E402  only where torch is

TOLERANCE = 1e-4
BF16 = 0.03  # root mean square difference of bf16 logits from fp32 ones, in standard deviations of the logits
PADDED = 40  # one padded length for all cases


class Pair:
    """One model in both implementations, and the feature table of all images."""

    def __init__(self, config, directory):
        self.config, self.directory, self.vision = config, directory, config.need_vision()
        self.theirs = torch_families.write(directory, config, families.to_json(config))
        self.ours = small.Ours(directory)
        self.images = small.image_batch(self.vision)
        self.features = self.encode(self.ours.model, self.ours.variables)

    def encode(self, model, variables):
        return jax.jit(lambda v, x: model.apply(v, x, method="encode_images"))(variables, self.images)

    def case(self, name, side, length=PADDED):
        """(our rows filled up to three, the reference's arguments)."""
        rows = small.image_rows(name, self.vision)
        shown = [small.images()[i] for i in small.order(name)]
        batch = small.padded(rows, side, length)
        given = torch_families.image_arguments(batch, shown, self.vision)
        three = jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[:1], 3 - len(x), axis=0)]), batch)
        return three, given


@pytest.fixture(scope="module", params=small.VISION_LANGUAGE)
def pair(request, tmp_path_factory):
    return Pair(small.VISION_LANGUAGE[request.param], tmp_path_factory.mktemp("family"))


def test_the_config_that_transformers_writes_is_read(pair):
    assert families.from_json(pair.directory / "config.json") == pair.config


def test_the_vision_tower(pair):
    """Merged tokens and what each deepstack level adds, of images of odd grids."""
    given = torch_families.pixels(small.images(), pair.vision)
    with torch.no_grad():
        out = pair.theirs.model.visual(given["pixel_values"], grid_thw=given["image_grid_thw"])
    expected = np.concatenate([out.pooler_output.numpy(), *(x.numpy() for x in out.deepstack_features)], axis=1)
    assert expected.shape[1] == 3 * pair.config.text.hidden_size
    table = np.asarray(pair.features).reshape(len(small.SIZES), -1, expected.shape[1])
    places = [image_processor.token_rows(size, pair.vision) for size in small.SIZES]
    ours = np.concatenate([table[i, place] for i, place in enumerate(places)])
    assert expected.std() > 0.1 and np.abs(ours - expected).max() < TOLERANCE
    counts = [len(place) for place in places]
    assert all(not table[i, n:].any() for i, n in enumerate(counts))


@pytest.mark.parametrize("name", ["merger", "deepstack_merger_list_1"])
def test_a_merger_alone(pair, name):
    visual, vision = pair.theirs.model.visual, pair.vision
    theirs = visual.merger if name == "merger" else visual.deepstack_merger_list[1]
    x = np.random.default_rng(2).standard_normal((1, 12, vision.hidden_size)).astype(np.float32)
    width = vision.merge_unit * vision.hidden_size
    ours = Merger(width, vision.out_hidden_size, False, 1.0, jnp.float32, norm_merged=name != "merger")
    out = ours.apply({"params": pair.ours.variables["params"]["visual"][name]}, x)
    with torch.no_grad():
        expected = theirs(torch.tensor(x[0])).numpy()
    assert np.abs(np.asarray(out)[0] - expected).max() < TOLERANCE


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("case", small.CASES)
def test_logits_and_layers(pair, case, side):
    rows, given = pair.case(case, side)
    n = len(given["input_ids"])
    valid, seen = rows.valid[:n], pair.ours.see(rows, pair.features)
    expected = torch_families.logits(pair.theirs, given)
    assert expected[valid].std() > 0.3
    assert np.abs(seen.logits[:n] - expected)[valid].max() < TOLERANCE
    # Both are seen before deepstack features are added, which the next layer then reads.
    for i, layer in enumerate(torch_families.layers(pair.theirs, given)):
        assert np.abs(seen.layers[i][:n] - layer)[valid].max() < TOLERANCE, f"layer {i}"


def test_the_loss_is_the_token_mean_of_the_reference_without_placeholders(pair):
    """The reference's softmax has the placeholders' ids in it, ours has not: they are taken out of its logits."""
    rows, given = pair.case("mixed_batch", "right")
    logits = torch_families.logits(pair.theirs, given)
    logits[..., [small.IMAGE, small.VIDEO]] = -np.inf
    text = rows.valid & (rows.image_index < 0) & (np.arange(PADDED) > 0)
    labels = torch.tensor(np.where(text, rows.tokens, -100)[:, 1:].reshape(-1)).long()
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits[:, :-1]).reshape(labels.numel(), -1), labels)
    assert abs(-pair.ours.see(rows, pair.features).logp[text].mean() - expected.item()) < TOLERANCE


@pytest.mark.parametrize("case", small.CASES)
def test_greedy_text(pair, case):
    rows = small.image_rows(case, pair.vision)
    _, given = pair.case(case, "left", max(map(len, rows)))
    tokens = {"tokens": small.GREEDY_TOKENS, "eos": small.EOS, "suppress": (small.IMAGE, small.VIDEO)}
    expected = torch_families.greedy(pair.theirs, given, **tokens)
    assert small.greedy(pair.ours.model, pair.ours.variables, rows, pair.features) == expected


def test_what_is_written_back_loads_in_transformers(pair, tmp_path):
    small.save(tmp_path, pair.ours.model, pair.ours.variables["params"])
    again, complaints = torch_families.read(tmp_path)
    assert complaints == {}
    _, given = pair.case("mixed_batch", "left")
    np.testing.assert_array_equal(torch_families.logits(again, given), torch_families.logits(pair.theirs, given))
    assert families.from_json(tmp_path / "config.json") == pair.config


def test_peft_gives_our_logits_of_an_adapter(pair, tmp_path):
    """On the decoder and on the vision tower with its mergers."""
    reference_peft = pytest.importorskip("peft", reason="parity with torch: pip install -e .[parity]")
    config = lora.LoraConfig(
        2, 6.0, ("language_model/.*/q_proj", "language_model/.*/down_proj", "visual/.*/linear_fc1")
    )
    adapter = lora.init(jax.random.key(1), pair.ours.variables["params"], config)
    leaves, tree = jax.tree.flatten(adapter)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    adapter = tree.unflatten([jax.random.normal(k, x.shape) * 0.1 for k, x in zip(keys, leaves, strict=True)])
    peft.save(tmp_path, adapter, lora=config, base_name=str(pair.directory))
    rows, given = pair.case("mixed_batch", "right")
    plain = torch_families.logits(pair.theirs, given)
    model = reference_peft.PeftModel.from_pretrained(torch_families.read(pair.directory)[0], tmp_path).eval()
    expected = torch_families.logits(model, given)
    ours = VLM(pair.config, lora_scale=config.scale)
    variables = pair.ours.variables | {"lora": adapter}
    logits = jax.jit(lambda v, x: ours.apply(v, rows, x, method="forward_logits"))(
        variables, pair.encode(ours, variables)
    )
    assert np.abs(expected - plain)[rows.valid].max() > 0.05
    assert np.abs(np.asarray(logits) - expected)[rows.valid].max() < TOLERANCE
    again, shape = peft.load(tmp_path, policies.abstract_params(ours))
    jax.tree.map(np.testing.assert_array_equal, again, adapter)
    assert shape.scale == config.scale


def rms(x):
    return np.sqrt(np.mean(x**2))


def test_bf16_stays_close_to_fp32(pair):
    """About as close as the reference's own bf16, vision tower included."""
    rows, given = pair.case("mixed_batch", "right")
    exact = pair.ours.see(rows, pair.features).logits[rows.valid]
    model, variables = small.load(pair.directory, jnp.bfloat16)
    features = pair.encode(model, variables)
    ours = jax.jit(lambda v, x: model.apply(v, rows, x, method="forward_logits"))(variables, features)
    theirs, _ = torch_families.read(pair.directory, torch.bfloat16)
    given["pixel_values"] = given["pixel_values"].bfloat16()
    reference = torch_families.logits(theirs, given)[rows.valid]
    off, reference_off = (rms(x - exact) / exact.std() for x in (np.asarray(ours)[rows.valid], reference))
    assert off < BF16 and off < 1.25 * reference_off
