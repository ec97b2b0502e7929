"""Builds RewardInputs from readable trajectories."""

import jax.numpy as jnp
import numpy as np
import pytest

from pixelis_jax.types import OP_ID, STATE_DIM, RewardInputs


def states(calls, cosine):
    """Embeddings [calls + 1, STATE_DIM] whose neighbours all have this cosine; zeros (unknown) where it is None."""
    out = np.zeros((calls + 1, STATE_DIM), np.float32)
    if cosine is not None:
        out[0::2, 0] = 1.0
        out[1::2, :2] = cosine, np.sqrt(1 - cosine**2)
    return out


def make_batch(*trajectories, length=4, cosine=None, **columns):
    """Each trajectory is a list of calls (op name, or (op name, {field: value})); `columns` hold one value a row.

    By default calls work, each at its own place with its own observation, and every row is answered, right, in group 0.
    """
    size = len(trajectories)
    shape = (size, length)
    fields = {
        "ops": np.zeros(shape, np.int32),
        "arguments": np.zeros((*shape, 4), np.float32),
        "target_image": np.ones(shape, np.int32),
        "call": np.zeros(shape, np.int32),
        "observation": np.tile(np.arange(length), (size, 1)).astype(np.int32),
        **{
            name: np.zeros(shape, bool) for name in ("valid", "succeeded", "out_of_image", "by_object", "thought_after")
        },
        "embeddings": np.zeros((size, length + 1, STATE_DIM), np.float32),
    }
    for b, calls in enumerate(trajectories):
        fields["embeddings"][b, : len(calls) + 1] = states(len(calls), cosine)
        made: dict[tuple, int] = {}
        for k, call in enumerate(calls):
            name, given = (call, {}) if isinstance(call, str) else call
            place = (0.1 + 0.2 * k, 0.5, 0.1, 0.1)
            point = name == "SEGMENT_OBJECT_AT"
            given = {"arguments": (*place[:2], 0, 0) if point else place, "succeeded": True, "valid": True} | given
            for field, value in ({**given, "ops": OP_ID[name]}).items():
                fields[field][b, k] = value
            asked = (name, *(fields[f][b, k].tobytes() for f in ("arguments", "target_image", "by_object")))
            fields["call"][b, k] = given.get("call", made.setdefault(asked, len(made)))
    rows = {"is_video": False, "score": 1.0, "answered": True, "excluded": False, "group": 0} | columns
    kinds = {"is_video": bool, "score": np.float32, "answered": bool, "excluded": bool, "group": np.int32}
    fields |= {name: np.broadcast_to(np.asarray(rows[name], kind), (size,)) for name, kind in kinds.items()}
    return RewardInputs(**{name: jnp.asarray(value) for name, value in fields.items()})


@pytest.fixture
def batch():
    return make_batch
