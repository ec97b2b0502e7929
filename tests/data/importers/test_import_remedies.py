"""Refusals name the true cause, and what to do; what can be read surely is read instead."""

import json
import os
import subprocess
import sys

import pytest

from pixelis_jax.data.importers import base, visual_cot
from pixelis_jax.data.importers.base import Options
from pixelis_jax.data.importers.job import Import

ASKED = {"image": "a.png", "question": "What is it?"}  # a.png is 200 x 100
CROP = "a.png###[10, 20, 60, 70]"
HELP = " Please provide the bounding box coordinate of the region that can help you answer the question better."


def said(*texts):
    """Messages in turn."""
    return [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]


def test_a_dialogue_of_visual_cot_is_a_zoom(bring):
    talk = said(f"<image>\nWhat colour is it?{HELP}", "[0.050, 0.200, 0.300, 0.700]", "<image>", "red")
    (sample,), _, job = bring({"image": ["a.png", CROP], "conversations": talk})
    (step,) = sample.trajectory
    assert (step.action, step.parameters) == ("ZOOM_IN", {"bbox_2d": [10, 20, 60, 70]})
    assert (sample.question, sample.answer, len(sample.image_paths)) == ("What colour is it?", "red", 1)
    assert job.counts.notes[visual_cot.NOTE] == 1


@pytest.mark.parametrize(
    "more",
    [
        {"image": CROP, "answer": "red"},
        {"image": ["a.png", CROP], "answer": "red"},
        {"image": ["a.png", CROP], "conversations": said("<image>\nWhat?", "red", "<image>", "a cup")},
        {
            "image": ["a.png", "b.png###[1, 2, 3, 4]"],
            "conversations": said("<image>\n?", "[1, 2, 3, 4]", "<image>", "a"),
        },
        {"image": ["a.png", CROP], "conversations": said("<image>\nWhat?", "[1, 2, 3, 4]", "<image> Why?", "a cup")},
    ],
)
def test_other_regions_in_names_of_pictures_are_refused(refusal, more):
    assert "a region behind ### (Visual-CoT)" in refusal(ASKED | more)


@pytest.mark.parametrize("field", ["reward_model", "extra_info"])
def test_an_answer_in_json_text_is_read(bring, field):
    inside = json.dumps({"ground_truth": "red", "style": "rule"})
    (sample,), _, _ = bring(ASKED | {field: inside})
    assert sample.answer == "red"


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '"red"', "rule"])
def test_other_text_in_its_place_is_no_answer(refusal, text):
    assert "answer: missing or empty" in refusal(ASKED | {"reward_model": text})


@pytest.mark.parametrize("name", ["chosen", "chosen_response", "preferred"])
def test_preferences_are_named(refusal, name):
    told = refusal(ASKED | {name: "red", "rejected": "blue"})
    assert "another field may hold it: rename that to answer" in told and f"({name})" in told


@pytest.mark.parametrize("name", ["bbox", "bboxes", "box", "bbox_2d", "bounding_boxes", "gt_box", "target_bbox"])
def test_a_box_without_an_answer_names_its_format(bring, refusal, name):
    assert "rename that to answer" in refusal(ASKED | {name: [150, 20, 40, 50]})
    assert "add bbox_format xywh" in refusal(ASKED | {name: [150, 20, 40, 50]})
    (sample,), _, _ = bring(ASKED | {"answer": [150, 20, 40, 50], "bbox_format": "xywh"})  # as it is told
    assert sample.answer == "[150, 20, 190, 70]"


