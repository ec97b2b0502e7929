"""What an RL job asks: scenes by number, and a user's own questions, epoch after epoch."""

import dataclasses

import numpy as np
import pytest
from corpus_files import write_folder

from pixelis_jax.data import prompts as prompting
from pixelis_jax.data.pixelsearch.questions import make_task
from pixelis_jax.data.prompts import Scenes, open_questions
from pixelis_jax.types import UserError


def opened(folder, *, share=0.3, apart="", count=4, check=lambda task: "", seed=3):
    return open_questions(str(folder), str(apart), share, seed=seed, held_out_count=count, check=check)


def numbers(questions, start, stop):
    """Digits of the questions' pictures, which the test folder names them after."""
    return [int(questions.train(i).question.split()[-1].rstrip("?")) for i in range(start, stop)]


def test_scenes_are_those_of_their_numbers():
    scenes = Scenes(4, ("digit",), ("counting",), 7)
    one, other = scenes.train(2**30 + 5), make_task(4, "train", 2**30 + 5, kinds=("digit",))
    assert one.task_id == other.task_id and one.index == 2**30 + 5
    assert scenes.held_out(3).task_id == make_task(4, "heldout", 3, kinds=("counting",)).task_id


def test_each_question_comes_once_an_epoch_in_an_order_of_its_own(tmp_path):
    questions = opened(write_folder(tmp_path / "own"))
    count = len(questions.training)
    first, second = numbers(questions, 0, count), numbers(questions, count, 2 * count)
    assert sorted(first) == sorted(second) and len(set(first)) == count and first != second
    assert numbers(opened(tmp_path / "own"), 0, count) == first  # a pure function of the number
    assert numbers(opened(tmp_path / "own", seed=4), 0, count) != first
    far = 2**30 + 7
    assert questions.train(far).index == far


def test_held_out_pictures_are_not_trained_on(tmp_path):
    questions = opened(write_folder(tmp_path / "own"))
    trained = set(numbers(questions, 0, len(questions.training)))
    asked = [int(questions.held_out(i).question.split()[-1].rstrip("?")) for i in range(4)]
    assert questions.held_out_count == 4 and len(set(asked)) == 4 and not trained & set(asked)
    assert questions.held_out(9).task_id == questions.held_out(3).task_id
    assert all(questions.held_out(i).needs_look for i in range(4))  # success is over all questions


def test_another_folder_may_be_held_out(tmp_path):
    write_folder(tmp_path / "own")
    write_folder(tmp_path / "apart", sizes={"simple": 3, "medium": 1, "hard": 1})
    questions = opened(tmp_path / "own", apart=tmp_path / "apart", count=100)
    assert questions.held_out_count == 5 and len(questions.training) == 27
    assert "5 held-out questions" in " ".join(questions.notes())


def test_the_next_question_stands_in_for_one_that_cannot_be_asked(tmp_path, caplog):
    """Told in its metadata, and the first time in the log."""
    write_folder(tmp_path / "own")
    whole = opened(tmp_path / "own")
    order = numbers(whole, 0, len(whole.training))
    (tmp_path / "own" / "images" / f"{order[2]}.png").write_bytes(b"no picture")
    questions = opened(tmp_path / "own")
    with caplog.at_level("WARNING"):
        for _ in range(2):
            assert numbers(questions, 1, 4) == [order[1], order[3], order[3]]
    assert [questions.train(i).metadata[prompting.SKIPPED] for i in (1, 2, 3)] == [0, 1, 0]
    (warning,) = [r.getMessage() for r in caplog.records]
    assert f"{order[2]}.png" in warning and "see skipped/prompt in metrics.jsonl" in warning


def test_a_prompt_that_does_not_fit_is_left_out_on_both_sides(tmp_path):
    write_folder(tmp_path / "own")
    odd = opened(tmp_path / "own", count=100, check=lambda task: "" if int(task.answer) % 2 else "even")
    count = len(odd.training)
    assert all(int(odd.train(i).answer) % 2 for i in range(count))
    assert all(int(odd.held_out(i).answer) % 2 for i in range(odd.held_out_count))
    assert 0 < odd.held_out_count < len(odd.apart)
    assert f"{len(odd.apart) - odd.held_out_count} left out" in " ".join(odd.notes())


def test_nothing_to_ask_is_an_error(tmp_path):
    write_folder(tmp_path / "own")
    with pytest.raises(UserError, match=r"none of its .* held-out questions can be asked"):
        opened(tmp_path / "own", check=lambda task: "too long")
    questions = opened(tmp_path / "own")
    questions.check = lambda task: "too long"
    with pytest.raises(UserError, match=r"none of its .* questions can be asked; the last one: too long"):
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
