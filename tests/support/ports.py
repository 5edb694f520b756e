"""Ports of this machine for servers that tests start."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that nobody else is given. It refuses connections until a server listens there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that a server may listen beside it
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
