"""Random numbers by address: the same address gives the same stream on any machine, and streams do not share state."""

import hashlib

import numpy as np


def generator(*address: int | str) -> np.random.Generator:
    """Philox generator whose 128-bit key is a hash of `address`, for example `(seed, "train", index, "scene")`.

    Use `integers` only: it is exact, so what is drawn does not depend on the machine's floating point.
    """
    digest = hashlib.blake2b(repr(address).encode(), digest_size=16, person=b"pixelsearch").digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, "<u8")))
