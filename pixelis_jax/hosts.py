"""The processes of one job: how they start, which rows each of them feeds, and what they tell each other.

A job on several hosts is one program that runs in every process, over one mesh of all devices (JAX's multi-controller
model). Device work is the same everywhere. Host work is shared out: the rows of a batch lie on the mesh in the order
of the processes, and a process draws the tasks, runs the tools and makes the tokens of its own rows only;
`parallel.put_batch` joins them. What the host decides (lengths to pad to, whether another turn follows, a change of
stage, a signal to end) is decided from numbers that all processes have, so all of them call the same compiled
functions in the same order. The first process alone writes; the workdir has to lie where all of them can read it.

With one process every function here returns at once.
"""

import dataclasses
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from pixelis_jax import cli
from pixelis_jax.types import UserError

PyTree = Any
TIMEOUT_S = 300  # that a process waits for the others at the start


def initialize(coordinator_address: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Join the job, before anything else touches a device; what is None is found as `jax.distributed` finds it.

    It knows SLURM, Open MPI, Kubernetes and TPU pods. UserError where the processes don't find each other.
    """
    _check_place(coordinator_address, num_processes, process_id)
    # Its SIGTERM handler would swallow the signal until a run begins; `runtime.Run` has a handler of its own.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(coordinator_address, num_processes, process_id, initialization_timeout=TIMEOUT_S)
    except (ValueError, TypeError, RuntimeError) as error:
        told = str(error).strip().splitlines()[0][:200]
        raise UserError(
            f"the processes of this job did not find each other ({told}); give --coordinator_address=HOST:PORT of the"
            " first one, --num_processes and --process_id"
        ) from error


def _check_place(address: str | None, count: int | None, index: int | None) -> None:
    """UserError for what `jax.distributed` would crash on or wait for without a word."""
    if address is None and count is None and index is None:
        return  # the cluster says
    given = {"--coordinator_address": address, "--num_processes": count, "--process_id": index}
    if missing := [name for name, value in given.items() if value is None]:
        raise UserError(f"{missing[0]} is missing; --coordinator_address, --num_processes and --process_id go together")
    assert address is not None and count is not None and index is not None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator_address={address}: give HOST:PORT, with a port from 1 to 65535")
    if not 0 <= index < count:
        raise UserError(f"--process_id={index}: of --num_processes={count} it is one from 0 to {count - 1}")
    try:
        socket.getaddrinfo(host.strip("[]"), int(port))
    except OSError as error:
        raise UserError(f"--coordinator_address={address}: {host} is not known here ({error.strerror})") from None
    if count > 1:
        others = "the other processes" if index == 0 else "process 0"
        print(f"waiting for {others} at {address} ({TIMEOUT_S} s at most)", file=sys.stderr, flush=True)
    if index > 0:
        _wait_for(host.strip("[]"), int(port), address)
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port)))
        except OSError as error:
            reason = f"port {port} can't be opened here ({error.strerror}); name another"
            raise UserError(f"--coordinator_address={address}: {reason}") from None


def _wait_for(host: str, port: int, address: str) -> None:
    """Returns once process 0 listens. UserError where it does not: `jax.distributed` would abort the program."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise UserError(f"--coordinator_address={address}: no process 0 answered there for {TIMEOUT_S} s; start it")


def first() -> bool:
    """Whether this is the process that writes and speaks."""
    return bool(jax.process_index() == 0)


def run(job: Callable[[], None]) -> None:
    """Runs `job`; in one of several processes, an error ends this process here and at once.

    The usual exit would wait until all processes come to it, and those wait for this one. Now they see its connections
    close, and fail in turn.
    """
    if jax.process_count() == 1:
        return job()
    try:
        code = cli.exit_code(job)
    except BaseException:
        traceback.print_exc()
        code = 1
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of every batch that a process feeds: number `index` of `count` equal ones, in the order of the rows."""

    index: int = 0
    count: int = 1

    def of(self, total: int, name: str) -> range:
        """Which of `total` (the value of the config field `name`) are this process's. UserError where it is uneven."""
        if total % self.count:
            raise UserError(f"{name} is {total} and {self.count} processes feed equal parts; use a multiple of that")
        each = total // self.count
        return range(self.index * each, (self.index + 1) * each)

    def cut(self, rows: Any) -> Any:
        """Of an array of all rows, those of the process."""
        each = len(rows) // self.count
        return rows[self.index * each : (self.index + 1) * each]


def share(mesh: Mesh) -> Share:
    """The rows of this process. Processes that hold one row together (`tensor` spans them) have the same share.

    UserError where a process would hold a part of its neighbour's rows.
    """
    processes = jax.process_count()
    if processes == 1:
        return Share()
    local, tensor = mesh.devices.size // processes, mesh.shape["tensor"]
    if local % tensor and tensor % local:
        raise UserError(
            f"mesh.tensor is {tensor} and each process has {local} device(s); one must be a multiple of the other"
        )
    together = max(1, tensor // local)
    return Share(jax.process_index() // together, processes // together)


def largest(*numbers: int) -> tuple[int, ...]:
    """The largest that any process gives, for each number."""
    if jax.process_count() == 1:
        return numbers
    return tuple(multihost_utils.process_allgather(np.array(numbers, np.int32)).max(axis=0).tolist())


def gather(own: Share, records: Sequence[Any]) -> list[Any]:
    """The records (JSON values) of all shares, in the order of the rows."""
    if jax.process_count() == 1:
        return list(records)
    text = np.frombuffer(json.dumps(list(records)).encode(), np.uint8)
    (size,) = largest(len(text))
    texts = multihost_utils.process_allgather(np.pad(text, (0, size - len(text)), constant_values=ord(" ")))
    together = jax.process_count() // own.count
    return [record for text in texts[::together] for record in json.loads(text.tobytes())]


def stack(own: Share, rows: np.ndarray) -> np.ndarray:
    """The host rows of all shares, in the order of the mesh."""
    parts = multihost_utils.process_allgather(rows)[:: jax.process_count() // own.count]
    return np.concatenate(parts)


def fetch(tree: PyTree) -> PyTree:
    """Device arrays as whole NumPy arrays, also where other processes hold parts of them. All must call it."""
    return jax.device_get(tree) if jax.process_count() == 1 else multihost_utils.process_allgather(tree, tiled=True)


def meet(name: str) -> None:
    """Waits until every process has come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
