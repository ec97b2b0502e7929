"""Which part of the reward does what: the same RFT run with parts left out, several seeds, one table.

python -m benchmarks.ablation --out=runs/ablation --seeds=5
python -m benchmarks.ablation --out=runs/ablation_small --seeds=2 --arms=base,coherence --config.total_steps=20
python -m benchmarks.ablation --out=runs/ablation --jobs=8 --gpus=0,1    # four at a time on each of two GPUs

Each arm and seed is a run of configs/rft.py in OUT/ARM_SEED, by its own process; runs that are finished are kept, so
the same command goes on after a kill. OUT/table.md has the mean of each arm with its 95 % confidence interval
(Student's t over the seeds) and the difference to the first arm, seed by seed.
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import math
import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from absl import logging
from scipy import stats

from benchmarks.jobs import checked_config, end_on_sigterm, last_line, log_of, started
from pixelis_jax import assembly
from pixelis_jax.cli import OK, run_cli
from pixelis_jax.metrics.files import read_jsonl
from pixelis_jax.metrics.progress import Progress
from pixelis_jax.types import UserError
from pixelis_jax.workdir import Workdir

CONFIG = "configs/rft.py"
LAST = 20  # steps at the end that a training metric is averaged over


def arms_with(*, coherence: float, curiosity: float) -> dict[str, tuple[str, ...]]:
    """What each arm changes in the config, at these weights; the first is the one that others are compared with."""

    def weights(**given: float) -> str:
        shown = {"final": 1.0, "coherence": 0.0, "curiosity": 0.0} | given
        return f"--config.curriculum.stages=({{'name': 'all', 'weights': {shown}}},)"

    return {
        "base": (weights(),),
        "coherence": (weights(coherence=coherence),),
        "icm": (weights(curiosity=curiosity), "--config.rewards.curiosity=icm"),
        "rapr": (weights(curiosity=curiosity), "--config.rewards.curiosity=rapr"),
        "curriculum": (),
        "tools_off": (weights(), "--config.rollout.tools_on=False"),
        "no_unrepaired_rule": (weights(), "--config.rewards.unrepaired_rule=False"),
    }


WEIGHTS = {"coherence": 0.1, "curiosity": 0.05}  # as in the stages of configs/rft.py
ARMS = arms_with(**WEIGHTS)
# Column -> where it stands: in summary.json, or in metrics.jsonl as the mean of the last steps, or of all (how early
# a policy learns shows there).
SUMMARY = {
    "success": "success_after",
    "greedy": "success_greedy_after",
    "tools off": "success_tools_off",
    "ZOOM forced": "success_forced_zoom_after",
    "looks": "rapr_after",
    "valid calls": "valid_calls_after",
}
TRAINING = {
    "success in training": "success_rate",
    "turns": "rollout/turns/mean",
    "coherence": "coherence",
    "unrepaired errors": "tool/unrepaired_error_rate",
}
WHOLE = {"success over the run": "success_rate", "looks over the run": "rapr"}
COLUMNS = (*SUMMARY, *TRAINING, *WHOLE)


def measured(workdir: Path) -> dict[str, float]:
    """Column -> value of one finished run. Raises UserError where a file of it is missing, damaged or cut."""
    try:
        summary = json.loads((workdir / "summary.json").read_text())
        lines = read_jsonl(workdir / "metrics.jsonl")
        if not lines or [line["step"] for line in lines] != [*range(1, summary["steps"] + 1)]:
            raise ValueError(f"metrics.jsonl does not hold steps 1 to {summary['steps']}")
        found = {column: _number(summary, name) for column, name in SUMMARY.items()}
        for column, name, steps in (
            *((column, name, lines[-LAST:]) for column, name in TRAINING.items()),
            *((column, name, lines) for column, name in WHOLE.items()),
        ):
            values = [_number(line, name) for line in steps if line.get(name) is not None]
            found[column] = mean(values) if values else math.nan
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{workdir} holds no finished RFT run ({type(error).__name__}: {error}); remove the folder and run this"
            " again"
        ) from None
    return found


def _number(record: Mapping[str, Any], name: str) -> float:
    value = record[name]
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"{name} is {value!r:.40}")
    return float(value)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half the width of its 95 % confidence interval): 1, 2, 3 -> (2, 2.484). One value has no interval: NaN."""
    if len(values) < 2:
        return mean(values), math.nan
    return mean(values), float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def table(results: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
    """Means by arm (arm -> seed -> column -> value), then differences to the first arm, seed by seed."""
    head = f"{' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 2)}|"
    lines = [f"| mean ± 95 % | seeds | {head}"]
    for arm, runs in results.items():
        cells = [_cell([run[column] for run in runs.values()]) for column in COLUMNS]
        lines.append(f"| {arm} | {len(runs)} | {' | '.join(cells)} |")
    first, base = next(iter(results.items()))
    lines += ["", f"| minus {first} | pairs | {head}"]
    for arm, runs in list(results.items())[1:]:
        pairs = [(runs[seed], base[seed]) for seed in runs if seed in base]
        if not pairs:
            continue
        cells = [_cell([a[column] - b[column] for a, b in pairs], sign="+") for column in COLUMNS]
        lines.append(f"| {arm} | {len(pairs)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float], sign: str = "") -> str:
    middle, half = interval(values)
    return format(middle, f"{sign}.3f") + ("" if math.isnan(half) else f" ± {half:.3f}")


def seeing(gpus: str) -> dict[str, str]:
    """The environment of a process that sees these CUDA numbers only."""
    return {"CUDA_VISIBLE_DEVICES": gpus, "JAX_PLATFORMS": "cuda,cpu"}


def check_gpus(numbers: Sequence[str]) -> None:
    """Asks JAX, in a process of its own. Raises UserError where it misses one of these: runs would use the CPU."""
    named = ",".join(dict.fromkeys(numbers))
    environment = os.environ | seeing(named) | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    question = [sys.executable, "-c", "import jax; print('gpus', len(jax.devices('cuda')))"]
    answer = subprocess.run(question, env=environment, capture_output=True, text=True, check=False)
    if answer.stdout.split() != ["gpus", str(len(set(numbers)))]:
        seen = answer.stdout.split()[1] if answer.stdout else "none"
        raise UserError(f"--gpus={named}: JAX sees {seen} of these GPUs; name others (nvidia-smi -L), or leave it out")


class Runs:
    """The runs in a folder; `end` ends those that are going.

    `gpus` has the CUDA number of a GPU for each run that may go at a time; none: each run sees all that there are.
    """

    def __init__(
        self, out: Path, arms: Mapping[str, Sequence[str]], overrides: Sequence[str], gpus: Sequence[str] = ()
    ) -> None:
        self.out, self.arms, self.overrides = out, arms, overrides
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._shared_out = bool(gpus)
        for gpu in gpus:
            self._free.put(gpu)
        self._going: set[subprocess.Popen[bytes]] = set()
        self._over = False

    def changes(self, arm: str, seed: int) -> list[str]:
        """What a run changes in the config."""
        return [*self.arms[arm], *self.overrides, f"--config.seed={seed}"]

    def finished(self, arm: str, seed: int) -> bool:
        """Whether a run has ended. Raises UserError where it is one of another config."""
        return self.workdir(arm, seed).finished(checked_config(CONFIG, self.changes(arm, seed)))

    def workdir(self, arm: str, seed: int) -> Workdir:
        """Where a run stands."""
        return Workdir(self.out / f"{arm}_{seed}")

    def run(self, arm: str, seed: int) -> Path:
        """The folder of a run that has ended. Raises UserError, with the end of its log, where it fails."""
        workdir = self.workdir(arm, seed)
        path = workdir.path
        if holder := workdir.in_use():  # of an ablation that was killed: it goes on with its work
            logging.warning("%s is being run by %s; waiting for it", path, holder)
        while not self._over and workdir.in_use():
            time.sleep(0.5)
        if self._over or self.finished(arm, seed):
            return path
        with self._gpu() as gpu, started(CONFIG, path, self.changes(arm, seed), gpu) as process:
            self._going.add(process)
            if self._over:  # since the question above
                process.terminate()
            code = process.wait()
            self._going.discard(process)
        if code or not self.finished(arm, seed):
            log = log_of(path)
            raise UserError(f"{arm}, seed {seed}, did not finish (exit code {code}; {log}): {last_line(log)}")
        return path

    @contextlib.contextmanager
    def _gpu(self) -> Iterator[dict[str, str]]:
        if not self._shared_out:
            yield {}
            return
        gpu = self._free.get()
        try:
            yield seeing(gpu)
        finally:
            self._free.put(gpu)

    def end(self) -> None:
        """Asks the runs that are going to end, and starts no further one."""
        self._over = True
        for process in list(self._going):
            process.terminate()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, and writes the table of what is there after each run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ablation",
        description=(__doc__ or "").split("\n")[0],
        epilog="Further arguments --config.FIELD=VALUE hold for all runs.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of table.md")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 .. N-1 of each arm (default 5)")
    parser.add_argument("--arms", default=",".join(ARMS), help=f"some of {','.join(ARMS)}, the first is compared with")
    for name, weight in WEIGHTS.items():
        parser.add_argument(
            f"--{name}", type=float, default=weight, help=f"its weight where it is on (default {weight})"
        )
    parser.add_argument("--jobs", type=int, help="runs at a time (default: one a GPU that --gpus names, else 1)")
    parser.add_argument("--gpus", default="", help="CUDA numbers, as 0,1: each run gets one of them (default: all)")
    args, overrides = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    arms = list(dict.fromkeys(name.strip() for name in args.arms.split(",")))
    for arm in arms:
        if arm not in ARMS:
            raise UserError(f"--arms: {arm!r} is unknown; use some of {', '.join(ARMS)}")
    numbers = [text.strip() for text in args.gpus.split(",")] if args.gpus else []
    jobs = max(1, len(numbers)) if args.jobs is None else args.jobs
    if args.seeds < 1 or jobs < 1:
        raise UserError("--seeds and --jobs take a number from 1")
    if not all(text.isascii() and text.isdecimal() for text in numbers):
        raise UserError(f"--gpus={args.gpus}: CUDA's numbers of the GPUs with commas between them, as 0,1")
    jobs = min(jobs, args.seeds * len(arms))  # more have nothing to do
    gpus = list(itertools.islice(itertools.cycle(numbers), jobs if numbers else 0))
    for name in WEIGHTS:
        if not 0 <= getattr(args, name) <= 1e9:  # and NaN is not
            raise UserError(f"--{name}={getattr(args, name)}: a weight is a number from 0")
    made = arms_with(coherence=args.coherence, curiosity=args.curiosity)
    given = {text.partition("=")[0] for text in overrides}
    for change in (*(change for arm in arms for change in made[arm]), "--config.seed"):
        if change.partition("=")[0] in given:
            raise UserError(
                f"{change.partition('=')[0]} is what the arms and seeds differ in; leave it to --arms, --seeds"
            )
    runs, work = Runs(args.out, made, overrides, gpus), [(arm, seed) for seed in range(args.seeds) for arm in arms]
    for arm, seed in work:
        checked = checked_config(CONFIG, runs.changes(arm, seed))
        assembly.rl_config(checked)
        assembly.reward_curriculum(checked)
        runs.finished(arm, seed)  # of another config: known before hours of work
    if numbers:
        check_gpus(numbers)
    args.out.mkdir(parents=True, exist_ok=True)
    done: dict[tuple[str, int], dict[str, float]] = {}
    end_on_sigterm()
    with Progress(len(work), label="ablation, runs") as bar, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(runs.run, arm, seed): (arm, seed) for arm, seed in work}
        try:
            for future in concurrent.futures.as_completed(futures):
                done[futures[future]] = measured(future.result())
                write(args.out, arms, done)
                bar.update()
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            runs.end()
            raise
    print((args.out / "table.md").read_text())
    return OK


def write(out: Path, arms: Sequence[str], done: Mapping[tuple[str, int], Mapping[str, float]]) -> None:
    """OUT/table.md and OUT/results.json of the runs that are there."""
    found = {arm: {seed: values for (a, seed), values in sorted(done.items()) if a == arm} for arm in arms}
    found = {arm: runs for arm, runs in found.items() if runs}
    (out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "table.md").write_text(table(found))


if __name__ == "__main__":
    run_cli(main)
