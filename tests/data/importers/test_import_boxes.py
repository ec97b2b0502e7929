"""Four numbers in an answer: a box in a frame and an order that record, question, user or file say, or no box."""

import pytest
from PIL import Image

from pixelis_jax.data.importers import box_answers, box_habits, box_words

BOX = {"image": "a.png", "question": "Where is the cup?", "answer": [10, 20, 60, 70]}  # a.png is 200 x 100
CORNERS = "[10, 20, 60, 70]"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which years are shown?", [1990, 1995, 2000, 2010]),
        ("Which numbers are written there?", "[1, 2, 3, 4]"),
        ("What are the values on the axis?", "(10, 20, 30, 40)"),
        ("What are the ages of the children?", [3, 5, 7, 9]),
        ("What is the matrix?", [[1, 2], [3, 4]]),
        ("图中有哪些年份？", [1990, 1995, 2000, 2010]),
    ],
)
def test_a_list_of_numbers_is_no_box(bring, score, question, answer):
    (sample,), _, _ = bring(BOX | {"question": question, "answer": answer})
    assert sample.answer_type == "exact" and "answer_frame" not in sample.metadata
    assert score(sample, sample.answer) == 1


@pytest.mark.parametrize(
    "question", ["Where is the label?", "Give the box of the number 5.", "red cup", "Detect the page", "杯子在哪里？"]
)
def test_four_rising_numbers_for_a_place_are_a_box(bring, question):
    (sample,), _, _ = bring(BOX | {"question": question})
    assert (sample.answer, sample.answer_type, sample.metadata) == (CORNERS, "iou", {"answer_frame": "pixels"})


ORDERED = [
    ("Where is it? Give [x, y, width, height].", [10, 20, 50, 50], "Where is it? Give [x1, y1, x2, y2]."),
    ("Locate it in the format [y1, x1, y2, x2].", [20, 10, 70, 60], "Locate it in the format [x1, y1, x2, y2]."),
    ("Where is it (xywh)?", [10, 20, 50, 50], "Where is it ([x1, y1, x2, y2])?"),
    ("Where? <ymin>, <xmin>, <ymax>, <xmax>", [20, 10, 70, 60], "Where? [x1, y1, x2, y2]"),
    ("Box (cx, cy, w, h)?", [35, 45, 50, 50], "Box [x1, y1, x2, y2]?"),
    ("Locate it: left, top, width and height.", [10, 20, 50, 50], "Locate it: [x1, y1, x2, y2]."),
    ("Locate it in COCO format.", [10, 20, 50, 50], "Locate it in [x1, y1, x2, y2]."),
    ("Where? Give x_min, x_max, y_min, y_max.", [10, 60, 20, 70], "Where? Give [x1, y1, x2, y2]."),
    ("Where? Give (x1, y1), (x2, y2).", [10, 20, 60, 70], "Where? Give (x1, y1), (x2, y2)."),
    ("Give [x_min, y_min, width, height].", [10, 20, 50, 50], "Give [x1, y1, x2, y2]."),
    ("Give the top-left corner and the size.", [10, 20, 50, 50], "Give [x1, y1, x2, y2]."),
]


@pytest.mark.parametrize(("question", "answer", "asked"), ORDERED)
def test_the_order_that_a_question_asks_for(bring, question, answer, asked):
    (sample,), _, job = bring(BOX | {"question": question, "answer": answer})
    assert (sample.answer, sample.answer_type, sample.question) == (CORNERS, "iou", asked)
    moved = [note for note in job.counts.notes if note.endswith("made x1, y1, x2, y2")]
    assert len(moved) == (question != asked)


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("xywh", [10, 20, 50, 50]),
        ("coco", [10, 20, 50, 50]),
        ("ltwh", [10, 20, 50, 50]),
        ("yxyx", [20, 10, 70, 60]),
        ("cxcywh", [35, 45, 50, 50]),
        ("pascal_voc", [10, 20, 60, 70]),
        ("x, y, w, h", [10, 20, 50, 50]),
        ("[ymin, xmin, ymax, xmax]", "[20, 10, 70, 60]"),
    ],
)
def test_the_format_that_a_record_names(bring, word, answer):
    (one, other), _, _ = bring(*(BOX | {"id": i, "answer": answer} | more for i, more in enumerate((
        {"bbox_format": word}, {"metadata": {"box_format": word}}))))  # fmt: skip
    assert one.answer == other.answer == CORNERS and one.answer_type == "iou"


