"""A data set of generated samples on disk: made in shards by several processes, restartable, the same bytes each time.

    OUT/generation.json     what was asked for, when it began, whether it is whole
    OUT/images/             pictures, one a scene, and the frames of films
    OUT/shards/             whole shards of an unfinished data set
    OUT/cota.jsonl          all samples in order; appears when they are all there

A shard's samples appear by a rename after its pictures are written, so a kill costs the shards under way and nothing
else. Nothing depends on the number of processes.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import IO, Any

from PIL import Image

from pixelis_jax.data.cota import from_line, to_record
from pixelis_jax.data.synthesis.samples import BLOCK, VERSION, SynthesisConfig, make_block
from pixelis_jax.metrics.files import atomic_write, explain_full_disk
from pixelis_jax.metrics.progress import Progress
from pixelis_jax.types import UserError

SAMPLES, MANIFEST, SHARDS, LOCK = "cota.jsonl", "generation.json", "shards", "lock"


@dataclasses.dataclass(frozen=True)
class Job:
    """`num_samples` samples of `config` into the folder `out`. `settings` is the config in JSON types.

    `shard_blocks` blocks are made at a time, which a kill can cost; the result does not depend on it.
    """

    config: SynthesisConfig
    settings: Mapping[str, Any]
    num_samples: int
    out: Path
    shard_blocks: int = 32

    @property
    def shard(self) -> int:
        """Samples of a whole shard."""
        return self.shard_blocks * BLOCK

    def asked(self) -> dict[str, Any]:
        """What has to be the same for a restart to go on."""
        return {**self.settings, "num_samples": self.num_samples, "version": VERSION}

    def shards(self) -> range:
        return range(-(-self.num_samples // self.shard))

    def size_of(self, shard: int) -> int:
        """Samples of a shard."""
        return min(self.shard, self.num_samples - shard * self.shard)


class Folder:
    """The locked folder of a job; a context manager. Raises UserError where another job, or another process, has it."""

    def __init__(self, job: Job, date: str) -> None:
        self.job, self.path, self.date = job, job.out, date
        self._lock: IO[str] | None = None

    def __enter__(self) -> "Folder":
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path}: can't be made ({error.strerror}); name another --out") from None
        self._refuse_foreign_files()
        self._lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UserError(
                f"{self.path}: another process is generating here; wait for it, or name another --out"
            ) from None
        try:
            self._begin()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._lock is not None
        self._lock.close()

    def _begin(self) -> None:
        """Writes the manifest, or takes the date from the one that is there."""
        manifest = self.path / MANIFEST
        if not manifest.exists():
            self._write(finished=False)
            return
        if changed := changes(self.job):
            raise UserError(f"{self.path} holds other data ({changed}); name another --out")
        self.date = _read_manifest(manifest)["date"]

    def _refuse_foreign_files(self) -> None:
        if not (self.path / MANIFEST).exists():
            found = sorted(p.name for p in self.path.iterdir() if p.name != LOCK and not p.name.startswith("."))
            if found:
                raise UserError(f"{self.path} has no {MANIFEST} but holds {found[0]}; name an empty or new --out")

    def _write(self, *, finished: bool) -> None:
        content = {"asked": self.job.asked(), "date": self.date, "finished": finished}
        atomic_write(self.path / MANIFEST, json.dumps(content, indent=1) + "\n")

    @property
    def finished(self) -> bool:
        """Whether all samples are there with their pictures; what a kill left of the shards is then removed."""
        done = bool(_read_manifest(self.path / MANIFEST)["finished"])
        if not done or not self._holds(self.path / SAMPLES, self.job.num_samples):
            return False
        shutil.rmtree(self.path / SHARDS, ignore_errors=True)
        return True

    def whole_shards(self) -> set[int]:
        """Shards with all their pictures."""
        sizes = {shard: self.job.size_of(shard) for shard in self.job.shards()}
        return {shard for shard, size in sizes.items() if self._holds(shard_path(self.path, shard), size)}

    def _holds(self, path: Path, count: int) -> bool:
        """Whether a file has so many samples, each with its pictures."""
        pictures: set[str] = set()
        found = 0
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file):
                    pictures.update(from_line(line, f"{path}:{number + 1}").image_paths)
                    found += 1
            return found == count and all((self.path / name).stat().st_size for name in pictures)
        except (OSError, UserError):
            return False

    def join(self) -> None:
        """Puts the shards together; what is written is whole or not there."""
        part = self.path / f".{SAMPLES}.part"
        with explain_full_disk(part), part.open("wb") as file:
            for shard in self.job.shards():
                file.write(shard_path(self.path, shard).read_bytes())
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path / SAMPLES)
        self._write(finished=True)
        shutil.rmtree(self.path / SHARDS)


def changes(job: Job) -> str:
    """What was asked for otherwise when the folder of a job was begun, in words; "" where it is the same.

    Raises UserError for a manifest that is damaged.
    """
    manifest = job.out / MANIFEST
    if not manifest.exists():
        return f"it has no {MANIFEST}"
    before, now = _read_manifest(manifest)["asked"], job.asked()
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return "; ".join(f"{name}: {before.get(name)!r}, now {now.get(name)!r}" for name in names)


@dataclasses.dataclass(frozen=True)
class Made:
    """What `build` did: samples made now and found from before, seconds, why other scenes were taken."""

    made: int
    found: int
    seconds: float
    given_up: Counter[str]


def build(job: Job, date: str, *, workers: int) -> Made | None:
    """Makes the data set of a job, or what is missing of it, with a progress line; None where it is whole already.

    `date` (ISO 8601) goes into the provenance of the samples, unless a part was made before. Raises UserError.
    """
    job.config.tools()  # says at once which package is missing
    start, given_up = time.monotonic(), Counter[str]()
    with Folder(job, date) as folder:
        if folder.finished:
            return None
        whole = folder.whole_shards()
        found = sum(map(job.size_of, whole))
        with Progress(job.num_samples, label="generate, samples", initial=found) as progress:
            try:
                # Closed at once: Ctrl-C may come while the loop's body runs and the workers go on.
                with contextlib.closing(generate(job, whole, folder.date, workers=workers)) as made:
                    for count, reasons in made:
                        given_up += reasons
                        progress.update(count)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"{progress.done} samples are kept; the same command goes on") from None
        folder.join()
    return Made(job.num_samples - found, found, time.monotonic() - start, given_up)


def generate(job: Job, whole: set[int], date: str, *, workers: int) -> Generator[tuple[int, Counter[str]], None, None]:
    """Makes the shards beside those that are `whole`; yields (samples, why scenes were given up) of each as it is done.

    Raises UserError where a worker process dies.
    """
    todo = [shard for shard in job.shards() if shard not in whole]
    if not todo:
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(todo)), mp_context=spawn, initializer=_start_worker)
    try:
        running: set[Future[tuple[int, Counter[str]]]] = set()
        while todo or running:
            while todo and len(running) < 2 * workers:  # a few ahead, and not all: their arguments are kept in memory
                running.add(pool.submit(make_shard, job, todo.pop(0), date))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process died (out of memory?); the same command goes on, with fewer --workers if need be"
        ) from None
    except BaseException:  # Ctrl-C above all: shards under way are made anew, so nobody waits for them
        _kill(pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _kill(pool: ProcessPoolExecutor) -> None:
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.kill()


def make_shard(job: Job, shard: int, date: str) -> tuple[int, Counter[str]]:
    """Writes the pictures of a shard, then its samples; returns (samples, why scenes were given up)."""
    lines, given_up, left = [], Counter[str](), job.size_of(shard)
    for block in range(shard * job.shard_blocks, (shard + 1) * job.shard_blocks):
        if left <= 0:
            break
        made = make_block(job.config, block, date, min(left, BLOCK))
        for name, image in made.images.items():
            path = job.out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with explain_full_disk(path):
                Image.fromarray(image).save(path, compress_level=1)
        lines += [json.dumps(to_record(s), ensure_ascii=False, allow_nan=False) + "\n" for s in made.samples]
        given_up += made.given_up
        left -= len(made.samples)
    atomic_write(shard_path(job.out, shard), "".join(lines))
    return len(lines), given_up


def today() -> str:
    """The date (ISO 8601, UTC) that goes into provenance; SOURCE_DATE_EPOCH sets it, for builds that are repeated."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.fromtimestamp(int(epoch) if epoch.isdecimal() else time.time(), datetime.UTC)
    return now.date().isoformat()


def shard_path(out: Path, shard: int) -> Path:
    """Where the samples of a shard are kept until all are there."""
    return out / SHARDS / f"{shard:06d}.jsonl"


def _start_worker() -> None:
    """A worker leaves Ctrl-C to its parent, and ends when that is gone, however it went."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _read_manifest(path: Path) -> dict[str, Any]:
    kinds = {"asked": dict, "date": str, "finished": bool}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        good = all(isinstance(found[name], kind) for name, kind in kinds.items())
    except (ValueError, LookupError, TypeError, RecursionError):
        good = False
    if not good:
        raise UserError(f"{path} is damaged; remove the folder, or name another --out")
    return dict(found)
