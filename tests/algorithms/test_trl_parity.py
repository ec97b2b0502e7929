"""Losses and their gradients are those of TRL's own GRPOTrainer on the same numbers.

TRL's `_compute_loss` runs as it stands; only the model's forward is replaced, by given log-probs.
"""

from collections import defaultdict
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.algorithms.grpo import GRPOConfig, GRPOInputs, grpo_loss

torch = pytest.importorskip("torch", reason="the reference: pip install -e .[parity]")
trl = pytest.importorskip("trl", reason="the reference: pip install -e .[parity]")

B, T, LIMIT = 4, 7, 11


def numbers():
    """Log-probs about as far apart as after a few updates; rows of 7, 3, 5 and 1 policy tokens, one with a gap."""
    draw = np.random.default_rng(3)
    logp = -draw.exponential(1.0, (B, T))
    mask = np.arange(T) < np.array([[7], [3], [6], [1]])
    mask[2, 2] = False  # a tool's token
    moved = [logp + draw.normal(0, scale, (B, T)) for scale in (0.4, 0.5, 0.2)]
    return logp, *moved, draw.exponential(1.0, (B, T)), mask, np.array([1.2, -0.7, -1.4, 0.5])


LOGP, OLD, REFERENCE, SAMPLER, ENTROPY, MASK, ADVANTAGES = numbers()

# ours -> TRL's
CASES = {
    "grpo": ({"aggregation": "grpo"}, {"loss_type": "grpo"}),
    "bnpo": ({"aggregation": "bnpo"}, {"loss_type": "bnpo"}),
    "dr_grpo": ({"aggregation": "dr_grpo", "max_completion": LIMIT}, {"loss_type": "dr_grpo"}),
    "dapo": ({"aggregation": "dapo"}, {"loss_type": "dapo"}),
    "luspo": ({"aggregation": "luspo"}, {"loss_type": "luspo"}),
    "two-sided": ({"aggregation": "dapo", "delta": 1.6}, {"loss_type": "dapo", "delta": 1.6}),
    "cispo": ({"loss": "cispo", "cispo_cap": 1.3}, {"loss_type": "cispo", "epsilon_high": 1.3}),
    "sapo": ({"loss": "sapo", "aggregation": "grpo"}, {"loss_type": "sapo"}),
    "gspo": ({"loss": "gspo"}, {"loss_type": "grpo", "level": "sequence"}),
    "gspo, luspo": ({"loss": "gspo", "aggregation": "luspo"}, {"loss_type": "luspo", "level": "sequence"}),
    "entropy": ({"entropy_bonus": 0.3}, {"loss_type": "dapo", "entropy": 0.3}),
}  # fmt: skip


def ours(*, kl_beta=0.0, correction="none", **options):
    config = GRPOConfig(kl_beta=kl_beta, correction=correction, correction_cap=1.1, **options)

    def loss(logp, entropy):
        inputs = GRPOInputs(
            jnp.array(MASK),
            jnp.array(ADVANTAGES, jnp.float32),
            jnp.ones(B, bool),
            logp_old=jnp.array(OLD, jnp.float32),
            logp_ref=jnp.array(REFERENCE, jnp.float32),
            logp_sampler=jnp.array(SAMPLER, jnp.float32),
        )
        (total, weight), stats = grpo_loss(logp, entropy, inputs, config)
        return total / weight, stats.reduce()

    logp, entropy = jnp.array(LOGP, jnp.float32), jnp.array(ENTROPY, jnp.float32)
    (value, stats), grads = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(logp, entropy)
    return float(value), *map(np.asarray, grads), stats


def theirs(*, loss_type, level="token", delta=None, epsilon_high=0.28, entropy=0.0, beta=0.0, ratio=None):
    logp, entropies = (torch.tensor(x, requires_grad=True) for x in (LOGP, ENTROPY))
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x,
        sync_gradients=True,
    )  # fmt: skip
    metrics = {"train": defaultdict(list)}
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (logp, entropies, None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, loss_type=loss_type,
        importance_sampling_level=level, beta=beta, epsilon_low=0.2, epsilon_high=epsilon_high,
        use_vllm=ratio is not None, vllm_importance_sampling_correction=True, model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1, max_completion_length=LIMIT, accelerator=accelerator, _metrics=metrics,
        _entropy_bonus_enabled=bool(entropy), use_adaptive_entropy=False, entropy_coef=entropy,
        args=SimpleNamespace(
            delta=delta, use_bias_correction_kl=False, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05,
            steps_per_generation=1,
        ),
    )  # fmt: skip
    ids, mask = torch.zeros(B, T, dtype=torch.long), torch.tensor(MASK)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids,
        "completion_mask": torch.tensor(np.cumsum(MASK[:, ::-1], 1)[:, ::-1] > 0).long(), "tool_mask": mask.long(),
        "advantages": torch.tensor(ADVANTAGES), "old_per_token_logps": torch.tensor(OLD),
        "ref_per_token_logps": torch.tensor(REFERENCE), "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": ratio,
    }  # fmt: skip
    loss = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    grads = [np.zeros((B, T)) if x.grad is None else x.grad.numpy() for x in (logp, entropies)]
    return loss.item(), *grads, {name: values[-1] for name, values in metrics["train"].items()}


def compare(mine, other):
    assert mine[0] == pytest.approx(other[0], rel=1e-5, abs=1e-6)
    for a, b in zip(mine[1:3], other[1:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient(case, beta):
    mine, other = CASES[case]
    a, b = ours(kl_beta=beta, **mine), theirs(beta=beta, **other)
    compare(a, b)
    assert np.abs(a[1]).max() > 1e-2 and not a[1][~MASK].any()
    assert a[3]["entropy"] == pytest.approx(b[3]["entropy"], rel=1e-5)
    if beta:
        assert a[3]["kl"] == pytest.approx(b[3]["kl"], rel=1e-5)


def test_the_clipped_share():
    a, b = ours(aggregation="dapo"), theirs(loss_type="dapo")
    assert 0 < a[3]["clip_fraction"] == pytest.approx(b[3]["clip_ratio/region_mean"])


@pytest.mark.parametrize("kind", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_the_sampler_correction(kind):
    """TRL multiplies by the ratio that its generation step made by the same rule; here that is written out."""
    level, rule = kind.split("_")
    log_weight = np.where(MASK, OLD - SAMPLER, 0)
    weight = np.exp(log_weight.sum(1, keepdims=True) if level == "sequence" else log_weight)
    weight = np.minimum(weight, 1.1) if rule == "truncate" else np.where(weight > 1.1, 0, weight)
    assert (weight != np.exp(log_weight)).any()
    compare(ours(correction=kind), theirs(loss_type="dapo", ratio=torch.tensor(weight)))
