"""Checkpoints: one Orbax step directory holds everything a run needs to go on (design.md, decision 10).

`workdir/checkpoints/<step>/` has the items `state` (a pytree of device arrays) and `host` (JSON values), written by
Orbax, and `manifest.json`, written last: sizes and SHA-256 of all files, the state's tree, the score. A step without a
manifest is half-written: it is skipped, and said. A step whose files differ from its manifest is corrupt: it stops the
program.

Saving is synchronous: when `save` returns, the arrays may be donated and the step survives a kill.
"""

import contextlib
import errno
import hashlib
import json
import math
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from pixelis_jax import hosts
from pixelis_jax.metrics.files import FULL_DISK, LIMIT_REACHED, atomic_write
from pixelis_jax.types import UserError

PyTree = Any
MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
MIB = 2**20


class Checkpoints:
    """The step directories of one workdir.

    `keep` newest steps stay; with `keep_best` also the one with the highest finite `score`. Reading never changes the
    folder, so another process may read while one trains; call `resume_from` before the first `save`.
    """

    def __init__(self, workdir: Path | str, *, keep: int = 2, keep_best: bool = False) -> None:
        if keep < 1:
            raise UserError(f"checkpoint.keep is {keep}; it must be 1 or more")
        self.directory = Path(workdir).absolute() / "checkpoints"
        if self.directory.exists() and not self.directory.is_dir():
            raise UserError(f"{self.directory} is no folder; move it away, or name another workdir")
        self.keep, self.keep_best = keep, keep_best
        self._manager: ocp.CheckpointManager | None = None

    def steps(self) -> list[int]:
        """Whole steps in rising order. Raises UserError for one that was renamed: training would start anew."""
        folders = [path.parent for path in self.directory.glob(f"*/{MANIFEST}")]
        for folder in folders:
            if folder.name.isdecimal() and not _is_step(folder.name):
                raise UserError(f"{folder} is no name of a step; rename it to {int(folder.name)}, or move it away")
        return sorted(int(folder.name) for folder in folders if _is_step(folder.name))

    def half_written(self) -> list[Path]:
        """What a kill left: step directories without a manifest, and Orbax's temporary ones."""
        if not self.directory.is_dir():
            return []
        folders = [p for p in self.directory.iterdir() if p.is_dir() and not (p / MANIFEST).exists()]
        return sorted(p for p in folders if _is_step(p.name) or "orbax-checkpoint-tmp" in p.name)

    def best_step(self) -> int | None:
        """The step with the highest score (the earliest of equals; NaN never wins); None where none has a score."""
        scores = {step: self._manifest(step)["score"] for step in self.steps()}
        return max((s for s in scores if scores[s] is not None), key=lambda s: (scores[s], -s), default=None)

    def save(
        self, step: int, state: PyTree, host: dict[str, Any], *, score: float | None = None, lasting: bool = False
    ) -> None:
        """Writes one step; a whole step of the same number is left as it is. A `lasting` one is never dropped.

        `host` holds JSON values only. Raises UserError where the disk has no room; earlier steps are untouched then.
        """
        if step in self.steps():
            return
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + len(json.dumps(host)) + MIB
        self._check_room(needed)
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(host))
        with self._explain_full_disk(needed):
            self._orbax().save(step, args=items, force=True)
            self._orbax().wait_until_finished()
        if hosts.first():
            self._write_manifest(step, state, score, lasting)
        hosts.meet(f"checkpoint {step}")
        self._drop_old()

    def restore(self, state_like: PyTree, step: int | None = None) -> tuple[int, PyTree, dict[str, Any]] | None:
        """(step, state, host) of the last whole step, or of the named one; None where there is none yet.

        `state_like` has the tree, shapes, dtypes and shardings wanted (arrays or `jax.ShapeDtypeStruct`); the device
        count may differ from that of the save. Raises UserError for a named step that is not there, a corrupt step, and
        a state of another shape.
        """
        chosen = self._choose(step)
        if chosen is None:
            return None
        manifest = self._verify(chosen)
        self._check_tree(chosen, manifest["tree"], state_like)
        items = ocp.args.Composite(state=ocp.args.StandardRestore(_abstract(state_like)), host=ocp.args.JsonRestore())
        restored = self._orbax().restore(chosen, args=items)
        return chosen, restored.state, restored.host

    def restore_part(self, name: str, step: int | None = None) -> tuple[int, PyTree, dict[str, Any]] | None:
        """(step, the state's field `name` as NumPy arrays, host), for readers that know no shapes; else as `restore`.

        Only that field is read from the disk into memory; sequences in it come back as lists.
        """
        chosen = self._choose(step)
        if chosen is None:
            return None
        self._verify(chosen)
        item, handler = self.directory / str(chosen) / "state", ocp.PyTreeCheckpointHandler()
        saved = handler.metadata(item).tree
        if name not in saved:
            raise UserError(f"{item} has no {name!r}; it holds {', '.join(sorted(saved))}")
        like = {name: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), saved[name])}
        how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
        arguments = ocp.args.PyTreeRestore(like, restore_args=how, partial_restore=True)
        part = handler.restore(item, args=arguments)[name]
        host = self._orbax().restore(chosen, args=ocp.args.Composite(host=ocp.args.JsonRestore())).host
        return chosen, part, host

    def resume_from(self, step: int | None) -> None:
        """The training goes on from `step` (None: from nothing): half-written steps are removed, later ones set aside.

        Later steps exist when an older one was named; they move to `checkpoints_set_aside/`, so that the next resume
        does not take them for this run's.
        """
        if hosts.first():
            for path in self.half_written():
                shutil.rmtree(path)
            for later in self.steps():
                if later > (-1 if step is None else step):
                    target = _free_name(self.directory.parent / "checkpoints_set_aside" / str(later))
                    target.parent.mkdir(exist_ok=True)
                    (self.directory / str(later)).rename(target)
                    logging.warning("step %d lies after the restored one; moved to %s", later, target)
        hosts.meet("checkpoints resume")
        if self._manager is not None:
            self._manager.reload()

    def close(self) -> None:
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _choose(self, step: int | None) -> int | None:
        """The named whole step, or the last one; None where there is none yet."""
        for path in self.half_written() if hosts.first() else []:
            logging.warning("%s is half-written (the job was killed while saving); skipping it", path)
        whole = self.steps()
        last = max(whole, default=-1)
        most, negative = hosts.largest(last, -last)
        if most != -negative:
            raise UserError(
                f"{self.directory}: step {last} is the last one here and another process sees another; --workdir has to"
                " lie where all processes of the job can read it"
            )
        if step is None:
            return whole[-1] if whole else None
        if step not in whole:
            known = ", ".join(map(str, whole))
            remedy = f"restore_step can be {known}" if whole else "leave restore_step at -1, it has none yet"
            raise UserError(f"{self.directory} has no whole step {step}; {remedy}")
        return step

    def _orbax(self) -> ocp.CheckpointManager:
        if self._manager is None:
            # old steps are dropped here, after the manifest is written: Orbax would do it before
            options = ocp.CheckpointManagerOptions(max_to_keep=None, enable_async_checkpointing=False)
            self._manager = ocp.CheckpointManager(self.directory, options=options, item_names=("state", "host"))
        return self._manager

    def _drop_old(self) -> None:
        whole = self.steps()
        kept = set(whole[-self.keep :]) | ({self.best_step()} if self.keep_best else set())
        kept |= {step for step in whole[: -self.keep] if self._manifest(step).get("lasting")}
        hosts.meet("checkpoints to drop")  # all have listed them
        for step in whole:
            if step not in kept:
                if hosts.first():  # first the manifest: a kill in between leaves a half-written step
                    (self.directory / str(step) / MANIFEST).unlink()
                self._orbax().delete(step)

    def _write_manifest(self, step: int, state: PyTree, score: float | None, lasting: bool) -> None:
        folder = self.directory / str(step)
        files = {str(p.relative_to(folder)): _digest(p) for p in sorted(folder.rglob("*")) if p.is_file()}
        finite = score is not None and math.isfinite(score)
        manifest = {
            "version": MANIFEST_VERSION,
            "score": score if finite else None,
            "lasting": lasting,
            "tree": _describe(state),
            "files": files,
        }
        text = json.dumps(manifest)
        seal = hashlib.sha256(text.encode()).hexdigest()  # so that the manifest itself can't be changed unnoticed
        atomic_write(folder / MANIFEST, f"{text}\n{seal}\n")

    def _manifest(self, step: int) -> dict[str, Any]:
        path = self.directory / str(step) / MANIFEST
        text, _, seal = path.read_bytes().partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() + b"\n" != seal:
            self._corrupt(step, f"{MANIFEST} is damaged")
        manifest = json.loads(text)
        if manifest["version"] != MANIFEST_VERSION:
            raise UserError(
                f"{path} has version {manifest['version']}, this program reads {MANIFEST_VERSION}; update it"
            )
        return manifest

    def _verify(self, step: int) -> dict[str, Any]:
        """The step's manifest, after all files were compared with it."""
        manifest = self._manifest(step)
        folder = self.directory / str(step)
        for name, (size, digest) in manifest["files"].items():
            path = folder / name
            if not path.is_file():
                self._corrupt(step, f"{name} is missing")
            if path.stat().st_size != size:
                self._corrupt(step, f"{name} has {path.stat().st_size} bytes in place of {size}")
            if _digest(path)[1] != digest:
                self._corrupt(step, f"the content of {name} has changed")
        return manifest

    def _corrupt(self, step: int, reason: str) -> None:
        others = [s for s in self.steps() if s != step]
        folder, older = self.directory / str(step), others[-1] if others else 0
        named = f"name another step with --config.checkpoint.restore_step={older} (export, predict: --step={older})"
        remedy = f"{named}, or delete that folder to go on without it" if others else "no other is left; copy it back"
        raise UserError(f"{folder} is corrupt: {reason}; {remedy}")

    def _check_tree(self, step: int, saved: dict[str, str], state_like: PyTree) -> None:
        wanted = _describe(state_like)
        for name in sorted(saved.keys() | wanted.keys()):
            if saved.get(name) != wanted.get(name):
                there, here = saved.get(name, "absent"), wanted.get(name, "absent")
                raise UserError(
                    f"{self.directory / str(step)} does not fit this config: {name} is {there} there and {here} here; "
                    "use the run's own config or another --workdir"
                )

    def _check_room(self, needed: int) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.directory).free
        if free < needed:
            raise UserError(self._no_room(needed, free))
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY and limit < needed:  # met later, Orbax's threads would print tracebacks
            raise UserError(self._over_limit(needed))

    def _no_room(self, needed: int, free: int) -> str:
        return (
            f"{self.directory}: the disk is full: a checkpoint needs {math.ceil(needed / MIB)} MiB and {free // MIB} "
            "MiB are free; free some space, or lower checkpoint.keep, then run the same command again; it resumes"
        )

    def _over_limit(self, needed: int) -> str:
        return (
            f"{self.directory}: a checkpoint needs {math.ceil(needed / MIB)} MiB, but {LIMIT_REACHED}, then run"
            " the same command again; it resumes"
        )

    @contextlib.contextmanager
    def _explain_full_disk(self, needed: int) -> Iterator[None]:
        """Other writers may fill the disk during a save, and a limit be met; Orbax raises errors of several kinds."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            number = error.errno if isinstance(error, OSError) else None
            if number == errno.EFBIG or "File too large" in str(error):
                raise UserError(self._over_limit(needed)) from error
            if number in FULL_DISK or "No space left" in str(error) or "RESOURCE_EXHAUSTED" in str(error):
                raise UserError(self._no_room(needed, shutil.disk_usage(self.directory).free)) from error
            raise


def _abstract(tree: PyTree) -> PyTree:
    """Shapes, dtypes and shardings of a tree of arrays or of abstract arrays."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def _describe(tree: PyTree) -> dict[str, str]:
    """Leaf path -> dtype and shape, such as `float32[3, 4]`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def _digest(path: Path) -> list[Any]:
    """[size in bytes, SHA-256] of a file."""
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _is_step(name: str) -> bool:
    """Whether a folder's name is how Orbax writes a step: `3`, neither `003` nor digits of another script."""
    return name.isdecimal() and name == str(int(name))


def _free_name(path: Path) -> Path:
    """`path`, or `path.1`, `path.2`, ... where it exists."""
    candidate, n = path, 0
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}.{n}")
    return candidate
