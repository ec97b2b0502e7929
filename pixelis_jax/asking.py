"""Questions to a trained model, from Python: `load` what was trained, then `ask` it about pictures.

    policy = pixelis_jax.load("runs/rft")
    print(pixelis_jax.ask(policy, "photo.jpg", "Which digit is in the blue square?").answer)

A policy is used as it was trained: base, precision, pixel budgets, token limits and tools stand in its run, its folder
or its model. What the caller sets wins; `notes` says where that differs.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from PIL import Image

from pixelis_jax import adapters, tools
from pixelis_jax.data.images import as_rgb, open_rgb
from pixelis_jax.data.prompts import prompt_tokens
from pixelis_jax.models import policy as policies
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.policy import Policy
from pixelis_jax.rollout import RolloutConfig, SamplingConfig
from pixelis_jax.rollout.sample import Sampler
from pixelis_jax.tools.base import Tool, schemas
from pixelis_jax.types import Task, Trajectory, UserError

PyTree = Any
Picture = str | Path | np.ndarray | Image.Image  # a file, u8[height, width, 3], or Pillow's
# What is used where nothing is recorded; of pixels the model directory's own bounds.
DEFAULTS: dict[str, Any] = {
    "sampling.max_new_tokens": 512,
    "sampling.context_tokens": 8192,
    "sampling.max_turns": 4,
    "tools.names": ("ZOOM_IN",),
    "model.dtype": "float32",
    "model.quantize": "none",
}


@dataclasses.dataclass(frozen=True)
class TrainedPolicy:
    """A policy with its adapter (None: the model alone) and with what it was trained with."""

    policy: Policy
    lora: PyTree | None
    sampling: SamplingConfig  # the temperature is each question's own
    max_turns: int
    tools: Mapping[str, Tool]
    origin: str  # in words; "" for a model alone
    notes: tuple[str, ...] = ()  # what was set otherwise than in training
    samplers: dict[float, Sampler] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )  # by temperature

    def sampler(self, temperature: float) -> Sampler:
        """Made once a temperature: what it compiles serves all later questions."""
        if temperature not in self.samplers:
            sampling = dataclasses.replace(self.sampling, temperature=temperature)
            config = RolloutConfig(sampling=sampling, max_turns=self.max_turns)
            self.samplers[temperature] = Sampler(self.policy, config, tools=self.tools)
        return self.samplers[temperature]


def load(
    source: str | Path = "",
    *,
    model: str = "",
    step: int | None = None,
    **settings: Any,
) -> TrainedPolicy:
    """What stands in a run's workdir or a PEFT folder; without `source` the model alone.

    `model` names the base where it is not where the run found it (without a source: pixelis-tiny). Settings are the
    keys of DEFAULTS without their group: max_new_tokens, context_tokens, max_turns, names (of tools), dtype, quantize;
    None: as trained. Raises UserError.
    """
    trained = adapters.read(Path(source), step=step, base_name=model or None, moved=True) if source else None
    name = trained.base_name if trained else model or "pixelis-tiny"
    recorded = trained.settings if trained else adapters.settings_of(policies.resolve(name))
    chosen, notes = _chosen(settings, recorded, str(source))
    available = tools.select(chosen["tools.names"])
    image = recorded.get("image")
    policy = policies.load(
        name,
        dtype=jnp.dtype(chosen["model.dtype"]).type,
        quantize="" if chosen["model.quantize"] == "none" else chosen["model.quantize"],
        lora_scale=trained.lora.scale if trained else 1.0,
        overview=PixelBudget(image["min_pixels"], image["max_pixels"]) if image else None,
        crop=PixelBudget(image["crop_min_pixels"], image["crop_max_pixels"]) if image else None,
        coordinates=image.get("coordinates", "") if image else "",
    )
    limits = (chosen["sampling.max_new_tokens"], chosen["sampling.context_tokens"])
    return TrainedPolicy(
        policy=policy,
        lora=trained.adapter if trained else None,
        sampling=SamplingConfig(0.0, *limits),
        max_turns=chosen["sampling.max_turns"],
        tools=available,
        origin=trained.origin if trained else "",
        notes=notes,
    )


def _chosen(
    given: Mapping[str, Any], recorded: Mapping[str, Any], source: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(the value of each key of DEFAULTS, what was set otherwise than in training or is not known of an adapter)."""
    fields = {field.rpartition(".")[2]: field for field in DEFAULTS}
    unknown = [name for name in given if name not in fields]
    if unknown:
        raise UserError(f"{unknown[0]!r} is no setting; use {', '.join(fields)}")
    chosen, notes, assumed = {}, [], []
    for name, field in fields.items():
        group = recorded.get(field.partition(".")[0], {})
        own = group.get(name, DEFAULTS[field]) or "none"  # quantize was once written as ""
        chosen[field] = own if given.get(name) is None else given[name]
        if name in group and list(np.atleast_1d(chosen[field])) != list(np.atleast_1d(own)):
            notes.append(f"{field} is {_shown(chosen[field])} here, and was {_shown(own)} in training")
        elif name not in group and given.get(name) is None:
            assumed.append(f"{field} {_shown(own)}")
    if source and assumed:
        notes.append(f"{source} does not record how it was trained, so these are defaults: {'; '.join(assumed)}")
    return chosen, tuple(notes)


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def ask(
    policy: TrainedPolicy | Policy,
    image: Picture | Sequence[Picture],
    question: str,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    is_video: bool = False,
) -> Trajectory:
    """The dialogue about one picture or several; its `answer` is None where it came to none.

    `image` is a file, an array u8[height, width, 3] or a Pillow image, or a list of these; with `is_video` the frames
    of a film. A bare Policy is used with DEFAULTS, and compiled anew for each question. Temperature 0 is the most
    likely token; `seed` is of the sampling above it. Raises UserError where pictures and question do not fit the model.
    """
    ready = policy if isinstance(policy, TrainedPolicy) else _bare(policy)
    pictures: list[Any] = [image] if isinstance(image, str) or not isinstance(image, Sequence) else [*image]
    images = tuple(_pixels(one) for one in pictures)
    task = Task("question", 0, "question", question, images, answer="", is_video=is_video)
    names = [str(p) if isinstance(p, str | Path) else f"image {i}" for i, p in enumerate(pictures, 1)]
    check(ready, task, names)
    return answer(ready, task, temperature=temperature, seed=seed)


