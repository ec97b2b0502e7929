"""What all measurements share: medians, the device's own limits, memory."""

import collections
import gzip
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


def median_s(call: Callable[[], Any], *, repeats: int = 5) -> tuple[float, float]:
    """(median of `repeats` calls, first call) in seconds; each waits for its result."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]), times[0]


def copy_bandwidth(mib: int = 1024, *, passes: int = 20) -> float:
    """Bytes a second of copies on the device, reads and writes counted; one call makes `passes` of them."""
    x = jnp.zeros((mib << 20) // 4, jnp.float32)
    run = jax.jit(lambda x: jax.lax.fori_loop(0, passes, lambda _, x: x + 1, x))
    seconds, _ = median_s(lambda: run(x), repeats=5)
    return 2 * x.nbytes * passes / seconds


def matmul_flops(size: int | None = None) -> float:
    """FLOP/s of a large bf16 product on the device."""
    size = size or (8192 if jax.default_backend() != "cpu" else 512)
    x = jnp.ones((size, size), jnp.bfloat16)
    run = jax.jit(lambda x: x @ x)
    seconds, _ = median_s(lambda: run(x), repeats=10)
    return 2 * size**3 / seconds


def peak_gib() -> float:
    """Peak memory of the first device so far, GiB; nan where the backend does not say."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use", float("nan")) / 2**30


def nbytes(tree: Any) -> int:
    """Bytes of a pytree's arrays."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def origin(kernel: str, hlo: str) -> str:
    """Result shape of a kernel and the operation it is from, by the text of the compiled program."""
    line = re.search(rf"%{re.escape(kernel)} = (\S+) .*?op_name=\"([^\"]*)\"", hlo)
    return f"{line[1].partition('{')[0]} {line[2][-70:]}" if line else ""


def kernels(call: Callable[[], Any], *, top: int, hlo: str = "") -> list[tuple[str, int, float]]:
    """The `top` kernels of one call by time: (HLO name and origin, launches, milliseconds in all)."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            jax.block_until_ready(call())
        (file,) = Path(folder).rglob("perfetto_trace.json.gz")
        trace = json.loads(gzip.decompress(file.read_bytes()))
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    devices = {
        e["pid"]
        for e in events
        if e.get("name") == "process_name" and "/device:GPU" in e.get("args", {}).get("name", "")
    }
    count: collections.Counter[str] = collections.Counter()
    spent: collections.Counter[str] = collections.Counter()
    for event in events:
        if event.get("ph") == "X" and event.get("pid") in devices and "hlo_op" in event.get("args", {}):
            name = event["name"]  # not hlo_op, which is the whole command buffer
            count[name] += 1
            spent[name] += event["dur"]
    total = ("all", sum(count.values()), sum(spent.values()) / 1e3)
    return [total, *((f"{name} {origin(name, hlo)}", count[name], us / 1e3) for name, us in spent.most_common(top))]
