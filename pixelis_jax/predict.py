"""One question about a picture, several, or a film, answered with the tool dialogue shown.

python -m pixelis_jax.predict --workdir=runs/rft --image=photo.jpg --question="Which digit is in the blue square?"
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pixelis_jax.cli import run_cli

if TYPE_CHECKING:
    import numpy as np

    from pixelis_jax.adapters import Trained
    from pixelis_jax.models.policy import Policy
    from pixelis_jax.types import Task, Trajectory, Turn

MEMORY_REMEDY = "use a smaller model or lower --context_tokens"
MOST = 2**20  # tokens or turns: above any model's context
_COLORS = {"thought": "2", "call": "36", "observation": "33", "answer": "1;32", "refused": "31", "turn": "1"}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Command line, see --help."""
    parser = argparse.ArgumentParser(
        prog="python -m pixelis_jax.predict", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--model", help="pixelis-tiny or a model folder (default: the adapter's base, else pixelis-tiny)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--adapter", type=Path, help="PEFT directory")
    source.add_argument("--workdir", type=Path, help="folder of a training run: its last checkpoint's adapter")
    parser.add_argument("--step", type=_positive, help="of --workdir: the checkpoint to take")
    pictures = "a picture; give it again for a question about several"
    parser.add_argument(
        "--image", type=Path, required=True, action="append", dest="images", metavar="IMAGE", help=pictures
    )
    parser.add_argument("--film", action="store_true", help="the pictures are the frames of a film, in their order")
    parser.add_argument("--question", required=True)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most likely token (default)")
    parser.add_argument("--seed", type=_seed, default=0, help="of the sampling, where temperature is above 0")
    parser.add_argument("--max_turns", type=_positive, help="assistant turns (default: as in training, else 4)")
    parser.add_argument("--max_new_tokens", type=_positive, help="tokens a turn (default: as in training, else 512)")
    parser.add_argument("--context_tokens", type=_positive, help="of the dialogue (default: as in training, else 8192)")
    parser.add_argument("--tools", help="names with commas between them (default: as in training, else ZOOM_IN)")
    parser.add_argument("--save_images", type=Path, help="folder for the pictures and what the tools returned")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Loads, asks, prints the dialogue turn by turn."""
    args = parse(sys.argv[1:] if arguments is None else arguments)
    from pixelis_jax import adapters  # here, since these load jax, which --help does without
    from pixelis_jax.data.images import open_rgb
    from pixelis_jax.limits import check_temperature
    from pixelis_jax.main import set_up_jax
    from pixelis_jax.models import policy as policies
    from pixelis_jax.types import UserError

    for flag, value in (("--model", args.model), *(("--image", image) for image in args.images)):
        if value is not None and str(value) in ("", "."):
            raise UserError(f"{flag} is empty; name one")
    check_temperature("--temperature", args.temperature)
    if args.step and not args.workdir:
        raise UserError(f"--step={args.step} is a checkpoint of a --workdir; name that, or leave --step out")
    if args.film and len(args.images) == 1:
        note = "a film of one frame; give --image once a frame, of an animated picture only the first one is read"
        print(f"note: {note}", file=sys.stderr)
    if args.save_images:
        _make_folder(args.save_images)
    images = [open_rgb(image) for image in args.images]
    set_up_jax()
    source = args.adapter or args.workdir
    trained = adapters.read(source, step=args.step, base_name=args.model, moved=True) if source else None
    name = trained.base_name if trained else args.model or "pixelis-tiny"
    settings = trained.settings if trained else adapters.settings_of(policies.resolve(name))
    overview, crop = _budgets(settings.get("image"))
    scale = trained.lora.scale if trained else 1.0
    frame = settings.get("image", {}).get("coordinates", "")
    policy = policies.load(name, lora_scale=scale, overview=overview, crop=crop, coordinates=frame)
    trajectory = ask(policy, trained, images, args, settings)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(f"model {name}" + (f" with the adapter of {trained.origin}" if trained else ""))
    for line in dialogue(trajectory, policy, names=[image.name for image in args.images], color=color):
        print(line, flush=True)
    if args.save_images:
        save_images(args.save_images, trajectory.images)


def ask(
    policy: "Policy",
    trained: "Trained | None",
    images: "Sequence[np.ndarray]",
    args: argparse.Namespace,
    settings: dict[str, Any],
) -> "Trajectory":
    """The rollout of one question. Raises UserError where pictures and question do not fit the model."""
    from pixelis_jax.rollout import RolloutConfig, SamplingConfig
    from pixelis_jax.rollout.sample import Sampler
    from pixelis_jax.tools import schemas, select
    from pixelis_jax.types import Task

    limits = settings.get("sampling", {})
    sampling = SamplingConfig(
        temperature=args.temperature,
        max_new_tokens=args.max_new_tokens or limits.get("max_new_tokens", 512),
        context_tokens=args.context_tokens or limits.get("context_tokens", 8192),
    )
    named = (
        [name.strip() for name in args.tools.split(",")]
        if args.tools is not None
        else settings.get("tools", {}).get("names", ["ZOOM_IN"])
    )
    available = select(named)
    task = Task("predict", 0, "predict", args.question, tuple(images), answer="", is_video=args.film)
    _check(policy, task, args, sampling.context_tokens, schemas(available))
    turns = args.max_turns or limits.get("max_turns", 4)
    sampler = Sampler(policy, RolloutConfig(sampling=sampling, max_turns=turns), tools=available)
    return sampler([task], lora=trained.adapter if trained else None, seed=args.seed, step=0).trajectories[0]


def _check(policy: "Policy", task: "Task", args: argparse.Namespace, context_tokens: int, listed: str) -> None:
    from pixelis_jax.data.prompts import prompt_tokens
    from pixelis_jax.types import UserError

    processor = policy.processor
    if not args.question.strip():
        raise UserError("--question is empty; ask something")
    for token in processor.tokenizer.get_added_tokens_decoder().values():
        if token.special and token.content in args.question:
            raise UserError(f"--question contains the control token {token.content}; leave it out")
    sizes = []
    for name, image in zip(args.images, task.images, strict=True):
        height, width = image.shape[:2]
        try:
            size = processor.fit_overview(height, width)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        if min(height, width) < policy.model.config.need_vision().factor:
            note = f"{name} has only {width}x{height} px; it is enlarged to {size[1]}x{size[0]}, which adds no detail"
            print(f"note: {note}", file=sys.stderr)
        sizes.append(size)
    tokens = prompt_tokens(task, processor, listed)
    if tokens >= context_tokens:
        what = "picture" if len(sizes) == 1 else f"{len(sizes)} pictures"
        seen = sum(map(processor.image_tokens, sizes))
        raise UserError(
            f"{what} and question take {tokens} tokens ({seen} of them the {what.split()[-1]}) and the dialogue has"
            f" {context_tokens}; raise --context_tokens, or shorten the question"
        )


def dialogue(trajectory: "Trajectory", policy: "Policy", *, names: Sequence[str], color: bool) -> Iterator[str]:
    """Lines that show a rollout: thought, call, observation with sizes, answer. `names` are those of the pictures."""
    for number, (name, image) in enumerate(zip(names, trajectory.images, strict=False), start=1):
        seen = policy.processor.fit_overview(*image.shape[:2])
        yield f"image {number}: {_clean(name)}, {_size(image.shape)} px, seen as {_size(seen)} px"
    yield f"question: {_clean(trajectory.task.question)}"
    for number, turn in enumerate(trajectory.turns, start=1):
        yield _paint(f"turn {number}", "turn", color)
        for label, text in _parts(turn, policy):
            yield _paint(f"  {label:<12}{_clean(text)}", label, color)
    ends = {"answered": "answered", "over_turn": "no answer: the turn or context limit was reached"}
    yield f"end: {ends.get(trajectory.status, 'no answer: the last turn was cut at --max_new_tokens')}"


def _parts(turn: "Turn", policy: "Policy") -> Iterator[tuple[str, str]]:
    if turn.thought:
        yield "thought", turn.thought
    if turn.call is not None:
        yield "call", f"{turn.call.name} {json.dumps(dict(turn.call.arguments), ensure_ascii=False)}"
    if turn.error is not None:
        yield "refused", f"{turn.error}: {turn.text}"
    if turn.observation is not None:
        sizes, image = "", turn.observation.image
        if image is not None:
            seen = policy.processor.fit_crop(*image.shape[:2])
            sizes = f" ({_size(image.shape)} px of the original, seen as {_size(seen)} px)"
        yield "observation", turn.observation.text + sizes
    if turn.answer is not None:
        yield "answer", turn.answer


def save_images(directory: Path, images: "Sequence[np.ndarray]") -> None:
    """`image_1.png` is the (first) picture; behind the pictures is what the tools returned, at full resolution."""
    from pixelis_jax.metrics.files import atomic_write
    from pixelis_jax.metrics.writer import png

    for number, image in enumerate(images, start=1):
        atomic_write(directory / f"image_{number}.png", png(image))
    print(f"images: {len(images)} in {directory}")


def _make_folder(directory: Path) -> None:
    """Before the model runs, so that its work is not lost to a wrong name."""
    from pixelis_jax.types import UserError

    if directory.exists() and not directory.is_dir():
        raise UserError(f"--save_images={directory} is a file; name a folder")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--save_images={directory}: {error.strerror}; name another folder") from None


def _budgets(image: dict[str, int] | None) -> tuple[Any, Any]:
    """(overview, crop) pixel budgets of a run; (None, None) takes the model directory's own."""
    from pixelis_jax.models.image_processor import PixelBudget

    if image is None:
        return None, None
    return (
        PixelBudget(image["min_pixels"], image["max_pixels"]),
        PixelBudget(image["crop_min_pixels"], image["crop_max_pixels"]),
    )


def _clean(text: str) -> str:
    """One line without control characters: a model's text must not steer the terminal."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text)


def _paint(text: str, part: str, color: bool) -> str:
    return f"\x1b[{_COLORS[part]}m{text}\x1b[0m" if color else text


def _size(shape: Sequence[int]) -> str:
    return f"{shape[1]}x{shape[0]}"


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{value} is not in 1 .. {MOST}")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{value} is not in 0 .. 2**32 - 1")
    return value


if __name__ == "__main__":
    run_cli(main, memory_remedy=MEMORY_REMEDY)
