"""RL and evaluation on a user's own questions: a folder of CoTA samples in place of PixelSearch."""

import dataclasses
import json

import pytest
from corpus_files import write_folder
from jobs import Jobs, lines, refusal

FIELDS = {"total_steps": 2, "eval__scenes": 3, "eval__batch": 4, "data__held_out_share": 0.5}


@pytest.fixture(scope="module")
def jobs(compile_cache):
    with Jobs(compile_cache) as made:
        yield made


def typed_wrongly(category, i, made):
    """Of the last of each category, a number is asked for, and the answer is none."""
    wrong = {"answer": "many", "ground_truth": "many", "answer_type": "numeric"} if i % 3 == 2 else {}
    return dataclasses.replace(made, **wrong)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = write_folder(tmp_path_factory.mktemp("questions") / "own", change=typed_wrongly)
    for number in range(0, 27, 3):
        (made / "images" / f"{number}.png").write_bytes(b"no picture")
    return made


@pytest.fixture(scope="module")
def trained(jobs, folder, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("trained")
    output = jobs.run("configs/rft.py:smoke", workdir, data__path=folder, **FIELDS)
    return workdir, output


def test_its_questions_are_asked_and_what_cannot_be_is_counted(trained, folder):
    workdir, output = trained
    assert f"questions of {folder} (attribute_recognition, text_extraction)" in output
    assert "evaluation: 3 held-out questions" in output
    assert "Success on held-out questions (over all questions): " in output
    assert sum(record["skipped/prompt"] for record in lines(workdir / "metrics.jsonl")) > 0
    asked = {record["question"] for record in lines(workdir / "trajectories.jsonl")}
    assert asked and all(question.startswith("Which digit is number ") for question in asked)
    numbers = {int(question.split()[-1].rstrip("?")) for question in asked}
    assert {number % 3 for number in numbers} == {1}  # neither damaged, nor with an answer of another type
    evaluated = json.loads((workdir / "final_eval.json").read_text())["after"]["tools_on"]
    assert sum(count for _, count in evaluated["by_kind"].values()) == 3


def test_other_questions_are_another_run(trained, folder, monkeypatch, capsys, tmp_path):
    workdir, _ = trained
    (workdir / "finished.json").unlink()
    changed = write_folder(tmp_path / "own", sizes={"simple": 20, "medium": 1, "hard": 1})
    told = refusal(
        monkeypatch, capsys, "configs/rft.py:smoke", workdir, **(FIELDS | {"total_steps": 4}), data__path=changed
    )
    assert "another config (data.path was" in told and "hashes.data was" in told


def test_an_adapter_is_evaluated_on_them(jobs, trained, folder, tmp_path):
    output = jobs.run(
        "configs/eval.py:smoke", tmp_path, data__path=folder, init_from=trained[0], data__held_out_share=0.5,
        eval__scenes=3, eval__batch=4, eval__modes="('tools_on',)",
    )  # fmt: skip
    assert "eval, tools_on: success" in output and "over all questions" in output


def unanswered(category, i, made):
    """The first of each category has no answer."""
    return made if i else dataclasses.replace(made, metadata=made.metadata | {"unanswered": True})


def test_questions_without_an_answer_need_a_reward_that_needs_none(jobs, monkeypatch, capsys, tmp_path):
    own = write_folder(tmp_path / "own", sizes={"simple": 1, "medium": 1, "hard": 1}, change=unanswered)
    given = FIELDS | {"data__path": own}
    assert "have no answer to verify; set rewards.majority" in refusal(
        monkeypatch, capsys, "configs/rft.py:smoke", tmp_path / "refused", **given
    )
    output = jobs.run("configs/rft.py:smoke", tmp_path / "run", rewards__majority="gated", **given)
    assert "held-out questions have no answer; each counts as a wrong one in success" in output
    assert "data: fewer training questions (1) than rollout.prompts (2): some are asked more than once a step" in output
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data__path": "/no/such/folder"}, "there is no such file or folder"),
        ({"data__held_out_share": 0.0}, "data.held_out_share is 0 and data.held_out_path is empty"),
        ({"sampling__context_tokens": 40}, "held-out questions can be asked"),
        ({"rewards__function": "json:dumps"}, "takes 'obj', which is unknown; there are prompts, completions, answers"),
        ({"rewards__function": "json:dumps"}, "of the data seen_size; for the right answer also solution"),
    ],
)
def test_what_cannot_be_asked_is_refused_at_the_start(monkeypatch, capsys, folder, tmp_path, fields, message):
    given = FIELDS | {"data__path": folder} | fields
    assert message in refusal(monkeypatch, capsys, "configs/rft.py:smoke", tmp_path / "run", **given)
