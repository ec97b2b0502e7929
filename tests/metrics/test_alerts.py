"""Early warnings: each once, at the step that its numbers say, and again after a resume it is not told twice."""

import json

import numpy as np
import pytest

from pixelis_jax.metrics import alerts

CALM = {"rapr": 0.8, "kl": 0.01, "grpo/uniform_group_share": 0.3, "tool/parse_failures": 1.0}


def told(steps, *, dialogues=64, state=None):
    """(step, line) of everything that is told; the state goes through JSON at every step."""
    state, out = state or alerts.init(), []
    for step, changes in enumerate(steps, 1):
        state = json.loads(json.dumps(alerts.update(state, CALM | changes, dialogues=dialogues)))
        out += [(step, line) for line in state["now"]]
    return out


def test_a_calm_run_is_quiet():
    assert told([{}] * 60) == []


@pytest.mark.parametrize(
    ("changes", "step", "words"),
    [
        # .8 .8 .8 .8 .1 -> ... five steps of .1 are below a quarter of .8
        ({"rapr": 0.1}, 25, "stopped looking: 0.10 of the dialogues, 0.80 before; raise the weight of curiosity"),
        ({"tool/parse_failures": 32.0}, 21, "0.26 turns a dialogue can't be parsed, 0.02 on average before; lower"),
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
    """6 failures a step of 64 dialogues are .094 each. 18 are just three times that, but more than the .25 that are too
    many anyway; (6 + 32) / 128 is more than three times."""
    usual = [{"tool/parse_failures": 6.0}] * 20
    (found,) = told([*usual, *[{"tool/parse_failures": 18.0}] * 2])
    assert "0.28 turns a dialogue can't be parsed; start from an SFT adapter" in found[1]
    (found,) = told([*usual, {"tool/parse_failures": 6.0}, *[{"tool/parse_failures": 32.0}] * 2])
    assert "0.30 turns a dialogue can't be parsed, 0.09 on average before; lower" in found[1]


def test_a_run_that_is_bad_from_the_start_is_told():
    """Half of the dialogues of every step: no rise, but too many. 16 of 64 are .25 and not above it."""
    (found,) = told([{"tool/parse_failures": 32.0}] * 30)
    assert found[0] == 11 and "0.50 turns a dialogue can't be parsed; start from an SFT adapter (init_from)" in found[1]
    assert told([{"tool/parse_failures": 16.0}] * 30) == []


def test_a_warning_about_parsing_shows_the_commonest_complaint():
    state, now = alerts.init(), []
    for _ in range(11):
        state = alerts.update(state, {"tool/parse_failures": 32.0}, dialogues=64, refused=("the turn is empty", ""))
        now += state["now"]
    (line,) = now
    assert "0.50 turns a dialogue can't be parsed (the turn is empty; as in ''); start" in line


def test_few_dialogues_say_little():
    """8 a step, 1 of which fails thrice in every tenth step: .04 a dialogue. 126 dialogues are not enough."""
    assert told([{"tool/parse_failures": 3.0 if step % 10 == 0 else 0.0} for step in range(120)], dialogues=8) == []
    assert told([{"tool/parse_failures": 4.0}] * 42, dialogues=3) == []
    (found,) = told([{"tool/parse_failures": 4.0}] * 43, dialogues=3)
    assert found[0] == 43


@pytest.mark.parametrize("dialogues", [1, 4, 8, 16, 64, 512])
def test_what_is_healthy_and_what_is_bad_does_not_depend_on_the_step_size(dialogues):
    """.03 failures a dialogue, drawn, against .5 a dialogue: never told, and told as soon as there are 128."""
    rng = np.random.default_rng(0)
    steps = max(40, 1200 // dialogues)
    healthy = [{"tool/parse_failures": float(rng.poisson(0.03 * dialogues))} for _ in range(steps)]
    assert told(healthy, dialogues=dialogues) == []
    (found,) = told([{"tool/parse_failures": 0.5 * dialogues}] * steps, dialogues=dialogues)
    assert found[0] == max(11, -(-128 // dialogues))


def test_a_rise_is_told_with_few_dialogues_a_step_too():
    """From 0 to .5: five steps of 8 dialogues make 20 of 128, .156."""
    (found,) = told([{"tool/parse_failures": 0.0}] * 40 + [{"tool/parse_failures": 4.0}] * 8, dialogues=8)
    assert found[0] == 45 and "0.16 turns a dialogue can't be parsed, 0.00 on average before; lower" in found[1]


def test_a_state_of_an_earlier_version_goes_on():
    old = {"steps": 40, "recent": {"parse_failures": [0.01]}, "highest_rapr": 0.8, "failures": 0.01, "told": ["kl"]}
    assert told([{}] * 20, state=old | {"now": []}) == []
    (found,) = told([{"tool/parse_failures": 40.0, "kl": 9.0}] * 20, state=old | {"now": []})
    assert found[0] == 2 and "0.62 turns" in found[1]


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
