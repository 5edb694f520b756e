"""Curves in TensorBoard's event files, without PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


@contextmanager
def event_file(folder: Path, *, is_first: bool) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """A new event file in a folder, as a function of a step and its values by name.

    `is_first`: those of earlier trainings there go.
    """
    for earlier in folder.glob("events.out.tfevents.*") if is_first else ():
        earlier.unlink()
    writer = EventFileWriter(str(folder))

    def write(step: int, values: Mapping[str, float]) -> None:
        found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=found)))

    try:
        yield write
    finally:
        writer.close()
