"""From trajectories made by hand to the numbers that rewards and the train step read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax import dynamic
from pixelis_jax.algorithms import advantages
from pixelis_jax.rewards import calls
from pixelis_jax.rewards.task import MajorityVote
from pixelis_jax.rollout.collate import groups_of, padded_length, reward_inputs, trajectory_batch
from pixelis_jax.tools import execute
from pixelis_jax.tools.base import Session
from pixelis_jax.types import OP_ID, STATE_DIM, Observation, Task, ToolCall, Trajectory, Turn

CROP = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
REGION = (0.5, 0.25, 0.2, 0.1)
ZOOM = ToolCall("ZOOM_IN", {"bbox_2d": [1, 2, 3, 4]})
SEEN = Observation("Image 2", image=CROP, region=REGION, target_image=1)
FAILED = Observation("error: the box is empty", ok=False, out_of_image=True, target_image=2)
REFUSED = Observation("error: no tag", ok=False)


def look(observation=SEEN, thought="I need a look."):
    return Turn(text="", thought=thought, call=ZOOM, observation=observation)


def answer(text="7", thought="I see."):
    return Turn(text="", thought=thought, answer=text)


def trajectory(*turns, task_id="a", index=0, status="answered", gold="7", length=6, is_video=False):
    task = Task(task_id, index, "counting", "How many?", (), gold, is_video=is_video)
    states = sum(turn.answer is None for turn in turns) + (status == "answered")
    return Trajectory(
        task=task,
        sample=0,
        tokens=np.arange(10, 10 + length, dtype=np.int32),
        policy=np.arange(length) >= 3,
        positions=np.tile(np.arange(length, dtype=np.int32), (3, 1)),
        logp=np.where(np.arange(length) >= 3, np.float32(-0.5), np.float32(0)),
        turn_of=np.where(np.arange(length) >= 3, 0, -1).astype(np.int32),
        image_index=np.array([-1, 4, 5, *[-1] * (length - 3)], np.int32),
        turns=turns,
        images=(),
        embeddings=np.arange(max(states, 1), dtype=np.float32)[:, None] * np.ones(STATE_DIM, np.float32),
        status=status,
    )


def scores(trajectories):
    return np.array([t.answer == t.task.answer for t in trajectories], np.float32)


def inputs(*trajectories, calls=4):
    return reward_inputs(trajectories, scores(trajectories), calls=calls)


@pytest.fixture(scope="module")
def mixed():
    """Four observations, three of them of calls: seen, refused by the parser, failed, seen again."""
    refused = Turn(text="", error="no tag", observation=REFUSED, thought="hm")
    return inputs(trajectory(look(), refused, look(FAILED), look(thought=""), answer(thought=" \n")))


def test_only_calls_are_counted(mixed):
    assert mixed.valid[0].tolist() == [True, True, True, False]
    assert mixed.ops[0].tolist() == [OP_ID["ZOOM_IN"]] * 4  # a place without a call holds 0, and `valid` is False there
    assert mixed.succeeded[0].tolist() == [True, False, True, False]
    assert mixed.out_of_image[0].tolist() == [False, True, False, False]
    assert not mixed.by_object.any()
    assert mixed.target_image[0].tolist() == [1, 2, 1, 0]


def test_regions_are_the_calls_places_and_zeros_without_one(mixed):
    none = (0, 0, 0, 0)
    np.testing.assert_array_equal(mixed.arguments[0], np.float32([REGION, none, REGION, none]))


def test_a_thought_after_a_call_is_that_of_the_next_turn(mixed):
    """After the first: "hm"; after the second: ""; after the third: only blanks."""
    assert mixed.thought_after[0].tolist() == [True, False, False, False]


def test_a_state_is_what_was_seen_last(mixed):
    """State i + 1 follows turn i; calls stand in turns 0, 2 and 3; the last state fills the rest."""
    assert mixed.embeddings[0, :, 0].tolist() == [0, 1, 3, 4, 4]
    assert mixed.embeddings.shape == (1, 5, STATE_DIM)


def test_observations_are_equal_where_their_bytes_are(mixed):
    assert mixed.observation[0, :3].tolist() == [0, 1, 0]
    other = CROP.copy()
    other[0, 0, 0] += 1
    variants = [CROP.copy(), other, CROP.reshape(3, 2, 3), CROP]
    turns = [look(dataclasses.replace(SEEN, image=image)) for image in variants]
    assert inputs(trajectory(*turns, answer())).observation[0].tolist() == [0, 1, 2, 0]
    assert inputs(trajectory(look(), answer())).observation[0, 0] == 0  # counted anew in every trajectory


def test_calls_are_equal_where_their_arguments_are():
    """Boxes a, b, a, and b as one that failed: what came back plays no part."""
    boxes = ([1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4], [5, 6, 7, 8])
    turns = [look(seen) for seen in (SEEN, SEEN, FAILED, FAILED)]
    turns = [
        dataclasses.replace(t, call=ToolCall("ZOOM_IN", {"bbox_2d": b})) for t, b in zip(turns, boxes, strict=True)
    ]
    assert inputs(trajectory(*turns, answer())).call[0].tolist() == [0, 1, 0, 1]


def test_the_same_crop_twice_is_one_observation_though_the_second_image_has_another_number():
    session = Session([np.full((90, 90, 3), 9, np.uint8)], [(90, 90)], fit_crop=lambda h, w: (h, w))
    call = ToolCall("ZOOM_IN", {"bbox_2d": [10, 10, 50, 50]})
    seen = [execute(session, call) for _ in range(3)]
    assert len({o.text for o in seen}) == 3 and all(o.ok for o in seen)
    made = inputs(trajectory(*(dataclasses.replace(look(o), call=call) for o in seen), answer()))
    assert made.observation[0, :3].tolist() == [0, 0, 0] and made.call[0, :3].tolist() == [0, 0, 0]
    row = jax.tree.map(lambda x: jnp.asarray(x)[0], made)
    assert calls.distinct_transitions(row)[:3].tolist() == [True, False, False]


def test_groups_follow_the_task_and_not_the_order():
    rows = {"a1": trajectory(answer("7")), "a0": trajectory(answer("8")), "b1": trajectory(answer("7"), index=1)}
    straight = inputs(rows["a1"], rows["a0"], rows["b1"])
    mixed = inputs(rows["b1"], rows["a0"], rows["a1"])
    assert straight.group.tolist() == [0, 0, 1] and straight.score.tolist() == [1, 0, 1]
    assert mixed.group.tolist() == [0, 1, 1] and mixed.score.tolist() == [1, 0, 1]


def test_a_question_asked_twice_makes_two_groups_in_one_process_and_in_two():
    """Their text, picture and id are the same; what seeds their samples, the index, is not."""
    rows = [trajectory(answer(a), index=index) for a, index in (("7", 40), ("8", 40), ("7", 9), ("7", 9))]
    whole = groups_of(rows).tolist()
    assert whole == [0, 0, 1, 1] == inputs(*rows).group.tolist()
    assert groups_of(rows[:2]).tolist() + groups_of(rows[2:], first=1).tolist() == whole
    assert groups_of([rows[i] for i in (2, 0, 3, 1)]).tolist() == [0, 1, 0, 1]


def test_everybody_who_groups_rows_finds_the_same_groups():
    """Advantages, the majority's vote and dynamic sampling, of one question asked twice, its samples in any order."""
    rows = [trajectory(answer(a), index=index) for a, index in (("7", 9), ("8", 40), ("7", 9), ("7", 40), ("7", 40))]
    rows = [*rows, trajectory(answer("7"), index=9)]
    paid = scores(rows)
    batch = inputs(*rows)
    adv = advantages.group_advantages(
        jnp.asarray(paid), batch.group, jnp.ones(6, bool), scale="group", threshold=0.01
    ).values
    np.testing.assert_allclose(adv, [0, -1.1545, 0, 0.57725, 0.57725, 0], atol=3e-4)  # (0 - 2/3) / (sqrt(1/3) + 1e-4)
    teaches = dynamic.informative(groups_of(rows), paid, counted=[True] * 6)
    assert teaches.tolist() == [False, True]
    vote = MajorityVote(weighted=True, least=0.0)(rows)
    np.testing.assert_allclose(vote, [1, 0, 1, 2 / 3, 2 / 3, 1], rtol=1e-6)


