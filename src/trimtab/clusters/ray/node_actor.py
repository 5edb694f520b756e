"""The actor of a node of training jobs: it starts the node's programs, and passes bytes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from trimtab import errors
from trimtab.training.runner.node_process import agent_process

_BLOCK_BYTES = 1 << 18


class NodeActor:
    """Reserves a node's slots. When it ends, its programs stop their ranks at a checkpoint, and end.

    Programs are none of its children: Ray kills those with it.
    """

    def __init__(self) -> None:
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def ping(self) -> None:
        """Answer."""

    async def begin(self, python: str, lock: str, preload: Sequence[str], grace_s: float) -> int:
        """Start a program; its number. Raises OSError."""
        kept = Path(lock) if lock else None
        if kept is not None and not kept.parent.is_dir():
            raise FileNotFoundError(f"there is no {kept.parent}: all machines must share that folder")
        starter, ours = agent_process(
            python, lock=kept, preload=preload, grace_s=grace_s, env=_environment(), detach=True
        )
        await asyncio.to_thread(starter.wait)
        stream = await asyncio.open_connection(sock=ours)
        number = len(self._streams)  # after the last pause: several programs may begin at once
        self._streams[number] = stream
        return number

    async def send(self, program: int, data: bytes) -> None:
        """Bytes for a program, in the order of the calls."""
        self._streams[program][1].write(data)

    async def receive(self, program: int) -> bytes:
        """The program's next output, as soon as it comes; nothing = it has ended."""
        reader, writer = self._streams[program]
        with contextlib.suppress(ConnectionError):
            if data := await reader.read(_BLOCK_BYTES):
                return data
        writer.close()
        return b""

    async def end(self, program: int) -> None:
        """Have a program end; its ranks have ended before."""
        self._streams[program][1].write_eof()


def _environment() -> dict[str, str]:
    """This process's, with trimtab where programs find modules last, and without what Ray sets for itself."""
    paths = [
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        Path(errors.__file__).parents[1],
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
