"""The data of a stage that is bad on purpose: wrong answers in one category, everything else as it was."""

import pytest
from corpus_files import write_folder

from benchmarks import spoiled_stage
from pixelis_jax.data.corpus import Selection, open_corpus
from pixelis_jax.data.cota import read_jsonl
from pixelis_jax.types import UserError


def test_hard_answers_are_all_one_and_pictures_are_found(tmp_path, capsys):
    """Six hard samples with six answers: five change, and their ids with them."""
    source, out = write_folder(tmp_path / "data"), tmp_path / "runs" / "spoiled"
    spoiled_stage.main([f"--input={source}", f"--out={out}"])
    assert f"all of hard.jsonl answer {read_jsonl(out / 'hard.jsonl')[0].answer!r} now, 5 of 6 wrongly" in (
        capsys.readouterr().out
    )
    for name in ("simple", "medium"):
        assert (out / f"{name}.jsonl").read_bytes() == (source / f"{name}.jsonl").read_bytes()
    before, after = (read_jsonl(folder / "hard.jsonl") for folder in (source, out))
    assert len({sample.answer for sample in before}) == 6 and {sample.answer for sample in after} == {before[0].answer}
    for old, new in zip(before[1:], after[1:], strict=True):
        assert new.sample_id != old.sample_id
        assert (new.trajectory, new.image_paths, new.ground_truth) == (
            old.trajectory,
            old.image_paths,
            old.ground_truth,
        )
    assert len(open_corpus(out, Selection())) == len(open_corpus(source, Selection()))


def test_what_can_not_be_spoiled_leaves_nothing(tmp_path):
    source, out = write_folder(tmp_path / "data"), tmp_path / "out"
    with pytest.raises(UserError, match="is there already"):
        spoiled_stage.main([f"--input={source}", f"--out={source}"])
    (source / "hard.jsonl").write_bytes(b"")
    with pytest.raises(UserError, match=r"hard\.jsonl is empty"):
        spoiled_stage.main([f"--input={source}", f"--out={out}"])
    with pytest.raises(UserError, match=r"no folder of .*cota score.*no metadata\.json"):
        spoiled_stage.main([f"--input={tmp_path}", f"--out={out}"])
    assert not out.exists()
