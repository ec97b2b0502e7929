"""The published tokenizers of Qwen2.5 and Qwen3: our ids are those of `transformers`, of texts and of whole dialogues.

`./launch/fetch_parity.sh` fetches them. In Qwen2.5's, unlike in pixelis-tiny's and Qwen3's, `<think>` and
`<tool_response>` are ordinary text, which may merge with its neighbours; both bring text to Unicode's form NFC.
"""

import shutil
import unicodedata

import fetched
import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pixelis_jax.models import processor as processors
from pixelis_jax.models import shapes
from pixelis_jax.models.image_processor import PixelBudget
from pixelis_jax.models.processor import SYSTEM_PROMPT, Placed
from pixelis_jax.models.rows import Row
from pixelis_jax.tiny import CHAT_TEMPLATE
from pixelis_jax.tools import TOOLS, schemas

BUDGET = PixelBudget(56 * 56, 112 * 112)
TEXTS = (
    "Which digit is inside the blue square?",
    "",
    " two  leading spaces\n\n\nlines\r\n\ttabs \n",
    "naïve café — “quotes”, 3.14159, 1234567890, x_1 = {'a': [1, 2]};",
    "图像中的数字是多少？ 日本語のテキスト 한국어 텍스트",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 ❤️ e\u0301 a\u030a \u1e9b\u0323 \u0644\u0627 \u0e01\u0e33 zero\u200bwidth \u202eright to left",
    "\x00\x01\x7f\ufeff\ufffd \U0010ffff",
    "def f(x):\n    return x ** 2  # square\n",
    '{"name": "ZOOM_IN", "arguments": {"bbox_2d": [3, 41, 100, 7]}}',
    "<think>Look.</think><answer>7</answer></tool_response><tool_call>",
    "word " * 20_000 + "end",
    "x" * 5_000 + "\n" * 500 + " " * 500,
)
CALL = '<tool_call>{"name": "ZOOM_IN", "arguments": {"bbox_2d": [3, 41, 100, 7]}}</tool_call>'
RESULTS = ("Image 2, 56x28", "error: no such tool.", ".", "\n", "(a)", "", "12:30 <", "e\u0301")


@pytest.fixture(scope="module", params=["qwen2_5", "qwen3"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def processor(name, tmp_path_factory):
    """Of a folder as of a checkpoint: images are prepared as the family does it."""
    folder = shutil.copytree(fetched.tokenizer(name), tmp_path_factory.mktemp(name) / "checkpoint")
    (folder / "preprocessor_config.json").write_text("{}")
    return processors.load(folder, shapes.SHAPES["qwen2_5_vl_3b"], overview=BUDGET, crop=BUDGET)


@pytest.fixture(scope="module")
def theirs(name):
    return transformers.AutoTokenizer.from_pretrained(fetched.tokenizer(name))


def test_special_tokens_are_those_of_the_published_configs(processor, theirs):
    config = processor.config
    names = ("image_pad", "video_pad", "vision_start", "vision_end", "endoftext", "im_end")
    ids = [getattr(config, f"{n}_token_id") for n in ("image", "video", "vision_start", "vision_end", "pad", "eos")]
    assert ids == [theirs.convert_tokens_to_ids(f"<|{n}|>") for n in names]
    assert processor.im_end == theirs.eos_token_id == config.eos_token_id
    assert len(theirs) == processor.tokenizer.get_vocab_size()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text[:20]))
def test_texts(processor, theirs, text):
    ids = processor.encode(text)
    assert ids == theirs(text, add_special_tokens=False).input_ids
    assert processor.decode(ids) == theirs.decode(ids) == unicodedata.normalize("NFC", text)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40))
def test_any_text(processor, theirs, text):
    ids = processor.encode(text)
    assert ids == theirs(text, add_special_tokens=False).input_ids
    assert processor.decode(ids) == unicodedata.normalize("NFC", text)


