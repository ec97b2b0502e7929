"""What an RL job asks: scenes by number, and a user's own questions, epoch after epoch."""

import dataclasses
import itertools

import numpy as np
import pytest
from corpus_files import write_folder

from pixelis_jax.data import prompts as prompting
from pixelis_jax.data.cota import OWN_TYPE
from pixelis_jax.data.importers.task_types import own_type
from pixelis_jax.data.pixelsearch.questions import make_task
from pixelis_jax.data.prompts import Scenes, open_questions
from pixelis_jax.types import UserError


def opened(folder, *, share=0.3, apart="", count=4, check=lambda task: "", seed=3, train=True):
    return open_questions(str(folder), str(apart), share, seed=seed, held_out_count=count, check=check, train=train)


def numbers(questions, start, stop):
    """Digits of the questions' pictures, which the test folder names them after."""
    return [int(questions.train(i).question.split()[-1].rstrip("?")) for i in range(start, stop)]


def test_more_prompts_than_questions_have_an_address_each(tmp_path):
    """A step of 8 prompts about 3 questions: 3 texts, and 8 groups, whichever process asks."""
    questions = opened(write_folder(tmp_path / "own", sizes={"simple": 3, "medium": 1, "hard": 1}), share=0.3)
    asked = [questions.train(i) for i in range(8, 16)]
    assert len({task.task_id for task in asked}) == questions.epoch < 8
    assert [task.index for task in asked] == list(range(8, 16))


def test_the_most_pictures_of_a_training_question(tmp_path):
    """Two of one question, and a film of three frames on the held-out side or not: what is trained on counts."""

    def change(category, i, made):
        paths = {
            ("simple", 0): ("images/0.png", "images/1.png"),
            ("medium", 1): tuple(f"images/{n}.png" for n in "234"),
        }
        shown = paths.get((category, i), made.image_paths)
        metadata = {} if len(shown) > 1 else made.metadata
        return dataclasses.replace(made, image_paths=shown, is_video=len(shown) == 3, metadata=metadata)

    folder = write_folder(tmp_path / "own", change=change)
    for share in (0.1, 0.5, 0.9):
        questions = opened(folder, share=share)
        shown = [len(questions.train(i).images) for i in range(questions.epoch)]
        assert questions.pictures == max(shown)
    assert opened(folder, share=0.1).pictures == 3 and Scenes(0, ("digit",), ("digit",), 1).pictures == 1


def test_scenes_are_those_of_their_numbers():
    scenes = Scenes(4, ("digit",), ("counting",), 7)
    one, other = scenes.train(2**30 + 5), make_task(4, "train", 2**30 + 5, kinds=("digit",))
    assert one.task_id == other.task_id and one.index == 2**30 + 5
    assert scenes.held_out(3).task_id == make_task(4, "heldout", 3, kinds=("counting",)).task_id


def test_where_no_kind_needs_a_look_success_is_over_all_questions():
    """And not a measured 0 over none."""
    counting, mixed = (Scenes(4, ("digit",), kinds, 7) for kinds in (("counting",), ("counting", "digit")))
    assert counting.counted == "over all questions" and all(counting.held_out(i).needs_look for i in range(7))
    assert mixed.counted == "where a look is needed"
    kinds = {mixed.held_out(i).metadata["kind"]: mixed.held_out(i).needs_look for i in range(7)}
    assert kinds == {"counting": False, "digit": True}


def test_each_question_comes_once_an_epoch_in_an_order_of_its_own(tmp_path):
    questions = opened(write_folder(tmp_path / "own"))
    count = questions.epoch
    assert count == len(questions.training.corpus) and Scenes(4, ("digit",), ("digit",), 7).epoch == 0
    first, second = numbers(questions, 0, count), numbers(questions, count, 2 * count)
    assert sorted(first) == sorted(second) and len(set(first)) == count and first != second
    assert numbers(opened(tmp_path / "own"), 0, count) == first  # a pure function of the number
    assert numbers(opened(tmp_path / "own", seed=4), 0, count) != first
    far = 2**30 + 7
    assert questions.train(far).index == far


def test_held_out_pictures_are_not_trained_on(tmp_path):
    questions = opened(write_folder(tmp_path / "own"))
    trained = set(numbers(questions, 0, len(questions.training.corpus)))
    asked = [int(questions.held_out(i).question.split()[-1].rstrip("?")) for i in range(4)]
    assert questions.held_out_count == 4 and len(set(asked)) == 4 and not trained & set(asked)
    assert questions.held_out(9).task_id == questions.held_out(3).task_id
    assert all(questions.held_out(i).needs_look for i in range(4))  # success is over all questions


def test_results_are_told_apart_by_the_data_s_own_column(tmp_path):
    """Else by_task would name the type that stands in for an unknown one."""
    words = itertools.cycle(("receipts", None))

    def change(category, i, made):
        own = next(words)
        return dataclasses.replace(made, metadata=made.metadata | ({OWN_TYPE: own} if own else {}))

    questions = opened(write_folder(tmp_path / "own", change=change), count=100)
    kinds = {questions.held_out(i).metadata["kind"] for i in range(questions.held_out_count)}
    assert "receipts" in kinds and kinds <= {"receipts", "text_extraction", "attribute_recognition"}
    assert own_type({"category": " street  signs "}) == "street signs" and own_type({"category": 3}) == ""


