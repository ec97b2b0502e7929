"""Reading a trained adapter back: from a run's workdir or from a PEFT directory.

`pixelis.json` stands in the folders that pretraining and `export` write, and in the bundled ones. It holds what the
Hugging Face files have no place for: the pixel budgets, token limits and tools of the run, so that the model is used
the way it was trained.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pixelis_jax.checkpoints import Checkpoints
from pixelis_jax.metrics.files import atomic_write
from pixelis_jax.models import families, peft, policy, quantized
from pixelis_jax.models.checkpoint_files import full_name, number_in
from pixelis_jax.models.lora import LoraConfig
from pixelis_jax.models.vlm import VLM
from pixelis_jax.tools import TOOLS
from pixelis_jax.types import UserError
from pixelis_jax.workdir import FINISHED, RUN, read_run

PyTree = Any
BUNDLED = {"pixelis-tiny-sft": Path(__file__).parent / "assets" / "pixelis-tiny-sft"}
SETTINGS = "pixelis.json"
SETTINGS_VERSION = 1
# Sections of a config that are kept, and the fields of each that have to be there.
_SECTIONS = {
    "image": ("min_pixels", "max_pixels", "crop_min_pixels", "crop_max_pixels"),
    "sampling": ("max_new_tokens", "context_tokens", "max_turns"),
}
# Fields of the section `model` that are kept; earlier versions have none of it.
_MODEL = {"dtype": ("float32", "bfloat16"), "quantize": ("", "none", *quantized.KINDS)}


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What a workdir or a PEFT folder says of its training, without the weights.

    `settings` has the sections of `pixelis.json`; `lora` the adapter's rank, alpha, rslora and targets, the last only
    where it is recorded.
    """

    directory: Path
    base: str
    settings: dict[str, dict[str, Any]]
    lora: dict[str, Any]

    def shape(self, base: str) -> dict[str, Any]:
        """The adapter's shape on `base`; targets that are not recorded are read from the weights' names."""
        if "targets" in self.lora or not self.lora:
            return self.lora
        return self.lora | {"targets": peft.load(self.directory, _abstract(base))[1].targets}


def recorded(directory: Path) -> Recorded:
    """What a workdir, a PEFT folder or a bundled name says of its training. Raises UserError."""
    directory = _located(directory)
    if (directory / RUN).is_file():
        config = read_run(directory / RUN)["config"]
        own = config.get("lora", {})
        lora = {name: own[name] for name in ("rank", "alpha", "rslora", "targets") if name in own}
        base = str(config.get("model", {}).get("name", ""))
        return Recorded(directory, base, _sections(config, directory / RUN), lora)
    config, settings = peft.read_config(directory), settings_of(directory)
    lora = {"rank": config["r"], "alpha": float(config["lora_alpha"]), "rslora": bool(config.get("use_rslora"))}
    base = _in_full(config.get("base_model_name_or_path") or "")
    return Recorded(directory, base, settings, lora | settings.get("lora", {}))


@dataclasses.dataclass(frozen=True)
class Trained:
    """An adapter with its base model; `settings` has the sections of `pixelis.json`, `origin` says where it is from."""

    adapter: PyTree
    lora: LoraConfig
    base_name: str
    settings: dict[str, dict[str, Any]]
    origin: str


def read(directory: Path, *, step: int | None = None, base_name: str | None = None, moved: bool = False) -> Trained:
    """The adapter of a workdir, a PEFT directory or a bundled name.

    Of a workdir: that at `step`, else what a finished run ended with, else the last whole checkpoint's.

    `base_name` is the model it is wanted for; without it the recorded one is taken. A workdir's base is compared by its
    hash. A PEFT directory has a name only: another one is refused, unless the caller knows that the same model has
    `moved`. Raises UserError.
    """
    directory = _located(directory)
    if (directory / RUN).is_file():
        return _from_workdir(directory, step, base_name)
    if step is not None:
        raise UserError(f"{directory} is a PEFT directory and has no steps; leave --step out")
    return _from_peft(directory, base_name, moved)


def _located(directory: Path) -> Path:
    """The folder of a bundled name, a workdir or a PEFT directory. Raises UserError for anything else."""
    directory = BUNDLED.get(str(directory), Path(os.path.expanduser(directory)))
    if (directory / RUN).is_file() or (directory / peft.CONFIG).is_file():
        return directory
    raise UserError(_no_adapter(directory))


