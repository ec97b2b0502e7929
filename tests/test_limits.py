"""Every number of every config has its bounds, and a bad value is one line with the field's name."""

import math

import pytest

from pixelis_jax import config as configs
from pixelis_jax import limits
from pixelis_jax.types import UserError

JOBS = ("pretrain", "sft", "rft", "eval")


def load(job, **fields):
    changed = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    return configs.override(configs.load(f"configs/{job}.py"), changed)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("variant", ["", ":smoke"])
def test_shipped_configs_pass(job, variant):
    limits.check(configs.load(f"configs/{job}.py{variant}"))


@pytest.mark.parametrize("job", JOBS)
def test_every_number_has_an_interval(job):
    fields = configs.flatten(configs.load(f"configs/{job}.py"))
    numbers = {name for name, value in fields.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    assert numbers - set(limits.LIMITS) == set()


def test_no_interval_is_left_over():
    fields = set().union(*(configs.flatten(configs.load(f"configs/{job}.py")) for job in JOBS))
    assert set(limits.LIMITS) | set(limits.NAMES) <= fields


@pytest.mark.parametrize("name", sorted(limits.LIMITS))
def test_both_ends_of_an_interval_hold(name):
    low, high = limits.LIMITS[name]
    job = next(job for job in JOBS if name in configs.flatten(configs.load(f"configs/{job}.py")))
    for beyond in (low - 1, high + 1):
        if math.isfinite(beyond):
            with pytest.raises(UserError, match=rf"^{name} is [-\d.]+; it takes a number"):
                limits.check(load(job, **{name.replace(".", "__"): beyond}))


@pytest.mark.parametrize(
    ("job", "fields", "words"),
    [
        ("sft", {"optimizer__learning_rate": "nan"}, "optimizer.learning_rate is nan"),
        ("sft", {"lora__alpha": "inf"}, "lora.alpha is inf"),
        ("sft", {"data__kinds": "digit,text"}, "data.kinds: 'digit,text' is unknown; use some of digit"),
        ("rft", {"rollout__kinds": "()"}, "rollout.kinds: it is empty"),
        ("rft", {"eval__modes": "('tools_onn',)"}, "eval.modes: 'tools_onn' is unknown; use some of tools_on"),
        ("rft", {"sampling__temperature": 0.0}, "sampling.temperature is 0"),
        ("eval", {"sampling__temperature": 1e-300}, "sampling.temperature is 1e-300; use 0 for greedy"),
        ("rft", {"mesh__fsdp": 0}, "mesh.fsdp is 0"),
        ("rft", {"image__min_pixels": 20_000}, "image.min_pixels 20000 is above image.max_pixels 12544"),
        ("rft", {"optimizer__micro_batches": 3}, "micro_batches 3 does not divide the 64 rows"),
        ("pretrain", {"optimizer__micro_batches": 2}, "pretraining takes 1"),
        ("sft", {"total_steps": 0}, "total_steps is 0: there is nothing to train"),
    ],
)  # fmt: skip
def test_what_is_refused(job, fields, words):
    with pytest.raises(UserError) as caught:
        limits.check(load(job, **fields))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_greedy_decoding_is_for_evaluation():
    limits.check(load("eval", sampling__temperature=0.0))
