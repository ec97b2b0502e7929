import dataclasses

import jax
import numpy as np
import pytest
from one_tool import ZOOM

from pixelis_jax.data import demonstrations
from pixelis_jax.data.demonstrations import DemonstrationConfig
from pixelis_jax.tools.base import schemas
from pixelis_jax.types import UserError

CONFIG = DemonstrationConfig(seed=0, scenes=2, questions=3, kinds=("digit", "text"), answer_weight=2.0, row_tokens=256)


@pytest.fixture(scope="module")
def make(small_policy):
    return lambda config, index: demonstrations.make_batch(config, small_policy.processor, schemas(ZOOM), index)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_batch_is_a_function_of_its_number(make):
    assert_equal(make(CONFIG, 3), make(CONFIG, 3))
    assert (make(CONFIG, 3).rows.tokens != make(CONFIG, 4).rows.tokens).any()


def test_the_stream_holds_the_batches_in_order_from_any_start(make, small_policy):
    def stream(start, stop):
        return list(
            demonstrations.batches(CONFIG, small_policy.processor, schemas(ZOOM), start=start, stop=stop, workers=0)
        )

    whole = stream(0, 3)
    assert len(whole) == 3
    for i, batch in enumerate(whole):
        assert_equal(batch, make(CONFIG, i))
    assert_equal(stream(2, 3)[0], whole[2])


def test_rows_point_at_their_scene_and_their_own_crops(make, small_policy):
    batch = make(CONFIG, 0)
    unit = small_policy.model.config.vision.merge_unit
    per_overview, per_crop = (x.valid[0].size // unit for x in (batch.overview, batch.crops))
    crops_start = len(batch.overview.valid) * per_overview
    used = []
    for i, index in enumerate(batch.rows.image_index):
        overview = index[(index >= 0) & (index < crops_start)]
        assert set((overview // per_overview).tolist()) == {i // CONFIG.questions}
        used.append(sorted(set(((index[index >= crops_start] - crops_start) // per_crop).tolist())))
    # Every question needs a look: one crop each, in row order.
    assert used == [[i] for i in range(6)]
    # What rows point at is real: no feature of an empty place.
    there = np.concatenate([x.valid.reshape(-1, unit)[:, 0] for x in (batch.overview, batch.crops)])
    assert there[batch.rows.image_index[batch.rows.image_index >= 0]].all()


@pytest.mark.parametrize("share, looks", [(0.0, 6), (1.0, 0)])
def test_direct_answer_share(make, share, looks):
    batch = make(dataclasses.replace(CONFIG, direct_answer_share=share), 0)
    assert batch.crops.valid.any(axis=(1, 2)).sum() == looks


def test_a_dialogue_that_is_too_long_is_refused(make):
    with pytest.raises(UserError, match=r"data\.row_tokens is 64 and a dialogue has \d+ tokens"):
        make(dataclasses.replace(CONFIG, row_tokens=64), 0)


def test_policy_tokens_are_weighted_and_valid(make):
    batch = make(CONFIG, 1)
    assert not (batch.rows.policy & ~batch.rows.valid).any()
    assert not (batch.rows.policy & (batch.rows.image_index >= 0)).any()
    assert set(np.unique(batch.weights[batch.rows.policy]).tolist()) == {1.0, 2.0}
    np.testing.assert_array_equal(batch.answer, batch.weights == 2.0)


def test_failed_call_share(make, small_policy):
    """A question that needs no look begins with a call that fails, all of it learnt; no crop comes of it."""
    config = dataclasses.replace(CONFIG, kinds=("attribute",))
    plain, careless = make(config, 0), make(dataclasses.replace(config, failed_call_share=1.0), 0)
    assert not careless.crops.valid.any() and not plain.crops.valid.any()
    texts = [
        small_policy.processor.decode(row[valid].tolist())
        for row, valid in zip(careless.rows.tokens, careless.rows.valid, strict=True)
    ]
    assert all("[0, 0, 0, 0]" in text and "error: " in text and "<answer>" in text for text in texts)
    assert (careless.rows.policy.sum(axis=1) > plain.rows.policy.sum(axis=1)).all()
    looks = dataclasses.replace(CONFIG, failed_call_share=1.0)
    assert_equal(make(looks, 0), make(CONFIG, 0))  # all of these need a look
