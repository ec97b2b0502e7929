"""The embedded model's vocabulary: what becomes of the embeddings when it is exchanged."""

import numpy as np

from pixelis_jax import tiny
from pixelis_jax.models import tokenizer as bpe


def test_embeddings_follow_their_text_into_another_vocabulary():
    """A token of both keeps its row; a new one, "nopq", is the mean of the four bytes that the old one cuts it into."""
    old = bpe.train(["ab cd ab cd"] * 4, vocab_size=280)
    new = bpe.train(["nopq nopq ab"] * 4, vocab_size=290)
    known, made = old.get_vocab(), new.get_vocab()
    embeddings = np.random.default_rng(0).normal(size=(len(known), 3)).astype(np.float32)
    carried = tiny.carry_embeddings(embeddings, old, new)
    assert carried.shape == (len(made), 3) and "nopq" in made and "nopq" not in known
    for token in ("a", "<|im_end|>", "<answer>", "ab"):
        np.testing.assert_array_equal(carried[made[token]], embeddings[known[token]])
    np.testing.assert_allclose(carried[made["nopq"]], embeddings[[known[c] for c in "nopq"]].mean(axis=0), rtol=1e-6)
