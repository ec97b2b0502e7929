"""The compiled steps: numbers at step 0, what a mask leaves untouched, and how often they compile."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rl_batch
from one_tool import ZOOM
from rl_batch import FULL, GOAL, ROWS, SCORES

from pixelis_jax import parallel, train_step
from pixelis_jax.algorithms import replay
from pixelis_jax.data import demonstrations
from pixelis_jax.data.demonstrations import DemonstrationConfig
from pixelis_jax.tools.base import schemas
from pixelis_jax.train_step import RLStep


class Setup:
    """A policy, a batch and an adapter, placed once; `run` is one whole step from a fresh state."""

    def __init__(self, policy):
        self.policy = policy
        self.batch = rl_batch.trajectory_batch(policy)
        self.adapter = rl_batch.make_adapter(policy.params)
        self.reference = jax.device_put(self.adapter, parallel.replicated(policy.mesh))
        self.frozen = {"params": policy.params}
        self.tx = optax.sgd(0.1, momentum=0.9)
        self.steps = {}

    def step(self, **options) -> RLStep:
        key = tuple(sorted(options.items()))
        if key not in self.steps:
            self.steps[key] = RLStep(self.policy.model, self.tx, rl_batch.rl_config(**options))
        return self.steps[key]

    def state(self, step: RLStep):
        return rl_batch.first_state(self.policy.mesh, step.config, step.tx, self.adapter)

    def run(self, batch=None, weights=GOAL, **options):
        step = self.step(**options)
        batch = self.batch if batch is None else batch
        return step.train_step(self.state(step), self.frozen, self.reference, batch, weights=weights)

    def put(self, tree):
        return parallel.put_batch(self.policy.mesh, tree)


@pytest.fixture(scope="module")
def setup(small_policy):
    return Setup(small_policy)


def rewards_replaced(batch, **arrays):
    return dataclasses.replace(batch, rewards=dataclasses.replace(batch.rewards, **arrays))


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def assert_close(a, b, tolerance):
    for x, y in zip(leaves(a), leaves(b), strict=True):
        assert np.abs(x - y).max() <= tolerance


def assert_equal(a, b):
    assert [x.tobytes() for x in leaves(a)] == [y.tobytes() for y in leaves(b)]


def lengths(batch):
    return np.asarray(batch.rows.policy).sum(axis=1)


def centred():
    """Advantages by hand: scores less their group's mean, by the deviation of the batch."""
    group = np.arange(ROWS) % 2
    means = np.array([SCORES[group == 0].mean(), SCORES[group == 1].mean()])
    return (SCORES - means[group]) / (SCORES.std(ddof=1) + 1e-4)


PER_ROW = {"aggregation": "grpo"}
TWICE = PER_ROW | {"updates_per_rollout": 2}  # the old log-probs are computed before the first of them


def test_at_step_0_the_ratio_is_1_and_the_kl_is_0(setup):
    _, metrics, _ = setup.run()
    assert metrics["ratio/mean"] == 1.0 and metrics["ratio/max"] == 1.0 and metrics["clip_fraction"] == 0.0
    assert metrics["kl"] == 0.0


@pytest.mark.parametrize("temperature", [1.0, 0.9])
def test_a_policy_that_does_not_move_has_a_ratio_of_1_in_every_update(setup, temperature):
    config = dataclasses.replace(rl_batch.rl_config(**TWICE), temperature=temperature)
    step = RLStep(setup.policy.model, optax.sgd(0.0), config)
    state = rl_batch.first_state(setup.policy.mesh, step.config, step.tx, setup.adapter)
    _, metrics, _ = step.train_step(state, setup.frozen, setup.reference, setup.batch, weights=GOAL)
    assert metrics["ratio/mean"] == pytest.approx(1.0, abs=1e-6) and metrics["ratio/max"] == pytest.approx(1, abs=1e-5)


