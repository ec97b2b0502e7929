"""Every number of every config has its bounds, and a bad value is one line with the field's name."""

import dataclasses
import functools
import math
import types
from collections import defaultdict

import numpy as np
import pytest
from ml_collections import ConfigDict
from resolved import resolved

from pixelis_jax import assembly, curriculum, hosts, limits, tiny
from pixelis_jax import config as configs
from pixelis_jax.curriculum.presets import accuracy_on
from pixelis_jax.metrics import windows
from pixelis_jax.models import image_processor
from pixelis_jax.tools.pool import ToolPool
from pixelis_jax.types import UserError

JOBS = ("pretrain", "habit", "sft", "rft", "eval")


@functools.cache
def base(job):
    return resolved(f"configs/{job}.py")


def load(job, **fields):
    changed = [f"--config.{name.replace('__', '.')}={value}" for name, value in fields.items()]
    return configs.override(base(job), changed)


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


def parts(config):
    """All that becomes of a config without a model, as the jobs make it."""
    share = hosts.Share(0, 1)
    if "tools" in config:
        ToolPool({}, workers=config.tools.workers, time_limit_s=config.tools.time_limit_s)
    for budget in assembly.budgets(config):
        height, width = image_processor.smart_resize(600, 800, factor=28, budget=budget)
        assert height * width > 0
    if "optimizer" in config:
        schedule = assembly.make_schedule(config.optimizer, config.total_steps)
        assert math.isfinite(schedule(0))
        assembly.make_optimizer(config.optimizer, schedule).init({"w": np.zeros(2, np.float32)})
        assembly.sft_config(config)
    if "lora" in config:
        assert math.isfinite(assembly.lora_config(config).scale)
    if config.job in ("habit", "pretrain"):
        assembly.demonstration_config(config, share)
    if config.job == "pretrain":
        made = types.SimpleNamespace(get_vocab_size=lambda: 300, get_vocab=lambda: defaultdict(int))
        shape = tiny.make_config(
            made, **{k: config.model[k] for k in ("width", "layers", "vision_width", "vision_depth")}
        )
        assert shape.text.num_attention_heads * 32 == config.model.width and shape.text.num_key_value_heads >= 1
        assert shape.vision.num_heads * 32 == config.model.vision_width
        assembly.reading_config(config)
    rollout = assembly.rollout_config(config)
    assert rollout.max_turns >= 1 and rollout.sampling.context_tokens >= 1
    if config.job == "rft":
        assembly.rl_config(config)
        config.rollout.replay_ratio = config.rollout.replay_ratio or 0.5
        assert assembly.replay_config(config, types.SimpleNamespace(factor=28), pictures=1).image_tokens >= 1
        assembly.reward_curriculum(config)
        assembly.task_reward(config)
        windows.names(assembly.window_lengths(config))
    if config.job == "sft":
        names = [field.name for field in dataclasses.fields(curriculum.DifficultyRules)]
        rules = curriculum.DifficultyRules(**{name: config.curriculum[name] for name in names})
        made = curriculum.difficulty_curriculum(tuple(config.curriculum.stages), rules)
        known = {accuracy_on(stage.name) for stage in made.stages}
        curriculum.validate(made, known)


@pytest.mark.parametrize("name", sorted(limits.LIMITS))
def test_what_an_interval_admits_its_job_can_be_made_of(name):
    """At both bounds, of every job that has the field: refused here in one line with its name, or made."""
    for job in (job for job in JOBS if name in configs.flatten(configs.load(f"configs/{job}.py"))):
        admitted = 0
        for bound in limits.LIMITS[name]:
            config = base(job).copy_and_resolve_references()
            with config.ignore_type():  # a whole number for a float
                value = (20, bound) if name == "curriculum.windows" else bound  # 20: the shipped stages watch it
                config.update_from_flattened_dict({name: value})
            try:
                limits.check(config)
            except UserError as error:
                assert name.rpartition(".")[2] in str(error) and "\n" not in str(error)
                continue
            admitted += 1
            with config.unlocked():
                parts(config)
        if name not in ("rollout.group_size", "total_steps"):  # whose other bound would be far too much
            assert admitted or name in PAIRED, f"{job}: no bound of {name} is admitted"


# Fields whose bounds don't go with the other fields' shipped values: each is refused for that pair.
PAIRED = {"image.min_pixels", "image.crop_min_pixels", "data.row_tokens", "cota.row_tokens"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"algorithm__entropy_bonus": -1.0}, "algorithm.entropy_bonus is -1.0; it takes a number from 0"),
        ({"algorithm__e_low": 1.0}, "algorithm.e_low is 1.0; it takes a number from 0"),
        ({"algorithm__e_high": 0.0}, "algorithm.e_high is 0.0; it takes"),
        ({"algorithm__delta": 1.1}, "delta 1.1 must be above 1 + e_high = 1.28, or none (0 in a config)"),
        ({"algorithm__loss": "gspo"}, "aggregation 'dapo' does not fit loss 'gspo'"),
        ({"algorithm__kl_estimator": "k1"}, "kl_estimator 'k1' has no useful gradient"),
        ({"rollout__group_size": 1}, "group_size 1 gives no advantage"),
        ({"optimizer__schedule": "cosine", "optimizer__warmup_steps": 60}, "must be below total_steps 60"),
        ({"model__dtype": "float8"}, "model.dtype 'float8' is unknown"),
        ({"rewards__norm": "some"}, "reward norm 'some' is unknown"),
        ({"curriculum__stages": "({'name': 'a', 'weights': {'final': -1.0}},)"}, "use a number from 0"),
    ],
)
def test_what_a_part_refuses_is_refused_before_anything_is_loaded(fields, words):
    with pytest.raises(UserError) as caught:
        limits.check(load("rft", **fields))
    assert words in str(caught.value)


@pytest.mark.parametrize(("field", "step"), [("model__width", 64), ("model__vision_width", 32)])
def test_widths_are_whole_heads(field, step):
    limits.check(load("pretrain", **{field: 3 * step}))
    with pytest.raises(UserError, match=rf"it takes a multiple of {step}"):
        limits.check(load("pretrain", **{field: 3 * step + 8}))


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
