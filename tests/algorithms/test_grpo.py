"""The GRPO loss: hand numbers, masks, aggregation over micro-batches, and relations between its variants."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.algorithms.grpo import GRPOConfig, GRPOInputs, grpo_loss
from pixelis_jax.types import UserError
from pixelis_jax.update import accumulate

NO_KL = GRPOConfig(kl_beta=0.0)
ALL = [
    *(NO_KL.__class__(kl_beta=0.0, loss=kind) for kind in ("clip", "cispo", "gspo", "sapo")),
    *(GRPOConfig(aggregation=a, max_completion=8) for a in ("grpo", "dapo", "dr_grpo", "bnpo", "luspo")),
    GRPOConfig(kl_estimator="k2", entropy_bonus=0.1),
    *(GRPOConfig(correction=c) for c in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")),
]


def lengths(*counts, width):
    return jnp.arange(width)[None] < jnp.array(counts)[:, None]


def inputs(policy, advantages, **fields):
    policy = jnp.asarray(policy)
    fields = {"included": jnp.ones(policy.shape[0], bool)} | fields
    return GRPOInputs(policy=policy, advantages=jnp.array(advantages, jnp.float32), **fields)


def mean(logp, data, config=NO_KL, entropy=None):
    logp = jnp.asarray(logp)
    entropy = jnp.zeros_like(logp) if entropy is None else entropy
    (total, weight), _ = grpo_loss(logp, entropy, data, config)
    return float(total / weight)


def test_first_on_policy_step():
    """Loss 0 with `grpo`, .424 with `dapo` (lengths 2 and 8), the gradient not 0 in either."""
    data = inputs(lengths(2, 8, width=8), [0.70711, -0.70711])
    logp = jnp.full((2, 8), -1.0)
    grpo = GRPOConfig(kl_beta=0.0, aggregation="grpo")
    assert mean(logp, data, grpo) == pytest.approx(0.0, abs=1e-7)
    assert mean(logp, data) == pytest.approx(0.424, abs=1e-3)
    for config in (grpo, NO_KL):
        gradient = jax.grad(lambda x, c=config: grpo_loss(x, jnp.zeros_like(x), data, c)[0][0])(logp)
        assert float(jnp.abs(gradient).sum()) > 0.1


def test_ratio_one_gives_the_policy_gradient():
    """At ratio 1 the clip, CISPO and SAPO gradients all equal that of -A logp."""
    data = inputs(lengths(3, 4, width=4), [0.5, -1.0])
    logp = jax.random.normal(jax.random.key(0), (2, 4)) - 2.0
    weight = jnp.where(data.policy, data.advantages[:, None], 0.0)
    for kind in ("clip", "cispo", "sapo"):
        config = GRPOConfig(kl_beta=0.0, loss=kind)
        gradient = jax.grad(lambda x, c=config: grpo_loss(x, jnp.zeros_like(x), data, c)[0][0])(logp)
        np.testing.assert_allclose(gradient, -weight, rtol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clipped"),
    [(1.5, 1.0, -1.28, 1), (1.5, -1.0, 1.5, 0), (0.5, 1.0, -0.5, 0), (0.5, -1.0, 0.8, 1), (1.1, 2.0, -2.2, 0)],
)
def test_clip_by_hand(ratio, advantage, expected, clipped):
    data = inputs([[True]], [advantage], logp_old=jnp.zeros((1, 1)))
    logp = jnp.log(jnp.array([[ratio]]))
    assert mean(logp, data) == pytest.approx(expected, rel=1e-5)
    _, stats = grpo_loss(logp, jnp.zeros((1, 1)), data, NO_KL)
    assert float(stats.reduce()["clip_fraction"]) == clipped
    assert float(stats.reduce()["ratio/max"]) == pytest.approx(ratio, rel=1e-5)


def test_delta_bounds_a_bad_token():
    data = inputs([[True]], [-1.0], logp_old=jnp.zeros((1, 1)))
    assert mean(jnp.log(jnp.array([[9.0]])), data, GRPOConfig(kl_beta=0.0, delta=2.0)) == pytest.approx(2.0)


def test_gspo_ratio_is_the_geometric_mean():
    """Log-ratios .2, -.1, .3: 1.1426, not e^.4; a tool token between them changes nothing."""
    wide = GRPOConfig(kl_beta=0.0, loss="gspo", e_high=9.0)
    data = inputs([[True, False, True, True]], [1.0], logp_old=jnp.zeros((1, 4)))
    assert mean(jnp.array([[0.2, 50.0, -0.1, 0.3]]), data, wide) == pytest.approx(-1.1426, abs=1e-4)


def test_cispo_keeps_the_gradient_of_capped_tokens():
    data = inputs([[True]], [1.0], logp_old=jnp.full((1, 1), -3.0))
    config = GRPOConfig(kl_beta=0.0, loss="cispo", cispo_cap=5.0)
    logp = jnp.full((1, 1), -1.0)
    gradient = jax.grad(lambda x: grpo_loss(x, jnp.zeros_like(x), data, config)[0][0])(logp)
    assert float(gradient[0, 0]) == pytest.approx(-5.0)  # ratio e^2 = 7.39 held at 5


def test_sapo_by_hand():
    data = inputs([[True], [True]], [1.0, -1.0], logp_old=jnp.zeros((2, 1)))
    config = GRPOConfig(kl_beta=0.0, loss="sapo", aggregation="luspo")
    (total, _), _ = grpo_loss(jnp.zeros((2, 1)), jnp.zeros((2, 1)), data, config)
    assert float(total) == pytest.approx(-2.0 + 2.0 / 1.05, rel=1e-5)


def test_aggregations_by_hand():
    """Two rows, 1 and 3 tokens, A = -1 and -2 at ratio 1: token losses 1 and 2."""
    data = inputs(lengths(1, 3, width=4), [-1.0, -2.0])
    expected = {"grpo": 1.5, "dapo": 7 / 4, "dr_grpo": 7 / 20, "bnpo": 7 / 4, "luspo": 3.5}
    for kind, value in expected.items():
        config = GRPOConfig(kl_beta=0.0, aggregation=kind, max_completion=10)
        assert mean(jnp.zeros((2, 4)), data, config) == pytest.approx(value), kind


def test_luspo_undoes_the_length_of_gspo():
    data = inputs(lengths(1, 3, width=4), [-1.0, -2.0])
    config = GRPOConfig(kl_beta=0.0, loss="gspo", aggregation="luspo")
    assert mean(jnp.zeros((2, 4)), data, config) == pytest.approx((1 * 1 + 2 * 3) / 2)


def test_windows_do_not_see_the_rollout_they_came_from():
    """Micro-batches of 10, 20, 30, 40 tokens with u = 1, two to an optimizer window: each window's loss is 1."""
    policy = lengths(10, 20, 30, 40, width=40)
    for rows in (slice(0, 2), slice(2, 4)):
        data = inputs(policy[rows], [-1.0, -1.0])
        _, total, weight, _ = accumulate(
            lambda p, d: grpo_loss(p * jnp.zeros(d.policy.shape), jnp.zeros(d.policy.shape), d, NO_KL),
            jnp.float32(1),
            data,
            micro_batches=2,
        )
        assert float(total / weight) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["grpo", "dapo", "dr_grpo", "luspo"])
