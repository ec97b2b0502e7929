import dataclasses
import json
import re

import pytest

from pixelis_jax.data import cota
from pixelis_jax.data.cota import Provenance, Sample, Step
from pixelis_jax.types import UserError

SAMPLE = Sample(
    task_type="text_extraction",
    question="Which digit is inside the red circle?",
    image_paths=("scene.png",),
    trajectory=(
        Step("THINK", thought="I need a closer look."),
        Step("ZOOM_IN", {"bbox_2d": [1, 2, 30, 40]}, result={"text": "Image 2", "ok": True}, loss=False),
        Step("THINK", thought="Now I can read it."),
    ),
    answer="7",
    ground_truth="7",
    provenance=Provenance("pixelsearch", "a-1", "1", "oracle", "2026-01-01T00:00:00Z"),
    metadata={"kind": "digit", "seen_size": [84, 112]},
)


def record(**changes):
    made = json.loads(json.dumps(cota.to_record(SAMPLE))) | changes
    return {name: value for name, value in made.items() if value is not ...}


def read(tmp_path, text):
    path = tmp_path / "samples.jsonl"
    path.write_text(text)
    return cota.read_jsonl(path)


def test_write_then_read_is_the_same_sample(tmp_path):
    video = dataclasses.replace(SAMPLE, image_paths=("a.png", "b.png"), is_video=True, sample_id="")
    pair = dataclasses.replace(SAMPLE, image_paths=("a.png", "b.png"), answer="é 七", tolerance=0.5, sample_id="mine")
    choice = dataclasses.replace(SAMPLE, answer_type="choice", choices=("6", "7"), difficulty_score=0.25, sample_id="")
    path = tmp_path / "samples.jsonl"
    cota.write_jsonl(path, [SAMPLE, video, pair, choice])
    assert cota.read_jsonl(path) == [SAMPLE, video, pair, choice]
    assert [item.name for item in tmp_path.iterdir()] == ["samples.jsonl"]


def test_the_id_follows_the_content_and_not_the_time_or_the_scores():
    assert SAMPLE.sample_id.startswith("cota_") and len(SAMPLE.sample_id) == 17
    later = dataclasses.replace(SAMPLE.provenance, synthesis_timestamp="2027-01-01T00:00:00Z")
    same = dataclasses.replace(SAMPLE, provenance=later, difficulty_score=0.4, sampling_weight=1.5, sample_id="")
    assert same.sample_id == SAMPLE.sample_id
    assert dataclasses.replace(SAMPLE, provenance=later) == SAMPLE
    for change in ({"answer": "8"}, {"question": "?"}, {"trajectory": SAMPLE.trajectory[1:]}, {"is_video": True}):
        assert dataclasses.replace(SAMPLE, sample_id="", **change).sample_id != SAMPLE.sample_id


def test_a_list_and_an_envelope_are_read_too(tmp_path):
    assert read(tmp_path, json.dumps([record(), record()])) == [SAMPLE, SAMPLE]
    assert read(tmp_path, json.dumps({"metadata": {}, "samples": [record()]}, indent=1)) == [SAMPLE]
    assert read(tmp_path, "\n" + json.dumps(record()) + "\n\n") == [SAMPLE]
    assert read(tmp_path, "") == []


def test_defaults(tmp_path):
    least = {
        **{"task_type": "object_counting", "question": "How many?", "image_path": "a.png"},
        **{"trajectory": [], "answer": 3},
    }
    (sample,) = read(tmp_path, json.dumps(least))
    assert (sample.answer, sample.ground_truth, sample.sample_type, sample.answer_loss) == ("3", "3", "positive", True)
    trap = least | {"sample_type": "trap_logical", "ground_truth": 4}
    (sample,) = read(tmp_path, json.dumps(trap))
    assert (sample.ground_truth, sample.answer_loss) == ("4", False)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            {"operation": "ZOOM_IN", "arguments": {"bbox_2d": [1, 2, 3, 4]}, "result": "x"},
            Step("ZOOM_IN", {"bbox_2d": [1, 2, 3, 4]}, result="x"),
        ),
        (
            {"action": "ZOOM_IN", "parameters": {"region": [1, 2, 3, 4]}, "observation": {"a": 1}},
            Step("ZOOM_IN", {"bbox_2d": [1, 2, 3, 4]}, result={"a": 1}),
        ),
        (
            {"action": "SEGMENT_OBJECT_AT", "parameters": {"coordinates": [5, 6]}},
            Step("SEGMENT_OBJECT_AT", {"point": [5, 6]}),
        ),
        ({"action": "SEGMENT_OBJECT_AT", "parameters": {"x": 5, "y": 6}}, Step("SEGMENT_OBJECT_AT", {"point": [5, 6]})),
        ({"action": "READ_TEXT", "parameters": {"bbox": [1, 2, 3, 4]}}, Step("READ_TEXT", {"bbox_2d": [1, 2, 3, 4]})),
        ({"action": "READ_TEXT"}, Step("READ_TEXT")),
        ({"correction": "Wait, that is wrong."}, Step("THINK", thought="Wait, that is wrong.")),
        ({"action": "THINK", "parameters": {"thought": "So."}}, Step("THINK", thought="So.")),
        (
            {"action": "ZOOM_IN", "parameters": {"bbox_2d": [500, 2, 600, 4]}, "loss": False},
            Step("ZOOM_IN", {"bbox_2d": [500, 2, 600, 4]}, loss=False),
        ),
    ],
)
def test_dialects_of_steps(given, wanted):
    assert cota.from_record(record(trajectory=[given]), "f:1").trajectory == (wanted,)