def _no_adapter(directory: Path) -> str:
    """Why a folder is no adapter, and which one to take, such as the last checkpoint in a Trainer's output."""
    if not directory.is_dir():
        return f"{directory} is no folder; give the --workdir of a training run, or a PEFT directory"
    inside = [folder.name for folder in directory.iterdir() if (folder / peft.CONFIG).is_file()]
    if (directory / "checkpoints").is_dir() and "adapter" in inside:
        return f"{directory} is a workdir without its {RUN}; restore that, or give {directory / 'adapter'}"
    if inside:
        last = max(inside, key=number_in)
        others = f" (the last of {len(inside)})" if len(inside) > 1 else ""
        return f"{directory} is no adapter, but holds {last}{others}, which is one; give {directory / last}"
    if (directory / peft.WEIGHTS).is_file() or (directory / "adapter_model.bin").is_file():
        return f"{directory} has the weights of an adapter and no {peft.CONFIG}; copy it there, too"
    remedy = "to train from it, set --config.model.name to it and leave --config.init_from empty"
    if (directory / "config.json").is_file():
        return f"{directory} is a whole model and no adapter; {remedy}"
    models = [folder.name for folder in directory.iterdir() if (folder / "config.json").is_file()]
    if models:
        whole = str(directory / max(models, key=number_in))
        return f"{directory} is no adapter, and {whole} is a whole model; {remedy.replace('it', whole, 1)}"
    return (
        f"{directory} has neither {RUN} (a workdir) nor {peft.CONFIG} (a PEFT directory); give the --workdir of a"
        " training run"
    )


def settings_of(directory: Path) -> dict[str, dict[str, Any]]:
    """Sections of `pixelis.json` in a model or adapter directory; none without that file."""
    file = directory / SETTINGS
    if not file.is_file():
        return {}
    settings = _json(file)
    if settings.get("version") != SETTINGS_VERSION:
        raise UserError(f"{file} has version {settings.get('version')}, this program reads {SETTINGS_VERSION}")
    return _sections(settings, file)


def write_settings(directory: Path, config: Mapping[str, Any], *, origin: str, base: str = "") -> None:
    """Puts `pixelis.json` into a model or adapter directory: the sections of a run's `config` that it keeps.

    `origin` says which training it is from, `base` names the model under an adapter.
    """
    file = directory / SETTINGS
    content = {"version": SETTINGS_VERSION, **({"base": base} if base else {}), "origin": origin}
    atomic_write(file, json.dumps(content | _sections(config, file), indent=2) + "\n")


def _from_workdir(directory: Path, step: int | None, base_name: str | None) -> Trained:
    run = read_run(directory / RUN)
    config = run["config"]
    _check_config(config, directory / RUN)
    kept, name = directory / "adapter", base_name or config["model"]["name"]
    finished = step is None and (directory / FINISHED).is_file() and (kept / peft.CONFIG).is_file()
    if not finished:
        saved, origin = _last_saved(directory, step, config)
    _check_base(directory, name, run["hashes"].get("model"), trained_on=config["model"]["name"])
    if finished:  # what the run ended with need not be that of its last step
        saved, lora = peft.load(kept, _abstract(name))
        origin = f"the result of {directory.name}"
    else:
        lora = LoraConfig(**config["lora"] | {"targets": tuple(config["lora"]["targets"])})
    if (quantize := config["model"].get("quantize", "")) not in ("", "none"):
        origin += f", which was trained over {quantize} weights"
    return Trained(saved, lora, name, _sections(config, directory / RUN), origin)


def _check_config(config: Mapping[str, Any], file: Path) -> None:
    """Raises UserError where the parts of a run's config that are read here are not what a run writes."""
    model, lora = config.get("model"), config.get("lora", {})
    name = model.get("name") if isinstance(model, Mapping) else model
    if not isinstance(model, Mapping) or not isinstance(name, str):
        raise UserError(f"{file} is damaged (config.model.name is {name!r:.40}); restore it")
    if not isinstance(lora, Mapping):
        raise UserError(f"{file} is damaged (config.lora is {lora!r:.40}); restore it")


def _last_saved(directory: Path, step: int | None, config: Mapping[str, Any]) -> tuple[PyTree, str]:
    """(adapter of a checkpoint, where it is from). UserError where there is none, or it holds no adapter."""
    with Checkpoints(directory) as checkpoints:
        restored = checkpoints.restore_part("trainable", step)
    if restored is None:
        kept = directory / "adapter"
        remedy = f"its last adapter is {kept}" if kept.is_dir() else "let the run reach its first one"
        raise UserError(f"{directory} has no whole checkpoint; {remedy}")
    if "lora" not in restored[1] or "lora" not in config:
        model = directory / "model"
        remedy = f"its model is --model={model}" if model.is_dir() else "give the workdir of a LoRA run"
        raise UserError(f"{directory} holds no adapter (job {config.get('job')!r}); {remedy}")
    return jax.tree.map(jnp.asarray, restored[1]["lora"]), f"step {restored[0]} of {directory.name}"


def _abstract(name: str) -> PyTree:
    """Shapes of a model's parameters."""
    return policy.abstract_params(VLM(families.from_json(policy.resolve(name) / "config.json")))


