"""Reads TensorBoard event files back, without TensorBoard."""

from pathlib import Path


def events(workdir: Path) -> list:
    """All events of the folder, read back by tensorboardX's proto from the record framing (length, crc, data, crc)."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted((workdir / "tensorboard").iterdir(), key=lambda p: p.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            found.append(Event.FromString(data[12 : 12 + size]))
            data = data[16 + size :]
    return found