def test_two_updates_of_a_rollout_are_two_steps_with_the_same_old_log_probs(setup):
    step = setup.step(**TWICE)
    whole, metrics, _ = setup.run(**TWICE)
    assert metrics["ratio/max"] > 1 and int(whole.step) == 1
    state = setup.state(step)
    scored, *_ = step.score(state, setup.frozen, setup.reference, setup.batch, weights=GOAL)
    one = setup.step(**PER_ROW)
    for _ in range(2):
        state, last = one.update(state, setup.frozen, scored, setup.batch.features)
    assert_close(whole.trainable, state.trainable, 1e-6)
    assert metrics["ratio/max"] == pytest.approx(float(last["ratio/max"]), abs=1e-5)
    once, _, _ = setup.run(**PER_ROW)
    moved = [np.abs(a - b).max() for a, b in zip(leaves(once.trainable), leaves(whole.trainable), strict=True)]
    assert max(moved) > 1e-4


def test_the_kl_in_the_reward_lowers_the_total_by_beta_times_its_sum(setup):
    """Against the base, whose log-probs differ; the loss itself has no KL term."""
    step = setup.step(kl_place="reward", kl_estimator="k1", kl_beta=0.5)
    base = jax.tree.map(jnp.zeros_like, setup.reference)
    state = setup.state(step)
    logp, reference = (np.asarray(step.logp(setup.frozen, x, setup.batch)) for x in (setup.reference, base))
    fee = -0.5 * np.where(setup.batch.rows.policy, logp - reference, 0).sum(axis=1)
    scored, _, metrics, numbers = step.score(state, setup.frozen, base, setup.batch, weights=GOAL)
    assert metrics["reward/kl"] == pytest.approx(fee.mean(), rel=1e-4) and np.abs(fee).max() > 1e-3
    total = SCORES + fee
    group = np.arange(ROWS) % 2
    means = np.array([total[group == 0].mean(), total[group == 1].mean()])
    wanted = (total - means[group]) / (total.std(ddof=1) + 1e-4)
    np.testing.assert_allclose(numbers["advantage"], wanted, atol=1e-3)
    assert scored.inputs.logp_old is None


def test_the_adaptive_coefficient_grows_while_the_kl_is_above_its_target(setup):
    """By a fifth in kl_horizon rows at most: .01 -> .01 (1 + 8 / 40 * .2) above it, 8 rows a step."""
    config = dataclasses.replace(rl_batch.rl_config(), kl_target=1e-9, kl_horizon=40)
    step = RLStep(setup.policy.model, setup.tx, config)
    state = dataclasses.replace(setup.state(step), kl_beta=jnp.float32(0.01))
    base = jax.tree.map(jnp.zeros_like, setup.reference)
    state, metrics, _ = step.train_step(state, setup.frozen, base, setup.batch, weights=GOAL)
    assert metrics["kl/beta"] == pytest.approx(0.01) and float(state.kl_beta) == pytest.approx(0.01 * 1.04)
    fixed = setup.run()[1]
    assert "kl/beta" not in fixed


def test_a_long_row_pays_for_its_length(setup):
    n = lengths(setup.batch)
    config = dataclasses.replace(rl_batch.rl_config(), overlong=(int(n.min()), int(n.max())))
    step = RLStep(setup.policy.model, setup.tx, config)
    _, _, metrics, _ = step.score(setup.state(step), setup.frozen, setup.reference, setup.batch, weights=GOAL)
    wanted = -(n - n.min()) / (n.max() - n.min())
    assert metrics["reward/overlong"] == pytest.approx(wanted.mean(), rel=1e-5)


def test_a_replayed_row_has_its_own_old_log_probs(setup):
    """The second batch teaches nothing, and half of it is rows of the first: the policy did not move, so ratios are 1.

    That they are takes tokens, positions, masks, image features and log-probs of the right rows.
    """
    features, width = setup.batch.features, setup.policy.model.config.feature_width
    length = setup.batch.rows.tokens.shape[1]
    config = replay.ReplayConfig(size=6, ratio=0.5, alpha=1.0, max_age=9, tokens=length, image_tokens=length)
    step = RLStep(setup.policy.model, optax.sgd(0.0), dataclasses.replace(rl_batch.rl_config(), replay=config))
    state = setup.state(step)
    empty = jax.device_put(
        replay.init(config, width=width, dtype=features.dtype), parallel.replicated(setup.policy.mesh)
    )
    state = dataclasses.replace(state, replay=empty)
    state, first, _ = step.train_step(state, setup.frozen, setup.reference, setup.batch, weights=GOAL)
    assert first["replay_share"] == 0 and first["replay/kept"] == 0
    plain = rewards_replaced(setup.batch, score=setup.put(np.ones(ROWS, np.float32)))
    # Other tokens, so that a fresh row taken for a replayed one would show.
    plain = dataclasses.replace(plain, features=features[::-1])
    state, second, _ = step.train_step(state, setup.frozen, setup.reference, plain, weights=GOAL)
    assert second["replay_share"] == 0.5 and second["replay/kept"] == 6 and second["replay/age"] == 1
    assert second["ratio/mean"] == pytest.approx(1.0, abs=1e-6)
    assert second["ratio/max"] == pytest.approx(1.0, abs=1e-5) and second["grad_norm"] > 1e-4
    third = dataclasses.replace(state, replay=dataclasses.replace(state.replay, logp_old=state.replay.logp_old - 0.5))
    _, moved, _ = step.train_step(third, setup.frozen, setup.reference, plain, weights=GOAL)
    assert moved["ratio/max"] == pytest.approx(np.exp(0.5), rel=1e-4)