def test_a_question_before_the_first_picture(bring):
    talk = said("Hello", "hi", "<image>What is it?", "red")
    (sample,), (told,), _ = bring({"image": "a.png", "conversations": talk})
    assert sample.answer == "red" and "question 1: image: no picture is shown before this question" in told


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("A.PNG", "a.png"),
        ("a.jpg", "a.png"),
        ("a.JPEG", "a.png"),
        ("A", "a.png"),
        ("b.png", ""),
        ("none/a.png", "a.png"),
        (r"C:\data\a.png", "a.png"),
        ("none/b.png", ""),
    ],
)
def test_a_picture_with_nearly_the_same_name_is_named(refusal, name, near):
    told = refusal(ASKED | {"image": name, "answer": "red"})
    assert "image: no such image" in told and ("; there is a.png" in told) == bool(near)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("（绿色）", "（绿色）"),
        ("a\nb\tc\x1b[31m", r"a\nb\tc\x1b[31m"),
        ("\ud800x", r"\ud800x"),
        (["é"], "['é']"),
        ("x" * 100, "x" * 60),
        ("a\u202eb", r"a\u202eb"),
    ],
)
def test_what_others_wrote_is_shown_in_one_line(value, shown):
    assert base.quoted(value) == shown


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_any_console_can_show_it(data, tmp_path, encoding):
    records = [
        ASKED | {"question": "什么？", "answer": "红"},
        ASKED | {"question": "什么？\nA、红\nB、蓝", "answer": "绿"},
    ]
    (data / "r.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    command = [
        sys.executable,
        "-m",
        "pixelis_jax.cota",
        "import",
        f"--input={data / 'r.jsonl'}",
        f"--out={tmp_path / 'o'}",
    ]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=1800)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    assert ("什么" in done.stdout.decode(encoding)) == (encoding == "utf-8")


@pytest.mark.parametrize(
    "text",
    [
        "那它是什么颜色？",
        "第二个呢？",
        "为什么？",
        "其中哪个最大？",
        "还有别的吗？",
        "それは何色ですか？",
        "¿Y el otro?",
        "Et à droite ?",
        "他穿什么颜色的衣服？",
        "这辆车是什么颜色？",
        "上面的答案对吗？",
        "左边的呢？",
        "그럼 오른쪽은?",
        "では、右は？",
        "¿Por qué?",
        "Und das Auto?",
        "Pourquoi ?",
    ],
)
def test_questions_that_refer_back_keep_what_was_said(bring, text):
    talk = said("<image>左边是什么？", "猫", text, "红色")
    (_, sample), _, _ = bring({"image": "a.png", "conversations": talk})
    assert sample.question == f"Earlier in this dialogue:\nQuestion: 左边是什么？\nAnswer: 猫\n\nQuestion: {text}"


@pytest.mark.parametrize(
    "text",
    [
        *("这张图里有几只狗？", "图中右边是什么？", "右边是什么颜色？", "¿Qué hay a la derecha?", "Que voit-on ?"),
        *("图中有哪些其他动物？", "有几把吉他？", "前面的车是什么颜色？", "上面的架子有什么？", "这个表格有几行？"),
        *("这个场景在哪里？", "图中有几只狗呢？", "Y axis label?", "Y-axis maximum?", "ET phone home?"),
        *("블로그는 무엇입니까?", "この画像には何がありますか？", "Und: which logo says UND?"),
    ],
)
def test_questions_about_the_picture_stand_alone(bring, text):
    talk = said("<image>左边是什么？", "猫", text, "红色")
    (_, sample), _, _ = bring({"image": "a.png", "conversations": talk})
    assert sample.question == text


@pytest.mark.parametrize(
    ("text", "answer", "thought"),
    [
        ("Because of the sum.\nThe answer is 5.", "5", "Because of the sum.\nThe answer is 5."),
        ("We add them.\n#### 7", "7", "We add them."),
        ("<SUMMARY> a </SUMMARY>\n<CONCLUSION> red </CONCLUSION>", "red", "<SUMMARY> a </SUMMARY>"),
        ("The answer is 5.", "5", None),
    ],
)
def test_a_last_message_that_concludes(bring, text, answer, thought):
    (sample,), _, _ = bring({"image": "a.png", "conversations": said("<image>What is it?", text)})
    assert (sample.answer, [step.thought for step in sample.trajectory]) == (answer, [thought] if thought else [])