def test_a_null_is_an_absent_field():
    nulls = {"answer_type": None, "choices": None, "tolerance": None, "answer": None, "final_answer": "7"}
    assert cota.from_record(record(**nulls), "f:1") == SAMPLE


def test_final_answer_and_unknown_fields_are_kept():
    sample = cota.from_record(record(answer=..., final_answer="7", teacher="x"), "f:1")
    assert sample.answer == "7" and sample.metadata["other_fields"] == {"teacher": "x"}


ZOOM = {"action": "ZOOM_IN", "parameters": {"bbox_2d": [1, 2, 3, 4]}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_type": ...}, "f:1: task_type: missing"),
        ({"task_type": "poetry"}, "f:1: task_type: unknown 'poetry'"),
        ({"sample_type": "good"}, "f:1: sample_type: unknown 'good'"),
        ({"question": " "}, "f:1: question: must be a string that is not empty"),
        ({"image_path": ...}, "f:1: image_path: give one of"),
        ({"frames": ["a.png"]}, "f:1: image_path: give one of"),
        ({"image_path": 3}, "f:1: image_path: must name"),
        ({"answer": ...}, "f:1: answer: missing"),
        ({"answer": True}, "f:1: answer: missing, empty or of another type"),
        ({"final_answer": "8"}, "f:1: final_answer: answer is given twice"),
        ({"sample_type": "trap_logical", "ground_truth": ...}, "f:1: ground_truth: missing"),
        ({"answer_type": "choice"}, "f:1: choices: missing"),
        ({"answer_type": "regex"}, "f:1: answer_type: unknown"),
        ({"choices": "ab"}, "f:1: choices: must be a list"),
        ({"sampling_weight": -1}, "f:1: sampling_weight: must be a number of at least 0"),
        ({"difficulty_score": "hard"}, "f:1: difficulty_score: must be a number"),
        ({"answer_loss": 1}, "f:1: answer_loss: must be true or false"),
        ({"provenance": {"who": "x"}}, "f:1: provenance: unknown field 'who'"),
        ({"metadata": []}, "f:1: metadata: must be a JSON object"),
        ({"metadata": {"seen_size": 84}}, "f:1: metadata: seen_size must be"),
        ({"trajectory": {}}, "f:1: trajectory: must be a list of steps"),
        ({"trajectory": [ZOOM] * 11}, "f:1: trajectory: 11 steps; at most 10 are read"),
        ({"trajectory": [ZOOM, "x"]}, "f:1: trajectory step 2: must be a JSON object"),
        ({"trajectory": [{"action": "FLY"}]}, "f:1: trajectory step 1: action: unknown 'FLY'"),
        ({"trajectory": [{"parameters": {}}]}, "f:1: trajectory step 1: action: missing"),
        ({"trajectory": [{"action": "THINK"}]}, "f:1: trajectory step 1: thought: missing"),
        ({"trajectory": [ZOOM | {"loss": "no"}]}, "f:1: trajectory step 1: loss: must be true or false"),
        ({"trajectory": [ZOOM | {"score": 1}]}, "f:1: trajectory step 1: score: unknown field"),
        ({"trajectory": [ZOOM | {"parameters": {}}]}, "f:1: trajectory step 1: parameters: ZOOM_IN needs"),
        (
            {"trajectory": [ZOOM | {"parameters": {"bbox_2d": [1, 2, 3]}}]},
            "f:1: trajectory step 1: parameters: bbox_2d must be 4 numbers",
        ),
        (
            {"trajectory": [ZOOM | {"parameters": {"bbox_2d": [1, 2, 3, 85]}}]},
            r"f:1: trajectory step 1: parameters: bbox_2d \[1, 2, 3, 85\] lies outside the image of 112x84",
        ),
        (
            {"trajectory": [ZOOM | {"parameters": {"bbox_2d": [3, 2, 3, 4]}}]},
            r"f:1: trajectory step 1: parameters: bbox_2d \[3, 2, 3, 4\] is empty",
        ),
        (
            {"trajectory": [{"action": "SEGMENT_OBJECT_AT", "parameters": {"x": "5", "y": 6}}]},
            "f:1: trajectory step 1: parameters: point must be 2 numbers",
        ),
    ],
)
def test_what_can_not_be_read_names_place_and_field(changes, message):
    with pytest.raises(UserError, match=message) as raised:
        cota.from_record(record(**changes), "f:1")
    assert "\n" not in str(raised.value)


