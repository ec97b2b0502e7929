"""Problems of the seven task types about one scene or film: question, answer, the way to it, and two ways astray.

A builder takes what is to be seen and a generator, and gives one problem, or None where the scene has none without
ambiguity. Nothing is drawn or measured here: a `Course` names shapes by number, and the oracle carries it out.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from pixelis_jax.data.pixelsearch.draw import shape_mask
from pixelis_jax.data.pixelsearch.film import DIRECTIONS, Film
from pixelis_jax.data.pixelsearch.scene import COLORS, LETTERS, SHAPES, Scene, Shape

SIDES: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "above": (0, -1), "below": (0, 1)}
EXTREMES: dict[str, str] = {"left": "leftmost", "right": "rightmost", "above": "topmost", "below": "bottommost"}
MARGIN = 130  # percent: by how much the larger of two lengths or areas must exceed the other
YES_NO: tuple[str, ...] = ("yes", "no")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Move:
    """One visual operation on shape number `target`, and the thought before it ("": none)."""

    op: str
    target: int
    thought: str = ""


@dataclasses.dataclass(frozen=True)
class Course:
    """Moves, the thought that concludes them, and the answer. `misled`: the first move that is wrong, if one is."""

    moves: tuple[Move, ...]
    conclusion: str
    answer: str
    misled: int | None = None


@dataclasses.dataclass(frozen=True)
class Problem:
    """A question with its right course; one that sees something wrong, and one that sees right and concludes wrong."""

    task_type: str
    kind: str
    question: str
    answer_type: str
    choices: tuple[str, ...]
    right: Course
    misperceived: Course
    misjudged: Course


def name_of(shape: Shape) -> str:
    """Color and kind, such as `red circle`: no two shapes of a scene share it."""
    return f"{shape.color} {shape.kind}"


# object_counting ------------------------------------------------------------------------------------------------------
def counting(scene: Scene, draw: np.random.Generator) -> Problem | None:
    """How many shapes of a kind, of a color, or in all: each is segmented. The perceptual trap skips the last."""
    kind = _pick(draw, ("count_kind", "count_color", "count_all"))
    groups: dict[str, list[int]] = {}
    for i, shape in enumerate(scene.shapes):
        word = {"count_kind": shape.kind, "count_color": shape.color, "count_all": ""}[kind]
        groups.setdefault(word, []).append(i)
    # Most shapes are alone of their kind: the largest group is asked for twice as often as any.
    size = max(len(group) for group in groups.values()) if draw.integers(3) else 1
    word = _pick(draw, [word for word, group in groups.items() if len(group) == size] or list(groups))
    size = len(groups[word])
    asked = {"count_kind": _plural(word), "count_color": f"{word} shapes", "count_all": "shapes"}[kind]
    moves = tuple(
        Move("SEGMENT_OBJECT_AT", i, f"I look for {asked}." if n == 0 else "") for n, i in enumerate(groups[word])
    )
    seen = moves[:-1] if size > 1 else moves
    slips = [delta for delta in (-2, -1, 1, 2) if size + delta >= 0]
    wrong = size + slips[int(draw.integers(len(slips)))]
    missed = size - 1 if size > 1 else size + 1
    return Problem(
        "object_counting",
        kind,
        f"How many {asked} are there?",
        "numeric",
        (),
        Course(moves, f"That makes {size}.", str(size)),
        Course(seen, f"That makes {missed}.", str(missed), misled=len(seen)),
        Course(moves, f"That makes {wrong}.", str(wrong), misled=len(moves)),
    )


# geometric_comparison -------------------------------------------------------------------------------------------------
def comparison(scene: Scene, draw: np.random.Generator) -> Problem | None:
    """Which of two shapes has the larger area (both measured), or which is the largest of all (all segmented)."""
    areas = [int(shape_mask(s.kind, s.box[2] - s.box[0]).sum()) for s in scene.shapes]
    count = len(areas) if len(areas) <= 4 and draw.integers(3) == 0 else 2
    chosen = _choose_apart(draw, areas, count)
    if chosen is None:
        return None
    ranked = sorted(chosen, key=lambda i: -areas[i])
    names = tuple(name_of(scene.shapes[i]) for i in chosen)
    best, second = (name_of(scene.shapes[i]) for i in ranked[:2])
    if count == 2:
        kind, question = "larger_of_two", f"Which is larger, the {names[0]} or the {names[1]}?"
        moves = tuple(
            move
            for n, i in enumerate(chosen)
            for move in (
                Move("SEGMENT_OBJECT_AT", i, "I measure both." if n == 0 else "Now the other."),
                Move("GET_PROPERTIES", i),
            )
        )
    else:
        kind, question = "largest", "Which shape is the largest?"
        moves = tuple(Move("SEGMENT_OBJECT_AT", i, "I measure each." if n == 0 else "") for n, i in enumerate(chosen))
    skipped = tuple(m for m in moves if m.target != ranked[0])
    return Problem(
        "geometric_comparison",
        kind,
        question,
        "choice",
        names,
        Course(moves, f"The {best} has more pixels.", best),
        Course(skipped, f"The {second} has more pixels.", second, misled=len(skipped)),
        Course(moves, f"The {second} has more pixels.", second, misled=len(moves)),
    )


# text_extraction ------------------------------------------------------------------------------------------------------
def text(scene: Scene, draw: np.random.Generator) -> Problem | None:
    """A digit or a letter code inside a shape, or the sum of two digits. The traps mutate one character."""
    digits = [i for i, s in enumerate(scene.shapes) if s.content.kind == "digit"]
    if len(digits) >= 2 and draw.integers(3) == 0:
        return _sum_of_digits(scene, draw, digits)
    i = int(draw.integers(len(scene.shapes)))
    shape = scene.shapes[i]
    kind, value = shape.content.kind, shape.content.value
    moves = [Move("ZOOM_IN", i, "I need a closer look.")]
    if kind == "text":
        moves.append(Move("READ_TEXT", i))
    misread, other = (_mutate(draw, value, kind) for _ in range(2))
    asked = "Which digit" if kind == "digit" else "What text"
    return Problem(
        "text_extraction",
        kind,
        f"{asked} is inside the {name_of(shape)}?",
        "exact",
        (),
        Course(tuple(moves), f"It says {value}.", value),
        Course(tuple(moves), f"It says {misread}.", misread, misled=len(moves)),
        Course(tuple(moves), f"It says {value}, so {other}.", other, misled=len(moves)),
    )


def _sum_of_digits(scene: Scene, draw: np.random.Generator, digits: Sequence[int]) -> Problem:
    a, b = (digits[int(k)] for k in draw.permutation(len(digits))[:2])
    first, second = scene.shapes[a], scene.shapes[b]
    x, y = int(first.content.value), int(second.content.value)
    misread = int(_mutate(draw, str(y), "digit"))
    wrong = x + y + (1 if x + y == 0 or draw.integers(2) else -1)
    moves = (Move("ZOOM_IN", a, "I need a closer look."), Move("ZOOM_IN", b, f"It says {x}."))
    return Problem(
        "text_extraction",
        "sum_of_digits",
        f"What is the sum of the digits inside the {name_of(first)} and the {name_of(second)}?",
        "numeric",
        (),
        Course(moves, f"It says {y}. {x} plus {y} is {x + y}.", str(x + y)),
        Course(moves, f"It says {misread}. {x} plus {misread} is {x + misread}.", str(x + misread), misled=2),
        Course(moves, f"It says {y}. {x} plus {y} is {wrong}.", str(wrong), misled=2),
    )


# spatial_reasoning ----------------------------------------------------------------------------------------------------
def spatial(scene: Scene, draw: np.random.Generator) -> Problem | None:
    """On which side of a shape another one lies, or which shape lies at one edge of all."""
    middles = [_middle(s) for s in scene.shapes]
    if draw.integers(2):
        return _extreme(scene, draw, middles)
    pairs = []
    for a, b in itertools.permutations(range(len(middles)), 2):
        dx, dy = (middles[a][k] - middles[b][k] for k in (0, 1))
        if max(abs(dx), abs(dy)) * 100 >= 2 * MARGIN * min(abs(dx), abs(dy)):
            pairs.append((a, b))
    if not pairs:
        return None
    a, b = _pick(draw, pairs)
    side = _side(middles[a], middles[b])
    opposite = _opposite(side)
    first, second = name_of(scene.shapes[a]), name_of(scene.shapes[b])
    moves = (Move("SEGMENT_OBJECT_AT", a, "I find both."), Move("SEGMENT_OBJECT_AT", b))
    others = [i for i in range(len(middles)) if i not in (a, b)]
    mistaken = max(others, key=lambda i: (_side(middles[i], middles[b]) != side, i))
    seen = _side(middles[mistaken], middles[b])
    seen = seen if seen != side else opposite
    return Problem(
        "spatial_reasoning",
        "side",
        f"Seen from the {second}, where is the {first}?",
        "choice",
        tuple(SIDES),
        Course(moves, f"The {first} is {_where(side)} the {second}.", side),
        Course(
            (dataclasses.replace(moves[0], target=mistaken), moves[1]),
            f"The {first} is {_where(seen)} the {second}.",
            seen,
            misled=0,
        ),
        Course(moves, f"The {first} is {_where(opposite)} the {second}.", opposite, misled=2),
    )


def _extreme(scene: Scene, draw: np.random.Generator, middles: Sequence[tuple[int, int]]) -> Problem | None:
    side = _pick(draw, list(SIDES))
    axis = SIDES[side]
    order = sorted(range(len(middles)), key=lambda i: -(middles[i][0] * axis[0] + middles[i][1] * axis[1]))
    gap = abs(sum((middles[order[0]][k] - middles[order[1]][k]) * axis[k] for k in (0, 1)))
    if gap * 20 < min(scene.height, scene.width):
        return None
    names = tuple(name_of(s) for s in scene.shapes)
    moves = tuple(
        Move("SEGMENT_OBJECT_AT", i, "I find each." if n == 0 else "") for n, i in enumerate(range(len(names)))
    )
    skipped = tuple(m for m in moves if m.target != order[0])
    best, second, last = names[order[0]], names[order[1]], names[order[-1]]
    return Problem(
        "spatial_reasoning",
        "extreme",
        f"Which shape is {EXTREMES[side]}?",
        "choice",
        names,
        Course(moves, f"The {best} is {EXTREMES[side]}.", best),
        Course(skipped, f"The {second} is {EXTREMES[side]}.", second, misled=len(skipped)),
        Course(moves, f"The {last} is {EXTREMES[side]}.", last, misled=len(moves)),
    )


# temporal_tracking ----------------------------------------------------------------------------------------------------
def tracking(film: Film, draw: np.random.Generator) -> Problem | None:
    """Where a shape moves, whether it moves, or which of two moves farther."""
    shapes, motions = film.scene.shapes, film.motions
    moving = [i for i, m in enumerate(motions) if m.step_px]
    if not moving:
        return None
    farther = len(moving) == 2 and max(motions[i].step_px for i in moving) * 100 >= MARGIN * min(
        motions[i].step_px for i in moving
    )
    if farther and draw.integers(2):
        return _farther(film, draw, moving)
    i = moving[int(draw.integers(len(moving)))] if draw.integers(4) else int(draw.integers(len(shapes)))
    name, direction = name_of(shapes[i]), motions[i].direction
    ways = (*DIRECTIONS, "none")
    other = next((j for j in range(len(shapes)) if motions[j].direction != direction), None)
    if other is None:
        return None
    moves = (Move("SEGMENT_OBJECT_AT", i, f"I find the {name}."), Move("TRACK_OBJECT", i))
    mistaken = tuple(dataclasses.replace(m, target=other) for m in moves)
    seen, wrong = motions[other].direction, _pick(draw, [way for way in ways if way != direction])
    return Problem(
        "temporal_tracking",
        "direction",
        f"In which direction does the {name} move?",
        "choice",
        ways,
        Course(moves, _motion_words(direction), direction),
        Course(mistaken, _motion_words(seen), seen, misled=0),
        Course(moves, _motion_words(wrong), wrong, misled=2),
    )


def _farther(film: Film, draw: np.random.Generator, moving: Sequence[int]) -> Problem:
    pair = [moving[int(k)] for k in draw.permutation(2)]
    names = tuple(name_of(film.scene.shapes[i]) for i in pair)
    steps = [film.motions[i].step_px for i in pair]
    best, worst = names if steps[0] > steps[1] else names[::-1]
    moves = tuple(
        move
        for n, i in enumerate(pair)
        for move in (
            Move("SEGMENT_OBJECT_AT", i, "I follow both." if n == 0 else "Now the other."),
            Move("TRACK_OBJECT", i),
        )
    )
    skipped = tuple(m for m in moves if name_of(film.scene.shapes[m.target]) != best)
    return Problem(
        "temporal_tracking",
        "farther",
        f"Which moves farther, the {names[0]} or the {names[1]}?",
        "choice",
        names,
        Course(moves, f"The {best} moves farther.", best),
        Course(skipped, f"The {worst} moves farther.", worst, misled=len(skipped)),
        Course(moves, f"The {worst} moves farther.", worst, misled=len(moves)),
    )


# attribute_recognition ------------------------------------------------------------------------------------------------
def attribute(scene: Scene, draw: np.random.Generator) -> Problem | None:
    """The color of the only shape of its kind, or the shape of the only thing of its color."""
    kinds, colors = ([getattr(s, name) for s in scene.shapes] for name in ("kind", "color"))
    asked = [("color", i) for i, s in enumerate(scene.shapes) if kinds.count(s.kind) == 1]
    asked += [("shape", i) for i, s in enumerate(scene.shapes) if colors.count(s.color) == 1]
    what, i = _pick(draw, asked)
    shape = scene.shapes[i]
    value, choices = (shape.color, tuple(COLORS)) if what == "color" else (shape.kind, SHAPES)
    others = [j for j, s in enumerate(scene.shapes) if (s.color if what == "color" else s.kind) != value]
    if not others:
        return None
    j = others[int(draw.integers(len(others)))]
    seen = scene.shapes[j].color if what == "color" else scene.shapes[j].kind
    wrong = _pick(draw, [choice for choice in choices if choice != value])
    thought = f"I find the {shape.kind}." if what == "color" else f"I find what is {shape.color}."
    moves: tuple[Move, ...] = (Move("SEGMENT_OBJECT_AT", i, thought), Move("GET_PROPERTIES", i))
    if draw.integers(3) == 0:
        moves = (Move("GET_PROPERTIES", i, thought),)
    return Problem(
        "attribute_recognition",
        what,
        f"What color is the {shape.kind}?" if what == "color" else f"What shape is {shape.color}?",
        "choice",
        choices,
        Course(moves, f"It is {value}.", value),
        Course(tuple(dataclasses.replace(m, target=j) for m in moves), f"It is {seen}.", seen, misled=0),
        Course(moves, f"It is {wrong}.", wrong, misled=len(moves)),
    )


# relationship_detection -----------------------------------------------------------------------------------------------
def relationship(scene: Scene, draw: np.random.Generator) -> Problem | None:
    """Which shape is closest to another, or whether two shapes hold the same sort of thing."""
    if draw.integers(2):
        return _same_sort(scene, draw)
    middles = [_middle(s) for s in scene.shapes]
    a = int(draw.integers(len(middles)))
    distance = [max(1, sum((p - q) ** 2 for p, q in zip(m, middles[a], strict=True))) for m in middles]
    order = sorted((i for i in range(len(middles)) if i != a), key=lambda i: distance[i])
    if distance[order[1]] * 100 * 100 < MARGIN * MARGIN * distance[order[0]]:
        return None
    names = [name_of(s) for s in scene.shapes]
    others = [i for i in range(len(middles)) if i != a]
    moves = (
        Move("SEGMENT_OBJECT_AT", a, f"I find the {names[a]}."),
        *(Move("SEGMENT_OBJECT_AT", i, "Now the others." if n == 0 else "") for n, i in enumerate(others)),
    )
    skipped = tuple(m for m in moves if m.target != order[0])
    return Problem(
        "relationship_detection",
        "closest",
        f"Which shape is closest to the {names[a]}?",
        "choice",
        tuple(names[i] for i in others),
        Course(moves, f"The {names[order[0]]} is closest.", names[order[0]]),
        Course(skipped, f"The {names[order[1]]} is closest.", names[order[1]], misled=len(skipped)),
        Course(moves, f"The {names[order[-1]]} is closest.", names[order[-1]], misled=len(moves)),
    )


def _same_sort(scene: Scene, draw: np.random.Generator) -> Problem:
    sorts = [s.content.kind for s in scene.shapes]
    alike = bool(draw.integers(2)) and max(sorts.count("digit"), sorts.count("text")) >= 2
    pairs = [p for p in itertools.combinations(range(len(sorts)), 2) if (sorts[p[0]] == sorts[p[1]]) == alike]
    a, b = _pick(draw, pairs)
    words = {"digit": "a digit", "text": "letters"}
    right, wrong = YES_NO if alike else YES_NO[::-1]
    misread = "text" if sorts[b] == "digit" else "digit"
    first, second = name_of(scene.shapes[a]), name_of(scene.shapes[b])
    moves = (Move("ZOOM_IN", a, "I look at both."), Move("ZOOM_IN", b, f"It holds {words[sorts[a]]}."))
    return Problem(
        "relationship_detection",
        "same_sort",
        f"Do the {first} and the {second} both hold a digit or both hold letters?",
        "choice",
        YES_NO,
        Course(moves, f"It holds {words[sorts[b]]}.", right),
        Course(moves, f"It holds {words[misread]}.", wrong, misled=2),
        Course(moves, f"It holds {words[sorts[b]]}.", wrong, misled=2),
    )


SCENE_BUILDERS: dict[str, Callable[[Scene, np.random.Generator], Problem | None]] = {
    "object_counting": counting,
    "geometric_comparison": comparison,
    "text_extraction": text,
    "spatial_reasoning": spatial,
    "attribute_recognition": attribute,
    "relationship_detection": relationship,
}
FILM_BUILDERS: dict[str, Callable[[Film, np.random.Generator], Problem | None]] = {"temporal_tracking": tracking}


def _pick(draw: np.random.Generator, items: Sequence[T]) -> T:
    return items[int(draw.integers(len(items)))]


def _choose_apart(draw: np.random.Generator, sizes: Sequence[int], count: int) -> list[int] | None:
    """`count` numbers of `sizes` in a drawn order, the largest of which exceeds the next by the margin."""
    for combination in [draw.permutation(len(sizes))[:count] for _ in range(8)]:
        chosen = [int(i) for i in combination]
        first, second = sorted((sizes[i] for i in chosen), reverse=True)[:2]
        if first * 100 >= second * MARGIN:
            return chosen
    return None


def _mutate(draw: np.random.Generator, value: str, kind: str) -> str:
    """`value` with one character replaced by another of its sort."""
    at = int(draw.integers(len(value)))
    alphabet = [c for c in ("0123456789" if kind == "digit" else LETTERS) if c != value[at]]
    return value[:at] + _pick(draw, alphabet) + value[at + 1 :]


def _middle(shape: Shape) -> tuple[int, int]:
    """Twice the middle of a shape's box, so that it is whole."""
    x1, y1, x2, y2 = shape.box
    return x1 + x2, y1 + y2


def _side(a: tuple[int, int], b: tuple[int, int]) -> str:
    """On which side of `b` point `a` lies, along the axis of the larger distance."""
    dx, dy = a[0] - b[0], a[1] - b[1]
    if abs(dx) >= abs(dy):
        return "right" if dx > 0 else "left"
    return "below" if dy > 0 else "above"


def _opposite(side: str) -> str:
    dx, dy = SIDES[side]
    return next(name for name, way in SIDES.items() if way == (-dx, -dy))


def _where(side: str) -> str:
    return f"{side} of" if side in ("left", "right") else side


def _motion_words(direction: str) -> str:
    return "It stands still." if direction == "none" else f"It moves {direction}."


def _plural(kind: str) -> str:
    return kind + ("es" if kind.endswith("s") else "s")
