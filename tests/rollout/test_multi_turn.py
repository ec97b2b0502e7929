"""The host's half of a rollout: tools, errors, budgets, groups."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_tool import ZOOM
from scripted import ANSWER, LOOK, SAMPLING, insistent

from pixelis_jax.models.policy import with_params
from pixelis_jax.rollout import RolloutConfig, Sampler, SamplingConfig
from pixelis_jax.types import STATE_DIM, UserError

INSIDE, OUTSIDE = LOOK % (4, 8, 40, 50), LOOK % (900, 900, 950, 950)


@pytest.fixture(scope="module")
def mistakes(script, demo_tasks):
    """A turn that is no turn, a call outside the image, a good call; then answers."""
    turns = [["just text", ANSWER], [OUTSIDE, ANSWER], [ANSWER], [INSIDE, ANSWER]]
    return script(demo_tasks, turns).trajectories


def test_a_turn_that_does_not_parse_is_answered_and_goes_on(mistakes):
    first = mistakes[0].turns[0]
    assert first.call is None and first.error and first.observation.text == f"error: {first.error}"
    assert not first.observation.ok
    assert mistakes[0].status == "answered" and mistakes[0].answer == "7"


def test_a_call_that_fails_is_answered_and_adds_no_image(mistakes):
    observation = mistakes[1].turns[0].observation
    assert not observation.ok and observation.out_of_image
    assert len(mistakes[1].images) == 1
    assert mistakes[1].status == "answered"


def test_the_crop_is_cut_from_the_original(mistakes):
    """Seen 84x56 (overview budget) of 60x90 px: x 40 / 84 of 90 is 43, y 50 / 56 of 60 is 54."""
    trajectory = mistakes[3]
    x1, y1, x2, y2 = 4 * 90 / 84, 8 * 60 / 56, 40 * 90 / 84, 50 * 60 / 56
    box = [round(v) for v in (x1, y1, x2, y2)]
    np.testing.assert_array_equal(trajectory.images[2], trajectory.images[0][box[1] : box[3], box[0] : box[2]])


def test_records_of_a_trajectory_fit_together(mistakes):
    for trajectory in mistakes:
        n = len(trajectory.tokens)
        for leaf in (trajectory.policy, trajectory.logp, trajectory.turn_of, trajectory.image_index):
            assert leaf.shape == (n,)
        assert trajectory.positions.shape == (3, n)
        np.testing.assert_array_equal(trajectory.policy, trajectory.turn_of >= 0)
        assert not trajectory.logp[~trajectory.policy].any()
        assert sorted(set(trajectory.turn_of[trajectory.policy].tolist())) == list(range(len(trajectory.turns)))
        # One state before the first call, one for each observation that the policy went on from.
        assert trajectory.embeddings.shape == (len(trajectory.turns), STATE_DIM)


def test_tools_off_answers_a_call_with_an_error(script, demo_tasks):
    turns = [[INSIDE, ANSWER], [INSIDE, ANSWER], [ANSWER], [INSIDE, ANSWER]]
    for trajectory in script(demo_tasks, turns, tools_on=False).trajectories:
        assert trajectory.status == "answered"
        assert len(trajectory.images) == len(trajectory.task.images)
        for turn in trajectory.turns[:-1]:
            assert turn.observation.text == "error: tools are off" and not turn.observation.ok


def test_turn_limit(script, demo_tasks):
    turns = [[INSIDE, INSIDE], [INSIDE, ANSWER], [ANSWER], [INSIDE, ANSWER]]
    rows = script(demo_tasks, turns).trajectories
    assert [t.status for t in rows] == ["over_turn", "answered", "answered", "answered"]
    assert rows[0].turns[1].observation.text == "error: turn limit reached"
    assert rows[0].policy[-1]  # nothing is appended after the last turn


def test_an_observation_that_does_not_fit_ends_the_dialogue(script, demo_tasks, demo):
    last_turn = int(np.argmax(demo.trajectories[0].turn_of == 2))
    sampling = dataclasses.replace(SAMPLING, context_tokens=last_turn)
    turns = [[turn.text for turn in t.turns] for t in demo.trajectories]
    rows = script(demo_tasks, turns, sampling=sampling).trajectories
    assert rows[0].status == "over_turn"
    assert rows[0].turns[-1].observation.text == "error: context limit reached"
    assert rows[2].status == "answered"
    assert len(rows[0].tokens) < last_turn and rows[0].policy[-1]
    # One token more and the observation fits.
    roomier = script(
        demo_tasks, turns, sampling=dataclasses.replace(sampling, context_tokens=last_turn + 1)
    ).trajectories
    assert rows[0].status != roomier[0].status == "answered"


def test_a_prefix_is_seen_and_not_trained(script, demo_tasks):
    opening = "<think>I need a closer look.</think>"
    turns = [["<answer>7</answer>"]] * 4
    for trajectory in script(demo_tasks, turns, prefix=opening).trajectories:
        assert trajectory.answer == "7" and trajectory.turns[0].thought == "I need a closer look."
        prefix = script.policy.processor.encode(opening)
        start = int(np.argmax(trajectory.policy))
        assert trajectory.tokens[start - len(prefix) : start].tolist() == prefix


def sampler_of(policy, **options):
    sampling = SamplingConfig(max_new_tokens=8, context_tokens=160)
    return Sampler(policy, RolloutConfig(sampling=sampling, max_turns=2, **options), tools=ZOOM)


@pytest.fixture(scope="module")
def stubborn(small_policy):
    """A policy and an adapter that makes it say token 7 only."""
    params, adapter = insistent(small_policy, [7])
    return with_params(small_policy, params), adapter


def test_a_rollout_uses_the_adapter_it_is_given(stubborn, demo_tasks):
    policy, adapter = stubborn
    sampler = sampler_of(policy, group_size=2)
    rows = sampler(demo_tasks[1:3], lora=adapter, seed=0, step=0).trajectories
    for trajectory in rows:
        assert trajectory.tokens[trajectory.policy].tolist() == [7] * 8
        assert trajectory.status == "truncated" and trajectory.turns[0].error
    before = sampler(demo_tasks[1:3], lora=jax.tree.map(jnp.zeros_like, adapter), seed=0, step=0).trajectories
    assert all((t.tokens[t.policy] != 7).any() for t in before)


def test_a_group_shares_its_prompt_and_not_its_noise(stubborn, demo_tasks):
    policy, adapter = stubborn
    sampler = sampler_of(policy, group_size=2)
    rows = sampler(demo_tasks[1:3], lora=jax.tree.map(jnp.zeros_like, adapter), seed=0, step=0).trajectories
    assert [(t.task.index, t.sample) for t in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for a, b in (rows[:2], rows[2:]):
        start = int(np.argmax(a.policy))
        np.testing.assert_array_equal(a.tokens[:start], b.tokens[:start])
        assert a.tokens[start:].tolist() != b.tokens[start:].tolist()


def test_a_prompt_that_leaves_no_room_is_refused_by_name(small_policy, demo_tasks):
    """Otherwise the padding to a bucket would hide it, and every turn would be cut at 0 tokens."""
    sampling = SamplingConfig(max_new_tokens=8, context_tokens=40)
    sampler = Sampler(small_policy, RolloutConfig(sampling=sampling), tools=ZOOM)
    named = (
        r"task 'task-2': its prompt has \d+ tokens, \d+ of them of images, and sampling\.context_tokens is 40; raise"
    )
    with pytest.raises(UserError, match=named):
        sampler(demo_tasks[2:3], lora=None, seed=0, step=0)
