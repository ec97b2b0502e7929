"""One import: reads, converts, checks, and writes a folder that is whole or has no `cota.jsonl`.

OUT/cota.jsonl      the samples, in the order of the input
OUT/images/         their pictures, named by the hash of their bytes
OUT/import.json     what was asked for, counts, reasons of refusals, SHA-256 of the files that were read
OUT/refused.txt     one line for each record that was refused
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pixelis_jax import __version__
from pixelis_jax.data import cota
from pixelis_jax.data.importers import FORMATS, box_habits, marks, numbering, prompts
from pixelis_jax.data.importers.base import Context, Options, Place, Record, Refusal, kind_of, printable, without_nan
from pixelis_jax.data.importers.pictures import Picture, Pictures
from pixelis_jax.data.importers.sources import SAMPLES, Source, check_packages, discover, read
from pixelis_jax.data.importers.summary import Answers, Drawn
from pixelis_jax.metrics.files import atomic_write, explain_full_disk
from pixelis_jax.types import UserError

MANIFEST, REFUSED = "import.json", "refused.txt"
VERSION = "1"  # of the conversions; it is part of what sample ids are hashes of
FIRST = 20  # refusals that the report shows


@dataclasses.dataclass
class Counts:
    """What an import has met so far."""

    records: int = 0
    read: int = 0  # records that gave at least one sample
    samples: int = 0
    formats: Counter[str] = dataclasses.field(default_factory=Counter)
    kinds: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)
    answers: Answers = dataclasses.field(default_factory=Answers)
    pictures: Counter[int] = dataclasses.field(default_factory=Counter)  # of a sample
    notes: Counter[str] = dataclasses.field(default_factory=Counter)
    refused: Counter[str] = dataclasses.field(default_factory=Counter)  # records
    questions: Counter[str] = dataclasses.field(default_factory=Counter)  # refused ones of records that were read
    first: list[str] = dataclasses.field(default_factory=list)


class Import:
    """The import of `source` into the folder `out`; `run` does it all."""

    def __init__(
        self,
        source: Path,
        out: Path,
        options: Options,
        *,
        check: Callable[[cota.Sample], None] = lambda sample: None,
        shown: int = 3,
    ) -> None:
        """`check` may raise UserError for a sample that would be of no use; `shown` samples are drawn to be shown."""
        self.source, self.out, self.options, self.check = source, out, options, check
        self.counts, self.drawn = Counts(), Drawn(shown)
        self._name = printable(source.resolve().name)
        self._ids: dict[str, str] = {}
        self._refusals: IO[str] | None = None
        self._earlier: bytes | None = None  # the manifest of a finished import that is done again

    def run(self) -> Counts:
        """Reads everything. Raises UserError where nothing can be imported, or for the first refusal if strict.

        After an error what it has written is gone, and a finished import that was there is as before; after a kill the
        same call works. Raises UserError where another import writes into the folder.
        """
        self.sources, self.aside = discover(self.source, self.options)
        check_packages(self.sources)
        fresh = not self.out.exists()
        self._make_folder()
        with _alone(self.out):
            self._import(fresh=fresh)
        return self.counts

    def _import(self, *, fresh: bool) -> None:
        ours = (self.out / MANIFEST).exists()
        self._claim()
        root = self.source if self.source.is_dir() else self.source.parent
        keep = {"check": self.options.check_images, "keep_paths": self.options.keep_paths}
        self.pictures = Pictures(self.out, root, image_root=self.options.image_root, **keep)
        containers = {source.path: source for source in self.sources}
        self.habits = tuple(
            make(given, lambda file: read(containers[file]))
            for make, given in (
                (numbering.numbering, self.options.answer_index),
                (numbering.lettering, self.options.answer_letter),
                (box_habits.boxing, self.options.box_format),
            )
        )
        self.pictures.close()  # what a killed import has left
        try:
            self._write()
        except BaseException:
            self.pictures.undo()
            made = () if self._earlier else (SAMPLES, REFUSED)  # of the earlier import nothing is lost
            for name in (SAMPLES + ".part", REFUSED + ".part", *made, *(() if ours else (MANIFEST,))):
                (self.out / name).unlink(missing_ok=True)
            if self._earlier:
                atomic_write(self.out / MANIFEST, self._earlier.decode())
            self.pictures.close()
            if fresh:
                with contextlib.suppress(OSError):
                    self.out.rmdir()
            raise
        finally:
            self.pictures.close()

    def asked(self) -> Record:
        """What has to be the same for a finished import to be done again."""
        options = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(self.options).items()}
        return {"input": str(self.source), **options}

    def _make_folder(self) -> None:
        """Raises UserError where it can't be one of its own."""
        out, given = self.out.resolve(), self.source.resolve()
        if out == given or (given.is_dir() and out.is_relative_to(given)):
            raise UserError(f"--out={self.out} lies inside --input={self.source}; name a folder outside it")
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"--out={self.out} is a file; name a folder")
        self.out.mkdir(parents=True, exist_ok=True)

    def _claim(self) -> None:
        """Makes the folder ours. Raises UserError where it holds anything else."""
        manifest = self.out / MANIFEST
        if not manifest.exists():
            found = sorted(p.name for p in self.out.iterdir() if not p.name.startswith("."))
            if found:
                raise UserError(f"{self.out} has no {MANIFEST} but holds {found[0]}; name an empty or new --out")
        else:
            try:
                old = json.loads(manifest.read_bytes())
                finished, asked = old["finished"], old["asked"]
            except (ValueError, LookupError, TypeError):
                raise UserError(f"{manifest} is damaged; remove the folder, or name another --out") from None
            if finished and asked != self.asked():
                raise UserError(
                    f"{self.out} holds another import ({_difference(asked, self.asked())}); name another --out"
                )
            self._earlier = manifest.read_bytes() if finished else None
        self._save({"asked": self.asked(), "finished": False})

    def _save(self, content: Record) -> None:
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        # A name of a file that is not UTF-8 becomes an escape of JSON.
        atomic_write(self.out / MANIFEST, text.encode("utf-8", "backslashreplace").decode("utf-8"))

    def _write(self) -> None:
        hashes = [self._hash(source) for source in self.sources]
        part = self.out / (REFUSED + ".part")
        with explain_full_disk(self.out / SAMPLES), part.open("w", encoding="utf-8") as self._refusals:
            cota.write_jsonl(self.out / SAMPLES, self._samples())
        if self.counts.refused or self.counts.questions:
            part.replace(self.out / REFUSED)
        else:
            part.unlink()
            (self.out / REFUSED).unlink(missing_ok=True)
        self._save({"asked": self.asked(), "finished": True, **self._summary(), "sources": hashes})

    def _hash(self, source: Source) -> Record:
        with source.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"file": self._short(source.path), "bytes": source.path.stat().st_size, "sha256": digest}

    def _short(self, path: Path) -> str:
        root = self.source if self.source.is_dir() else self.source.parent
        return str(path.relative_to(root))

    def _summary(self) -> Record:
        c = self.counts
        return {
            "version": __version__,
            **{"records": c.records, "read": c.read, "samples": c.samples, "images": len(self.pictures.kept)},
            **{"formats": dict(sorted(c.formats.items())), "notes": dict(sorted((+c.notes).items()))},
            **{name: dict(sorted(counter.items())) for name, counter in sorted(c.kinds.items())},
            "answers": {kind: [count, *c.answers.examples[kind]] for kind, count in c.answers.counts.most_common()},
            "refused": {"total": c.refused.total(), "reasons": dict(c.refused.most_common())},
            **({"refused_questions": dict(c.questions.most_common())} if c.questions else {}),
            "left_aside": [self._short(path) for path in self.aside],
        }

    def _samples(self) -> Iterator[cota.Sample]:
        """The samples in order; refusals are counted on the way."""
        for source in self.sources:
            before = self.counts.records
            for where, value in read(source):
                self.counts.records += 1
                yield from self._record(value, Place(where, source.path, source.split))
            self.counts.notes["files without a record"] += self.counts.records == before
        if not self.counts.samples:
            if not self.counts.records:
                raise UserError(f"{self.source}: there are no records in it; name a file or folder that has some")
            told = f"all {self.counts.records} records are refused, the first one: {self.counts.first[0]}"
            raise UserError(f"{self.source}: no sample could be imported; {told}")

    def _refuse(self, error: UserError, where: str, counter: Counter[str]) -> None:
        if self.options.strict:
            raise error
        assert self._refusals is not None
        counter[kind_of(error, where)] += 1
        line = printable(" ".join(str(error).split()))
        self._refusals.write(line + "\n")
        if len(self.counts.first) < FIRST:
            self.counts.first.append(line)

    def _record(self, value: Any, place: Place) -> Iterator[cota.Sample]:
        """The samples of a record: one for each of its questions that can be read; counts it as read or refused.

        A record of several questions all of which are refused is one refusal, the first question's.
        """
        try:
            if isinstance(value, UserError):
                raise value
            name, made, used, notes = self._converted(value, place)
        except UserError as error:
            self._refuse(error, place.where, self.counts.refused)
            return
        samples, errors = [], []
        try:
            for number, record in enumerate(made, 1):
                where = place.where if len(made) == 1 else place.part(number).where
                try:
                    if isinstance(record, UserError):
                        raise record
                    samples.append(self._sample(record, name, where))
                except UserError as error:
                    errors.append((error, where))
            if samples:
                for picture in used:
                    if any(picture.name in sample.image_paths for sample in samples):
                        self.pictures.keep(picture)
        finally:
            for picture in used:
                self.pictures.release(picture)
        if not samples:
            self._refuse(*errors[0], self.counts.refused)
            return
        for item in errors:
            self._refuse(*item, self.counts.questions)
        self.counts.read += 1
        self.counts.notes += notes
        for sample in samples:
            self._count(sample, name)
            yield sample

    def _converted(self, record: Any, place: Place) -> tuple[str, list[Any], list[Picture], Counter[str]]:
        """(format, records in our form or refusals, pictures that were looked at, notes). Raises UserError."""
        if not isinstance(record, dict):
            raise Refusal(place.where, "record", "must be a JSON object")
        if all(value is None for value in record.values()):
            raise Refusal(place.where, "record", "has no values")
        used: list[Picture] = []
        notes: Counter[str] = Counter()

        def look(value: Any, place: Place, field: str) -> Picture:
            used.append(self.pictures.look(value, place, field))
            return used[-1]

        context = Context(self.options, look, notes, *self.habits)
        try:
            record = without_nan(record)
            name = self._format(record, place)
            return name, FORMATS[name].convert(record, place, context), used, notes
        except BaseException as error:
            for picture in used:
                self.pictures.release(picture)
            if isinstance(error, RecursionError):
                raise Refusal(place.where, "record", "is nested too deeply") from None
            raise

    def _sample(self, made: Record, name: str, where: str) -> cota.Sample:
        """The sample of a record in our form, checked. Raises UserError."""
        sample = cota.from_record(self._with_provenance(made, name), where)
        _refuse_marks(sample, where)
        try:
            self.check(sample)
        except UserError as error:
            raise Refusal(where, "answer", "is not of its answer_type", str(error)) from None
        if sample.sample_id in self._ids:
            first = self._ids[sample.sample_id]
            raise Refusal(where, "sample_id", "is there twice; the first one is kept", f"{sample.sample_id}, {first}")
        self._ids[sample.sample_id] = where
        return sample

    def _format(self, record: Record, place: Place) -> str:
        if self.options.format != "auto":
            return self.options.format
        for name, form in FORMATS.items():
            if form.fits(record):
                return name
        if prompts.is_unanswered(record):
            return "prompts"
        raise Refusal(place.where, "record", *prompts.lacking(record))

    def _with_provenance(self, made: Record, name: str) -> Record:
        """Fills in where the sample comes from, unless that is told already."""
        provenance = made.get("provenance")
        if isinstance(provenance, dict):
            ours = {"source_dataset": self._name, "synthesis_version": VERSION, "synthesis_method": f"import:{name}"}
            told = provenance.get("synthesis_method")
            made = {
                **made,
                "provenance": provenance if told else {**ours, **{k: v for k, v in provenance.items() if v}},
            }
        return made

    def _count(self, sample: cota.Sample, name: str) -> None:
        c = self.counts
        c.samples += 1
        c.formats[name] += 1
        for field in ("task_type", "sample_type", "answer_type"):
            c.kinds.setdefault(f"{field}s", Counter())[str(getattr(sample, field))] += 1
        c.answers.add(sample)
        c.pictures[len(sample.image_paths)] += 1
        self.drawn.add(sample)
        c.kinds.setdefault("steps", Counter())[str(len(sample.trajectory))] += 1


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which goes with the process. Raises UserError where another one has it."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UserError(f"--out={folder}: another import writes there; wait for it, or name another") from None
    try:
        yield
    finally:
        os.close(lock)


def _refuse_marks(sample: cota.Sample, where: str) -> None:
    """Raises Refusal for a sample in whose words a mark of another system is left, whatever its format."""
    accepted = [str(answer) for answer in sample.metadata.get("answers", ())]
    thoughts = [step.thought for step in sample.trajectory if step.thought]
    for field, words in (
        ("question", [sample.question]),
        ("choices", sample.choices),
        ("answer", [sample.answer, sample.ground_truth, *accepted]),
        ("thought", thoughts),
    ):
        marks.refuse_left(words, Place(where, Path()), field)


def _difference(before: Any, now: Record) -> str:
    old = before if isinstance(before, dict) else {}
    return "; ".join(f"{name}: {old.get(name)!r}, now {now[name]!r}" for name in now if old.get(name) != now[name])
