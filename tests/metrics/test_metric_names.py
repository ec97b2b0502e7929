from pixelis_jax.metrics.names import TABLE, find
from pixelis_jax.metrics.windows import DEFAULT_LENGTHS, names
from pixelis_jax.types import OPS


def test_names_are_unique_and_explained() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)
    assert all(row.unit and row.meaning for row in TABLE)


def test_find_takes_the_most_literal_row() -> None:
    assert find("success_rate_ma100").name == "{source}_ma{window}"
    assert find("combined_score_ma100").name == "combined_score_ma{window}"
    assert find("sampler_trainer_logprob_diff/turn_3/max").name == "sampler_trainer_logprob_diff/turn_{turn}/max"
    assert find("reward/final/raw").name == "reward/{component}/raw"
    assert find("reward").name == "reward"
    assert find("rewrad") is None
    assert find("reward/other/raw") is None


def test_every_window_and_operation_has_a_row() -> None:
    wanted = names(DEFAULT_LENGTHS) | {f"tool/{op.lower()}/{what}" for op in OPS for what in ("calls", "errors")}
    assert {"success_rate_ma100", "coherence_ma100", "reward_ma500", "combined_score_ma100"} <= wanted
    assert not [name for name in wanted if find(name) is None]


def test_only_times_and_memory_stay_outside_the_bitwise_files() -> None:
    assert {row.unit for row in TABLE if not row.bitwise} == {"s", "token/s", "MiB"}
    assert not [row.name for row in TABLE if row.bitwise and row.unit in ("s", "token/s", "MiB")]
