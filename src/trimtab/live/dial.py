"""Runs a program on a node that this machine can't connect to: it connects back, and passes signals on.

    python -m trimtab.live.dial HOST:PORT COMMAND …

The environment has the word that the program is expected with (TRIMTAB_DIAL), and the seconds that it may go
on for when its socket has ended (TRIMTAB_DIAL_GRACE_S). One connection becomes the program's standard input.
The other carries lines: signals there, how the program ended back. See `dialled.py`.
Standard library only, with what `program_host.py` says.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from trimtab.live.program_host import PYTHON

WORD, GRACE_S = "TRIMTAB_DIAL", "TRIMTAB_DIAL_GRACE_S"  # names of variables
DATA, CONTROL = b"data", b"control"
CONNECT_S = 30.0


def main() -> None:
    """Connect, run the program, and end with its code."""
    host, _, port = sys.argv[1].rpartition(":")
    environment = dict(os.environ)
    word, grace_s = environment.pop(WORD).encode(), float(environment.pop(GRACE_S, "0"))
    to = host.strip("[]"), int(port)
    data, control = (_connected(to, word, role) for role in (DATA, CONTROL))
    try:
        with data:
            program = subprocess.Popen(command_here(sys.argv[2:]), stdin=data.fileno(), env=environment)
    except OSError as error:
        control.sendall(f"as it could not start: {error}\n".encode())
        sys.exit(127)
    threading.Thread(target=_obey, args=(control, program, grace_s), daemon=True).start()
    code = program.wait()
    with contextlib.suppress(OSError):  # nobody is there to hear it
        control.sendall(f"{how_it_ended(code)}\n".encode())
    sys.exit(128 - code if code < 0 else code)


def command_here(argv: Sequence[str]) -> list[str]:
    """The command of a program on this machine: PYTHON is this Python."""
    first, *words = argv
    return [sys.executable if first == PYTHON else first, *words]


def environment_here() -> dict[str, str]:
    """The environment of this process, in which Python finds trimtab, after all other modules."""
    paths = [
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        str(Path(__file__).parents[2]),
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def how_it_ended(code: int) -> str:
    """How a process of this code has ended."""
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"


def _connected(to: tuple[str, int], word: bytes, role: bytes) -> socket.socket:
    made = socket.create_connection(to, CONNECT_S)
    made.settimeout(None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(word + b" " + role + b"\n")
    return made


def _obey(control: socket.socket, program: subprocess.Popen[bytes], grace_s: float) -> None:
    """Pass signals on until nobody is there to send one; then the program has its grace."""
    with contextlib.suppress(OSError), control.makefile("rb") as lines:
        for line in lines:
            program.send_signal(int(line))
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(grace_s)
    program.kill()


if __name__ == "__main__":
    main()