def test_yolo_numbers_are_shares(bring):
    (sample,), _, _ = bring(BOX | {"bbox_format": "yolo", "answer": [0.5, 0.5, 0.2, 0.4]})
    assert sample.answer == "[0.4, 0.3, 0.6, 0.7]" and sample.metadata == {"answer_frame": "relative"}


@pytest.mark.parametrize("answer", ["x=10, y=20, w=50, h=50", "x1: 10, y1: 20, x2: 60, y2: 70", "10, 20, 60, 70"])
def test_boxes_without_brackets_answer_questions_for_a_place(bring, score, answer):
    (sample, other), _, _ = bring(BOX | {"answer": answer}, BOX | {"question": "What comes next?", "answer": answer})
    assert (sample.answer_type, sample.answer, score(sample, "[10, 20, 60, 70]")) == ("iou", CORNERS, 1)
    assert (other.answer_type == "iou") == ("x" in answer)  # names of corners say it without a question


def test_names_of_numbers_come_before_a_format(bring):
    answer = {"x": 10, "y": 20, "width": 50, "height": 50}
    (sample,), _, _ = bring(BOX | {"bbox_format": "xywh", "answer": answer})
    assert sample.answer == CORNERS


WRONG = [10, 20, 5, 90], [150, 20, 40, 50]


@pytest.mark.parametrize("answer", WRONG)
def test_boxes_of_a_file_whose_numbers_do_not_rise_are_refused(bring, answer):
    rising = [BOX | {"id": i} for i in range(3)]
    samples, refused, _ = bring(*rising, BOX | {"answer": answer})
    assert samples == [] and len(refused) == 4 and all("say --box_format, or bbox_format" in line for line in refused)
    samples, refused, _ = bring(*rising, BOX | {"answer": [150, 20, 40, 50]}, box_format="xywh")
    assert refused == [] and [s.answer for s in samples] == ["[10, 20, 70, 90]"] * 3 + ["[150, 20, 190, 70]"]
    samples, refused, _ = bring(*rising, BOX | {"answer": answer}, box_format="xyxy")
    assert len(samples) == 3 and len(refused) == 1 and "no box as x1, y1, x2, y2" in refused[0]


def test_one_mistake_in_many_boxes_is_refused_alone(bring):
    samples, refused, _ = bring(*(BOX | {"id": i} for i in range(20)), BOX | {"answer": WRONG[1]})
    assert len(samples) == 20 and len(refused) == 1 and "no box as x1, y1, x2, y2" in refused[0]


def test_dialogues_count_for_a_file(bring):
    said = [{"from": "human", "value": "<image>Where is the cup?"}, {"from": "gpt", "value": "[150, 20, 40, 50]"}]
    samples, refused, _ = bring({"conversations": said, "image": "a.png"}, BOX)
    assert samples == [] and len(refused) == 2
    (one, _), _, _ = bring({"conversations": said, "image": "a.png"}, BOX, box_format="xywh")
    assert one.answer == "[150, 20, 190, 70]"


def test_what_says_what_it_is_does_not_decide_a_file():
    stated = [BOX | {"answer": WRONG[1], "bbox_format": "xywh"}, BOX | {"answer": WRONG[1], "question": ORDERED[0][0]}]
    others = [BOX | {"answer": [2010, 1990, 5, 3], "question": "Which years?"}, BOX | {"answer": "red"}, 3, None]
    assert box_habits.decided(iter([BOX, *stated, *others])) == box_habits.CORNERS
    assert box_habits.decided(iter([BOX, BOX | {"answer": WRONG[0]}])) == box_habits.OPEN


