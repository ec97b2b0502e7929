"""An array of a wrong shape is an error that names it and says what it should be, where the function begins."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from pixelis_jax.algorithms.advantages import group_advantages
from pixelis_jax.algorithms.agreement import sampler_trainer_difference
from pixelis_jax.algorithms.grpo import GRPOConfig, GRPOInputs, aggregate, grpo_loss, sampler_correction, surrogate
from pixelis_jax.algorithms.kl import kl_estimate, kl_reward
from pixelis_jax.algorithms.sft import sft_loss
from pixelis_jax.models import layers, lora
from pixelis_jax.models.config import TextConfig
from pixelis_jax.models.decoder import mrope
from pixelis_jax.models.head import score_logits, score_tokens

B, T = 3, 5
TOKENS, ROWS, MASK = jnp.zeros((B, T)), jnp.zeros(B), jnp.ones((B, T), bool)
SHORT = jnp.zeros((B, T - 1))
INPUTS = GRPOInputs(policy=MASK, advantages=ROWS, included=jnp.ones(B, bool))
CONFIG = GRPOConfig(loss="clip")


def grpo(**fields):
    return lambda: grpo_loss(TOKENS, TOKENS, dataclasses.replace(INPUTS, **fields), CONFIG)


def score(targets, wanted):
    return lambda: score_tokens(
        lambda hidden: hidden, jnp.zeros((B, T, 4)), targets, wanted, forbidden=(), temperature=1.0
    )


CASES = {
    "logp of the loss": (lambda: grpo_loss(SHORT, TOKENS, INPUTS, CONFIG), r"\(3, 4\) but expected \(3, 5\).*\[logp, "),
    "advantages by token": (grpo(advantages=TOKENS), r"\[advantages, included, kl_beta \[B\]\]"),
    "a scalar beta": (grpo(kl_beta=jnp.float32(1)), r"shape \(\) but expected \(3\).*kl_beta \[B\]"),
    "old log-probs of one row": (grpo(logp_old=TOKENS[:1]), r"\(1, 5\) but expected \(3, 5\).*logp_old"),
    "turns by row": (grpo(turn_of=jnp.zeros(B, jnp.int32)), r"turn_of \[B, T\] like inputs.policy"),
    "a policy mask by row": (grpo(policy=MASK[0]), r"rank 1 .*\[inputs.policy bool\[B, T\]\]"),
    "the surrogate": (lambda: surrogate(TOKENS, SHORT, ROWS[:, None], CONFIG), r"ratio, logp f32\[B, T\]"),
    "flat advantages": (lambda: surrogate(TOKENS, TOKENS, ROWS, CONFIG), r"advantages f32\[B, 1\]"),
    "the correction": (lambda: sampler_correction(SHORT, TOKENS, MASK, CONFIG), "logp_old, logp_sampler"),
    "included tokens": (lambda: aggregate(TOKENS, MASK, MASK, CONFIG), r"included bool\[B\]"),
    "the estimate of the KL": (lambda: kl_estimate(TOKENS, ROWS), "logp, logp_ref: of one shape"),
    "the KL as a reward": (lambda: kl_reward(TOKENS, SHORT, MASK, beta=1.0), r"logp_ref f32\[B, T\] like policy"),
    "groups of other rows": (lambda: group_advantages(ROWS, ROWS[:2], MASK[:, 0]), r"group i32\[B\]"),
    "rewards by token": (lambda: group_advantages(TOKENS, ROWS, MASK[:, 0]), r"rank 2 .*rewards f32\[B\]"),
    "samplers": (lambda: sampler_trainer_difference(TOKENS, SHORT, MASK), "logp_sampler, turn_of"),
    "weights of SFT": (lambda: sft_loss(TOKENS, MASK, weights=ROWS), r"weights, mean_logp f32\[B, T\] like policy"),
    "targets": (lambda: score_logits(jnp.zeros((B, T, 7)), MASK[:, 0], forbidden=(), temperature=1.0), "targets i32"),
    "hidden states": (score(jnp.zeros((B, T - 1), jnp.int32), MASK), r"targets, wanted \[B, T\] for hidden"),
    "positions": (lambda: mrope(jnp.zeros((B, T), jnp.int32), TextConfig()), r"positions i32\[B, 3, T\]"),
    "angles": (lambda: layers.rotate(jnp.zeros((B, T, 2, 8)), TOKENS, TOKENS), r"cos, sin f32\[..., T, d / 2\]"),
    "a mask of attention": (
        lambda: layers.attend(*[jnp.zeros((B, T, 2, 8))] * 3, mask=MASK),
        r"mask bool\[B, T, S\]",
    ),
    "an adapter": (
        lambda: lora.merge({"q": {"kernel": jnp.zeros((4, 6))}}, {"q": {"a": TOKENS[:, :2], "b": TOKENS[:2]}}, 1.0),
        r"q: a f32\[in, rank\], b f32\[rank, out\] for kernel f\[in, out\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_shape_is_named(case: str) -> None:
    call, words = CASES[case]
    with pytest.raises(AssertionError, match=words):
        call()


@pytest.mark.parametrize("case", ["logp of the loss", "groups of other rows", "weights of SFT"])
def test_it_is_named_under_jit_too(case: str) -> None:
    call, words = CASES[case]
    with pytest.raises(AssertionError, match=words):
        jax.jit(call)()
