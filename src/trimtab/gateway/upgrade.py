"""A new process of the same command line takes over the listening sockets; no connection is refused.

The old process starts it with the sockets' numbers in the environment, and drains once it says that it
serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import MutableMapping
from typing import Final

logger = logging.getLogger(__name__)

VARIABLE: Final = "TRIMTAB_INHERITED_FDS"  # client socket, admin socket, where to say "ready"
READY_S: Final = 300.0  # it may have to compile a policy


class Inheritance:
    """What an older process of this gateway has left to this one."""

    def __init__(self, clients: socket.socket, admin: socket.socket, ready_fd: int) -> None:
        self.clients, self.admin = clients, admin
        self._ready_fd = ready_fd

    def tell_ready(self) -> None:
        """This process serves: the old one may go."""
        with contextlib.suppress(OSError):
            os.write(self._ready_fd, b"1")
        self.close()

    def close(self) -> None:
        """Without having told, this process has failed."""
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1


def inherited(environ: MutableMapping[str, str] = os.environ) -> Inheritance | None:
    """What was left to this process; None = it starts on its own. Its own children are not told."""
    said = environ.pop(VARIABLE, None)
    if said is None:
        return None
    clients, admin, ready_fd = map(int, said.split(","))
    for fd in (clients, admin, ready_fd):
        os.set_inheritable(fd, False)
    return Inheritance(socket.socket(fileno=clients), socket.socket(fileno=admin), ready_fd)


async def replace(clients: socket.socket, admin: socket.socket) -> bool:
    """Start a successor and wait until it serves. False = it does not, and this process goes on."""
    read_fd, write_fd = os.pipe()
    fds = (clients.fileno(), admin.fileno(), write_fd)
    environ = {**os.environ, VARIABLE: ",".join(map(str, fds))}
    try:
        # Not asyncio's: its transport would kill the successor when this process ends
        process = subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=environ, pass_fds=fds)
    except OSError as error:
        os.close(read_fd)
        logger.error("no successor could be started: %s", error)
        return False
    finally:
        os.close(write_fd)
    logger.info("process %d takes over as soon as it serves", process.pid)
    if await _says_ready(read_fd):
        return True
    process.kill()
    await asyncio.to_thread(process.wait)
    logger.error("process %d did not serve; this one goes on", process.pid)
    return False


async def _says_ready(read_fd: int) -> bool:
    loop = asyncio.get_running_loop()
    said: asyncio.Future[bool] = loop.create_future()

    def read() -> None:
        loop.remove_reader(read_fd)
        said.set_result(os.read(read_fd, 1) == b"1")

    loop.add_reader(read_fd, read)
    try:
        async with asyncio.timeout(READY_S):
            return await said
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(read_fd)
        os.close(read_fd)
