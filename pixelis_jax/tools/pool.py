"""Runs the tools of many dialogues at once, on bounded threads, and never waits for a call that hangs.

Observations come in the order of the calls, whichever ends first. A call works on a fork of its session, which the
session adopts when the call ended in time: one that is cut can't change anything afterwards. The time limit is the
last resort, since what it cuts depends on the machine; tools bound their work by what they are given.
"""

import dataclasses
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

from pixelis_jax.tools import execute, failure, target_of
from pixelis_jax.tools.base import Session, Tool
from pixelis_jax.types import Observation, ToolCall, UserError

MAX_HANGING = 32  # calls left running at one time, each with a thread and a core's worth of work

_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class _Job:
    """One call: its fork, and once it runs, its thread and when it began; `cut` once nobody waits for it."""

    session: Session
    fork: Session
    call: ToolCall
    thread: threading.Thread | None = None
    began_s: float = 0.0
    cut: bool = False
    observation: Observation | None = None


class _Batch:
    """The jobs of one `run`: those that wait, those that run, how many are open, and what ended the whole."""

    def __init__(self, jobs: Sequence[_Job]) -> None:
        self.waiting = deque(jobs)
        self.running: list[_Job] = []
        self.open = len(jobs)
        self.error: BaseException | None = None
        self.changed = threading.Condition()


class ToolPool:
    """Tools of a sampler with `workers` threads; a call may take `time_limit_s` from when it starts to run.

    Threads live as long as a `run` has work for them. A pool is used by one thread at a time.
    """

    def __init__(self, tools: Mapping[str, Tool], *, workers: int, time_limit_s: float, enabled: bool = True) -> None:
        if workers < 1 or not 0 < time_limit_s <= threading.TIMEOUT_MAX:
            raise ValueError(f"a pool needs a worker and some time, not {workers} and {time_limit_s} s")
        self.tools = tools
        self.workers = workers
        self.time_limit_s = time_limit_s
        self.enabled = enabled
        self._hanging: list[threading.Thread] = []
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def run(self, calls: Sequence[tuple[Session, ToolCall]]) -> list[Observation]:
        """Executes one call in each of several sessions; returns what they gave, in the order of the calls.

        A call past the time limit gets an error observation and is left behind. Raises MemoryError where a tool does,
        and UserError where too many calls hang.
        """
        if len({id(session) for session, _ in calls}) < len(calls):
            raise ValueError("two calls of one session can't run at once: they would overwrite each other's state")
        jobs = [_Job(session, session.fork(), call) for session, call in calls]
        batch = _Batch(jobs)
        with batch.changed:
            try:
                for _ in range(min(self.workers, len(jobs))):
                    self._start(batch)
                while batch.open and batch.error is None:
                    batch.changed.wait(self._cut_late(batch))
            finally:
                batch.waiting.clear()  # an error or an interrupt: what has not begun is not begun
        if batch.error is not None:
            raise batch.error
        results = []
        for job in jobs:
            assert job.observation is not None
            if not job.cut:
                job.session.adopt(job.fork)
            self._count(job, job.observation)
            results.append(job.observation)
        return results

    def counters(self) -> dict[str, int]:
        """`tool/<name>/calls`, `/errors` and `/time_outs` of each tool and `tool/nondeterministic`, their time-outs.

        Counted since the last call of this. Calls of no known tool are those of `unknown`.
        """
        names = [name.lower() for name in self.tools] + ["unknown"] * ("tool/unknown/calls" in self._counts)
        keys = [f"tool/{name}/{what}" for name in names for what in ("calls", "errors", "time_outs")]
        counts = {key: self._counts[key] for key in [*keys, "tool/nondeterministic"]}
        self._counts.clear()
        return counts

    def seconds(self) -> dict[str, float]:
        """`tool/<name>/seconds`, the time that the calls of each tool took, all together, since the last call of this.

        Of a call that was cut the limit counts. What calls took differs from run to run.
        """
        seconds = {f"tool/{name.lower()}/seconds": self._seconds[name] for name in self.tools}
        self._seconds.clear()
        return seconds

    def _start(self, batch: _Batch) -> None:
        threading.Thread(target=self._work, args=(batch,), name="tools", daemon=True).start()

    def _work(self, batch: _Batch) -> None:
        """A worker: takes calls until none waits, or until a call of its was cut and another worker took its place."""
        while True:
            with batch.changed:
                if not batch.waiting or batch.error is not None:
                    return
                job = batch.waiting.popleft()
                job.thread, job.began_s = threading.current_thread(), time.monotonic()
                batch.running.append(job)
                batch.changed.notify()  # there is a new deadline
            error, observation = None, None
            try:
                observation = execute(job.fork, job.call, tools=self.tools, enabled=self.enabled)
            except BaseException as problem:  # not a call's fault: `run` raises it
                error = problem
            with batch.changed:
                if job.cut:
                    return
                batch.running.remove(job)
                batch.open -= 1
                job.observation, batch.error = observation, batch.error or error
                if job.call.name in self.tools:
                    self._seconds[job.call.name] += time.monotonic() - job.began_s
                batch.changed.notify()

    def _cut_late(self, batch: _Batch) -> float:
        """Cuts the calls that ran too long; returns the seconds until another can have."""
        now = time.monotonic()
        for job in [job for job in batch.running if now - job.began_s >= self.time_limit_s]:
            name, limit = job.call.name, f"{self.time_limit_s:g} s"
            job.cut = True
            job.observation = failure(f"{name} took longer than {limit}", target_image=target_of(job.session, job.call))
            batch.running.remove(job)
            batch.open -= 1
            self._seconds[name] += self.time_limit_s
            _log.warning("%s took longer than %s and is left running: %.200s", name, limit, dict(job.call.arguments))
            assert job.thread is not None
            self._hanging = [thread for thread in [*self._hanging, job.thread] if thread.is_alive()]
            if len(self._hanging) >= MAX_HANGING:
                raise UserError(
                    f"{len(self._hanging)} calls of tools hang, the last one of {name}: leave it out of tools.names,"
                    f" or raise tools.time_limit_s above {self.time_limit_s:g}"
                )
            if batch.waiting:
                self._start(batch)
        if not batch.open:
            return 0.0
        return min((job.began_s for job in batch.running), default=now) + self.time_limit_s - now

    def _count(self, job: _Job, observation: Observation) -> None:
        name = job.call.name.lower() if job.call.name in self.tools else "unknown"
        self._counts[f"tool/{name}/calls"] += 1
        self._counts[f"tool/{name}/errors"] += not observation.ok
        self._counts[f"tool/{name}/time_outs"] += job.cut
        self._counts["tool/nondeterministic"] += job.cut
