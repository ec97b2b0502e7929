"""The meshes of 8 devices, which test_parallel.py compares with one device."""

SHAPES = [(8 // (f * t), f, t) for f in (1, 2, 4, 8) for t in (1, 2, 4, 8) if 8 % (f * t) == 0]
ONE = (1, 1, 1)
SFT_SHAPES = (ONE, (8, 1, 1), (1, 8, 1), (2, 2, 2))  # the update is that of the RL step, so some will do
FULL_SHAPE = (1, 4, 2)
UNEVEN_SHAPE = (2, 2, 2)  # with one KV head and an odd vocabulary


def name_of(shape) -> str:
    return "data={} fsdp={} tensor={}".format(*shape)
