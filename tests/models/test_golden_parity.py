"""Our model against files that the reference implementation wrote (make_goldens.py)."""

import numpy as np
import pytest
import reference

TOLERANCE = 1e-4  # fp32, largest absolute difference of logits


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("case", reference.CASES)
def test_logits(ours, golden, case, side):
    for i, logits in enumerate(ours.logits(case, side=side)):
        assert np.abs(logits - golden[f"{case}/{i}/logits"]).max() < TOLERANCE


@pytest.mark.parametrize("case", reference.CASES)
def test_greedy_text(ours, golden, case):
    for i, tokens in enumerate(ours.greedy(case)):
        assert tokens.tolist() == golden[f"{case}/{i}/greedy"].tolist()


def test_goldens_say_something(golden):
    """Logits spread, continuations vary, and the file is small."""
    greedy = {tuple(x) for name, x in golden.items() if name.endswith("greedy")}
    assert len(greedy) == len([name for name in golden if name.endswith("greedy")])
    assert all(x.std() > 0.1 for name, x in golden.items() if name.endswith("logits"))
    assert reference.GOLDEN.stat().st_size < 1_500_000
