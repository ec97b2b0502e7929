"""The end of an import: the table, and samples as a policy sees them, on the console and as a page."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from pixelis_jax.cota.preview import Preview, gold_box
from pixelis_jax.data.cota import Sample, Step
from pixelis_jax.data.importers.summary import Answers, Drawn, look_of
from pixelis_jax.types import UserError
from tests.cota.test_import import command, write


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    Image.fromarray(np.zeros((100, 200, 3), np.uint8)).save(folder / "a.png")
    return folder


def sample(**changes):
    fields = {"task_type": "object_counting", "question": "What?", "image_paths": ("a.png",), "trajectory": ()}
    return Sample(**{**fields, "answer": "7", "ground_truth": "7", **changes})


def records():
    texts = ["red", "blue", "red", "a dog", "4 cats", "yes", "x", "1 2 3 4 5"]
    made = [{"question": f"What is {i}?", "image": "a.png", "answer": text} for i, text in enumerate(texts)]
    made += [{"question": "How many?", "image": "a.png", "answer": 3}]
    made += [{"question": "Where?", "image": "a.png", "answer": [50, 25, 100, 75]}]
    made += [{"question": "Which?", "image": ["a.png", "a.png"], "options": ["x", "y"], "answer": "y"}]
    talk = [
        *(
            {"from": "human", "value": "<image>Look <there>"},
            {"from": "gpt", "value": "<tool_call>" + CALL + "</tool_call>"},
        ),
        *({"from": "tool", "value": "<image>"}, {"from": "gpt", "value": "<think>A cup.</think><answer>cup</answer>"}),
    ]
    return [*made, {"conversations": talk, "image": "a.png"}, {"question": "Which?", "image": "a.png"}, {"a": 1}]


CALL = json.dumps({"name": "crop_image_normalized", "arguments": {"bbox_2d": [0.25, 0.25, 0.5, 0.75]}})


def test_the_report_ends_with_a_table(data, tmp_path, capsys):
    path = write(data / "x.jsonl", records())
    assert command(f"--input={path}", f"--out={tmp_path / 'out'}", "--max_pixels=12544") == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index("read: 12 of 14 records, 12 samples") :]
    seen = "pictures within 3136 to 12544 px, sides multiples of 28"
    end = table.index(f"3 samples as a policy sees them ({seen}; --preview=N writes a page):")
    assert table[1:4] == [
        "refused: 2 of 14 records",
        "       1  answer: missing or empty; a question needs one, or --unanswered",
        "       1  record: has the fields of no format that is known; its question must be in question, its answer in"
        " answer",
    ]
    assert sorted(table[5 : end - 3]) == [
        "       1  choice: B",
        "       1  exact, numbers in a row: 1 2 3 4 5",
        "       1  exact, one character: x",
        "       1  exact, several words: a dog",
        "       1  exact, with digits: 4 cats",
        "       1  exact, yes or no: yes",
        "       1  iou: [50, 25, 100, 75]",
        "       1  numeric: 3",
        "       4  exact, one word: red | blue | cup",
    ]
    assert table[end - 3 : end] == ["pictures of a sample:", "      11  with 1", "       1  with 2"]
    shown = table[end + 1 :]
    assert sum("<picture 1: 200 x 100, seen as 140 x 56>" in line for line in shown) == 3
    assert sum(line.startswith("    -> ") for line in shown) == 3
    told = json.loads((tmp_path / "out" / "import.json").read_text())
    assert told["answers"]["exact, one word"] == [4, "red", "blue", "cup"]


def test_the_page_shows_samples_with_their_calls_and_boxes(data, tmp_path, capsys):
    path = write(data / "x.jsonl", records())
    assert command(f"--input={path}", f"--out={tmp_path / 'out'}", "--preview=50") == 0
    page = (tmp_path / "out" / "preview.html").read_text()
    assert "preview.html: 12 samples with their pictures" in capsys.readouterr().out
    assert page.count("<section") == 12 and page.count("<img") == 12 + 1 + 1  # one with two, one with a zoom
    assert all(source.startswith("data:image/") for source in re.findall(r'src="([^"]*)"', page))
    assert "Look &lt;there&gt;" in page and "Think in &lt;think&gt;" in page
    boxes = set(re.findall(r'class="(box[^"]*)" style="([^"]*)"', page))
    where = "left:25.00%;top:25.00%;width:25.00%;height:50.00%"
    assert boxes == {("box", where), ("box right", where)}
    assert command(f"--input={path}", f"--out={tmp_path / 'out'}", "--preview=2") == 0
    assert (tmp_path / "out" / "preview.html").read_text().count("<section") == 2
    assert command(f"--input={path}", f"--out={tmp_path / 'out'}") == 0
    assert not (tmp_path / "out" / "preview.html").exists()  # it would be of another import


def test_samples_that_can_not_be_shown_say_why(data):
    view = Preview(data, min_pixels=3136, max_pixels=12544, factor=28)
    missing = sample(image_paths=("none.png",))
    assert "there is no such file" in view.section(missing) and "no such file" in "".join(view.lines(missing))
    far = sample(trajectory=(Step("ZOOM_IN", {"bbox_2d": [500, 500, 600, 600]}),))
    assert "ZOOM_IN fails where it should not" in view.section(far)
    Image.new("RGB", (3000, 3)).save(data / "thin.png")
    assert "aspect ratio above 200" in view.section(sample(image_paths=("thin.png",)))
    with pytest.raises(UserError, match="--min_pixels=9 and --max_pixels=99"):
        Preview(data, min_pixels=9, max_pixels=99, factor=28)


def test_a_gold_box_is_placed_by_its_frame():
    """Of 200 x 100 px: from (50, 25) to (100, 75)."""
    region = (0.375, 0.5, 0.25, 0.5)
    for answer, metadata in (
        ("[50, 25, 100, 75]", {}),
        ("[0.25, 0.25, 0.5, 0.75]", {"answer_frame": "relative"}),
        ("[250, 250, 500, 750]", {"answer_frame": "norm1000"}),
        ("[100, 50, 200, 150]", {"answer_frame": [200, 400]}),
        ("[100, 50, 200, 150]", {"seen_size": [200, 400]}),
    ):
        assert gold_box(sample(answer_type="iou", ground_truth=answer, metadata=metadata), [(100, 200)]) == (1, region)
    assert gold_box(sample(), [(100, 200)]) is None
    two = sample(answer_type="iou", ground_truth="[0, 0, 5, 5]", metadata={"target_image": 2})
    assert gold_box(two, [(100, 200), (10, 10)]) == (2, (0.25, 0.25, 0.5, 0.5)) and gold_box(two, [(9, 9)]) is None


@pytest.mark.parametrize(
    ("answer", "look"),
    [
        *[("red", "one word"), ("a dog", "several words"), ("4 cats", "with digits"), ("x", "one character")],
        *[("No", "yes or no"), ("1, 2, 3, 4", "numbers in a row"), ("It is at [10, 20, 60.5, 70].", "a box in a text")],
        *[("[1, 2, 3, 4][5, 6, 7, 8]", "a box in a text"), (r"\frac{x}{2}", "formula"), ("word " * 40, "long")],
    ],
)
def test_texts_are_told_apart_by_their_look(answer, look):
    assert look_of(answer) == look
    counted = Answers()
    for _ in range(5):
        counted.add(sample(ground_truth=answer))
    assert counted.counts == {f"exact, {look}": 5} and counted.examples[f"exact, {look}"] == [answer]


def test_which_samples_are_drawn_does_not_depend_on_their_order():
    samples = [sample(question=f"What is {i}?") for i in range(50)]
    one, other = Drawn(5), Drawn(5)
    for i in range(50):
        one.add(samples[i])
        other.add(samples[49 - i])
    assert one.samples == other.samples and len({s.sample_id for s in one.samples}) == 5
