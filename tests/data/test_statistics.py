import io
import subprocess
import sys

import pytest
from PIL import Image

from pixelis_jax.data import cota, statistics
from pixelis_jax.data.cota import Sample, Step
from pixelis_jax.types import UserError

BOX = {"bbox_2d": [1, 2, 3, 4]}
THINK, ZOOM, READ = Step("THINK", thought="So."), Step("ZOOM_IN", BOX), Step("READ_TEXT", BOX, loss=False)
SAMPLES = [
    Sample("object_counting", "How many?", ("a",), (THINK, ZOOM, THINK, READ, ZOOM), "3", "3", difficulty_score=0.25),
    Sample("object_counting", "How many now?", ("a.png", "b.png"), (ZOOM, ZOOM), "3", "4", sample_type="trap_logical"),
    Sample(
        *("text_extraction", "?", ("1", "2", "3"), (), "7", "7"),
        is_video=True,
        answer_type="anls",
        difficulty_score=0.5,
    ),
]


def test_counts_by_hand():
    got = statistics.gather(SAMPLES)
    assert got.samples == 3 and got.videos == 1
    assert got.types == {
        ("object_counting", "positive"): 1,
        ("object_counting", "trap_logical"): 1,
        ("text_extraction", "positive"): 1,
    }
    assert got.steps == {5: 1, 2: 1, 0: 1}
    assert (got.thoughts, got.untrained) == (2, 1)
    assert got.operations == {"ZOOM_IN": 4, "READ_TEXT": 1}
    assert got.pairs == {("ZOOM_IN", "READ_TEXT"): 1, ("READ_TEXT", "ZOOM_IN"): 1, ("ZOOM_IN", "ZOOM_IN"): 1}
    assert got.answer_types == {"exact": 2, "anls": 1}
    assert got.images == {1: 1, 2: 1, 3: 1}
    assert list(got.scores) == [0.25, 0.5]


def test_the_section_says_it():
    text = "\n".join(statistics.section(statistics.gather(SAMPLES), ["plot_steps.png"]))
    for line in (
        "3 samples, 1 of them about videos.",
        "| task type | positive | trap_logical | all |",
        "| object_counting | 1 | 1 | 2 |",
        "| 5 | 1 | 33.3 % |",
        "2 THINK steps, 5 operations, 1 steps that are seen and not trained.",
        "| ZOOM_IN | 4 | 80.0 % |",
        "| operation, then | ZOOM_IN | READ_TEXT |",
        "| ZOOM_IN | 1 | 1 |",
        "| READ_TEXT | 1 | 0 |",
        "| anls | 1 | 33.3 % |",
        "Difficulty: lowest 0.250, mean 0.375, highest 0.500 of 2 scored samples.",
        "![Steps a sample](plot_steps.png)",
    ):
        assert line in text.splitlines(), line


def test_many_numbers_of_images_are_counted_together():
    many = [Sample("temporal_tracking", "?", ("f",) * n, (), "1", "1", is_video=True) for n in range(1, 31)]
    text = statistics.section(statistics.gather(many), [])
    assert "| 20 | 1 | 3.3 % |" in text and "| 21 and more | 10 | 33.3 % |" in text


def test_nothing_to_count():
    empty = statistics.gather([])
    assert statistics.section(empty, []) == ["There are no samples.", ""] and statistics.plots(empty) == {}


def test_a_sample_that_nobody_validated_is_counted():
    odd = Sample("poetry", "?", ("a",), (Step("FLY"), Step("ZOOM_IN")), "x", "x", sample_type="good")
    text = statistics.section(statistics.gather([odd]), statistics.plots(statistics.gather([odd])))
    assert "| poetry | 1 | 1 |" in text and "| FLY | 1 | 50.0 % |" in text
    assert "Difficulty: no sample has a score." in text


def test_pictures_open_and_are_the_same_each_time():
    made = statistics.plots(statistics.gather(SAMPLES), marks={"p33": 0.3, "p66": 0.4})
    assert list(made) == list(statistics.PLOTS)
    for name, png in made.items():
        with Image.open(io.BytesIO(png)) as image:
            assert image.format == "PNG" and len(image.convert("RGB").getcolors(2**24)) > 2, name
    assert made == statistics.plots(statistics.gather(SAMPLES), marks={"p33": 0.3, "p66": 0.4})
    assert made["plot_difficulty.png"] != statistics.plots(statistics.gather(SAMPLES))["plot_difficulty.png"]


def test_the_users_settings_of_matplotlib_stay_theirs():
    import matplotlib

    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30}):
        drawn = statistics.plots(statistics.gather(SAMPLES))["plot_steps.png"]
        assert matplotlib.rcParams["font.size"] == 30
    assert drawn == statistics.plots(statistics.gather(SAMPLES))["plot_steps.png"]


def test_a_report_of_a_file_and_another_over_it(tmp_path):
    source, out = tmp_path / "cota.jsonl", tmp_path / "out"
    cota.write_jsonl(source, SAMPLES)
    with source.open("a") as file:
        file.write("{\n")
    assert statistics.report(source, out).samples == 3
    assert {file.name for file in out.iterdir()} == {"report.md", *statistics.PLOTS}
    text = (out / "report.md").read_text()
    assert "1 lines could not be read" in text and all(f"]({name})" in text for name in statistics.PLOTS)
    source.write_text("")
    statistics.report(source, out)
    assert [file.name for file in out.iterdir()] == ["report.md"]
    assert "There are no samples." in (out / "report.md").read_text()
    with pytest.raises(UserError, match="there is no such file"):
        statistics.report(tmp_path / "nothing", out)


def test_matplotlib_is_loaded_when_something_is_drawn():
    program = "import sys, pixelis_jax.data.statistics; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