def test_another_folder_may_be_held_out(tmp_path):
    write_folder(tmp_path / "own")
    write_folder(tmp_path / "apart", sizes={"simple": 3, "medium": 1, "hard": 1})
    questions = opened(tmp_path / "own", apart=tmp_path / "apart", count=100)
    assert questions.held_out_count == 5 and len(questions.training.corpus) == 27
    notes = " ".join(questions.notes())
    assert "data: 27 questions of " in notes and " to train on; 5 of " in notes and "5 held-out questions" in notes


def test_another_question_stands_in_for_one_that_cannot_be_asked(tmp_path, caplog):
    """Told in its metadata, once an epoch for each, and the first time in the log."""
    write_folder(tmp_path / "own")
    whole = opened(tmp_path / "own")
    count = len(whole.training.corpus)
    order = numbers(whole, 0, count)
    for bad in order[2:5]:
        (tmp_path / "own" / "images" / f"{bad}.png").write_bytes(b"no picture")
    questions = opened(tmp_path / "own")
    with caplog.at_level("WARNING"):
        found = numbers(questions, 0, count)
    assert found == numbers(questions, 0, count)  # a pure function of the number
    assert [n for n, m in zip(found, order, strict=True) if n == m] == [*order[:2], *order[5:]]
    assert not set(found) & set(order[2:5])
    skipped = [questions.train(i).metadata.get(prompting.SKIPPED, 0) for i in range(2 * count)]
    assert skipped[:count] == [0, 0, 1, 1, 1] + [0] * (count - 5) and sum(skipped) == 6
    (warning,) = [r.getMessage() for r in caplog.records]
    assert f"{order[2]}.png" in warning and warning.endswith("such questions are left out, skipped/prompt counts them")


def test_a_file_that_is_changed_meanwhile_ends_it(tmp_path):
    """Places in it are no longer those of the samples."""
    own = write_folder(tmp_path / "own")
    questions = opened(own)
    for file in own.glob("*.jsonl"):
        file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    with pytest.raises(UserError, match="jsonl: was changed while the job ran; restore it, or start anew"):
        questions.train(0)
    for file in own.glob("*.jsonl"):
        file.unlink()
    with pytest.raises(UserError, match=r"jsonl: can't be read any more"):
        questions.train(0)


def test_held_out_pictures_that_are_trained_on_are_told(tmp_path):
    own = write_folder(tmp_path / "own")
    assert any("27 held-out pictures are trained on too" in note for note in opened(own, apart=own).notes())
    assert not any("trained on too" in note for note in opened(own).notes())


def test_an_evaluation_asks_all_unless_a_share_is_given(tmp_path):
    own = write_folder(tmp_path / "own")
    everything = opened(own, share=0.0, count=100, train=False)
    assert everything.held_out_count == 27 and not any("trained on too" in note for note in everything.notes())
    part = opened(own, share=0.3, count=100, train=False)
    assert part.held_out_count == opened(own, share=0.3, count=100).held_out_count < 27


def test_a_prompt_that_does_not_fit_is_left_out_on_both_sides(tmp_path):
    write_folder(tmp_path / "own")
    odd = opened(tmp_path / "own", count=100, check=lambda task: "" if int(task.answer) % 2 else "even")
    count = len(odd.training.corpus)
    assert all(int(odd.train(i).answer) % 2 for i in range(count))
    assert all(int(odd.held_out(i).answer) % 2 for i in range(odd.held_out_count))
    assert 0 < odd.held_out_count < len(odd.apart.corpus)
    assert f"{len(odd.apart.corpus) - odd.held_out_count} left out" in " ".join(odd.notes())


def test_nothing_to_ask_is_an_error(tmp_path):
    write_folder(tmp_path / "own")
    with pytest.raises(UserError, match=r"none of its .* held-out questions can be asked"):
        opened(tmp_path / "own", check=lambda task: "too long")
    questions = opened(tmp_path / "own")
    questions.training.check = lambda task: "too long"
    with pytest.raises(UserError, match=r"none of its .* questions can be asked; the first one: too long"):
        questions.train(0)
    with pytest.raises(UserError, match=r"held_out_share is 0 and data.held_out_path is empty"):
        opened(tmp_path / "own", share=0.0)


def test_prompt_tokens_are_those_of_the_sampled_row(small_policy):
    """Longer by the words of a longer question, and by the tokens of a second picture."""
    task = make_task(0, "train", 0, kinds=("digit",))
    processor = small_policy.processor
    base = prompting.prompt_tokens(task, processor, "")
    picture = np.zeros((120, 120, 3), np.uint8)
    two = dataclasses.replace(task, images=(task.images[0], picture))
    height, width = processor.fit_overview(120, 120)
    assert prompting.prompt_tokens(two, processor, "") == base + height * width // 28**2 + 2  # and its two marks
    longer = dataclasses.replace(task, question=task.question + " " + "x" * 50)
    assert prompting.prompt_tokens(longer, processor, "") > base