@pytest.mark.parametrize(
    ("question", "answer", "frame"),
    [
        ("Where? Coordinates normalized to 0-1000.", [100, 200, 600, 700], "norm1000"),
        ("Give the box in the range [0, 999].", [100, 200, 600, 700], "norm1000"),
        ("Give the box in thousandths.", [100, 200, 600, 700], "norm1000"),
        ("Where is the circle? Answer in 0-1000.", [100, 200, 600, 700], "norm1000"),
        ("Where? It was scaled to 1000x1000.", [100, 200, 600, 700], "norm1000"),
        ("定位杯子，坐标归一化到0-1000。", [100, 200, 600, 700], "norm1000"),
        ("Give the box normalized between 0 and 1.", [0.1, 0.2, 0.6, 0.7], "relative"),
        ("Where? Use normalized coordinates.", [0.1, 0.2, 0.6, 0.7], "relative"),
        ("Where? Use relative coordinates from 0.0 to 1.0", [0, 0, 1, 1], "relative"),
        ("Where is it, as percentages from 0 to 100%?", [10, 20, 60, 70], [100.0, 100.0]),
        ("The image is 1024x512. Where is the cup?", [100, 200, 600, 500], [512.0, 1024.0]),
        ("In this 400 x 200 px image, where is the cup?", [100, 20, 350, 150], [200.0, 400.0]),
        ("Where is it? Width: 400, height: 200.", [100, 20, 350, 150], [200.0, 400.0]),
        ("图片大小为400x200。杯子在哪里？", [100, 20, 350, 150], [200.0, 400.0]),
    ],
)
def test_the_frame_that_a_question_names(bring, score, question, answer, frame):
    (sample,), _, _ = bring(BOX | {"question": question, "answer": answer})
    assert sample.answer_type == "iou" and sample.metadata == {"answer_frame": frame}
    assert sample.question == f"{question}\n(Give the box in the coordinates that the tools use for this picture.)"


@pytest.mark.parametrize(
    "question", ["Where is it, in pixels?", "The image is 200x100. Where is it?", "The 100 x 200 image: where is it?"]
)
def test_pixels_of_the_file_need_no_more_words(bring, question):
    (sample,), _, _ = bring(BOX | {"question": question})
    assert sample.question == question and sample.metadata == {"answer_frame": "pixels"}


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (
            {"question": "Give normalized coordinates."},
            "says normalized, and not all numbers are from 0",
        ),
        ({"question": "Where is it, normalized to 0-1000?", "answer_frame": "relative"}, "names another frame"),
        ({"question": "Where (xywh)?", "bbox_format": "xyxy"}, "asks for another order of numbers than"),
        ({"question": "Where is it? [x1, x2, w, h]"}, "an order that is none of a box"),
        ({"question": "The image is 640x480. Where is it?"}, "another size and another shape"),
        ({"width": 640, "height": 480}, "width, height: the picture has another size and another shape"),
        ({"answer_frame": [0, 100]}, "answer_frame: unknown; use one of"),
        ({"answer": [10, 20, 10, 70], "answer_type": "bbox"}, "no box as x1, y1, x2, y2"),
        ({"answer": [[10, 20, 60, 70], [1, 2, 3, 4]]}, "several boxes, or a polygon"),
        ({"answer": "[[1, 2, 3, 4], [5, 6, 7, 8]]"}, "several boxes, or a polygon"),
        ({"question": "Give the polygon.", "answer": [[1, 2, 3, 4, 5, 6]]}, "several boxes, or a polygon"),
        ({"question": "Point to the cup.", "answer": [10, 20]}, "a point, which nothing here compares"),
        ({"question": "Click on it", "answer": "(10, 20)"}, "a point, which nothing here compares"),
    ],
)
def test_what_can_not_be_placed_is_refused(refusal, record, told):
    assert told in refusal(BOX | record)


def test_points_and_boxes_as_text_on_request(bring):
    samples, _, _ = bring(
        BOX | {"question": "Point to it.", "answer": "[10, 20]", "answer_type": "exact"},
        BOX | {"answer": "[[1, 2, 3, 4], [5, 6, 7, 8]]", "answer_type": "exact"},
        BOX | {"question": "Which two numbers?", "answer": [3, 5]},
    )
    assert [sample.answer_type for sample in samples] == ["exact"] * 3


@pytest.mark.parametrize(
    ("more", "frame"),
    [
        ({"width": 1000, "height": 500}, [500.0, 1000.0]),
        ({"metadata": {"resized_width": 420, "resized_height": 210}}, [210.0, 420.0]),
        ({"image_width": 200, "image_height": 100}, "pixels"),
        ({"width": 1000, "height": 500, "coordinates": "norm1000"}, "norm1000"),
        ({"answer_frame": [500, 1000]}, [500.0, 1000.0]),
        ({"width": 1.5, "height": "500"}, "pixels"),
    ],
)
def test_the_size_that_a_record_tells(bring, more, frame):
    (sample,), _, _ = bring(BOX | more)
    assert sample.metadata["answer_frame"] == frame