def test_the_kl_is_against_the_reference_and_not_the_base(setup):
    step = setup.step()
    base = jax.tree.map(jnp.zeros_like, setup.reference)
    _, metrics, _ = step.train_step(setup.state(step), setup.frozen, base, setup.batch, weights=GOAL)
    assert metrics["kl"] > 1e-6


def test_the_sampled_log_probs_are_the_trainers(setup):
    _, metrics, _ = setup.run()
    assert 0 <= metrics["sampler_trainer_logprob_diff/max"] < 1e-5
    moved = dataclasses.replace(setup.batch, logp_sampler=setup.batch.logp_sampler - 0.5)
    _, metrics, _ = setup.run(moved)
    assert metrics["sampler_trainer_logprob_diff/mean"] == pytest.approx(0.5, abs=1e-5)


def test_a_loss_of_0_has_a_gradient(setup):
    """Advantages of a group add up to 0, so their mean over rows is 0 while the gradient is not."""
    state, metrics, numbers = setup.run(**PER_ROW)
    assert abs(metrics["loss"]) < 1e-6 and metrics["loss/weight"] == ROWS
    assert metrics["grad_norm"] > 1e-4
    assert max(np.abs(a - b).max() for a, b in zip(leaves(state.trainable), leaves(setup.adapter), strict=True)) > 1e-6
    np.testing.assert_allclose(numbers["advantage"], centred(), atol=1e-5)


def test_the_token_mean_by_hand(setup):
    """dapo: -sum A n / sum n."""
    _, metrics, _ = setup.run()
    n = lengths(setup.batch)
    assert n.min() < n.max()
    assert metrics["loss"] == pytest.approx(-(centred() * n).sum() / n.sum(), abs=1e-5)
    assert metrics["loss/weight"] == n.sum()


def test_train_step_is_score_then_update(setup):
    step = setup.step()
    whole, metrics, numbers = setup.run()
    state = setup.state(step)
    scored, rewards, first, more_numbers = step.score(state, setup.frozen, setup.reference, setup.batch, weights=GOAL)
    state, second = step.update(state, setup.frozen, scored, setup.batch.features)
    assert_close(whole, dataclasses.replace(state, rewards=rewards), 1e-6)
    assert_close(metrics, first | second, 1e-5)
    assert_close(numbers, more_numbers, 1e-6)
    assert int(whole.step) == 1


def test_micro_batches_change_nothing(setup):
    one, metrics, _ = setup.run()
    four, others, _ = setup.run(micro_batches=4)
    assert_close(one.trainable, four.trainable, 1e-6)
    assert metrics["loss"] == pytest.approx(float(others["loss"]), abs=1e-6)


