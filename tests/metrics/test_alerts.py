"""Early warnings: each once, at the step that its numbers say, and again after a resume it is not told twice."""

import json

import pytest

from pixelis_jax.metrics import alerts

CALM = {"rapr": 0.8, "kl": 0.01, "grpo/uniform_group_share": 0.3, "tool/parse_failures": 1.0}


def told(steps):
    """(step, line) of everything that is told; the state goes through JSON at every step."""
    state, out = alerts.init(), []
    for step, changes in enumerate(steps, 1):
        state = json.loads(json.dumps(alerts.update(state, CALM | changes, dialogues=64)))
        out += [(step, line) for line in state["now"]]
    return out


def test_a_calm_run_is_quiet():
    assert told([{}] * 60) == []


@pytest.mark.parametrize(
    ("changes", "step", "words"),
    [
        # .8 .8 .8 .8 .1 -> ... five steps of .1 are below a quarter of .8
        ({"rapr": 0.1}, 25, "stopped looking: 0.10 of the dialogues, 0.80 before; raise the weight of curiosity"),
        ({"tool/parse_failures": 32.0}, 21, "0.50 turns a dialogue can't be parsed, 0.02 on average before; lower"),
        ({"kl": 2.0}, 22, "the policy is 0.81 nat a token from where it started; raise algorithm.kl_beta"),
        ({"grpo/uniform_group_share": 0.95}, 24, "in 82% of the groups all samples earn the same; set rollout.dyn"),
    ],
)
def test_each_is_told_once_with_a_remedy(changes, step, words):
    (found,) = told([{}] * 20 + [changes] * 30)
    assert found[0] == step and words in found[1] and found[1].startswith("warning: ")


def test_a_noisy_start_is_not_told():
    assert told([{"kl": 3.0, "rapr": 0.9}] * 4 + [{"rapr": 0.9}] * 40) == []


def test_three_times_the_mean_and_not_less():
    """6 failures a step of 64 dialogues are .094 each; 18 are just three times that, 19 more."""
    usual = [{"tool/parse_failures": 6.0}] * 20
    assert told([*usual, {"tool/parse_failures": 18.0}]) == []
    assert len(told([*usual, {"tool/parse_failures": 19.0}])) == 1


def test_a_policy_that_never_looked_can_not_stop():
    assert told([{"rapr": 0.15}] * 20 + [{"rapr": 0.0}] * 20) == []


def test_absent_numbers_count_for_nothing():
    nothing = dict.fromkeys(CALM)
    assert told([nothing] * 30) == []
    assert told([{}] * 20 + [{"rapr": None}] * 30) == []


def test_a_loss_of_0_is_explained_once_where_it_has_a_gradient():
    (found,) = told(
        [{"loss": 0.0, "grad_norm": 0.0}, {"loss": 0.1, "grad_norm": 0.2}, *[{"loss": -1e-9, "grad_norm": 0.2}] * 9]
    )
    assert found[0] == 3 and found[1].startswith("note: the loss is 0 and its gradient is not (norm 0.2)")
