import dataclasses
import itertools
import json
from collections import Counter

import numpy as np
import pytest
from corpus_files import write_folder

from pixelis_jax import tools
from pixelis_jax.data import dialogues
from pixelis_jax.data.corpus import Selection, open_corpus
from pixelis_jax.data.cota_batches import BatchConfig, Batches, Cursor, Encode, weight_counts
from pixelis_jax.models.processor import Placed
from pixelis_jax.tools.base import schemas
from pixelis_jax.types import UserError

EVEN = {"simple": 1 / 3, "medium": 1 / 3, "hard": 1 / 3}
CONFIG = BatchConfig(seed=5, batch_tokens=1200, row_tokens=400, buckets=3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return open_corpus(write_folder(tmp_path_factory.mktemp("batches") / "data"), Selection())


def batches_of(corpus, policy, **fields):
    encode = Encode(corpus, policy.processor, tools.select(("ZOOM_IN",)))
    return Batches(corpus, dataclasses.replace(CONFIG, **fields), policy.processor, encode)


@pytest.fixture
def batches(corpus, small_policy):
    return batches_of(corpus, small_policy)


def drawn(batches, mix, count, cursor=None):
    """Numbers of the first `count` samples of a mix."""
    cursor = cursor or Cursor((400,), (4,), [(0, 0)], {}, waiting=[[[]]])
    order = batches.order(cursor, mix)
    return [int(order[i]) for i in range(count)]


def test_an_epoch_has_each_sample_once_and_the_next_another_order(batches, corpus):
    first, second = np.split(np.array(drawn(batches, {"simple": 1.0}, 24)), 2)
    assert sorted(first) == sorted(second) == corpus.numbers("simple").tolist() and (first != second).any()


def test_categories_come_by_the_mix(batches, corpus):
    names = [
        corpus.categories[corpus.category[n]] for n in drawn(batches, {"simple": 0.7, "medium": 0.3, "hard": 0}, 200)
    ]
    assert Counter(names) == {"simple": 140, "medium": 60}


def test_weights_say_how_often_a_sample_stands_in_an_epoch():
    assert weight_counts(np.array([2.0, 2.0], np.float32)).tolist() == [1, 1]
    assert weight_counts(np.array([1.0, 1.5, 1.2], np.float32)).tolist() == [10, 15, 12]
    assert weight_counts(np.array([1.0, 2.0], np.float32)).tolist() == [1, 2]


def test_another_mix_goes_on_where_a_category_stood(batches):
    """Five of ten draws were simple: the new mix begins with the sixth."""
    simple = drawn(batches, {"simple": 1.0}, 12)
    cursor = Cursor((400,), (4,), [(0, 0)], {}, taken=10, draws={"simple": 5, "hard": 5}, waiting=[[[]]]).turned()
    assert cursor.taken == 0 and cursor.offsets == {"hard": 5, "simple": 5}
    assert drawn(batches, {"simple": 1.0}, 7, cursor) == simple[5:]


def test_rows_are_the_dialogues_and_their_images_are_in_the_table(batches, corpus, small_policy):
    """The first batch against each sample encoded alone: tokens, masks, positions, and the pixels they point at."""
    processor = small_policy.processor
    step = next(batches.steps(batches.first_cursor(), EVEN))
    rows, unit = step.batch.rows, processor.config.need_vision().merge_unit
    table = [
        images.patches.reshape(-1, unit, images.patches.shape[-1]) for images in (step.batch.overview, step.batch.crops)
    ]
    table = np.concatenate(table)
    by_text = {corpus.sample(n).question: n for n in range(len(corpus))}
    for i in range(len(rows.tokens)):
        length = int(rows.valid[i].sum())
        text = processor.decode(rows.tokens[i, :length].tolist())
        number = next(n for question, n in by_text.items() if question in text)
        sample = corpus.sample(number)
        images = corpus.images(sample)
        turns = dialogues.messages(sample, images, view=dialogues.view_of(processor), tools=batches.encode.tools)
        seen = [processor.seen(images[0], crop=False), *dialogues.crops_of(turns, processor)]
        packed = [processor.pack([image], crop=k > 0) for k, image in enumerate(seen)]
        alone = np.concatenate([p.patches.reshape(-1, unit, p.patches.shape[-1]) for p in packed])
        starts = np.cumsum([0, *(p.valid.size // unit for p in packed)])
        places = [Placed(image.shape[:2], int(start)) for image, start in zip(seen, starts, strict=False)]
        row = dialogues.encode(
            turns,
            sample.question,
            processor=processor,
            schemas=schemas(batches.encode.tools),
            images=places[:1],
            crops=places[1:],
        )
        assert rows.tokens[i, :length].tolist() == row.tokens and rows.policy[i, :length].tolist() == row.policy
        assert np.array_equal(rows.positions[i, :, :length], row.positions())
        there = np.array(row.image_index) >= 0
        assert np.array_equal(rows.image_index[i, :length] >= 0, there)
        ours, theirs = rows.image_index[i, :length][there], np.array(row.image_index)[there]
        assert np.array_equal(table[ours], alone[theirs])


def test_the_loss_is_on_assistant_tokens_alone(batches, small_policy):
    processor = small_policy.processor
    batch = next(batches.steps(batches.first_cursor(), EVEN)).batch
    for tokens, policy in zip(batch.rows.tokens, batch.rows.policy, strict=True):
        text = processor.decode(tokens[policy].tolist())
        assert text.count("<|im_end|>") == text.count("<think>") and "<answer>" in text
        assert not any(word in text for word in ("<tool_response>", "user", "system", "Which digit", "<|endoftext|>"))


def same(a, b):
    leaves = zip(*(jax_leaves(x.batch) for x in (a, b)), strict=True)
    return all(np.array_equal(x, y) for x, y in leaves) and a.numbers == b.numbers and a.cursor == b.cursor


def jax_leaves(tree):
    import jax

    return jax.tree.leaves(tree)


@pytest.mark.parametrize("workers", [0, 1])
def test_going_on_from_any_cursor_gives_the_same_batches(corpus, small_policy, workers):
    batches = batches_of(corpus, small_policy, workers=workers)
    straight = list(itertools.islice(batches.steps(batches.first_cursor(), EVEN), 8))
    for cut in (0, 3, 6):
        cursor = Cursor.from_json(json.loads(json.dumps(straight[cut].cursor.to_json())))
        again = list(itertools.islice(batches.steps(cursor, EVEN), 7 - cut))
        assert all(same(a, b) for a, b in zip(straight[cut + 1 :], again, strict=True))


def test_nothing_is_lost_or_drawn_twice(batches, corpus):
    """What was drawn is in a batch, waits, or was left out."""
    seen = Counter()
    for step in itertools.islice(batches.steps(batches.first_cursor(), {"simple": 1.0}), 6):
        seen["rows"] += len(step.batch.rows.tokens)
        waiting = sum(len(queue) for queue in step.cursor.waiting[0])
        assert seen["rows"] + waiting == step.cursor.taken == step.cursor.draws["simple"]


def test_buckets_keep_padding_low(corpus, small_policy):
    def padding(**fields):
        batches = batches_of(corpus, small_policy, batch_tokens=2400, **fields)
        steps = list(itertools.islice(batches.steps(batches.first_cursor(), EVEN), 12))
        valid = sum(s.numbers["data/tokens"] for s in steps)
        return 1 - valid / sum(s.numbers["data/rows"] * s.numbers["data/row_tokens"] for s in steps)

    assert padding(buckets=5) < 0.08 < 0.15 < padding(buckets=1)


def test_rows_are_a_multiple_and_shapes_are_few(corpus, small_policy):
    batches = batches_of(corpus, small_policy, multiple=4)
    shapes = {s.batch.rows.tokens.shape for s in itertools.islice(batches.steps(batches.first_cursor(), EVEN), 10)}
    assert all(rows % 4 == 0 for rows, _ in shapes) and len(shapes) <= 3


def test_too_long_a_dialogue_is_left_out_whole_and_counted(corpus, small_policy):
    batches = batches_of(corpus, small_policy)
    lengths = sorted(len(batches.encode.map(n).row) for n in range(len(corpus)))
    limit = lengths[len(lengths) // 2]
    short = batches_of(corpus, small_policy, row_tokens=limit)
    steps = list(itertools.islice(short.steps(short.first_cursor(), EVEN), 6))
    assert max(s.numbers["data/row_tokens"] for s in steps) == limit
    reasons = steps[-1].cursor.left_out
    assert list(reasons) == [f"longer than data.row_tokens={limit}"] and steps[-1].numbers["skipped/samples"] > 0
    none = batches_of(corpus, small_policy, row_tokens=16)
    with pytest.raises(UserError, match=r"no sample can be used: 27 longer than data\.row_tokens=16"):
        none.first_cursor()


def test_bad_pictures_and_calls_cost_their_sample_alone(tmp_path, small_policy):
    def change(category, i, made):
        if i == 1:  # looks outside, which the real tool refuses
            steps = tuple(dataclasses.replace(s, parameters={"bbox_2d": [200, 0, 300, 50]}) for s in made.trajectory)
            return dataclasses.replace(made, trajectory=steps, metadata={}, sample_id="")
        return made

    folder = write_folder(tmp_path / "data", change=change)
    (folder / "images" / "0.png").write_bytes((folder / "images" / "0.png").read_bytes()[:500])
    corpus = open_corpus(folder, Selection())
    (folder / "images" / "3.png").unlink()
    batches = batches_of(corpus, small_policy)
    cursor = list(itertools.islice(batches.steps(batches.first_cursor(), {"simple": 1.0}), 9))[-1].cursor
    reasons = {reason.split("/")[-1]: count for reason, count in cursor.left_out.items()}
    assert {"ZOOM_IN fails where it should not", "3.png: there is no such file; check the name"} < set(reasons)
    assert len(reasons) == 3 and any("0.png: is damaged" in reason for reason in reasons)


def test_a_call_of_a_tool_that_the_job_lacks_is_no_demonstration(corpus, small_policy):
    without = Encode(corpus, small_policy.processor, {})
    made = [without.map(n) for n in range(3)]
    assert made[0].row is not None and made[1].problem == "calls ZOOM_IN, which tools.names lacks"


@pytest.mark.parametrize(
    ("mix", "message"), [({"easy": 1.0}, "names the category 'easy'"), ({"hard": 1.0}, "takes 1 of category 'hard'")]
)
def test_a_mix_that_can_not_be_drawn_is_refused(tmp_path, small_policy, mix, message):
    folder = write_folder(tmp_path / "data", sizes={"simple": 3, "medium": 2, "hard": 0})
    batches = batches_of(open_corpus(folder, Selection()), small_policy)
    with pytest.raises(UserError, match=message):
        next(batches.steps(batches.first_cursor(), mix))


def test_a_corpus_smaller_than_a_batch_repeats(tmp_path, small_policy):
    folder = write_folder(tmp_path / "data", sizes={"simple": 1, "medium": 0, "hard": 0})
    batches = batches_of(open_corpus(folder, Selection()), small_policy)
    step = next(batches.steps(batches.first_cursor(), {"simple": 1.0}))
    assert len(step.batch.rows.tokens) > 1 and step.cursor.taken == len(step.batch.rows.tokens)


def test_several_processes_take_turns(corpus, small_policy, monkeypatch):
    """Two shares, told each other's lengths: every sample goes to one of them, and both give the same shapes."""
    from pixelis_jax import hosts

    streams = [batches_of(corpus, small_policy, share=hosts.Share(i, 2), multiple=2) for i in range(2)]
    cursor = streams[0].first_cursor()
    rounds = [0, 0]

    def exchange(own, records):
        """What both drew: the other's samples are encoded here."""
        other = streams[1 - own.index]
        order, start = other.order(cursor, EVEN), rounds[own.index] * len(records)
        rounds[own.index] += 1
        made = [other.encode.map(int(order[2 * (start + i) + 1 - own.index])) for i in range(len(records))]
        theirs = [(e.number, *other._bucket(e, cursor.edges)) for e in made]
        return [*records, *theirs] if own.index == 0 else [*theirs, *records]

    monkeypatch.setattr(hosts, "gather", exchange)
    one, two = (list(itertools.islice(s.steps(cursor, EVEN), 5)) for s in streams)
    for a, b in zip(one, two, strict=True):
        assert a.batch.rows.tokens.shape == b.batch.rows.tokens.shape
        assert a.cursor.waiting == b.cursor.waiting and a.cursor.draws == b.cursor.draws
        assert not np.array_equal(a.batch.rows.tokens, b.batch.rows.tokens)


def test_other_devices_get_the_same_batches_or_none(batches, corpus, small_policy):
    """A run that began on one device goes on, on as many as divide its batches: with the same rows in each of them."""
    straight = list(itertools.islice(batches.steps(batches.first_cursor(), EVEN), 4))
    saved = Cursor.from_json(json.loads(json.dumps(straight[1].cursor.to_json())))
    for multiple in range(1, 9):
        others = batches_of(corpus, small_policy, multiple=multiple)
        if any(rows % multiple for rows in saved.rows):
            with pytest.raises(
                UserError, match=rf"batches of \d+ rows, which do not divide by .* = {multiple}; resume"
            ):
                next(others.steps(saved, EVEN))
            continue
        for a, b in zip(straight[2:], itertools.islice(others.steps(saved, EVEN), 2), strict=True):
            assert np.array_equal(a.batch.rows.tokens, b.batch.rows.tokens)
    assert any(rows % 8 for rows in saved.rows) and len(set(saved.rows)) > 1


def test_skipped_batches_are_those_that_would_have_come(batches):
    cursor = batches.first_cursor()
    straight = list(itertools.islice(batches.steps(cursor, EVEN), 6))
    behind = list(itertools.islice(batches.steps(cursor, EVEN, skip=4), 2))
    for a, b in zip(straight[4:], behind, strict=True):
        assert np.array_equal(a.batch.rows.tokens, b.batch.rows.tokens) and a.cursor.waiting == b.cursor.waiting
