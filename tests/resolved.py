"""A config as a job sees it: with what it leaves open filled in."""

from ml_collections import ConfigDict

from pixelis_jax import as_trained, config


def resolved(path: str, *overrides: str) -> ConfigDict:
    """`path` may have a variant behind a colon; overrides are `--config.a.b=v`."""
    return as_trained.resolve(config.override(config.load(path), overrides)).config