def test_an_excluded_row_changes_nothing(setup):
    """Whatever its tokens' log-probs, its score and its advantage are."""
    excluded = np.arange(ROWS) == 3
    batch = rewards_replaced(setup.batch, excluded=setup.put(excluded))
    state, metrics, numbers = setup.run(batch)
    n = lengths(setup.batch)
    assert metrics["loss/weight"] == n.sum() - n[3] and metrics["skipped/excluded_rows"] == 1
    assert numbers["advantage"][3] == 0
    wild = rewards_replaced(batch, score=setup.put(np.where(excluded, np.float32(99), SCORES)))
    noise = np.where(excluded[:, None], np.float32(-50), np.asarray(batch.logp_sampler))
    wild = dataclasses.replace(wild, logp_sampler=setup.put(noise))
    assert_equal((state, metrics, numbers), setup.run(wild))

    step = setup.step()
    before = setup.state(step)
    scored, *_ = step.score(before, setup.frozen, setup.reference, batch, weights=GOAL)
    inputs = scored.inputs
    bad = dataclasses.replace(
        inputs,
        advantages=jnp.where(excluded, jnp.nan, inputs.advantages),
        logp_ref=jnp.where(excluded[:, None], jnp.nan, inputs.logp_ref),
    )
    after = step.update(before, setup.frozen, scored, batch.features)
    again = step.update(setup.state(step), setup.frozen, dataclasses.replace(scored, inputs=bad), batch.features)
    assert_equal(after, again)


def test_a_step_without_a_row_updates_nothing(setup):
    step = setup.step()
    batch = rewards_replaced(setup.batch, excluded=setup.put(np.ones(ROWS, bool)))
    state, metrics, _ = setup.run(batch)
    assert metrics["update/skipped"] == 1 and metrics["loss"] == 0 and metrics["loss/weight"] == 0
    absent = {name for name, value in metrics.items() if np.isnan(value)}
    assert {"kl", "reward", "coherence"} <= absent and not absent & {"loss", "grad_norm", "rapr", "success_rate"}
    fresh = setup.state(step)
    assert_equal((state.trainable, state.opt_state, state.rewards), (fresh.trainable, fresh.opt_state, fresh.rewards))


def test_the_base_is_frozen_and_the_state_donated(setup):
    before = leaves(setup.frozen)
    step = setup.step()
    state = setup.state(step)
    step.train_step(state, setup.frozen, setup.reference, setup.batch, weights=GOAL)
    assert [x.tobytes() for x in before] == [x.tobytes() for x in leaves(setup.frozen)]
    assert all(x.is_deleted() for x in jax.tree.leaves(state.trainable))
    assert not any(x.is_deleted() for x in jax.tree.leaves((setup.frozen, setup.reference, setup.batch)))


def test_two_steps_compile_once_and_a_stage_once_more(setup):
    step = setup.step()
    setup.run()
    state = setup.state(step)
    compiled = step.train_step.jitted(state)
    before = compiled._cache_size()
    measured = []
    for weights, count in ((GOAL, before), (GOAL, before), (FULL, before + 1), (GOAL, before + 1)):
        state, metrics, _ = step.train_step(state, setup.frozen, setup.reference, setup.batch, weights=weights)
        assert compiled._cache_size() == count
        measured.append(metrics)
    assert int(state.step) == 4
    goal, full = measured[1:3]
    for name in ("coherence", "curiosity"):
        assert goal[f"reward/{name}/weighted"] == 0 and full[f"reward/{name}/weighted"] != 0
        assert goal[f"reward/{name}/raw"] != 0
    assert goal["dynamics/forward_loss"] > 0


def test_nothing_moves_between_host_and_device_inside_a_step(setup):
    step = setup.step()
    setup.run()
    state = setup.state(step)
    with jax.transfer_guard("disallow"):
        step.train_step(state, setup.frozen, setup.reference, setup.batch, weights=GOAL)


def test_the_sft_step_compiles_once(setup):
    """The rule table gives some leaves of the state a sharding that the compiler would not give back."""
    policy = setup.policy
    config = DemonstrationConfig(seed=0, scenes=1, questions=2, row_tokens=224)
    batch = setup.put(demonstrations.make_batch(config, policy.processor, schemas(ZOOM), 0))
    tx = optax.adam(1e-3)
    state = train_step.init_state({"lora": setup.adapter}, tx)
    state = jax.device_put(state, parallel.param_shardings(policy.mesh, state))
    layout = [x.sharding for x in jax.tree.leaves(state)]
    step = train_step.make_sft_step(policy.model, tx, train_step.SFTConfig())
    losses = []
    for _ in range(4):
        state, metrics = step(state, setup.frozen, batch)
        losses.append(float(metrics["loss"]))
    assert step.jitted(state)._cache_size() == 1
    assert [x.sharding for x in jax.tree.leaves(state)] == layout
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