def test_a_file_with_bad_lines_is_read_to_its_end_and_nothing_is_dropped(tmp_path):
    path = tmp_path / "samples.jsonl"
    lines = [json.dumps(record()), "{", "[1]", '{"a": NaN}', json.dumps(record(question=...)), json.dumps(record())]
    path.write_text("\n".join(lines))
    items = list(cota.iter_jsonl(path))
    assert [isinstance(item, Sample) for item in items] == [True, False, False, False, False, True]
    assert str(items[1]).startswith(f"{path}:2: not valid JSON")
    assert str(items[2]) == f"{path}:3: a sample must be a JSON object"
    assert str(items[4]) == f"{path}:5: question: missing"
    with pytest.raises(UserError, match=r"samples\.jsonl:2"):
        cota.read_jsonl(path)


HOSTILE = {
    # what a line says more -> what is said of it
    '"metadata": {"x": 1e999}': "metadata: has a number that is not finite or too large",
    '"metadata": {"x": [[-Infinity]]}': "metadata: has a number that is not finite",
    '"tolerance": %s' % ("1" * 400): "tolerance: has a number that is not finite or too large",
    '"tolerance": %s' % ("1" * 5000): "tolerance: has a number that is not finite or too large",
    '"tolerance": NaN': "tolerance: has a number that is not finite",
    '"answer": Infinity': "answer: has a number that is not finite",
    '"answer": [1, 1e999]': "answer: has a number that is not finite",
    '"question": "\\ud800"': "question: has half of a surrogate pair",
    '"metadata": {"\\udfff": 1}': "metadata: has half of a surrogate pair",
    '"\\ud800": 1': r"\\ud800: has half of a surrogate pair",
    '"metadata": {"x": %s}' % ("[" * 700 + "]" * 700): "metadata: nested more than 64 deep",
    '"task_type": "%s"' % ("x" * 10_000): "task_type: unknown 'x{40}';",
    '"trajectory": [{"action": "%s"}]' % ("x" * 10_000): "trajectory step 1: action: unknown 'x{40}';",
    '"trajectory": [{"action": "READ_TEXT", "a\\nb": 1}]': r"trajectory step 1: a\\nb: unknown field",
}  # fmt: skip


@pytest.mark.parametrize("as_list", [False, True], ids=["jsonl", "list"])
@pytest.mark.parametrize("field", HOSTILE, ids=lambda text: text[:30])
def test_one_hostile_value_costs_one_sample(tmp_path, field, as_list):
    """What comes before and after is read, and what was read can be written."""
    good = json.dumps(record())
    bad = good[:-1] + ", " + field + "}"  # the last of two fields of one name counts
    path = tmp_path / "samples.jsonl"
    path.write_text("[" + ",".join([good, bad, good]) + "]" if as_list else "\n".join([good, bad, good]))
    items = list(cota.iter_jsonl(path))
    assert [isinstance(item, Sample) for item in items] == [True, False, True]
    assert re.search(": " + HOSTILE[field], str(items[1])) and "\n" not in str(items[1]) and len(str(items[1])) < 500
    cota.write_jsonl(tmp_path / "again.jsonl", [item for item in items if isinstance(item, Sample)])


def test_large_numbers_and_whole_surrogate_pairs_are_read(tmp_path):
    (sample,) = read(tmp_path, json.dumps(record(metadata={"x": 10**300, "y": "😀 é"}, tolerance=1e300)))
    cota.write_jsonl(tmp_path / "again.jsonl", [sample])
    assert cota.read_jsonl(tmp_path / "again.jsonl") == [sample]


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.jsonl"):
        cota.read_jsonl(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"seen_size": [0, 100]}, "seen_size must be"),
        ({"seen_size": "112"}, "seen_size must be"),
        ({"seen_sizes": [[100, 100], [100, 100]]}, "seen_sizes one of these an image"),
        ({"seen_sizes": 7}, "seen_sizes one of these an image"),
        ({"seen_sizes": [[100, None]]}, "seen_sizes one of these an image"),
        ({"coordinates": "relative"}, "coordinates 'relative' is no known frame; use pixels or norm1000"),
        ({"seen_size": [112, 112]}, r"bbox_2d \[0, 0, 900, 900\] lies outside the image of 112x112"),
    ],
)
def test_what_coordinates_are_relative_to_is_checked(metadata, told):
    steps = [{"action": "ZOOM_IN", "parameters": {"bbox_2d": [0, 0, 900, 900]}}]
    with pytest.raises(UserError, match=told):
        cota.from_record(record(trajectory=steps, metadata=metadata), "here")
    thousandths = {"seen_size": [112, 112], "coordinates": "norm1000"}
    made = cota.from_record(record(trajectory=steps, metadata=thousandths), "here")
    assert made.metadata == thousandths
