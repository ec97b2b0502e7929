"""shared/faults.md, "SFT": each fault by its name, on its own figures.

The fully masked batch and the mask off by one stand in algorithms/test_sft.py, per-message templating in
data/test_dialogues.py, a prompt that is too long in data/test_cota_batches.py.
"""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from corpus_files import write_folder
from ml_collections import ConfigDict
from one_tool import ZOOM

from pixelis_jax import curriculum, runtime
from pixelis_jax.algorithms.sft import sft_loss
from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.curriculum.presets import DifficultyRules, difficulty_curriculum
from pixelis_jax.data.corpus import Selection, open_corpus
from pixelis_jax.data.cota_batches import BatchConfig, Batches, Encode
from pixelis_jax.metrics.files import read_jsonl
from pixelis_jax.metrics.writer import PERF
from pixelis_jax.models.rows import Row, pad_rows
from pixelis_jax.runtime import Run
from pixelis_jax.sft import CurriculumSFT

ORDER = (
    {"name": "easy", "mix": {"simple": 1.0, "medium": 0.0, "hard": 0.0}},
    {"name": "middle", "mix": {"simple": 0.0, "medium": 1.0, "hard": 0.0}},
    {"name": "last", "mix": {"simple": 0.0, "medium": 0.0, "hard": 1.0}},
)


def row_of(ids, *, trained):
    row = Row()
    row.append_text(ids[:-trained])
    row.append_text(ids[-trained:], policy=True)
    return row


def test_pad_equals_eos(small_policy, score):
    """ids [5, 6, 7, 2, 2, 2] of which four are the row's, pad = eos = 2: the first 2 is learnt, the others never."""
    row = row_of([5, 6, 7, 2], trained=2)
    rows = pad_rows([row], length=6, pad=2)
    assert rows.tokens.tolist() == [[5, 6, 7, 2, 2, 2]]
    assert rows.valid.tolist() == [[True] * 4 + [False] * 2]
    assert rows.policy.tolist() == [[False, False, True, True, False, False]]
    (total, weight), _ = sft_loss(jnp.array([[0, 0, -1.0, -3.0, jnp.nan, jnp.nan]]), jnp.array(rows.policy))
    assert (float(total), float(weight)) == (4.0, 2.0)

    variables, none = {"params": small_policy.params}, jnp.zeros((1, 64))
    padded = [score(variables, pad_rows([row], length=6, pad=pad), none)[0, :4] for pad in (2, 9)]
    np.testing.assert_array_equal(*padded)
    assert padded[0][3] < 0  # the end of the turn has a probability that is trained


def test_curriculum_order_is_not_shuffled_away(tmp_path, small_policy):
    """Three stages of one category each, two batches of each: rows come by difficulty, and no stage's come later."""
    corpus = open_corpus(write_folder(tmp_path / "data"), Selection())
    config = BatchConfig(seed=1, batch_tokens=1200, row_tokens=400, buckets=1)
    made = Batches(corpus, config, small_policy.processor, Encode(corpus, small_policy.processor, ZOOM))
    cursor, rows = made.first_cursor(), []
    for stage in difficulty_curriculum(ORDER, DifficultyRules()).stages:
        steps = made.steps(cursor, dict(stage.weights))
        for _ in range(2):
            before, step = cursor, next(steps)
            drawn = {name: step.cursor.draws[name] - before.draws.get(name, 0) for name in step.cursor.draws}
            cursor = step.cursor
            rows.append({name for name, count in drawn.items() if count})
        cursor = cursor.turned()
    assert rows == [{"simple"}, {"simple"}, {"medium"}, {"medium"}, {"hard"}, {"hard"}]


def test_the_best_checkpoint_is_by_accuracy_and_not_by_loss(tmp_path):
    """Accuracy .2, .9, .5 and loss .1, .3, .05: the second is the best, and stays on the disk."""
    config = SimpleNamespace(curriculum=SimpleNamespace(stages=(), early_stopping_evaluations=0))
    job = SimpleNamespace(config=config, curriculum=None)
    start = curriculum.to_json(curriculum.init(difficulty_curriculum(ORDER, DifficultyRules())))
    host = {"curriculum": start, "best": None, "evaluations_since_best": 0, "data": None}
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best=True)
    for step, (accuracy, loss) in enumerate([(0.2, 0.1), (0.9, 0.3), (0.5, 0.05)], 1):
        measured = {"eval/accuracy": accuracy, "loss": loss}
        host, _ = CurriculumSFT.decide(job, None, host, measured, step)
        checkpoints.save(step, {"x": jnp.zeros(())}, {}, score=measured["eval/accuracy"])
    assert host["best"] == {"accuracy": 0.9, "step": 2} and host["evaluations_since_best"] == 1
    assert checkpoints.best_step() == 2 and checkpoints.steps() == [2, 3]


def test_accumulators_are_reset(tmp_path, monkeypatch):
    """Steps that take 1 s and 3 s are logged as 1 and 3, not as 1 and 4."""
    clock = [0.0]
    monkeypatch.setattr(runtime.time, "monotonic", lambda: clock[0])
    config = ConfigDict(
        {
            "job": "sft",
            "seed": 0,
            "total_steps": 2,
            "checkpoint": {"every_steps": 2, "keep": 2, "restore_step": -1},
            "optimizer": {"schedule": "constant"},
        }
    )
    with Run(config, tmp_path, hashes={}) as run:
        start, state, _ = run.restore({"x": jnp.zeros(())}, {})
        for step in run.steps(start, "test"):
            clock[0] += {1: 1.0, 2: 3.0}[step]
            run.phase("update")
            run.log(step, {}, policy_tokens=6)
            run.checkpoint(step, state, {})
            run.show({})
    perf = read_jsonl(tmp_path / PERF)
    assert [line["seconds/update"] for line in perf] == [1.0, 3.0]
    assert [line["tokens_per_s"] for line in perf] == pytest.approx([6.0, 2.0])
