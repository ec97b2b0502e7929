"""Configs: loading `configs/x.py[:variant]`, overrides from the command line, comparison with a run's own config."""

import dataclasses
import difflib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from pixelis_jax.types import UserError

FLAG = "--config"
# Fields that a config may leave open, and the value that says so: "as it was trained" (as_trained.py).
OPEN: dict[str, Any] = {
    "model.name": "",
    "model.dtype": "",
    "model.quantize": "",
    "image.min_pixels": 0,
    "image.max_pixels": 0,
    "image.crop_min_pixels": 0,
    "image.crop_max_pixels": 0,
    "image.coordinates": "",
    "tools.names": (),
    "sampling.temperature": -1.0,
    "sampling.max_new_tokens": 0,
    "sampling.context_tokens": 0,
    "sampling.max_turns": 0,
    "lora.rank": 0,
    "lora.alpha": 0.0,
    "lora.targets": (),
}


@dataclasses.dataclass(frozen=True)
class Change:
    """A field that differs; None stands for absent too."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.field} was {self.old!r}, now {self.new!r}"


def from_argv(arguments: Sequence[str]) -> tuple[ConfigDict, list[str]]:
    """(locked config, other arguments) of `--config=PATH[:variant] --config.a.b=value ...`, without the program's name.

    Raises UserError for a missing file, an unknown field (with the nearest one) and a value of the wrong type.
    """
    path: str | None = None
    overrides: list[str] = []
    rest: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        name, equals, value = argument.partition("=")
        if name != FLAG and not name.startswith(FLAG + "."):
            rest.append(argument)
            continue
        if not equals:  # "--config.a 3" is "--config.a=3", and a lone "--config.a" switches it on
            value = queue.pop(0) if queue and not queue[0].startswith("--") else "true"
        if name == FLAG:
            path = value
        else:
            overrides.append(f"{name}={value}")
    if path is None:
        raise UserError(f"no config: name one, such as {FLAG}=configs/rft.py")
    return override(load(path), overrides), rest


def load(path: str) -> ConfigDict:
    """The config that `get_config(variant)` of the file before the colon gives; packaged `configs/` are found too."""
    file_name, _, variant = path.partition(":")
    file = _locate(file_name)
    spec = importlib.util.spec_from_file_location(f"pixelis_config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} is no Python file; name one, such as {FLAG}=configs/rft.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(f"{file}, line {error.lineno}: {error.msg}; mend the config file") from error
    if "get_config" not in vars(module):
        raise UserError(f"{file} has no function get_config(variant); it is no config file")
    config: ConfigDict = module.get_config(variant)
    config.lock()
    return config


def override(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """A locked copy of `config` with `--config.a.b=value` applied, each value read as its field's type."""
    known = flatten(config)
    sections = {name.rpartition(".")[0] for name in known}
    for text in overrides:
        field = text.partition("=")[0].removeprefix(FLAG + ".")
        if field in sections:
            raise UserError(
                f"{FLAG}.{field} is a group of fields; set one of them, such as {FLAG}.{_inside(field, known)}"
            )
        if field == "job" and text != f"{FLAG}.job={known['job']}":
            raise UserError(
                f"{text}: this config is of the job {known['job']!r}; name the file of another job instead, one of"
                f" {', '.join(_packaged())}"
            )
        if field == "workdir":
            raise UserError(f"{text}: the workdir is no field of the config; give it as --workdir=DIR")
        if field not in known:
            raise UserError(f"{FLAG}.{field}: there is no such field; {_nearest(field, list(known))}")
    overrides = list({text.partition("=")[0]: text for text in overrides}.values())  # the last one; tuples would add up
    values = flags.FlagValues()
    changed = ConfigDict(config).copy_and_resolve_references()
    holder = config_flags.DEFINE_config_dict("config", changed, flag_values=values, sys_argv=["", *overrides])
    values.mark_as_parsed()  # with no override, nothing else would
    for text in overrides:
        try:
            values(["", text])
        except (flags.Error, TypeError, ValueError) as error:
            field = text.partition("=")[0].removeprefix(FLAG + ".")
            kind = type(known[field]).__name__
            raise UserError(f"{text}: this field takes a value of type {kind}, such as {known[field]!r}") from error
    result: ConfigDict = holder.value
    result.lock()
    return result


def flatten(config: ConfigDict | Mapping[str, Any]) -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`; an empty group keeps its own name."""
    return dict(_leaves(config, ""))


def is_open(field: str, value: Any) -> bool:
    """Whether a field is left open."""
    return field in OPEN and (tuple(value) if isinstance(value, list) else value) == OPEN[field]


def open_fields(config: ConfigDict) -> list[str]:
    """Fields that a config leaves open; `lora.rslora` has no value for that and goes with `lora.rank`."""
    found = [field for field, value in flatten(config).items() if is_open(field, value)]
    return [*found, "lora.rslora"] if "lora.rank" in found else found


def replaced(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """A locked copy with other values of the fields `group.name`."""
    changed = ConfigDict(config).copy_and_resolve_references()
    with changed.unlocked():
        for field, value in values.items():
            group, _, name = field.rpartition(".")
            changed[group][name] = tuple(value) if isinstance(value, list) else value
    changed.lock()
    return changed


def to_json(config: ConfigDict) -> dict[str, Any]:
    """The config in JSON types: tuples become lists."""
    return {k: to_json(v) if isinstance(v, ConfigDict) else _json_value(v) for k, v in config.items()}


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Fields in which two configs, as `to_json` gives them, differ; in the order of their names."""
    before, after = flatten(old), flatten(new)
    changed = [k for k in before.keys() | after.keys() if k not in before or k not in after or before[k] != after[k]]
    return [Change(k, before.get(k), after.get(k)) for k in sorted(changed)]


def _leaves(config: ConfigDict | Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, ConfigDict | Mapping) and len(value):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _json_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_json_value(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _json_value(v) for k, v in value.items()}
    return value


def _locate(name: str) -> Path:
    """The file itself, or the one of that name in the installed `configs` package."""
    for file in (Path(name), _folder().parent / name):
        if file.is_file():
            return file
    names = _packaged()
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    raise UserError(f"{FLAG}={name}: there is no such file; {_suggest(close, names)}")


def _folder() -> Path:
    import configs

    return Path(configs.__file__ or "").parent


def _packaged() -> list[str]:
    """Names of the configs that come with the package."""
    shared = ("__init__.py", "common.py")  # no jobs
    return sorted(f"configs/{file.name}" for file in _folder().glob("*.py") if file.name not in shared)


def _nearest(name: str, names: list[str]) -> str:
    """`did you mean ...`: by spelling, else by the last part of a dotted name, else the first names."""
    last = name.rpartition(".")[2]
    same = [n for n in names if n.rpartition(".")[2] == last]
    return _suggest(same or difflib.get_close_matches(name, names, n=1, cutoff=0.6), names)


def _suggest(close: list[str], names: list[str]) -> str:
    return (
        f"did you mean {close[0]}?"
        if close
        else f"there are: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
    )


def _inside(section: str, known: Mapping[str, Any]) -> str:
    return next(f"{name}={value}" for name, value in known.items() if name.startswith(section + "."))
