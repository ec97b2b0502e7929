"""Samples by address: block `b` of a seed holds one sample of each task type, about one scene and one film.

A block is a pure function of (config, b). Its still problems share a picture; where the tools do not see a scene as it
is, or it has no problem of a type without ambiguity, another scene of the block is taken, and that is counted.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np

from pixelis_jax import tools
from pixelis_jax.data.cota import TASK_TYPES, Provenance, Sample, Step
from pixelis_jax.data.pixelsearch.address import generator
from pixelis_jax.data.pixelsearch.draw import render
from pixelis_jax.data.pixelsearch.film import Film, make_film, render_film
from pixelis_jax.data.pixelsearch.scene import Scene, make_scene
from pixelis_jax.data.synthesis.problems import FILM_BUILDERS, SCENE_BUILDERS, Problem
from pixelis_jax.data.synthesis.solve import DISTRACTIONS, Attempt, Unsolvable
from pixelis_jax.tools.base import Tool, View

VERSION = "1"
BLOCK = len(TASK_TYPES)  # samples a block
MOST_ATTEMPTS = 50  # scenes tried for one sample
TRAPS: tuple[str, ...] = ("outcome_negative", "trap_perceptual", "trap_logical")
WEIGHTS: dict[str, float] = {"trap_perceptual": 1.5, "trap_logical": 1.5, "self_correction": 1.2}
LOOKS: tuple[str, ...] = ("digit", "text", "sum_of_digits", "same_sort")  # kinds that the overview does not answer


@dataclasses.dataclass(frozen=True)
class SynthesisConfig:
    """What is made; `view` is how the model sees pictures and crops."""

    seed: int
    view: View
    split: str = "train"
    ocr: bool = True  # READ_TEXT is called; without it text is read from a ZOOM_IN
    trap_share: float = 0.2
    self_correction_share: float = 0.1

    def tools(self) -> dict[str, Tool]:
        """The tools that are called."""
        return tools.select([name for name in tools.TOOLS if self.ocr or name != "READ_TEXT"])


@dataclasses.dataclass
class Block:
    """Samples with their images, files by path relative to the data folder, and why scenes were given up."""

    samples: list[Sample]
    images: dict[str, np.ndarray]
    given_up: Counter[str]


@dataclasses.dataclass(frozen=True)
class _Sight:
    """A scene or film, its pictures and their paths."""

    scene: Scene
    film: Film | None
    images: tuple[np.ndarray, ...]
    paths: tuple[str, ...]


def make_block(config: SynthesisConfig, block: int, timestamp: str = "", count: int = BLOCK) -> Block:
    """The first `count` samples of a block; `timestamp` (ISO 8601) goes into their provenance.

    Raises RuntimeError where a sample can't be made from any of MOST_ATTEMPTS scenes.
    """
    made = Block([], {}, Counter())
    available = config.tools()
    sights: dict[tuple[bool, int], _Sight] = {}
    for task_type in TASK_TYPES[:count]:
        sample_type = _sample_type(config, block, task_type)
        for attempt in range(MOST_ATTEMPTS):
            key = (task_type in FILM_BUILDERS, attempt)
            if key not in sights:
                sights[key] = _look(config, block, *key)
            draw = generator(config.seed, config.split, block, attempt, task_type, "cota")
            try:
                sample = _make(config, sights[key], task_type, sample_type, draw=draw, available=available)
            except Unsolvable as error:
                made.given_up[str(error).split(":")[0]] += 1
                continue
            provenance = dataclasses.replace(sample.provenance, synthesis_timestamp=timestamp)
            made.samples.append(dataclasses.replace(sample, provenance=provenance))
            made.images.update(zip(sights[key].paths, sights[key].images, strict=True))
            break
        else:
            raise RuntimeError(f"no {task_type} sample in {MOST_ATTEMPTS} scenes of block {block}: {made.given_up}")
    return made


def _sample_type(config: SynthesisConfig, block: int, task_type: str) -> str:
    """Drawn by the mix; the same whatever scene is taken."""
    draw = generator(config.seed, config.split, block, task_type, "sample type")
    share = int(draw.integers(1_000_000)) / 1_000_000
    if share < config.trap_share:
        return TRAPS[int(share / config.trap_share * len(TRAPS))]
    return "self_correction" if share < config.trap_share + config.self_correction_share else "positive"


def _look(config: SynthesisConfig, block: int, moving: bool, attempt: int) -> _Sight:
    index = block * MOST_ATTEMPTS + attempt
    stem = f"images/{block // 1000:04d}/{block:07d}" + (f"_{attempt}" if attempt else "")
    if moving:
        film = make_film(config.seed, config.split, index)
        frames = tuple(render_film(film))
        return _Sight(film.scene, film, frames, tuple(f"{stem}_frame{n + 1}.png" for n in range(len(frames))))
    scene = make_scene(config.seed, config.split, index)
    return _Sight(scene, None, (render(scene),), (f"{stem}.png",))


def _make(
    config: SynthesisConfig,
    sight: _Sight,
    task_type: str,
    sample_type: str,
    *,
    draw: np.random.Generator,
    available: Mapping[str, Tool],
) -> Sample:
    """One sample. Raises Unsolvable."""
    problem: Problem | None
    if sight.film is not None:
        problem = FILM_BUILDERS[task_type](sight.film, draw)
    else:
        problem = SCENE_BUILDERS[task_type](sight.scene, draw)
    if problem is None:
        raise Unsolvable("no problem without ambiguity")
    steps, answer, method = _trajectory(config, sight, problem, sample_type, draw=draw, available=available)
    height, width = sight.images[0].shape[:2]
    scene = sight.scene
    return Sample(
        task_type=task_type,
        sample_type=sample_type,
        question=problem.question,
        image_paths=sight.paths,
        trajectory=tuple(steps),
        answer=answer,
        ground_truth=problem.right.answer,
        is_video=sight.film is not None,
        answer_type=problem.answer_type,
        choices=problem.choices,
        answer_loss=sample_type in ("positive", "self_correction"),
        sampling_weight=WEIGHTS.get(sample_type, 1.0),
        provenance=Provenance("pixelsearch", f"{scene.seed}/{scene.split}/{scene.index}", VERSION, method),
        metadata={
            "kind": problem.kind,
            "size": [height, width],
            "seen_size": list(config.view.fit_overview(height, width)),
            "coordinates": config.view.coordinates,
            "needs_look": problem.kind in LOOKS,
        },
        images=sight.images,
    )


def _trajectory(
    config: SynthesisConfig,
    sight: _Sight,
    problem: Problem,
    sample_type: str,
    *,
    draw: np.random.Generator,
    available: Mapping[str, Tool],
) -> tuple[list[Step], str, str]:
    """(steps, answer, how they were made)."""
    session = config.view.session(sight.images, is_video=sight.film is not None)
    attempt = Attempt(session, available, sight.scene.shapes, sight.film, draw)
    course, answer, method, distraction = problem.right, problem.right.answer, "oracle", ""
    if sample_type == "outcome_negative":
        answer, method = problem.misjudged.answer, "oracle, another answer"
    elif sample_type in TRAPS:
        course = problem.misperceived if sample_type == "trap_perceptual" else problem.misjudged
        answer, method = course.answer, f"oracle, {sample_type}"
    if not config.ocr:
        course = dataclasses.replace(course, moves=tuple(m for m in course.moves if m.op != "READ_TEXT"))
        if course.misled is not None:
            course = dataclasses.replace(course, misled=min(course.misled, len(course.moves)))
    at = int(draw.integers(len(course.moves))) if course.moves else 0
    if sample_type == "self_correction":
        distraction = DISTRACTIONS[int(draw.integers(len(DISTRACTIONS)))]
        method = f"oracle, distracted by {distraction}"
    return attempt.carry_out(course, distraction=distraction, at=at), answer, method
