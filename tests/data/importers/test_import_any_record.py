"""Records made by hypothesis, right and wrong ones of every format in every container: nothing is lost, nothing raises.

Records read + records refused = records given; each refusal names file, place and field; no mark is left in a sample;
each sample is read by the package's own readers, and its own answer is right.
"""

import base64
import dataclasses
import io
import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from pixelis_jax.cota.import_ import check_answer
from pixelis_jax.data import cota
from pixelis_jax.data.corpus import Selection, open_corpus
from pixelis_jax.data.cota import SAMPLE_TYPES
from pixelis_jax.data.importers import FORMATS, hf, marks
from pixelis_jax.data.importers.base import Options
from pixelis_jax.data.importers.job import Import
from pixelis_jax.rewards.verifiers import verify

pa = pytest.importorskip("pyarrow", reason="pyarrow comes with the extras [data] and [test]")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow comes with the extras [data] and [test]")

GOOD = {"question": "Is this record read?", "image": "a.png", "answer": "yes"}
_buffer = io.BytesIO()
Image.new("RGB", (30, 20), (9, 99, 200)).save(_buffer, "JPEG")
JPEG = base64.b64encode(_buffer.getvalue()).decode()

MARKS = (
    *(
        "<image>",
        "<image 1>",
        "<image 2>",
        "<image_0>",
        "<image_1>",
        "<video>",
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    *("<bbox>", "<ref-object>", "<|box_start|>(1,2),(30,40)<|box_end|>", "<|box_start|>", "<box>[1, 2, 3]</box>"),
    *("<ref>x</ref>", "<|object_ref_start|>", "<SEG>", "</s>", "<|im_end|>", "<think>", "</think>", "[INST]"),
)
WORDS = (
    *(
        "What is it?",
        "How many?",
        "Which?",
        "And its color?",
        "(A) x (B) y",
        "\nA. one\nB. two",
        "Guidelines: `crop_image`",
    ),
    *(
        "Call image_zoom_in_tool.",
        "<answer>",
        "</answer>",
        "\\boxed{7}",
        "\\boxed{",
        "$",
        "\u2212",
        "e\u0301",
        "\x00",
        "\u202e",
        "\ud83d\ude00",
    ),
)
pieces = st.sampled_from(MARKS + WORDS) | st.text(max_size=6)
texts = st.lists(pieces, max_size=4).map("".join)
questions = (
    st.sampled_from(("What is it?", "<image>What is it?", "<image>\n<image>Compare.", "Is <image 2> like <image 1>?"))
    | texts
)
numbers = st.integers(-3, 10) | st.floats() | st.sampled_from((10**30, 10**400, 2**63, -(2**70), 1e308))
shorts = st.sampled_from(
    (
        "red",
        "B",
        "b",
        "(B)",
        "B, C",
        "BC",
        "7",
        "-1.5",
        "1,234",
        "12 cm",
        "[1, 2, 30, 40]",
        "yes",
        "\\frac{1}{2}",
        "007",
    )
)
junk = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
answers = shorts | texts | numbers | st.lists(shorts, max_size=3) | st.none() | junk
pictures = st.sampled_from(
    (
        *(
            "a.png",
            "b.png",
            "file://a.png",
            {"image": "a.png"},
            {"path": "b.png", "bytes": None},
            JPEG,
            {"bytes": JPEG},
        ),
        *(
            f"data:image/jpeg;base64,{JPEG}",
            "none.png",
            "../out.png",
            "http://h/a.png",
            "",
            None,
            3,
            {},
            "v.mp4",
            "bad.png",
        ),
    )
)
images = (
    pictures
    | st.lists(st.sampled_from(("a.png", "b.png", {"image": "a.png"})), max_size=3)
    | st.lists(pictures, max_size=2)
)
options = (
    st.lists(shorts, max_size=4)
    | st.lists(shorts, min_size=2, max_size=4).map(str)
    | st.dictionaries(st.sampled_from("ABCDab"), shorts)
    | texts
)
boxes = st.lists(st.lists(st.integers(0, 90) | numbers, max_size=4), max_size=3)
objects = st.fixed_dictionaries(
    {},
    optional={
        "ref": st.lists(texts, max_size=2),
        "bbox": boxes,
        "bbox_type": st.sampled_from(("real", "norm1", "x")),
        "image_id": junk,
    },
)
calls = st.builds(
    lambda name, box, target: (
        f'<tool_call>{{"name": "{name}", "arguments": {{"bbox_2d": {box}, "target_image": {target}}}}}</tool_call>'
    ),
    st.sampled_from(("crop_image_normalized", "crop_image", "python")),
    st.sampled_from(("[0, 0, 0.5, 0.5]", "[0.2, 0.2, 1, 1]", "[1, 1, 0, 0]", "[]")),
    st.integers(0, 3),
)
said = (
    st.sampled_from(
        ("red", "<answer>red</answer>", "<think>Red.</think><answer>B</answer>", "\\boxed{3}", "A long\nstory")
    )
    | calls
    | texts
)
roles = st.sampled_from(("user", "assistant", "system", "tool", "tool_call", "human", "gpt", "gnome")) | st.none()
parts = st.one_of(
    texts.map(lambda text: {"type": "text", "text": text}),
    pictures.map(lambda x: {"type": "image", "image": x}),
    st.just({"type": "image"}),
    junk,
)
messages = st.one_of(
    st.fixed_dictionaries({"role": roles, "content": said | questions | st.lists(parts, max_size=3) | junk}),
    st.fixed_dictionaries({"from": roles, "value": said | questions}),
    st.fixed_dictionaries({"user": questions, "assistant": said}),
)


def _in_turn(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [turn for a, b in pairs for turn in ({"role": "user", "content": a}, {"role": "assistant", "content": b})]


dialogues = st.lists(st.tuples(questions, said), min_size=1, max_size=3).map(_in_turn) | st.lists(messages, max_size=4)
steps = st.lists(
    st.one_of(
        texts.map(lambda text: {"action": "THINK", "thought": text}),
        st.just({"action": "ZOOM_IN", "parameters": {"bbox_2d": [1, 2, 30, 40]}}),
        st.just({"operation": "ZOOM_IN", "arguments": {"region": [1, 2, 30, 40]}}),
        junk,
    ),
    max_size=3,
)
common = {
    **{
        "image": images,
        "images": images,
        "answer": answers,
        "id": junk,
        "answer_type": st.sampled_from(("exact", "iou", "integer", "x", "math")),
    },
    **{
        "objects": objects,
        "metadata": junk,
        "is_video": st.sampled_from((True, False, "x")),
        "tolerance": numbers,
        "tools": junk,
    },
    **{
        "choices": options,
        "options": options,
        "A": shorts,
        "B": shorts,
        "C": shorts,
        "choice_a": shorts,
        "choice_b": shorts,
    },
    **{"task_type": st.sampled_from(("counting", "object_counting", "x")), "image_1": pictures, "image_2": pictures},
}
prompts = st.fixed_dictionaries(
    {st_name: values for st_name, values in {"question": questions, "image": images, "answer": answers}.items()},
    optional={name: values for name, values in common.items() if name not in ("image", "answer")},
)
others = st.one_of(
    st.fixed_dictionaries(
        {"query": questions, "response": said, "images": images},
        optional={"history": st.lists(st.tuples(questions, said).map(list), max_size=2) | junk, "objects": objects},
    ),
    st.fixed_dictionaries({"instruction": questions, "output": said}, optional={"input": texts, "images": images}),
    st.fixed_dictionaries(
        {
            "prompt": st.lists(messages, max_size=2) | questions,
            "reward_model": st.fixed_dictionaries({"ground_truth": answers}) | junk,
        },
        optional=common,
    ),
    st.fixed_dictionaries(
        {"question": questions}, optional={"model_answer": answers, "correct": answers, "extra_info": junk, **common}
    ),
)
talks = st.fixed_dictionaries({}, optional={"conversations": dialogues, "messages": dialogues, **common})
traces = st.fixed_dictionaries(
    {"trajectory": steps, "question": questions},
    optional={
        "image_path": images,
        "final_answer": answers,
        "ground_truth": answers,
        "task_type": st.just("object_counting"),
        "sample_type": st.sampled_from(SAMPLE_TYPES),
        **common,
    },
)


@st.composite
def spoilt(draw, whole):
    """A record, now and then without one of its fields or with something else in its place."""
    record = draw(whole)
    if isinstance(record, dict) and record and draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(sorted(record)))
        record = {**record, name: draw(junk)} if draw(st.booleans()) else {k: v for k, v in record.items() if k != name}
    return record


records = st.one_of(spoilt(prompts), spoilt(others), spoilt(talks), spoilt(traces), junk)
batches = st.lists(records, min_size=1, max_size=8)
quick = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes; a failure shows its batch
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("any")
    Image.new("RGB", (200, 100), (200, 30, 30)).save(path / "a.png")
    Image.new("RGB", (50, 60)).save(path / "b.png")
    (path / "bad.png").write_bytes(b"\x89PNG no picture")
    return path


def accounted(source: Path, given: int, **options) -> Import:
    """The import of `source`, with all that must be true of it."""
    with tempfile.TemporaryDirectory() as out:
        job = Import(source, Path(out) / "out", Options(**options), check=check_answer)
        counts = job.run()
        assert counts.records == given == counts.read + counts.refused.total()
        file = job.out / "refused.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        assert len(lines) == counts.refused.total() + counts.questions.total()
        for line in lines:
            where = line.removeprefix(f"{source if source.is_file() else source / ''}")
            assert where != line and re.match(r".{0,80}?(?:\d|'|\w): (?:[\w .]+: )?\S", where), line
            assert len(line) < 1000
        samples = cota.read_jsonl(job.out / "cota.jsonl")
        corpus = open_corpus(job.out, Selection(SAMPLE_TYPES))
        assert len(corpus) == len(samples) == counts.samples >= counts.read and not corpus.left_out
        for number, sample in enumerate(samples):
            words = [sample.question, *sample.choices, sample.answer, sample.ground_truth]
            words += [*map(str, sample.metadata.get("answers", ())), *(s.thought or "" for s in sample.trajectory)]
            assert not any(map(marks.left, words)) and all(word.strip() for word in words[:1])
            task = corpus.task(number)
            assert len(task.images) == len(sample.image_paths)
            if "unanswered" not in sample.metadata:
                assert verify(dataclasses.replace(task, metadata={}), task.answer) == 1.0, sample
        return job


@quick
@given(batches)
def test_json_lines(folder, batch):
    (folder / "x.jsonl").write_text("".join(json.dumps(record) + "\n" for record in (GOOD, *batch)))
    accounted(folder / "x.jsonl", len(batch) + 1, unanswered=len(batch) % 2 == 0)


@quick
@given(batches)
def test_a_json_list(folder, batch):
    (folder / "x.json").write_text(json.dumps([GOOD, *batch], indent=1))
    accounted(folder / "x.json", len(batch) + 1)


@quick
@given(batches)
def test_an_object_keyed_by_id(folder, batch):
    keyed = {f"r{number}": record for number, record in enumerate(batch) if isinstance(record, dict)}
    (folder / "k.json").write_text(json.dumps({"good": GOOD, **keyed}, indent=1))
    accounted(folder / "k.json", len(keyed) + 1)


def table(batch):
    """Records as a table: values that columns of one type can't hold become their JSON."""
    rows = [{"question": None, **record} for record in batch if isinstance(record, dict)]
    names = sorted({name for row in [GOOD, *rows] for name in row if name and name.isprintable()})
    rows = [{name: row.get(name) for name in names} for row in [GOOD, *rows]]
    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        try:
            columns[name] = pa.array(values)
            pq.write_table(pa.table({name: columns[name]}), io.BytesIO())  # an object without a field is none
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            columns[name] = pa.array(
                [v if isinstance(v, str) and v.isprintable() else None if v is None else json.dumps(v) for v in values]
            )
    return pa.table(columns)


@quick
@given(batches)
def test_parquet(folder, batch):
    rows = table(batch)
    pq.write_table(rows, folder / "x.parquet")
    accounted(folder / "x.parquet", rows.num_rows)
    assert sum(1 for _ in hf.parquet(folder / "x.parquet")) == rows.num_rows


@quick
@given(batches)
def test_a_saved_data_set(folder, batch):
    rows, saved = table(batch), folder / "saved"
    saved.mkdir(exist_ok=True)
    for name in ("a.png", "b.png", "bad.png"):
        (saved / name).write_bytes((folder / name).read_bytes())
    with pa.OSFile(str(saved / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    (saved / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    accounted(saved, rows.num_rows)


@settings(quick, max_examples=15)
@given(batches)
def test_a_folder_of_pairs(folder, batch):
    with tempfile.TemporaryDirectory() as name:
        bench = Path(name) / "bench" / "position"
        bench.mkdir(parents=True)
        kept = [{"question": "Where?", "options": ["left", "right"]}, *batch]
        for number, record in enumerate(kept):
            (bench / f"{number}.png").write_bytes((folder / "a.png").read_bytes())
            record = {"question": "Where?", "options": ["x", "y"], **record} if isinstance(record, dict) else record
            (bench / f"{number}.json").write_text(json.dumps(record))
        pairs = sum(isinstance(record, dict) for record in kept)
        accounted(bench.parent, pairs)


def test_every_format_is_tried():
    """The grammar above makes records of each format that there is."""
    assert {*FORMATS} == {"vstar", "cota", "conversations", "prompts"}