@pytest.mark.parametrize("text", ["<think>hm</think> red", "It is long.\nAnd there is more."])
def test_a_last_message_without_an_answer_is_refused(refusal, text):
    assert "marks no answer" in refusal({"image": "a.png", "conversations": said("<image>Describe it.", text)})


@pytest.mark.parametrize("nothing", ["nan", "NaN", "null", "<NA>", float("nan"), " "])
def test_what_stands_for_nothing_in_tables_is_no_answer(bring, refusal, nothing):
    assert "answer: missing or empty" in refusal(ASKED | {"answer": nothing})
    (sample,), _, _ = bring(ASKED | {"answer": nothing, "label": "red", "hint": nothing})
    assert (sample.question, sample.answer) == ("What is it?", "red")


@pytest.mark.parametrize("word", ["None", "N/A", "Nancy", "0"])
def test_words_that_may_be_answers_are_kept(bring, word):
    (sample,), _, _ = bring(ASKED | {"answer": word})
    assert sample.answer == word


@pytest.mark.parametrize("name", ["qa", "qas", "qa_pairs", "question_answers"])
def test_lists_of_questions_about_one_picture(bring, name):
    pairs = [{"question": "How many dogs?", "answer": "2"}, {"question": "What colour?", "answer": "red"}]
    samples, _, _ = bring({"image": "a.png", name: pairs})
    assert [(sample.question, sample.answer) for sample in samples] == [(p["question"], p["answer"]) for p in pairs]


def test_qwen_names_its_pictures(bring):
    (sample,), _, _ = bring({"conversations": said("Picture 1: <img>a.png</img>\nWhat is it?", "red")})
    assert (sample.question, len(sample.image_paths)) == ("What is it?", 1)


def test_geminis_boxes_have_their_own_order(bring, refusal):
    box = {
        "image": "a.png",
        "question": "Detect the cup.",
        "answer": '[{"box_2d": [100, 50, 600, 700], "label": "cup"}]',
    }
    assert "box_2d, which Gemini writes as y1, x1, y2, x2" in refusal(box)
    (sample,), _, _ = bring(box | {"bbox_format": "yxyx", "answer_frame": "norm1000"})
    assert (sample.answer, sample.metadata) == ("[50, 100, 700, 600]", {"answer_frame": "norm1000"})


def test_columns_without_a_value_do_no_harm(bring):
    (sample,), _, _ = bring(ASKED | {"answer": "red", "score": float("nan"), "metadata": {"x": float("nan"), "y": [1]}})
    assert sample.metadata == {"x": None, "y": [1]}


@pytest.mark.parametrize("name", ["label", "correct"])
@pytest.mark.parametrize("judged", [True, False])
@pytest.mark.parametrize("said_in", ["completion", "response", "output"])
def test_a_judgement_is_no_answer(refusal, name, judged, said_in):
    told = refusal(ASKED | {said_in: "It is a cup", name: judged})
    assert f"{name}: true or false beside what an assistant says: a judgement and no answer" in told


def test_a_judgement_beside_a_dialogue_is_no_answer(refusal):
    told = refusal({"image": "a.png", "conversations": said("<image>What is it?", "a cup"), "label": True})
    assert "label: true or false beside what an assistant says" in told