def test_the_split_does_not_matter(kind):
    rng = jax.random.split(jax.random.key(3), 4)
    shape = (8, 6)
    data = inputs(
        lengths(1, 6, 2, 5, 3, 3, 4, 6, width=6),
        jax.random.normal(rng[0], (8,)),
        logp_old=jax.random.normal(rng[1], shape) * 0.1,
        logp_ref=jax.random.normal(rng[2], shape) * 0.1,
        included=jnp.arange(8) != 5,
    )
    config = GRPOConfig(aggregation=kind, max_completion=6, kl_beta=0.1)
    logp = jax.random.normal(rng[3], shape) * 0.1

    def loss(scale, micro):
        return grpo_loss(scale * micro[0], jnp.zeros(micro[0].shape), micro[1], config)

    results = [accumulate(loss, jnp.float32(1), (logp, data), micro_batches=n) for n in (1, 4)]
    for grads, total, weight, stats in results[1:]:
        np.testing.assert_allclose(total / weight, results[0][1] / results[0][2], rtol=1e-5)
        np.testing.assert_allclose(grads, results[0][0], rtol=1e-5)
        for name, value in stats.reduce().items():
            np.testing.assert_allclose(value, results[0][3].reduce()[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("config", ALL, ids=lambda c: f"{c.loss}-{c.aggregation}-{c.correction}-{c.kl_estimator}")
def test_masked_positions_never_matter(config):
    """Tool tokens (3..5) and an excluded row set to +-50, NaN or infinity: loss, metrics and gradient bit-identical."""
    rng = jax.random.split(jax.random.key(1), 6)
    policy = jnp.array([[True, True, True, False, False, False, True, True]] * 2)
    included = jnp.array([True, False])
    mask = policy & included[:, None]
    names = ("logp", "entropy", "logp_old", "logp_ref", "logp_sampler")
    arrays = {n: jax.random.normal(k, (2, 8)) * 0.2 for n, k in zip(names, rng, strict=False)}

    def run(fill):
        filled = {n: jnp.where(mask, x, fill) for n, x in arrays.items()}
        advantages = jnp.array([0.7, fill])
        rest = {n: filled[n] for n in names[2:]}
        data = GRPOInputs(policy=policy, included=included, advantages=advantages, **rest)

        def total(logp):
            (value, weight), stats = grpo_loss(logp, filled["entropy"], data, config)
            return value, (weight, stats.reduce())

        return jax.value_and_grad(total, has_aux=True)(filled["logp"])

    reference = run(0.0)
    if config.resolved_aggregation == "dapo":
        assert float(reference[0][1][0]) == 5.0
    for fill in (50.0, -50.0, jnp.nan, jnp.inf):
        jax.tree.map(np.testing.assert_array_equal, run(fill), reference)
    assert not np.asarray(reference[1])[~np.asarray(mask)].any()


def test_everything_excluded_is_finite():
    data = inputs(jnp.ones((2, 3), bool), [1.0, -1.0], included=jnp.zeros(2, bool), logp_ref=jnp.full((2, 3), jnp.nan))
    for config in ALL:
        if config.correction == "none":
            (total, weight), stats = grpo_loss(jnp.full((2, 3), jnp.nan), jnp.zeros((2, 3)), data, config)
            assert float(total) == 0 and float(weight) == 0
            reduced = stats.reduce()
            assert all(np.isnan(reduced[k]) for k in stats.means)  # absent, and not a measured 0
            assert all(np.isfinite(reduced[k]) for k in stats.maxima)


def test_kl_term_and_metric():
    """beta 1, logp -1, reference -1.5: the loss at A = 0 is k3 = .10653, and the metric is k3 whatever the term."""
    data = inputs([[True]], [0.0], logp_ref=jnp.full((1, 1), -1.5))
    logp = jnp.full((1, 1), -1.0)
    assert mean(logp, data, GRPOConfig(kl_beta=1.0)) == pytest.approx(0.10653, abs=1e-5)
    assert mean(logp, data, GRPOConfig(kl_beta=1.0, kl_estimator="k2")) == pytest.approx(0.125)
    in_reward = GRPOConfig(kl_beta=1.0, kl_place="reward", kl_estimator="k1")
    assert mean(logp, data, in_reward) == 0.0
    _, stats = grpo_loss(logp, jnp.zeros((1, 1)), data, in_reward)
    assert float(stats.reduce()["kl"]) == pytest.approx(0.10653, abs=1e-5)
    adaptive = dataclasses.replace(data, kl_beta=jnp.array([2.0]))
    assert mean(logp, adaptive, GRPOConfig(kl_beta=1.0)) == pytest.approx(0.21306, abs=1e-5)


def test_kl_skips_tool_spans():
    data = inputs([[True, False, False, True]], [0.0], logp_ref=jnp.zeros((1, 4)))
    logp = jnp.full((1, 4), 2.0**0.5)
    config = GRPOConfig(kl_beta=1.0, kl_estimator="k2", aggregation="luspo")
    assert mean(logp, data, config) == pytest.approx(2.0)


def test_entropy_bonus():
    data = inputs([[True, True]], [0.0])
    config = GRPOConfig(kl_beta=0.0, entropy_bonus=0.5)
    assert mean(jnp.zeros((1, 2)), data, config, entropy=jnp.array([[1.0, 3.0]])) == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token_truncate", [0.5, 2.0, 3.0]),
        ("token_mask", [0.5, 2.0, 0.0]),
        ("sequence_truncate", [3.0, 3.0, 3.0]),
        ("sequence_mask", [0.0, 0.0, 0.0]),
    ],
)
def test_sampler_correction(kind, expected):
    """Token weights .5, 2, 4 (product 4), cap 3, A = -1: the token losses are the weights; the denominator stays 3."""
    data = inputs([[True] * 3], [-1.0], logp_sampler=-jnp.log(jnp.array([[0.5, 2.0, 4.0]])))
    config = GRPOConfig(kl_beta=0.0, correction=kind)
    assert mean(jnp.zeros((1, 3)), data, config) == pytest.approx(sum(expected) / 3, rel=1e-5)


