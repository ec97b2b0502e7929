"""Questions about a picture, several, or a film, answered with the tool dialogue shown.

python -m pixelis_jax.predict --workdir=runs/rft --image=photo.jpg --question="Which digit is in the blue square?"
python -m pixelis_jax.predict --workdir=runs/rft --image=photo.jpg --interactive
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pixelis_jax.cli import run_cli

if TYPE_CHECKING:
    import numpy as np

    from pixelis_jax.asking import TrainedPolicy
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
    parser.add_argument("--question", action="append", default=[], dest="questions", help="give it again for more")
    parser.add_argument(
        "--interactive", action="store_true", help="then ask for questions, a line each, to an empty one"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most likely token (default)")
    parser.add_argument("--seed", type=_seed, default=0, help="of the sampling, where temperature is above 0")
    parser.add_argument("--max_turns", type=_positive, help="assistant turns (default: as in training, else 4)")
    parser.add_argument("--max_new_tokens", type=_positive, help="tokens a turn (default: as in training, else 512)")
    parser.add_argument("--context_tokens", type=_positive, help="of the dialogue (default: as in training, else 8192)")
    parser.add_argument("--tools", help="names with commas between them (default: as in training, else ZOOM_IN)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="precision (default: as in training)")
    parser.add_argument("--quantize", choices=("none", "int8", "nf4"), help="frozen weights (default: as in training)")
    parser.add_argument("--save_images", type=Path, help="folder for the pictures and what the tools returned")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Loads, asks, prints each dialogue turn by turn."""
    args = parse(sys.argv[1:] if arguments is None else arguments)
    from pixelis_jax import asking  # here, since these load jax, which --help does without
    from pixelis_jax.data.images import open_rgb
    from pixelis_jax.main import set_up_jax

    _refuse(args)
    if args.film and len(args.images) == 1:
        _note("a film of one frame; give --image once a frame, of an animated picture only the first one is read")
    if args.save_images:
        _make_folder(args.save_images)
    images = [open_rgb(image) for image in args.images]
    set_up_jax()
    ready = asking.load(
        args.adapter or args.workdir or "",
        model=args.model or "",
        step=args.step,
        max_turns=args.max_turns,
        max_new_tokens=args.max_new_tokens,
        context_tokens=args.context_tokens,
        names=None if args.tools is None else _names(args.tools),
        dtype=args.dtype,
        quantize=args.quantize,
    )
    for note in ready.notes:
        _note(note)
    tasks = [_task(question, images, args) for question in args.questions]
    for note in dict.fromkeys(note for task in tasks for note in _checked(ready, task, args)):
        _note(note)  # before any is answered: a bad last question must not cost the others' time
    print(f"model {ready.policy.name}" + (f" with the adapter of {ready.origin}" if ready.origin else ""))
    _show_pictures(ready, images, args)
    for number, task in enumerate(tasks, 1):
        _answer(ready, task, args, number)
    if args.interactive:
        _converse(ready, images, args, len(tasks))


def _refuse(args: argparse.Namespace) -> None:
    """UserError for flags that say nothing or contradict each other."""
    from pixelis_jax.limits import check_temperature
    from pixelis_jax.types import UserError

    for flag, value in (("--model", args.model), *(("--image", image) for image in args.images)):
        if value is not None and str(value) in ("", "."):
            raise UserError(f"{flag} is empty; name one")
    if not args.questions and not args.interactive:
        raise UserError('there is no question; give --question="...", or --interactive')
    check_temperature("--temperature", args.temperature)
    if args.step and not args.workdir:
        raise UserError(f"--step={args.step} is a checkpoint of a --workdir; name that, or leave --step out")


def _names(tools: str) -> list[str]:
    from pixelis_jax.types import UserError

    names = [name.strip() for name in tools.split(",") if name.strip()]
    if not names:
        raise UserError("--tools names no tool; name one, or leave it out for those of the training")
    return names


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _task(question: str, images: "Sequence[np.ndarray]", args: argparse.Namespace) -> "Task":
    from pixelis_jax.types import Task

    return Task("question", 0, "question", question, tuple(images), answer="", is_video=args.film)


def _checked(ready: "TrainedPolicy", task: "Task", args: argparse.Namespace) -> list[str]:
    from pixelis_jax import asking

    return asking.check(ready, task, [str(image) for image in args.images])


def _answer(ready: "TrainedPolicy", task: "Task", args: argparse.Namespace, number: int) -> None:
    """Asks one question and prints its dialogue; the pictures of later ones go to folders of their own."""
    from pixelis_jax import asking

    trajectory = asking.answer(ready, task, temperature=args.temperature, seed=args.seed)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for line in dialogue(trajectory, ready.policy, color=color):
        print(line, flush=True)
    if args.save_images:
        save_images(args.save_images if number == 1 else args.save_images / str(number), trajectory.images)


def _converse(ready: "TrainedPolicy", images: "Sequence[np.ndarray]", args: argparse.Namespace, asked: int) -> None:
    """Answers questions from standard input, each on its own, until an empty line or the end."""
    from pixelis_jax.types import UserError

    print("ask about the picture; an empty line ends", file=sys.stderr)
    for number in itertools.count(asked + 1):
        try:
            question = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        if not question:
            return
        task = _task(question, images, args)
        try:
            notes = _checked(ready, task, args)
        except UserError as error:
            _note(str(error))
            continue
        for note in notes if number == 1 else ():  # they are about the pictures, which stay the same
            _note(note)
        _answer(ready, task, args, number)


def _show_pictures(ready: "TrainedPolicy", images: "Sequence[np.ndarray]", args: argparse.Namespace) -> None:
    for number, (path, image) in enumerate(zip(args.images, images, strict=True), start=1):
        seen = ready.policy.processor.fit_overview(*image.shape[:2])
        print(f"image {number}: {_clean(path.name)}, {_size(image.shape)} px, seen as {_size(seen)} px")


def dialogue(trajectory: "Trajectory", policy: "Policy", *, color: bool) -> Iterator[str]:
    """Lines that show a rollout: thought, call, observation with sizes, answer."""
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
