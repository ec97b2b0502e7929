"""Reading a trained adapter back: from a run's workdir (its last whole checkpoint) or from a PEFT directory.

`pixelis.json` stands beside what `export` writes. It holds what the Hugging Face files have no place for: the pixel
budgets and token limits of the run, so that the model is used the way it was trained.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pixelis_jax import config as configs
from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.models import config as model_config
from pixelis_jax.models import peft, policy
from pixelis_jax.models.lora import LoraConfig
from pixelis_jax.models.qwen2_5_vl import Qwen2_5_VL
from pixelis_jax.types import UserError
from pixelis_jax.workdir import RUN

PyTree = Any
SETTINGS = "pixelis.json"
SETTINGS_VERSION = 1
_SECTIONS = ("image", "sampling")
_BUNDLED_CONFIG = "configs/pretrain.py"  # what the bundled model was trained with


@dataclasses.dataclass(frozen=True)
class Trained:
    """An adapter with its base model; `settings` has the sections of `pixelis.json`, `origin` says where it is from."""

    adapter: PyTree
    lora: LoraConfig
    base_name: str
    settings: dict[str, dict[str, Any]]
    origin: str


def read(directory: Path, *, step: int | None = None, base_name: str | None = None) -> Trained:
    """The adapter of a workdir (at `step`, else the last whole one) or of a PEFT directory.

    `base_name` overrides the recorded base, for one that has moved. Raises UserError for anything else.
    """
    if (directory / RUN).is_file():
        return _from_workdir(directory, step, base_name)
    if (directory / peft.CONFIG).is_file():
        if step is not None:
            raise UserError(f"{directory} is a PEFT directory and has no steps; leave --step out")
        return _from_peft(directory, base_name)
    reason = (
        f"has neither {RUN} (a workdir) nor {peft.CONFIG} (a PEFT directory)" if directory.is_dir() else "is no folder"
    )
    raise UserError(f"{directory} {reason}; give the --workdir of a training run")


def settings_of(directory: Path, *, name: str = "") -> dict[str, dict[str, Any]]:
    """Sections of `pixelis.json` in a model or adapter directory; of the bundled model `name` those of its training."""
    file = directory / SETTINGS
    if file.is_file():
        settings = _json(file)
        if settings.get("version") != SETTINGS_VERSION:
            raise UserError(f"{file} has version {settings.get('version')}, this program reads {SETTINGS_VERSION}")
        return {key: settings[key] for key in _SECTIONS if key in settings}
    if name in policy.BUNDLED:
        return _sections(configs.to_json(configs.load(_BUNDLED_CONFIG)))
    return {}


def settings_text(trained: Trained) -> str:
    """Content of `pixelis.json` for an export of `trained`."""
    content = {"version": SETTINGS_VERSION, "base": trained.base_name, "origin": trained.origin, **trained.settings}
    return json.dumps(content, indent=2) + "\n"


def _from_workdir(directory: Path, step: int | None, base_name: str | None) -> Trained:
    run = _json(directory / RUN)
    config = run["config"]
    with Checkpoints(directory) as checkpoints:
        restored = checkpoints.restore_part("trainable", step)
    if restored is None:
        raise UserError(f"{directory} has no whole checkpoint yet; let the run reach its first one")
    if "lora" not in restored[1] or "lora" not in config:
        raise UserError(f"{directory} holds no adapter (job {config.get('job')!r}); give the workdir of a LoRA run")
    shape = config["lora"]
    lora = LoraConfig(rank=shape["rank"], alpha=float(shape["alpha"]), targets=tuple(shape["targets"]))
    name = base_name or config["model"]["name"]
    _check_base(directory, name, run["hashes"].get("model"))
    adapter = jax.tree.map(jnp.asarray, restored[1]["lora"])
    return Trained(adapter, lora, name, _sections(config), f"step {restored[0]} of {directory.name}")


def _from_peft(directory: Path, base_name: str | None) -> Trained:
    name = base_name or peft.read_config(directory).get("base_model_name_or_path")
    if not name:
        raise UserError(f"{directory / peft.CONFIG} names no base model; give it with --model=DIR")
    base = policy.resolve(name)
    model = Qwen2_5_VL(model_config.from_json(base / "config.json"))
    adapter, lora = peft.load(directory, policy.abstract_params(model))
    settings = settings_of(directory) or settings_of(base, name=name)
    return Trained(adapter, lora, name, settings, directory.name)


def _check_base(directory: Path, name: str, expected: str | None) -> None:
    """The adapter means nothing on other weights than those it was trained on."""
    if expected is not None and policy.content_hash(policy.resolve(name)) != expected:
        raise UserError(
            f"model {name!r} is not the one {directory} was trained on (its hash differs); give it with --model"
        )


def _sections(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {key: config[key] for key in _SECTIONS if key in config}


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{file} is damaged ({error}); restore it") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} is damaged (not a JSON object); restore it")
    return content
