"""Every number of every config has its bounds, and a bad value is one line with the field's name."""

import pytest
from ml_collections import ConfigDict
from resolved import resolved

from pixelis_jax import config as configs
from pixelis_jax import limits
from pixelis_jax.types import UserError

JOBS = ("pretrain", "habit", "sft", "rft", "eval")


def load(job, **fields):
    changed = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    return configs.override(resolved(f"configs/{job}.py"), changed)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("variant", ["", ":smoke"])
def test_shipped_configs_pass(job, variant):
    limits.check(resolved(f"configs/{job}.py{variant}"))


@pytest.mark.parametrize("job", JOBS)
def test_every_number_has_an_interval(job):
    fields = configs.flatten(resolved(f"configs/{job}.py"))
    assert {name for name, value in fields.items() if is_number(value)} - set(limits.LIMITS) == set()


def is_number(value):
    first = value[0] if isinstance(value, tuple) else value
    return isinstance(first, int | float) and not isinstance(first, bool)


def test_no_interval_is_left_over():
    fields = set().union(*(configs.flatten(configs.load(f"configs/{job}.py")) for job in JOBS))
    assert set(limits.LIMITS) | set(limits.NAMES) <= fields


@pytest.mark.parametrize("name", sorted(limits.LIMITS))
def test_both_ends_of_an_interval_hold(name):
    low, high = limits.LIMITS[name]
    job = next(job for job in JOBS if name in configs.flatten(configs.load(f"configs/{job}.py")))
    for beyond in (low - 1, high + 1):
        with pytest.raises(UserError, match=rf"^{name} is [-\d.]+; it takes a number from {low} to {high}"):
            limits.check(load(job, **{name.replace(".", "__"): beyond}))


@pytest.mark.parametrize(
    ("job", "fields", "words"),
    [
        ("habit", {"optimizer__learning_rate": "nan"}, "optimizer.learning_rate is nan"),
        ("habit", {"lora__alpha": "inf"}, "lora.alpha is inf"),
        ("habit", {"lora__dropout": 1.0}, "lora.dropout is 1.0; it takes a number from 0 to 0.99"),
        ("habit", {"lora__dropout": "nan"}, "lora.dropout is nan"),
        ("habit", {"data__kinds": "digit,text"}, "data.kinds: 'digit,text' is unknown; use some of digit"),
        ("rft", {"rollout__kinds": "()"}, "rollout.kinds: it is empty"),
        ("rft", {"eval__modes": "('tools_onn',)"}, "eval.modes: 'tools_onn' is unknown; use some of tools_on"),
        ("rft", {"sampling__temperature": 0.0}, "sampling.temperature is 0"),
        ("eval", {"sampling__temperature": 1e-300}, "sampling.temperature is 1e-300; use 0 for greedy"),
        ("rft", {"mesh__fsdp": 0}, "mesh.fsdp is 0"),
        ("rft", {"image__min_pixels": 20_000}, "image.min_pixels 20000 is above image.max_pixels 12544"),
        ("rft", {"optimizer__micro_batches": 3}, "micro_batches 3 does not divide the 64 rows"),
        ("pretrain", {"optimizer__micro_batches": 2}, "pretraining takes 1"),
        ("pretrain", {"model__freeze_vision": True}, "model.freeze_vision is for a model to go on from; name one"),
        ("pretrain", {"model__new_tokenizer": True}, "model.new_tokenizer is for a model to go on from; name one"),
        ("habit", {"total_steps": 0}, "total_steps is 0: there is nothing to train"),
        ("rft", {"sampling__context_tokens": 10**11}, "sampling.context_tokens is 100000000000; it takes"),
        ("rft", {"rollout__prompts": 2**20, "rollout__group_size": 2**4}, "context_tokens is 2550136832, above"),
        ("rft", {"curriculum__windows": "(20, 0)"}, "curriculum.windows is 0; it takes a number from 1"),
        ("rft", {"curriculum__windows": "('a',)"}, "curriculum.windows: 'a' is out of place; it takes a tuple of int"),
        ("rft", {"curriculum__windows": "(20, (3,))"}, "curriculum.windows: (3,) is out of place"),
        ("rft", {"curriculum__windows": "(20.5,)"}, "curriculum.windows: 20.5 is out of place"),
        ("rft", {"curriculum__stages": "(3,)"}, "curriculum.stages: 3 is out of place; it takes a tuple of dict"),
        ("rft", {"curriculum__stages": "all"}, "curriculum.stages: 'all' is out of place"),
        ("rft", {"lora__targets": "(3,)"}, "lora.targets: 3 is out of place; it takes a tuple of str, as in"),
        ("rft", {"rollout__kinds": "(['digit'],)"}, "rollout.kinds: ['digit'] is out of place"),
        ("eval", {"eval__modes": "(3,)"}, "eval.modes: 3 is out of place"),
    ],
)  # fmt: skip
def test_what_is_refused(job, fields, words):
    with pytest.raises(UserError) as caught:
        limits.check(load(job, **fields))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_greedy_decoding_is_for_evaluation():
    limits.check(load("eval", sampling__temperature=0.0))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("seed", "0", "seed is '0'; it takes a value of type int, as in configs/habit.py"),
        ("seed", True, "seed is True"),
        ("total_steps", 3.0, "total_steps is 3.0"),
        ("init_from", None, "init_from is None; it takes a value of type str"),
        ("job", "rft", "the config has no algorithm.advantage_scale, which job 'rft' takes; start from configs/rft.py"),
        ("job", "pretrain", "the config has no cota.batch_tokens, which job 'pretrain' takes"),
    ],
)
def test_a_config_file_of_ones_own_has_the_fields_of_its_job(name, value, words):
    """Values as a file may have them, which no override would let through."""
    config = ConfigDict(resolved("configs/habit.py").to_dict())
    config.unlock()
    with config.ignore_type():
        config[name] = value
    with pytest.raises(UserError) as caught:
        limits.check(config)
    assert words in str(caught.value)


def test_a_whole_number_stands_for_a_float():
    config = ConfigDict(resolved("configs/habit.py").to_dict())
    with config.ignore_type():
        config.lora.alpha = 16
    limits.check(config)
