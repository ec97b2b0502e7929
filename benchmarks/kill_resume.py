"""Kills a job with SIGKILL again and again, half of the time while a checkpoint is written, and compares its end.

python -m benchmarks.kill_resume --out=runs/killed --kills=20
python -m benchmarks.kill_resume --out=runs/killed_replay --kills=5 --config.rollout.replay_ratio=0.5

OUT/straight is never disturbed; OUT/killed is killed at random moments and started again by the same command. At the
end the files that must be the same to the last bit are compared.
"""

import argparse
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.jobs import checked_config, end_on_sigterm, log_of, started
from pixelis_jax.cli import OK, run_cli
from pixelis_jax.metrics.progress import Progress
from pixelis_jax.types import UserError

CONFIG = "configs/rft.py:smoke"
COMPARED = ("adapter/adapter_model.safetensors", "metrics.jsonl", "trajectories.jsonl", "final_eval.json")
LIMIT_S = 600.0  # of one start


def run_to_end(workdir: Path, overrides: Sequence[str]) -> None:
    """The job, undisturbed. Raises UserError where it fails."""
    with started(CONFIG, workdir, overrides) as process:
        code = process.wait()
    _check_code(code, workdir)


def being_written(workdir: Path) -> bool:
    """Whether a checkpoint is half-written now."""
    folders = [p for p in (workdir / "checkpoints").glob("*") if p.is_dir()]
    return any(not (p / "manifest.json").exists() for p in folders)


def last_step(workdir: Path) -> int:
    """Of the whole checkpoints, 0 where there is none."""
    return max((int(p.parent.name) for p in (workdir / "checkpoints").glob("*/manifest.json")), default=0)


def kill_once(workdir: Path, overrides: Sequence[str], draw: random.Random, *, writing: bool) -> str | None:
    """Starts the job, kills it after it has gone on by a step or more; how it was killed, None where it ended before.

    With `writing` the moment is one at which a checkpoint is half-written. Raises UserError where the job fails.
    """
    before = last_step(workdir)
    with started(CONFIG, workdir, overrides) as process:
        end = time.monotonic() + LIMIT_S
        wait_for = before + draw.randint(1, 2)
        while process.poll() is None and last_step(workdir) < wait_for:
            _check(end)
            time.sleep(0.002)
        if writing:
            while process.poll() is None and not being_written(workdir):
                _check(end)
            time.sleep(draw.uniform(0.0, 0.02))
        else:
            time.sleep(draw.uniform(0.0, 1.0))
        if process.poll() is None:
            half = being_written(workdir)
            process.send_signal(signal.SIGKILL)
            process.wait()
            return f"step {last_step(workdir)}" + (", a checkpoint half-written" if half else "")
    _check_code(process.returncode, workdir)
    return None


def _check_code(code: int, workdir: Path) -> None:
    if code:
        raise UserError(f"the job on {workdir} failed with {code}; see {log_of(workdir)}")


def _check(end: float) -> None:
    if time.monotonic() > end:
        raise UserError(f"the job made no progress in {LIMIT_S:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs both, tells each kill, and compares."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kill_resume",
        description=(__doc__ or "").split("\n")[0],
        epilog=f"Further arguments --config.FIELD=VALUE change {CONFIG}.",
    )
    parser.add_argument("--out", type=Path, required=True, help="new folder for both runs")
    parser.add_argument("--kills", type=int, default=20, help="how often (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (default 0)")
    args, more = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    overrides = [f"--config.total_steps={2 * args.kills + 4}", "--config.checkpoint.every_steps=1", *more]
    checked_config(CONFIG, overrides)
    if args.out.exists():
        raise UserError(f"{args.out} is there already; name another --out")
    args.out.mkdir(parents=True)
    end_on_sigterm()
    straight, killed = args.out / "straight", args.out / "killed"
    run_to_end(straight, overrides)
    draw, half_written = random.Random(args.seed), 0
    with Progress(args.kills, label="kills") as bar:
        for number in range(args.kills):
            how = kill_once(killed, overrides, draw, writing=number % 2 == 0)
            if how is None:
                break
            half_written += "half" in how
            print(f"kill {number + 1}: {how}", flush=True)
            bar.update()
    run_to_end(killed, overrides)
    wrong = [name for name in COMPARED if (straight / name).read_bytes() != (killed / name).read_bytes()]
    print(f"{bar.done} kills, {half_written} while a checkpoint was half-written; {len(COMPARED)} files compared")
    if wrong:
        raise UserError(f"not the same as in {straight}: {', '.join(wrong)}")
    print("all are the same to the last bit")
    return OK


if __name__ == "__main__":
    run_cli(main)
