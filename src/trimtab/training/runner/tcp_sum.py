"""Sums of numbers over the ranks of a job, by TCP: for jobs without a framework. Standard library only."""

from __future__ import annotations

import os
import socket
import time
from array import array
from collections.abc import Iterable, Mapping
from typing import Final

CONNECT_S: Final = 30.0


class TcpSum:
    """Rank 0 adds what all ranks send, and sends the sums back."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Connect all ranks. Raises OSError."""
        self._rank, world = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
        address = environment.get("MASTER_ADDR", "127.0.0.1"), int(environment.get("MASTER_PORT", "0"))
        self._peers: list[socket.socket] = []
        if world > 1:
            self._peers = _accepted(address, world - 1) if self._rank == 0 else [_connected(address)]

    def __call__(self, values: Iterable[float]) -> array[float]:
        """The sums, the same at all ranks. Raises OSError where a rank is gone."""
        total = array("d", values)
        if self._rank == 0:
            for peer in self._peers:
                for i, value in enumerate(_received(peer, len(total))):
                    total[i] += value
        for peer in self._peers:
            peer.sendall(total.tobytes())
        if self._rank > 0:
            total = _received(self._peers[0], len(total))
        return total


def _accepted(address: tuple[str, int], count: int) -> list[socket.socket]:
    with socket.create_server(address) as server:
        server.settimeout(CONNECT_S)
        return [_prompt(server.accept()[0]) for _ in range(count)]


def _connected(address: tuple[str, int]) -> socket.socket:
    until_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return _prompt(socket.create_connection(address, CONNECT_S))
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)


def _prompt(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _received(peer: socket.socket, count: int) -> array[float]:
    data = bytearray()
    while len(data) < 8 * count:
        block = peer.recv(8 * count - len(data))
        if not block:
            raise ConnectionError("a rank is gone")
        data += block
    return array("d", bytes(data))