def answer(ready: TrainedPolicy, task: Task, *, temperature: float, seed: int) -> Trajectory:
    """The dialogue about a task that was checked."""
    return ready.sampler(temperature)([task], lora=ready.lora, seed=seed, step=0).trajectories[0]


def _bare(policy: Policy) -> TrainedPolicy:
    chosen, _ = _chosen({}, {}, "")
    limits = (chosen["sampling.max_new_tokens"], chosen["sampling.context_tokens"])
    available = tools.select(chosen["tools.names"])
    return TrainedPolicy(policy, None, SamplingConfig(0.0, *limits), chosen["sampling.max_turns"], available, "")


def _pixels(picture: Any) -> np.ndarray:
    """u8[height, width, 3]. Raises UserError."""
    if isinstance(picture, str | Path):
        return open_rgb(picture)
    if isinstance(picture, Image.Image):
        return as_rgb(picture)
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape[2:] != (3,):
        shown = f"{picture.dtype}{list(picture.shape)}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise UserError(f"an image is {shown}; give a file, a Pillow image, or an array u8[height, width, 3]")
    return picture


def check(ready: TrainedPolicy, task: Task, names: Sequence[str]) -> list[str]:
    """What of the pictures a user should know, in lines. Raises UserError where pictures and question do not fit."""
    processor, context = ready.policy.processor, ready.sampling.context_tokens
    if not task.question.strip():
        raise UserError("the question is empty; ask something")
    if any("\ud800" <= char <= "\udfff" for char in task.question):
        raise UserError("the question has half of a surrogate pair, which is no character; write it anew")
    for token in processor.tokenizer.get_added_tokens_decoder().values():
        if token.special and token.content in task.question:
            raise UserError(f"the question contains the control token {token.content}; leave it out")
    sizes, notes = [], []
    for name, image in zip(names, task.images, strict=True):
        height, width = image.shape[:2]
        try:
            size = processor.fit_overview(height, width)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        if min(height, width) < ready.policy.model.config.need_vision().factor:
            notes.append(
                f"{name} has only {width}x{height} px; it is enlarged to {size[1]}x{size[0]}, which adds no detail"
            )
        sizes.append(size)
    tokens = prompt_tokens(task, processor, schemas(ready.tools))
    if tokens >= context:
        what = "picture" if len(sizes) == 1 else f"{len(sizes)} pictures"
        seen = sum(map(processor.image_tokens, sizes))
        raise UserError(
            f"{what} and question take {tokens} tokens ({seen} of them the {what.split()[-1]}) and the dialogue has"
            f" {context}; raise --context_tokens, or shorten the question"
        )
    return notes
