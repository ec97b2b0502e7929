"""Whether the output matrix is the embedding, decided as `transformers` does and checked against the weights.

`config.json` says so, in a place that depends on the family. The file decides where it contradicts that: if it holds an
embedding and an `lm_head.weight` with other values, the two are not tied.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from pixelis_jax.models import checkpoint_files
from pixelis_jax.types import UserError

FIELD = "tie_word_embeddings"
HEAD = "lm_head.weight"
EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
_ROWS = 4096  # compared at a time


def decide(raw: Mapping[str, Any], path: Path, *, in_text: bool, notes: list[str]) -> bool:
    """Whether a checkpoint's head is tied, by its `config.json` at `path` and the weights beside it.

    `transformers` 5 reads the top level; in the families that have it `in_text`, true in `text_config` suffices. What
    contradicts itself is added to `notes`.
    """
    text = raw.get("text_config")
    outer, inner = raw.get(FIELD), text.get(FIELD) if isinstance(text, dict) else None
    for value in (outer, inner):
        if value is not None and not isinstance(value, bool):
            raise UserError(f"{path}: {FIELD} is {value!r:.60} and must be true or false; restore the file")
    tied = bool(outer) or (in_text and bool(inner))
    if inner is not None and (tied is not inner or outer is (not inner)):
        where = "missing" if outer is None else str(outer).lower()
        notes.append(
            f"{FIELD} is {where} at the top level and {str(inner).lower()} in text_config: the head is"
            f" {'tied' if tied else 'not tied'}, as transformers reads this family"
        )
    stored = checkpoint_files.stored_keys(path.parent) if tied else {}
    embedding = next((key for key in EMBEDDINGS if key in stored), None)
    if embedding is None or HEAD not in stored:
        return tied
    if _equal(*((str(stored[key]), key, stored[key].stat().st_mtime_ns) for key in (embedding, HEAD))):
        return True
    notes.append(
        f"{FIELD} is true, but {HEAD} differs from {embedding}: the head is not tied, as in transformers; config.json"
        " had better say false"
    )
    return False


@functools.lru_cache(maxsize=32)
def _equal(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    """Whether two stored matrices, each given by its (file, key, time of change), are equal."""
    try:
        with safe_open(one[0], framework="numpy") as a, safe_open(other[0], framework="numpy") as b:
            first, second = a.get_slice(one[1]), b.get_slice(other[1])
            rows = first.get_shape()[0]
            if first.get_shape() != second.get_shape():
                return False
            cuts = [slice(i, min(i + _ROWS, rows)) for i in range(0, rows, _ROWS)]
            return all(np.array_equal(_wide(first[cut]), _wide(second[cut])) for cut in cuts)
    except SafetensorError as error:
        raise checkpoint_files.unreadable(Path(one[0]), error) from None


def _wide(rows: Any) -> np.ndarray:
    return np.asarray(rows).astype(np.float32)
