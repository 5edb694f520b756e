"""A job whose step takes a stated time: for demonstrations and tests. Standard library only.

python -m trimtab.training.runner.paced_job --step-s 0.01 --sample-s 0.002

It has no framework: `TcpSum` adds numbers of its ranks by TCP.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from trimtab.training.elastic import ElasticJob

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


def main() -> None:
    """Sleep through the samples of a job."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--step-s", type=float, default=0.01, help="seconds of each step")
    options.add_argument("--sample-s", type=float, default=0.002, help="seconds of each sample of a rank")
    options.add_argument("--samples", type=int, default=1000, help="samples in all, without a run")
    pace = options.parse_args()
    job, summed = ElasticJob(pace.samples, batch=32), TcpSum()
    due_s = time.perf_counter()
    while not job.is_done:
        due_s += pace.step_s + pace.sample_s * -(-job.step_samples // job.world)
        time.sleep(max(0.0, due_s - time.perf_counter()))
        begun_s = time.perf_counter()
        stopping, saving = summed((job.wish() == 2, job.wish() == 1))
        job.step_done(sync_s=time.perf_counter() - begun_s)
        job.obey(2 if stopping else 1 if saving else 0, lambda folder: _write(folder, job))
    job.finish(lambda folder: _write(folder, job))


def _write(folder: Path, job: ElasticJob) -> None:
    (folder / "state").write_text(f"{job.samples}\n")


if __name__ == "__main__":
    main()