def test_what_has_not_ended_is_excluded():
    cut = Turn(text="", error="turn was cut at the token limit")
    rows = [
        trajectory(answer()),
        trajectory(look(), look(REFUSED), status="over_turn", is_video=True),
        trajectory(cut, status="truncated"),
    ]
    made = inputs(*rows)
    assert made.excluded.tolist() == [False, True, True]
    assert made.answered.tolist() == [True, False, False]
    assert made.score.tolist() == [1, 0, 0]
    assert made.is_video.tolist() == [False, True, False]
    assert not made.valid[2].any() and np.isfinite(made.embeddings).all()
    assert made.embeddings[1, :, 0].tolist() == [0, 1, 1, 1, 1]  # the last call has no state of its own


def test_rows_are_padded_and_never_cut():
    rows = [trajectory(answer(), length=4), trajectory(answer(), length=6)]
    batch = trajectory_batch(rows, "features", scores(rows), length=8, calls=2, pad=99)
    assert batch.features == "features"
    assert batch.rows.tokens[0].tolist() == [10, 11, 12, 13, 99, 99, 99, 99]
    assert batch.rows.valid.sum(axis=1).tolist() == [4, 6]
    assert batch.rows.policy[0].tolist() == [False] * 3 + [True] + [False] * 4
    assert batch.rows.positions[1].tolist() == [[0, 1, 2, 3, 4, 5, 0, 0]] * 3
    assert batch.rows.image_index[0].tolist() == [-1, 4, 5, -1, -1, -1, -1, -1]
    assert batch.turn_of[1].tolist() == [-1, -1, -1, 0, 0, 0, -1, -1]
    assert batch.logp_sampler[0].tolist() == [0, 0, 0, -0.5, 0, 0, 0, 0]
    with pytest.raises(ValueError):
        trajectory_batch(rows, "features", scores(rows), length=5, calls=2, pad=99)


@pytest.mark.parametrize(
    ("longest", "buckets", "length"),
    [(1, 1, 152), (152, 1, 152), (38, 4, 38), (39, 4, 76), (115, 4, 152), (51, 3, 51), (52, 3, 102), (3, 64, 3)],
)
def test_rows_are_padded_to_the_next_part_of_the_limit(longest, buckets, length):
    assert padded_length(longest, limit=152, buckets=buckets) == length