def test_difference_per_turn():
    data = inputs([[True, True, True, True]], [0.0], logp_sampler=jnp.array([[0.0, 0.0, 0.1, 0.3]]))
    data = dataclasses.replace(data, turn_of=jnp.array([[0, 0, 1, 1]]))
    _, stats = grpo_loss(jnp.zeros((1, 4)), jnp.zeros((1, 4)), data, GRPOConfig(kl_beta=0.0, log_turns=3))
    name = "sampler_trainer_logprob_diff"
    found = {k.removeprefix(name + "/"): float(v) for k, v in stats.reduce().items() if k.startswith(name)}
    overall, turn = {"mean": 0.1, "max": 0.3}, {"turn_1/mean": 0.2, "turn_1/max": 0.3}
    zero = {"turn_0/mean": 0.0, "turn_0/max": 0.0, "turn_2/max": 0.0}
    absent = {"turn_2/mean": math.nan}
    assert found == pytest.approx(overall | turn | zero | absent, nan_ok=True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "gsp"}, "did you mean 'gspo'"),
        ({"aggregation": "daop"}, "did you mean 'dapo'"),
        ({"correction": "token"}, "correction 'token'"),
        ({"loss": "gspo", "aggregation": "dapo"}, "auto, grpo or luspo"),
        ({"aggregation": "dr_grpo"}, "max_completion 0"),
        ({"kl_estimator": "k1"}, "kl_place 'reward'"),
        ({"kl_beta": float("nan")}, "kl_beta nan"),
        ({"e_low": 1.5}, "e_low 1.5"),
        ({"delta": 1.1}, "delta 1.1"),
        ({"correction_cap": 0.0}, "correction_cap 0.0"),
    ],
)
def test_bad_settings_are_refused_in_one_line(fields, message):
    with pytest.raises(UserError, match=message) as error:
        GRPOConfig(**fields)
    assert "\n" not in str(error.value)


def test_missing_logprobs_are_an_error():
    data = inputs([[True]], [1.0])
    with pytest.raises(ValueError, match="logp_ref"):
        grpo_loss(jnp.zeros((1, 1)), jnp.zeros((1, 1)), data, GRPOConfig())
    with pytest.raises(ValueError, match="logp_sampler"):
        grpo_loss(jnp.zeros((1, 1)), jnp.zeros((1, 1)), data, GRPOConfig(kl_beta=0.0, correction="token_mask"))
