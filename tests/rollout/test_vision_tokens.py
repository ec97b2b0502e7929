"""shared/faults.md, "Vision and tokens", on real multi-turn rollouts with inserted crops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_tool import ZOOM
from scripted import ANSWER, LOOK, token_batch

from pixelis_jax.data.prompts import prompt_tokens
from pixelis_jax.models import image_processor, lora
from pixelis_jax.models.processor import SYSTEM_PROMPT
from pixelis_jax.models.rows import Row, pad_rows
from pixelis_jax.tools.base import schemas
from pixelis_jax.update import split_micro_batches


def trainer(policy, score, rollout, features=None, adapter=None):
    rows = token_batch(rollout.trajectories, pad=policy.processor.pad)
    variables = {"params": policy.params} | ({} if adapter is None else {"lora": adapter})
    return score(variables, rows, rollout.features if features is None else features)


def test_the_scripted_rollout_really_inserted_crops(demo):
    first, second, third, fourth = demo.trajectories
    assert [t.status for t in demo.trajectories] == ["answered"] * 4
    assert [len(t.images) for t in demo.trajectories] == [3, 2, 0, 3]
    assert [turn.observation.ok for turn in first.turns[:2]] == [True, True]
    assert (third.image_index == -1).all()
    assert first.answer == second.answer == fourth.answer == "7"


def test_sampler_and_trainer_agree_on_a_multi_turn_rollout(small_policy, score, demo):
    logp = trainer(small_policy, score, demo)
    for trajectory, ours in zip(demo.trajectories, logp, strict=True):
        at = np.nonzero(trajectory.policy)[0]
        assert np.abs(trajectory.logp[at] - ours[at]).max() < 1e-4
        assert (trajectory.logp[at] < 0).all()


def test_zeroed_pixels_change_every_log_prob(small_policy, score, demo):
    """Current, old and reference log-probs are this function at other adapters: base and adapter are both tried."""
    zeros = jnp.zeros_like(demo.features)
    adapter = lora.init(jax.random.key(1), small_policy.params, lora.LoraConfig(rank=2))
    adapter = jax.tree.map(lambda x: x + 0.05, adapter)
    seen = np.zeros_like(trainer(small_policy, score, demo), bool)
    for i, t in enumerate(demo.trajectories):
        seen[i, : len(t.tokens)] = t.policy & bool(t.images)
    for chosen in (None, adapter):
        with_pixels = trainer(small_policy, score, demo, adapter=chosen)
        without = trainer(small_policy, score, demo, zeros, adapter=chosen)
        assert (np.abs(with_pixels - without)[seen] > 1e-6).all()
        # The row without an image can't depend on any.
        np.testing.assert_array_equal(with_pixels[2], without[2])


def test_zeroed_pixels_change_the_samplers_log_probs(script, demo_tasks, demo, monkeypatch):
    encode = script.engine.encode
    monkeypatch.setattr(script.engine, "encode", lambda *args: jax.tree.map(jnp.zeros_like, encode(*args)))
    turns = [[turn.text for turn in t.turns] for t in demo.trajectories]
    other = script(demo_tasks, turns).trajectories
    for a, b in [(a, b) for a, b in zip(demo.trajectories, other, strict=True) if a.images]:
        np.testing.assert_array_equal(a.tokens, b.tokens)
        assert (np.abs(a.logp - b.logp)[a.policy] > 1e-6).all()


def one_shot(processor, trajectory, question):
    """Canonical text of a whole dialogue with placeholders expanded, encoded in one piece."""

    def image(pixels, crop):
        return (
            "<|vision_start|>"
            + "<|image_pad|>" * processor.image_tokens(processor.fit(*pixels.shape[:2], crop=crop))
            + "<|vision_end|>"
        )

    originals = len(trajectory.task.images)
    crops = iter(trajectory.images[originals:])
    text = f"<|im_start|>system\n{SYSTEM_PROMPT.format(schemas=schemas(ZOOM))}<|im_end|>\n<|im_start|>user\n"
    text += "".join(image(pixels, False) for pixels in trajectory.images[:originals]) + f"{question}<|im_end|>\n"
    for turn in trajectory.turns:
        text += f"<|im_start|>assistant\n{turn.text}<|im_end|>"
        if turn.observation is not None:
            shown = image(next(crops), True) if turn.observation.image is not None else ""
            text += f"\n<|im_start|>user\n<tool_response>{turn.observation.text}{shown}</tool_response><|im_end|>\n"
    return processor.encode(text)


def test_incremental_ids_are_those_of_the_one_shot_template(small_policy, demo):
    for trajectory in demo.trajectories:
        assert trajectory.tokens.tolist() == one_shot(small_policy.processor, trajectory, trajectory.task.question)


def test_the_newline_after_a_turn_is_there_once_and_is_not_the_policys(small_policy, demo):
    processor = small_policy.processor
    for trajectory, closed in zip(demo.trajectories, (2, 1, 0, 1), strict=True):
        ends = np.nonzero(trajectory.policy & (trajectory.tokens == processor.im_end))[0]
        assert len(ends) == len(trajectory.turns)  # the sampled end of turn is a policy token
        after = [i + 1 for i in ends if i + 1 < len(trajectory.tokens)]
        assert len(after) == closed
        assert all(processor.decode([trajectory.tokens[i]])[0] == "\n" and not trajectory.policy[i] for i in after)


def test_a_row_is_what_it_is_alone(script, demo_tasks, demo):
    """A row without an image beside rows with one, and the other way round."""
    for i in (1, 2):
        turns = [turn.text for turn in demo.trajectories[i].turns]
        alone = script([demo_tasks[i]], [turns]).trajectories[0]
        beside = demo.trajectories[i]
        np.testing.assert_array_equal(alone.tokens, beside.tokens)
        np.testing.assert_array_equal(alone.positions, beside.positions)
        np.testing.assert_allclose(alone.logp, beside.logp, atol=1e-5)


def test_two_images_of_a_task_have_features_of_their_own(demo):
    index = demo.trajectories[3].image_index
    assert len(demo.trajectories[3].images) == 3
    assert len(set(index[index >= 0].tolist())) == (index >= 0).sum()


def test_positions_go_on_after_an_inserted_image(demo):
    for trajectory in demo.trajectories:
        t, h, w = trajectory.positions
        text = trajectory.image_index < 0
        assert (t[text] == h[text]).all() and (t[text] == w[text]).all()
        # A text token stands one above everything before it.
        for i in np.nonzero(text)[0][1:]:
            assert t[i] == trajectory.positions[:, :i].max() + 1


def padded_left(rows, length):
    """The same rows shifted to the right end."""
    batch = pad_rows(rows, length=length, pad=0)
    for i, row in enumerate(rows):
        for leaf in (batch.tokens, batch.valid, batch.policy, batch.positions, batch.image_index):
            leaf[i] = np.roll(leaf[i], length - len(row), axis=-1)
    return batch


def short_rows(policy, lengths=(3, 5)):
    """Rows of `lengths` tokens, each with a one-token image in second place (grids 1x1) at its own feature row."""
    rows = []
    for i, n in enumerate(lengths):
        row = Row()
        row.append_text([20 + i])
        row.append_image((1, 1), np.array([i]), placeholder=policy.model.config.image_token_id)
        row.append_text(list(range(30, 30 + n - 2)))
        rows.append(row)
    return rows


def test_left_and_right_padded_rows_are_the_unpadded_ones(small_policy):
    rows = short_rows(small_policy)
    features = jnp.asarray(np.random.default_rng(0).standard_normal((2, 64)), jnp.float32)
    variables = {"params": small_policy.params}
    forward = jax.jit(lambda batch: small_policy.model.apply(variables, batch, features, method="forward_logits"))
    left, right = forward(padded_left(rows, 7)), forward(pad_rows(rows, length=7, pad=0))
    for i, row in enumerate(rows):
        alone = forward(pad_rows([row], length=len(row), pad=0))[0]
        np.testing.assert_allclose(right[i, : len(row)], alone, atol=1e-5)
        np.testing.assert_allclose(left[i, 7 - len(row) :], alone, atol=1e-5)


def test_a_row_is_never_cut_inside_an_image(small_policy):
    row = Row()
    row.append_text([5, 6, 7])
    row.append_image((4, 4), np.arange(16), placeholder=small_policy.model.config.image_token_id)
    row.append_text([5] * 5)
    with pytest.raises(ValueError, match="row 0 has 24 tokens, the bucket 12"):
        pad_rows([row], length=12, pad=0)


def test_packed_pixels_follow_their_rows_into_micro_batches(small_policy, score):
    """Image counts 2, 0, 1 of grids 4x4, 2x6, 2x4 patches: 28, 0 and 8 pixel rows, 7, 0 and 2 placeholders."""
    vision, processor = small_policy.model.config.vision, small_policy.processor
    generator = np.random.default_rng(2)
    sizes = [(56, 56), (28, 84), (28, 56)]
    images = [generator.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    packed = image_processor.pack(images, vision, windows=2)
    assert packed.valid.sum(axis=(1, 2)).tolist() == [16, 12, 8]
    variables = {"params": small_policy.params}
    features = jax.jit(lambda x: small_policy.model.apply(variables, x, method="encode_images"))(packed)
    step = image_processor.rows_per_image(2, vision)
    rows = []
    for count, first in ((2, 0), (0, 2), (1, 2)):
        row = Row()
        row.append_text([20, 21])
        for i in range(first, first + count):
            grid = (sizes[i][0] // 28, sizes[i][1] // 28)
            where = i * step + image_processor.token_rows(sizes[i], vision)
            row.append_image(grid, where, placeholder=processor.config.image_token_id)
        row.append_text([22, 23, 24])
        rows.append(row)
    batch = pad_rows(rows, length=16, pad=0)
    parts = split_micro_batches(batch, 3)
    assert (parts.tokens == processor.config.image_token_id).sum(axis=(1, 2)).tolist() == [7, 0, 2]
    whole = score(variables, batch, features)
    for i in range(3):
        micro = score(variables, jax.tree.map(lambda x, i=i: x[i], parts), features)
        np.testing.assert_allclose(micro[0], whole[i], atol=1e-5)


def test_mrope_positions_by_hand():
    """Three text tokens, an image of 2x2 merged tokens, two text tokens; then an image of 1x3 from a tool."""
    row = Row()
    row.append_text([1, 1, 1])
    row.append_image((2, 2), np.arange(4), placeholder=9)
    row.append_text([1, 1])
    assert row.positions().tolist() == [
        [0, 1, 2, 3, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 3, 4, 4, 5, 6],
        [0, 1, 2, 3, 4, 3, 4, 5, 6],
    ]
    piece = Row()
    piece.next_position = row.next_position
    piece.append_image((1, 3), np.arange(3), placeholder=9)
    piece.append_text([1])
    row.extend(piece, image_offset=4)
    assert row.positions()[:, 9:].tolist() == [[7, 7, 7, 10], [7, 7, 7, 10], [7, 8, 9, 10]]
    assert row.image_index[9:] == [4, 5, 6, -1]
    assert row.next_position == 11


def test_a_narrow_picture_above_its_budget_has_room_for_all_its_tokens(small_policy, script, score, task):
    """900x30 px become 448x28 at the least, 12 544 px for 7 056: 16 tokens where 9 fill the budget. Its crop, too."""
    narrow, other = task(7, (30, 900)), task(8, (100, 60))
    processor = small_policy.processor
    assert processor.fit_overview(30, 900) == (28, 448) and processor.overview.max_pixels == 84 * 84
    look = LOOK % (4, 0, 440, 28)
    rollout = script([narrow, narrow, other, other], [[look, ANSWER], [ANSWER], [look, ANSWER], [ANSWER]])
    first = rollout.trajectories[0]
    assert first.status == "answered" and first.turns[0].observation.ok and len(first.images) == 2
    crop = processor.fit_crop(*first.images[1].shape[:2])
    assert crop[0] * crop[1] > processor.crop.max_pixels
    tokens = processor.image_tokens((28, 448)) + processor.image_tokens(crop)
    assert (first.image_index >= 0).sum() == tokens == 16 + crop[0] * crop[1] // 28**2
    assert len(set(first.image_index[first.image_index >= 0].tolist())) == tokens
    shown = schemas(ZOOM)
    assert prompt_tokens(narrow, processor, shown) == int(np.argmax(rollout.trajectories[1].policy))
    square = task(9, (140, 140))
    assert prompt_tokens(narrow, processor, shown) - prompt_tokens(square, processor, shown) == 16 - 9
    for trajectory, ours in zip(rollout.trajectories, trainer(small_policy, score, rollout), strict=True):
        at = np.nonzero(trajectory.policy)[0]
        assert np.abs(trajectory.logp[at] - ours[at]).max() < 1e-4
