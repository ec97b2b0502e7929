"""A small byte-level BPE tokenizer with Qwen's special tokens, for models made by this project."""

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

# Control tokens first, so that their ids do not depend on the corpus.
CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<answer>",
    "</answer>",
)

# One pre-token each: a run of JSON up to its first list (so a schema or the opening of a call is a token or two), a
# number of up to three digits (a coordinate is one token), a word, a single capital (text codes are read letter by
# letter).
PRE_TOKEN = r"""\{"[^\n\[]*\[?|\d{1,3}| ?[A-Z]?[a-z_]+| ?[A-Z]|[^\s\w]+(?: [^\s\w]+)* ?|\s+"""
_TAG = re.compile("|".join(re.escape(token) for token in CONTROL + TAGS))


def train(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """BPE (Sennrich et al. 2016, arXiv:1508.07909) over bytes, trained on `texts`; same texts, same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(t, special=True, normalized=False) for t in CONTROL]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials + [AddedToken(t, normalized=False) for t in TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Encoding cuts at tags before anything else, so training has to see the pieces between them.
    tokenizer.train_from_iterator((piece for text in texts for piece in _TAG.split(text) if piece), trainer)
    return tokenizer
