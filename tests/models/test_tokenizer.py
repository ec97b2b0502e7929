import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_tool import ZOOM

from pixelis_jax.models import tokenizer as bpe
from pixelis_jax.models.processor import Processor
from pixelis_jax.tools import grammar
from pixelis_jax.tools.base import schemas
from pixelis_jax.types import ToolCall

TEXTS = ['{"name": "ZOOM_IN", "arguments": {"bbox_2d": [12, 7, 56, 84]}}', "Which digit is inside the red circle?"] * 4


@pytest.fixture(scope="module")
def tokenizer():
    return bpe.train(TEXTS, vocab_size=600)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_tags_and_control_tokens_are_one_id_wherever_they_stand(tokenizer):
    for token in bpe.CONTROL + bpe.TAGS:
        ids = tokenizer.encode(f"a{token} b", add_special_tokens=False).ids
        assert tokenizer.token_to_id(token) in ids
    assert [tokenizer.token_to_id(t) for t in bpe.CONTROL] == list(range(len(bpe.CONTROL)))


def test_the_same_texts_give_the_same_tokenizer(tokenizer):
    assert bpe.train(TEXTS, vocab_size=600).to_str() == tokenizer.to_str()
    assert bpe.train(TEXTS[:1], vocab_size=600).to_str() != tokenizer.to_str()


def test_a_call_costs_at_most_fourteen_tokens(tokenizer):
    """The two tags, the opening, four coordinates with commas between, the closing."""
    call = grammar.render("x", call=ToolCall("ZOOM_IN", {"bbox_2d": [3, 41, 100, 7]}))
    call = call[call.index("<tool_call>") :]
    assert len(tokenizer.encode(call, add_special_tokens=False).ids) <= 14


def test_numbers_up_to_three_digits_stay_apart(tokenizer):
    pieces = tokenizer.encode("[12, 7, 1024]", add_special_tokens=False).tokens
    assert all(not (any(c.isdigit() for c in p) and any(not c.isdigit() for c in p)) for p in pieces)


def test_a_processor_needs_chat_tokens(small_policy):
    from tokenizers import Tokenizer, models

    from pixelis_jax.types import UserError

    with pytest.raises(UserError, match=r"no token '<\|im_start\|>'"):
        Processor(
            small_policy.model.config,
            Tokenizer(models.BPE()),
            overview=small_policy.processor.overview,
            crop=small_policy.processor.crop,
        )


def test_schemas_survive(small_tokenizer):
    text = schemas(ZOOM)
    back = small_tokenizer.decode(small_tokenizer.encode(text).ids, skip_special_tokens=False)
    assert json.loads(back)["name"] == "ZOOM_IN"
