"""Text-only families against the reference implementation; needs torch (the `parity` extra)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_families as small

from pixelis_jax.models import families
from pixelis_jax.models.config import TextConfig
from pixelis_jax.models.decoder import _frequencies

torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra (torch)")
import torch_families  # noqa: E402  only where torch is

TOLERANCE = 1e-4
BF16 = 0.03  # root mean square difference of bf16 logits from fp32 ones, in standard deviations of the logits


class Pair:
    """One model in both implementations."""

    def __init__(self, config, directory):
        self.config, self.directory = config, directory
        self.theirs = torch_families.write(directory, config, families.to_json(config))
        self.ours = small.Ours(directory)
        self.rows = small.text_rows()


@pytest.fixture(scope="module", params=small.TEXT_ONLY)
def pair(request, tmp_path_factory):
    return Pair(small.TEXT_ONLY[request.param], tmp_path_factory.mktemp("family"))


def test_the_config_that_transformers_writes_is_read(pair):
    assert families.from_json(pair.directory / "config.json") == pair.config


@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_and_layers(pair, side):
    rows = small.padded(pair.rows, side)
    given, seen = torch_families.arguments(rows), pair.ours.see(rows)
    expected = torch_families.logits(pair.theirs, given)
    assert expected[rows.valid].std() > 0.3
    assert np.abs(seen.logits - expected)[rows.valid].max() < TOLERANCE
    for i, layer in enumerate(torch_families.layers(pair.theirs, given)):
        assert np.abs(seen.layers[i] - layer)[rows.valid].max() < TOLERANCE, f"layer {i}"


def test_the_loss_is_the_token_mean_of_the_reference(pair):
    rows = small.padded(pair.rows, "right")
    given = torch_families.arguments(rows)
    labels = torch.where(given["attention_mask"] == 1, given["input_ids"], -100)
    with torch.no_grad():
        expected = pair.theirs(**given, labels=labels).loss.item()
    trained = rows.valid & (np.arange(rows.valid.shape[1]) > 0)
    assert abs(-pair.ours.see(rows).logp[trained].mean() - expected) < TOLERANCE


def test_greedy_text(pair):
    given = torch_families.arguments(small.padded(pair.rows, "left", max(small.LENGTHS)))
    expected = torch_families.greedy(pair.theirs, given, tokens=small.GREEDY_TOKENS, eos=small.EOS)
    no_image = jnp.zeros((1, pair.config.text.hidden_size))
    assert small.greedy(pair.ours.model, pair.ours.variables, pair.rows, no_image) == expected
    assert len({tuple(row) for row in expected}) == len(expected)


def test_greedy_text_ends_with_the_first_of_several_tokens(pair):
    """A checkpoint may name several, as Qwen's do: two that the model says, in one row each, are the ends here."""
    given = torch_families.arguments(small.padded(pair.rows, "left", max(small.LENGTHS)))
    tokens, no_image = small.GREEDY_TOKENS, jnp.zeros((1, pair.config.text.hidden_size))
    free = torch_families.greedy(pair.theirs, given, tokens=tokens, eos=small.EOS)
    ends = [small.EOS, free[0][2], free[1][3]]
    expected = torch_families.greedy(pair.theirs, given, tokens=tokens, eos=ends)
    assert small.greedy(pair.ours.model, pair.ours.variables, pair.rows, no_image, end=ends) == expected
    assert sum(map(len, expected)) < sum(map(len, free))
    assert all(row[-1] in ends or len(row) == tokens for row in expected)


def test_what_is_written_back_loads_in_transformers(pair, tmp_path):
    small.save(tmp_path, pair.ours.model, pair.ours.variables["params"])
    again, complaints = torch_families.read(tmp_path)
    assert complaints == {}
    given = torch_families.arguments(small.padded(pair.rows, "left"))
    np.testing.assert_array_equal(torch_families.logits(again, given), torch_families.logits(pair.theirs, given))
    assert families.from_json(tmp_path / "config.json") == pair.config


def rms(x):
    return np.sqrt(np.mean(x**2))


def test_bf16_stays_close_to_fp32(pair):
    """About as close as the reference's own bf16."""
    rows = small.padded(pair.rows, "right")
    exact = pair.ours.see(rows).logits[rows.valid]
    model, variables = small.load(pair.directory, jnp.bfloat16)
    no_image = jnp.zeros((1, pair.config.text.hidden_size), jnp.bfloat16)
    ours = jax.jit(lambda v: model.apply(v, rows, no_image, method="forward_logits"))(variables)
    theirs, _ = torch_families.read(pair.directory, torch.bfloat16)
    reference = torch_families.logits(theirs, torch_families.arguments(rows))[rows.valid]
    off, reference_off = (
        np.sqrt(np.mean((x - exact) ** 2)) / exact.std() for x in (np.asarray(ours)[rows.valid], reference)
    )
    assert off < BF16 and off < 1.25 * reference_off


@pytest.mark.parametrize("head_dim", [64, 128])
def test_stretched_frequencies_are_those_of_llama_3(head_dim):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 8192
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(head_dim=head_dim, rope_parameters=rope))
    scaling = families.Llama3Rope(32.0, 1.0, 4.0, 8192)
    ours = _frequencies(TextConfig(head_dim=head_dim, rope_theta=5e5, rope_scaling=scaling))
    plain = _frequencies(TextConfig(head_dim=head_dim, rope_theta=5e5))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-6)
    shares = plain / ours
    assert shares.min() == 1 and shares.max() == 32 and ((shares > 1.01) & (shares < 31)).any()