@pytest.fixture
def two(data):
    Image.new("RGB", (200, 100)).save(data / "b.png")
    return {"images": ["a.png", "b.png"], "answer": [10, 20, 60, 70]}


@pytest.mark.parametrize(
    ("question", "target"),
    [
        ("Where is the cup in the second image?", 2),
        ("Where is the cup in image 2?", 2),
        ("In Picture B, where is the cup?", 2),
        ("Where is the cup in the 1st of the two images?", 1),
        ("Locate it in the last picture.", 2),
        ("杯子在第二张图的哪里？", 2),
        ("图2中杯子的位置", 2),
        ("Where is the cup?", 1),
    ],
)
def test_the_picture_that_a_question_names(bring, two, question, target):
    (sample,), _, job = bring(two | {"question": question})
    assert sample.metadata.get("target_image", 1) == target
    assert job.counts.notes[box_answers.FIRST_PICTURE] == (question == "Where is the cup?")


def test_the_picture_that_a_record_names(bring, two):
    question = {"question": "Where is the cup of the first image in the second image?"}
    (one, other), _, _ = bring(two | question | {"target_image": 2}, two | {"metadata": {"target_image": 1}} | question)
    assert (one.metadata["target_image"], other.metadata["target_image"]) == (2, 1)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"question": "Where is the cup of image 1 in image 2?"}, "names several pictures"),
        ({"question": "Where is it in image 3?"}, "names a picture that is not there"),
        ({"question": "Where is it?", "target_image": 3}, "must be the number of a picture"),
    ],
)
def test_pictures_that_are_not_there_or_several(refusal, two, more, told):
    assert told in refusal(two | more)


@pytest.mark.parametrize(
    ("question", "more", "told"),
    [
        ("What is in [10, 20, 60, 70]?", {}, "in pixels of the picture at its full size, 200 x 100"),
        ("What colour is the object at (10,20),(60,70)?", {}, "in pixels of the picture at its full size, 200 x 100"),
        ("Region [0.1, 0.2, 0.3, 0.4]: what?", {}, "in shares of the width and the height"),
        ("What is in the box [10, 20, 60, 70]?", {"coordinates": "norm1000"}, "in thousandths of the width"),
        ("What is in the box [10, 20, 50, 50]?", {"bbox_format": "xywh"}, "x1, y1, w, h in pixels of the picture"),
        ("[10,20,60,70]里是什么？在[10,20,60,70]里", {}, "in pixels of the picture"),
    ],
)
def test_plain_boxes_in_a_question_get_their_frame(bring, question, more, told):
    (sample,), _, job = bring(BOX | {"question": question, "answer": "red"} | more)
    assert sample.question.startswith(question + "\n(Boxes in this question are ") and told in sample.question
    assert sum(count for note, count in job.counts.notes.items() if note.startswith("boxes in questions: said")) == 1


@pytest.mark.parametrize(
    "question",
    [
        "What is the mean of [1, 2, 3, 4]?",
        "Which number in [1, 2, 3, 4] is prime?",
        "What is in [100, 200, 300, 400], normalized to 0-1000?",
        "What is in [x, y, w, h] = [10, 20, 30, 40]?",
    ],
)
def test_other_numbers_in_a_question_stay(bring, question):
    (sample,), _, _ = bring(BOX | {"question": question, "answer": "red"})
    assert sample.question == question


def test_a_box_beyond_its_picture_in_a_question_is_told(bring):
    _, _, job = bring(BOX | {"question": "What is in [100, 200, 600, 700]?", "answer": "red"})
    assert job.counts.notes[box_answers.PLAIN_OUTSIDE.format("pixels")] == 1


@pytest.mark.parametrize(
    ("question", "named"),
    [
        ("the third frame", {3}),
        ("image #2 and image 1", {1, 2}),
        ("第12张图", {12}),
        ("第十一张图", {11}),
        ("a 2 pixel image 300 px wide", set()),
        ("image 1024x768", set()),
        ("an image", set()),
    ],
)
def test_numbers_of_pictures(question, named):
    assert box_words.pictures(question, 20) == named