def _from_peft(directory: Path, base_name: str | None, moved: bool) -> Trained:
    recorded: str = peft.read_config(directory).get("base_model_name_or_path") or ""
    fewer_bits = _in_full(recorded) != recorded
    name = base_name or _in_full(recorded)
    if not name:
        raise UserError(f"{directory / peft.CONFIG} names no base model; give it with --model=DIR")
    if recorded and not moved and not _same_model(recorded, name):
        if directory in BUNDLED.values():
            raise UserError(
                f"the adapter {directory.name}, from which this config starts, is one of {recorded!r} and not of"
                f" {name!r}; start without one (--config.init_from=), as configs/rft.py:qwen2_5_vl_7b does"
            )
        if fewer_bits:
            raise UserError(
                f"{directory} is an adapter of {recorded!r}, of which the weights in fewer bits are not read here; if"
                f" {name!r} is the same model in full, set base_model_name_or_path in {directory / peft.CONFIG} to"
                f" {name!r}, else set model.name to {_in_full(recorded)!r}"
            )
        raise UserError(
            f"{directory} is an adapter of {recorded!r} and not of {name!r}; set model.name to {recorded!r}, or, where"
            f" both are one model, base_model_name_or_path in {directory / peft.CONFIG} to {name!r}"
        )
    base = policy.resolve(name)
    adapter, lora = peft.load(directory, _abstract(name))
    origin = f"a PEFT folder, trained over {recorded}" if fewer_bits else "a PEFT folder"
    return Trained(adapter, lora, name, settings_of(directory) or settings_of(base), origin)


def _in_full(recorded: str) -> str:
    """The name of a base model, or that of the model in full where it is one of quantized weights and no folder."""
    return recorded if os.path.isdir(recorded) else full_name(recorded)


def _same_model(recorded: str, name: str) -> bool:
    """Whether two names can mean one model: the same text or folder, or a hub's name and a folder called like it.

    A hub's name of quantized weights also means the model in full, whoever published it.
    """
    if _in_full(recorded) != recorded:
        return Path(_in_full(recorded)).name.lower() == Path(name).name.lower() or recorded == name
    one, two = (os.path.realpath(os.path.expanduser(text)) for text in (recorded, name))
    unknown = recorded not in policy.BUNDLED and not os.path.isdir(one)
    return recorded == name or one == two or (unknown and Path(one).name == Path(two).name)


def _check_base(directory: Path, name: str, expected: str | None, *, trained_on: str) -> None:
    """The adapter means nothing on other weights than those it was trained on."""
    if expected is not None and policy.content_hash(policy.resolve(name)) != expected:
        raise UserError(
            f"model {name!r} is not the one {directory} was trained on, which was called {trained_on!r} (the hash"
            " differs); name that one (--model, or --config.model.name beside --config.init_from)"
        )


def _sections(config: Mapping[str, Any], file: Path) -> dict[str, dict[str, Any]]:
    """The kept sections of a config, with every field that readers use. UserError, with `file`, for a damaged one."""
    found = {name: config[name] for name in _SECTIONS if name in config}
    for name, section in found.items():
        for field in _SECTIONS[name]:
            value = section.get(field) if isinstance(section, Mapping) else None
            if type(value) is not int or value < 1:
                raise UserError(f"{file} is damaged ({name}.{field} is {value!r:.40}); restore it")
    for least, most in (("min_pixels", "max_pixels"), ("crop_min_pixels", "crop_max_pixels")):
        if "image" in found and found["image"][least] > found["image"][most]:
            raise UserError(f"{file} is damaged (image.{least} is above image.{most}); restore it")
    model = config.get("model")
    kept = {k: model[k] for k in _MODEL if k in model} if isinstance(model, Mapping) else {}
    for name, value in kept.items():
        if value not in _MODEL[name]:
            raise UserError(f"{file} is damaged (model.{name} is {value!r:.40}); restore it")
    found |= {"model": kept} if kept else {}
    names = config["tools"].get("names") if isinstance(config.get("tools"), Mapping) else None
    if names is not None and not (
        isinstance(names, list | tuple) and all(isinstance(name, str) and name in TOOLS for name in names)
    ):
        unknown = [n for n in names if isinstance(n, str) and n not in TOOLS] if isinstance(names, list | tuple) else []
        if unknown:
            raise UserError(
                f"{file}: there is no tool {unknown[0]!r:.60} here (there are {', '.join(TOOLS)}); install what has it"
            )
        raise UserError(f"{file} is damaged (tools.names is {names!r:.60}); restore it")
    listed = {} if names is None else {"tools": {"names": list(names)}}
    targets = config["lora"].get("targets") if isinstance(config.get("lora"), Mapping) else None
    if targets is not None:
        if not isinstance(targets, list | tuple) or not targets or not all(isinstance(t, str) for t in targets):
            raise UserError(f"{file} is damaged (lora.targets is {targets!r:.60}); restore it")
        listed |= {"lora": {"targets": list(targets)}}
    return {name: dict(section) for name, section in found.items()} | listed


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged ({error}); restore it") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} is damaged (not a JSON object); restore it")
    return content
