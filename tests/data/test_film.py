import numpy as np

from pixelis_jax.data.pixelsearch.draw import render
from pixelis_jax.data.pixelsearch.film import DIRECTIONS, FRAMES, make_film, render_film
from pixelis_jax.data.pixelsearch.scene import make_scene


def test_a_film_is_the_same_at_the_same_address():
    assert make_film(3, "train", 5) == make_film(3, "train", 5) != make_film(3, "train", 6)
    one, two = (render_film(make_film(3, "train", 5)) for _ in range(2))
    assert len(one) == FRAMES and all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_the_first_frame_is_the_scene():
    film = make_film(0, "train", 3)
    assert np.array_equal(render_film(film)[0], render(film.scene))
    assert min(film.scene.height, film.scene.width) == 252


def test_shapes_move_straight_stay_inside_and_never_touch():
    moving = set()
    for index in range(60):
        film = make_film(1, "train", index)
        before = {s.color + s.kind: s.box for s in film.scene.shapes}
        motion = {s.color + s.kind: m for s, m in zip(film.scene.shapes, film.motions, strict=True)}
        for frame in range(FRAMES):
            shapes = film.shapes_at(frame)
            for shape in shapes:
                name = shape.color + shape.kind
                dx, dy = DIRECTIONS.get(motion[name].direction, (0, 0))
                step = frame * motion[name].step_px
                assert shape.box[:2] == (before[name][0] + dx * step, before[name][1] + dy * step)
                assert min(shape.box) >= 0 and shape.box[2] <= film.scene.width and shape.box[3] <= film.scene.height
            for a in shapes:
                for b in shapes:
                    apart = a.box[2] <= b.box[0] or b.box[2] <= a.box[0] or a.box[3] <= b.box[1] or b.box[3] <= a.box[1]
                    assert a is b or apart, (index, frame)
        moving.add(sum(m.step_px > 0 for m in film.motions))
    assert {1, 2} <= moving


def test_scenes_of_the_usual_size_are_as_before():
    assert make_scene(0, "train", 0).height >= 512 and make_scene(0, "train", 0, short_px=252) != make_scene(
        0, "train", 0
    )