def test_true_as_an_answer(bring):
    asked = {"image": "a.png", "question": "Is it red?"}
    talk = said("<image>Is it big?", "Yes")
    samples, _, _ = bring(
        asked | {"label": True},
        asked | {"question": "Is it a cup?", "label": False, "output": "No, it is not."},
        {"image": "a.png", "conversations": talk, "label": True},
    )
    assert [sample.answer for sample in samples] == ["yes", "no", "Yes"]


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (
            {"image": "a.png", "caption": "A dog."},
            "its question must be in question, its answer in answer (image, caption; perhaps rename caption)",
        ),
        ({"image": "a.png", "expression": "the man", "bbox": [1, 2, 3, 4]}, "perhaps rename expression"),
        ({"image": "a.png", "reasoning_q": "Which?", "reasoning_a": "3"}, "perhaps rename reasoning_q"),
        (
            {"id": 1, "image_id": 2, "bbox": [1, 2, 3, 4], "category_id": 3},
            "its question must be in question, its answer in",
        ),
        (
            {"images": [{"id": 1}], "annotations": [{"id": 1}], "categories": []},
            "a COCO file of pictures and annotations",
        ),
        ({"data": {"image": "a.png"}, "annotations": [{"result": []}]}, "a task of Label Studio"),
    ],
)
def test_a_record_without_a_question(refusal, record, told):
    assert told in refusal(record)


@pytest.mark.parametrize("name", ["b.png", "coco/b.png", "./b.png"])
def test_a_picture_in_a_folder_below_is_named(data, refusal, name):
    (data / "pictures").mkdir()
    (data / "pictures" / "b.png").write_bytes((data / "a.png").read_bytes())
    assert "; there is pictures/b.png" in refusal(ASKED | {"image": name, "answer": "red"})


def test_folders_are_not_searched_for_each_of_many_pictures(data, bring, monkeypatch):
    (data / "pictures").mkdir()
    (data / "pictures" / "b.png").write_bytes(b"x")
    listed = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: (listed.append(str(folder)), listdir(folder))[1])
    records = [{"image": "b.png", "question": f"What is {i}?", "answer": "red"} for i in range(150)]
    _, _, job = bring(*records)
    refused = (job.out / "refused.txt").read_text().splitlines()
    assert [("there is pictures/b.png" in line) for line in refused] == [True] * 100 + [False] * 50
    assert listed.count(str(data)) == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"imageId": "2354786"}, "write the file's name into image (perhaps that of imageId, 2354786)"),
        ({"image_id": 42, "image_width": 640}, "(perhaps that of image_id, 42)"),
        ({"image_width": 640, "filename": "a.png"}, "(perhaps that of filename, a.png)"),
        ({"image_width": 640}, "image: missing: no image is named, and a sample has at least one"),
    ],
)
@pytest.mark.parametrize("asked", [{"question": "What?", "answer": "red"}, {"conversations": said("What?", "red")}])
def test_a_record_without_a_picture_names_what_tells_which(refusal, asked, more, told):
    assert told in refusal(asked | more) and "image: missing" in refusal(asked | more)


@pytest.mark.parametrize("name", ["imgname", "img_name", "image_filename", "image_file_name"])
def test_more_names_of_pictures(bring, name):
    (sample,), _, _ = bring({name: "a.png", "query": "What?", "label": "red"})
    assert sample.answer == "red"
    (sample,), _, _ = bring({"image": "a.png", name: "COCO_1.jpg", "query": "What?", "label": "red"})
    assert len(sample.image_paths) == 1


def test_names_that_are_no_text_do_no_harm(data, tmp_path):
    file = os.fsdecode(os.fsencode(data / "r") + b"\xff.jsonl")
    records = [ASKED | {"answer": "red"}, ASKED | {"answer": ""}, ASKED | {"answer": "", "answer_\ud800": "x"}]
    with open(file, "w") as out:
        out.write("".join(json.dumps(record) + "\n" for record in records))
    job = Import(data / file, tmp_path / "o", Options())
    job.run()
    lines = (job.out / "refused.txt").read_text(encoding="utf-8").splitlines()
    assert [line.partition("r\\udcff.jsonl:")[2][:10] for line in lines] == ["2: answer:", "3: answer:"]
    manifest = json.loads((job.out / "import.json").read_text(encoding="utf-8"))
    assert [source["file"] for source in manifest["sources"]] == ["r\udcff.jsonl"]