def dialogue(processor, question, turns, images=()):
    """(row of a rollout with these assistant turns and observations, the same as messages of a chat)."""
    row, tools = Row(), schemas(TOOLS)
    processor.append_prompt(row, question, images, tools)
    shown = [{"type": "image"}] * len(images)
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT.format(schemas=tools)},
        {"role": "user", "content": [*shown, {"type": "text", "text": question}] if images else question},
    ]
    for said, (result, image) in turns:
        row.append_text([*processor.encode(said), processor.im_end], policy=True)
        processor.append_observation(row, result, image)
        content = f"<tool_response>{result}</tool_response>"
        if image is not None:
            before, after = ({"type": "text", "text": text} for text in content.split(result + "</", 1))
            before["text"] += result
            after["text"] = "</" + after["text"]
            content = [before, {"type": "image"}, after]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": content}]
    return row, messages


def rendered(theirs, messages, **options):
    made = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, **options)
    return made["input_ids"] if hasattr(made, "keys") else made


@pytest.mark.parametrize("question", [*TEXTS[:9], "\nstarts with a line", " "], ids=lambda text: ascii(text[:20]))
def test_a_prompt_is_what_the_published_template_gives(processor, theirs, question):
    row, messages = dialogue(processor, question, [])
    assert row.tokens == rendered(theirs, messages)


def test_a_dialogue_is_what_the_published_template_gives(processor, theirs):
    """With its tool calls as plain text. Qwen3's template would rewrite thoughts; a rollout keeps what was said."""
    row, messages = dialogue(processor, "Which?", [(CALL, (result, None)) for result in RESULTS])
    assert row.tokens == rendered(theirs, messages)
    assert sum(row.policy) == len(RESULTS) * (len(processor.encode(CALL)) + 1)


def test_a_dialogue_with_thoughts_in_the_template_without_rewriting(processor, theirs, name):
    row, messages = dialogue(processor, "Which?", [("<think>Look.</think>" + CALL, (r, None)) for r in RESULTS])
    assert row.tokens == rendered(theirs, messages, chat_template=CHAT_TEMPLATE)
    assert (row.tokens == rendered(theirs, messages)) is (name == "qwen2_5")


def test_a_dialogue_with_images(processor, theirs):
    places = [Placed((56, 84), 0), Placed((28, 28), 99)]
    turns = [(CALL, (result, Placed((84, 56), 200))) for result in RESULTS]
    row, messages = dialogue(processor, "Which of both?", turns, places)
    text = theirs.apply_chat_template(messages, chat_template=CHAT_TEMPLATE, add_generation_prompt=True, tokenize=False)
    first, *rest = text.split("<|image_pad|>")
    counts = [6, 1, *[6] * len(turns)]
    text = first + "".join("<|image_pad|>" * n + part for n, part in zip(counts, rest, strict=True))
    assert row.tokens == theirs(text, add_special_tokens=False).input_ids
    assert row.tokens.count(processor.config.image_token_id) == sum(counts)


@pytest.mark.parametrize("where", ["question", "observation"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_text_forges_a_token(processor, where, data):
    """Texts put together from spelled tokens and parts of them."""
    names = [token.content for token in processor.tokenizer.get_added_tokens_decoder().values()]
    parts = st.sampled_from([*names, *(n[:-1] for n in names), *(n[1:] for n in names), "<", "|", ">", "\u0338", "a "])
    text = "".join(data.draw(st.lists(parts, max_size=8)))

    def row_of(text):
        row = Row()
        if where == "question":
            processor.append_prompt(row, text, [], "")
        else:
            processor.append_observation(row, text, None)
        return row.tokens

    plain, forged = row_of("a"), row_of(text)
    for token in processor.tokenizer.get_added_tokens_decoder():
        assert forged.count(token) == plain.count(token)
    assert unicodedata.normalize("NFC", text) in unicodedata.normalize("NFC", processor.decode(forged))
