"""TensorBoard event files, written in the caller's thread through tensorboardX's protos.

tensorboardX's own SummaryWriter writes from a thread: when the disk is full that thread ends and the next flush waits
for it for ever. Written here in line, the error reaches the caller. tensorboardX is loaded at the first event.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from pixelis_jax.metrics.files import explain_full_disk


class EventFile:
    """One event file in `directory`, opened at the first event.

    With `purge_step`, TensorBoard forgets what earlier files in the folder hold from that step on.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.purge_step: int | None = None
        self._writer: Any = None

    def scalar(self, step: int, name: str, value: float) -> None:
        from tensorboardX import summary

        self._add(step, summary.scalar(name, value))

    def text(self, step: int, name: str, text: str) -> None:
        from tensorboardX import summary

        self._add(step, summary.text(name, text))

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """`image` is u8[height, width, 3]."""
        from tensorboardX import summary

        self._add(step, summary.image(name, image, dataformats="HWC"))

    def hparams(self, values: dict[str, Any]) -> None:
        from tensorboardX import summary

        for part in summary.hparams(values, {}):
            self._add(0, part)

    def flush(self) -> None:
        if self._writer is not None:
            with explain_full_disk(self.directory):
                self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with explain_full_disk(self.directory):
                writer.close()

    def _add(self, step: int, summary: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        with explain_full_disk(self.directory):
            if self._writer is None:
                from tensorboardX.event_file_writer import EventsWriter

                self.directory.mkdir(parents=True, exist_ok=True)
                # a file's name holds only whole seconds: a quick restart must not overwrite the file before it
                suffix = f".{os.getpid()}.{time.time_ns()}"
                self._writer = EventsWriter(str(self.directory / "events"), suffix)
                if self.purge_step is not None:
                    start = SessionLog(status=SessionLog.START)
                    self._writer.write_event(Event(wall_time=time.time(), step=self.purge_step, session_log=start))
            self._writer.write_event(Event(wall_time=time.time(), step=step, summary=summary))
