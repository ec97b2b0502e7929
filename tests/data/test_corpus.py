import dataclasses
import pickle
import shutil

import numpy as np
import pytest
from corpus_files import SIZES, sample, write_folder

from pixelis_jax.data.corpus import ALL, TRAINED, Selection, is_held_out, open_corpora, open_corpus
from pixelis_jax.data.cota import write_jsonl
from pixelis_jax.types import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("scored") / "data")


def test_samples_are_found_again_by_number(folder):
    corpus = pickle.loads(pickle.dumps(open_corpus(folder, Selection())))
    assert len(corpus) == 27 and {c: len(corpus.numbers(c)) for c in corpus.categories} == SIZES
    assert corpus.sample(20).question == "Which digit is number 20?" and corpus.sample(12).answer == "2"
    assert corpus.task(20).images[0].shape == (120, 120, 3) and corpus.task(20).metadata["kind"] == "medium"
    assert corpus.task_types[0] == "attribute_recognition" and corpus.task_types[1] == "text_extraction"


def test_all_questions_about_a_picture_stay_on_one_side(folder):
    sides = open_corpora(folder, Selection(TRAINED, 0.3))
    paths = [{c.sample(n).image_paths for n in range(len(c))} for c in sides]
    assert len(sides[0]) + len(sides[1]) == 27 and not paths[0] & paths[1] and 0 < len(sides[1]) < 27
    assert open_corpora(folder, Selection())[1] is None and sides[0].sha256 != sides[1].sha256


def test_about_the_asked_share_is_held_out():
    kept = sum(is_held_out((f"images/{i}.png",), 0.15) for i in range(4000))
    assert abs(kept - 600) < 4 * 22.6  # four standard deviations of a binomial


def test_what_is_not_trained_on_is_counted(tmp_path):
    def change(category, i, made):
        return dataclasses.replace(made, sample_type="trap_logical", answer_loss=False) if i == 0 else made

    corpus = open_corpus(write_folder(tmp_path / "data", change=change), Selection())
    assert corpus.left_out == {"sample_type trap_logical": 3} and len(corpus) == 24


def test_bad_lines_are_counted_or_stop(tmp_path):
    folder = write_folder(tmp_path / "data")
    file = folder / "medium.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2], lines[4] = b'{"question": "\xff"}\n', b"{}\n"
    file.write_bytes(b"".join([*lines, lines[0], b"\n", lines[1][:40]]))  # twice the same, blank, cut
    corpus = open_corpus(folder, Selection())
    assert corpus.left_out == {"bad line": 3, "sample_id twice": 1} and len(corpus) == 25
    with pytest.raises(UserError, match=r"medium\.jsonl:3: not UTF-8"):
        open_corpus(folder, Selection(strict=True))


def test_files_that_were_not_scored_are_one_category(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [sample(1), sample(2)])
    (tmp_path / "images").mkdir()
    for number in (1, 2):
        (tmp_path / "images" / f"{number}.png").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "a.jsonl"):
        corpus = open_corpus(path, Selection())
        assert corpus.categories == (ALL,) and np.array_equal(corpus.numbers(ALL), [0, 1])


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda d: None, "there is no such file or folder; `python -m pixelis_jax.cota generate`"),
        (lambda d: d.mkdir(), "holds no .jsonl file"),
        (
            lambda d: (d.mkdir(), (d / "a.jsonl").write_bytes(b"")),
            r"no sample in it can be used \(it holds none\); `python -m pixelis_jax.cota import`",
        ),
        (
            lambda d: (d.mkdir(), (d / "a.jsonl").write_bytes(b"{}\n\x00\n")),
            r"can be used \(2 bad line; the first: .*a\.jsonl:1: image_path: give one",
        ),
        (lambda d: (write_folder(d), (d / "hard.jsonl").unlink()), r"hard\.jsonl is missing"),
    ],
)
def test_folders_without_samples_are_refused_in_one_line(tmp_path, prepare, message):
    prepare(tmp_path / "data")
    with pytest.raises(UserError, match=message):
        open_corpus(tmp_path / "data", Selection())


def test_a_picture_outside_the_folder_is_not_opened(tmp_path):
    def change(category, i, made):
        return dataclasses.replace(made, image_paths=("../secret.png",), sample_id="") if i == 1 else made

    (tmp_path / "secret.png").write_bytes(b"x")
    corpus = open_corpus(write_folder(tmp_path / "data", change=change), Selection())
    assert corpus.left_out == {"picture outside the folder": 3}


def test_pictures_that_are_gone_are_told_and_make_another_corpus(folder, tmp_path):
    before = open_corpus(folder, Selection())
    changed = tmp_path / "data"
    shutil.copytree(folder, changed)
    assert open_corpus(changed, Selection()).sha256 == before.sha256
    (changed / "images" / "3.png").unlink()
    (changed / "images" / "4.png").write_bytes(b"")
    after = open_corpus(changed, Selection())
    assert after.left_out == {"picture missing or empty": 2} and after.sha256 != before.sha256
    (changed / "images" / "3.png").write_bytes(b"cut short")
    assert len({open_corpus(changed, Selection()).sha256, after.sha256, before.sha256}) == 3
    shutil.rmtree(changed / "images")
    with pytest.raises(UserError, match="27 picture missing or empty"):
        open_corpus(changed, Selection())


def test_further_accepted_answers_reach_the_task(tmp_path):
    """As the importer notes them; what is no list is somebody else's field."""

    def change(category, i, made):
        more = {0: ["seven", 7], 1: "seven"}.get(i)
        return dataclasses.replace(made, metadata=made.metadata | ({} if more is None else {"answers": more}))

    corpus = open_corpus(write_folder(tmp_path / "own", change=change), Selection())
    first, second, third = (corpus.task(n).metadata.get("answers") for n in (0, 1, 2))
    assert (first, second, third) == (("seven", "7"), None, None)


def test_what_a_sample_holds_beside_the_known_fields_reaches_the_task(tmp_path):
    """By name, for a user's reward function; and where a gold box stands, for the verifier."""
    own = {"level": 3, "source": "mine"}
    more = {"other_fields": own, "source": "lower", "answer_frame": "norm1000", "target_image": 1}
    samples = [
        sample(0, answer="[1, 2, 3, 4]", ground_truth="[1, 2, 3, 4]", answer_type="iou", metadata=more),
        sample(1, metadata={"colour": "red"}),
    ]
    folder = write_folder(tmp_path / "scored")
    write_jsonl(folder / "simple.jsonl", samples)
    corpus = open_corpus(folder, Selection())
    assert {"level", "source", "colour", "seen_size"} <= corpus.columns and "other_fields" not in corpus.columns
    task = corpus.task(0)
    assert task.metadata["columns"] == {"level": 3, "source": "mine", "answer_frame": "norm1000", "target_image": 1}
    assert task.metadata["answer_frame"] == "norm1000" and corpus.task(1).metadata["columns"]["colour"] == "red"
