"""The program of a state that stages share: one call at a time, from any number of workers."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple

from trimtab.clusters.processes.worker import die_with_host
from trimtab.live.stage_execution import Imported
from trimtab.live.value_codec import decode, encode


class StateSetup(NamedTuple):
    """The message to the program."""

    code: bytes
    address: str | tuple[str, int]
    key: bytes
    folder: str  # working directory
    saved: str  # file of what is saved; "" = nothing is
    save_every: int


class StateProcess:
    """Serves an object."""

    def __init__(self, setup: StateSetup) -> None:
        self._setup, self._saved = setup, Path(setup.saved)
        self._lock, self._calls = threading.Lock(), 0
        self._object = self._made()

    def _made(self) -> Any:
        if self._setup.saved and self._saved.exists():
            return pickle.loads(self._saved.read_bytes())
        code = decode(self._setup.code)
        return (code.resolve() if isinstance(code, Imported) else code)()

    def serve(self, connection: Connection) -> None:
        """Answer the calls of one worker until it is gone."""
        try:
            while True:
                connection.send_bytes(self._answer(connection.recv_bytes()))
        except (EOFError, OSError):
            connection.close()

    def _answer(self, message: bytes) -> bytes:
        with self._lock:
            try:
                method, args, kwargs = decode(message)
                answer = encode((True, getattr(self._object, method)(*args, **kwargs)))
                self._save()
            except Exception as error:
                answer = _failure(error)
        return answer

    def _save(self) -> None:
        self._calls += 1
        if self._setup.saved and self._calls % self._setup.save_every == 0:
            part = self._saved.with_suffix(".part")
            part.write_bytes(encode(self._object))
            part.replace(self._saved)


def _failure(error: Exception) -> bytes:
    try:
        return encode((False, error))
    except Exception:  # it does not pickle
        return encode((False, RuntimeError(f"{type(error).__name__}: {error}")))


def main() -> None:
    """Read the setup, tell the address or what went wrong, and serve."""
    die_with_host()
    setup: StateSetup = pickle.load(sys.stdin.buffer)
    told = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the object prints is no address
    try:
        os.chdir(setup.folder)
        process = StateProcess(setup)
        listener = Listener(setup.address, authkey=setup.key)
    except BaseException as error:
        with told:
            pickle.dump((False, f"{type(error).__name__}: {error}"), told)
        raise SystemExit(1) from error
    with told:
        pickle.dump((True, listener.address), told)
    while True:
        try:
            connection = listener.accept()
        except Exception:  # a worker that went, or one with another key
            continue
        threading.Thread(target=process.serve, args=(connection,), daemon=True).start()
