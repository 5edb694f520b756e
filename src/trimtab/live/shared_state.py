"""State that stages share: an object in a process of its own, whose methods stages call wherever they run.

The process runs one call at a time. Imports little, because every worker process loads it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.connection import Client, Connection
from typing import Any, Final, NamedTuple

from trimtab.errors import ChainError
from trimtab.live.value_codec import decode, encode

RESTARTS: Final = ("anew", "restored")
CONNECT_S, POLL_S = 20.0, 0.1  # for a process that is being replaced


class StateLost(Exception):  # noqa: N818 - reads as the sentence it prints
    """The process of a state ended during a call, which may have been done or not."""


class StateAddress(NamedTuple):
    """Where a state answers: a socket's path, or machine and port; and the key that it asks for."""

    name: str
    address: str | tuple[str, int]
    key: bytes


ADDRESSES: ContextVar[dict[str, StateAddress]] = ContextVar("states", default={})  # noqa: B039 - never changed
_open = threading.local()  # connections of this thread, by address


@contextmanager
def states_at(addresses: Sequence[StateAddress]) -> Iterator[None]:
    """Context in which a stage's code runs."""
    token = ADDRESSES.set({each.name: each for each in addresses})
    try:
        yield
    finally:
        ADDRESSES.reset(token)


class Shared:
    """A class whose one object stages share: `Seen.add(url)` in a stage with the option `state=[Seen]`.

    Outside of a session the object is made in this process.
    """

    def __init__(self, code: type, restart: str, save_every: int) -> None:
        if restart not in RESTARTS:
            expected = f"one of {', '.join(RESTARTS)}"
            raise ChainError("no such restart", field=code.__name__, value=restart, expected=expected)
        if not isinstance(save_every, int) or save_every < 1:
            expected = "a whole number from 1 on"
            raise ChainError("out of range", field="save_every", value=save_every, expected=expected)
        self.state_code, self.restart, self.save_every = code, restart, save_every
        self.state_name = f"{code.__module__}:{code.__qualname__}"

    @functools.cached_property
    def _here(self) -> Any:
        return self.state_code()

    def __reduce__(self) -> Any:
        return Shared, (self.state_code, self.restart, self.save_every)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the object."""
        if name.startswith("_") or not callable(getattr(self.state_code, name, None)):
            raise AttributeError(f"{self.state_code.__name__} has no method {name}")
        return functools.partial(self._call, name)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        known = ADDRESSES.get()
        if not known:
            return getattr(self._here, method)(*args, **kwargs)
        if (at := known.get(self.state_name)) is None:
            expected = f"@stage(state=[{self.state_code.__name__}])"
            raise ChainError("is not declared by the stage", field=self.state_name, expected=expected)
        is_done, value = decode(_asked(at, encode((method, args, kwargs))))
        if is_done:
            return value
        raise value

    def __repr__(self) -> str:
        return f"<state {self.state_name}>"


def shared(code: type | None = None, /, *, restart: str = "", save_every: int = 1) -> Any:
    """Declare a class whose one object stages share.

        @shared(restart="restored")
        class Seen: ...

    Args:
        restart: what becomes of the object when its process has ended. "anew": its class is constructed
            again. "restored": it is what it was after the last call that was saved; the object has to pickle.
        save_every: "restored": after so many calls it is saved.
    """
    if code is not None:
        expected = '@shared(restart="anew") or @shared(restart="restored")'
        raise ChainError("does not say what a restart is", field=code.__name__, expected=expected)
    return lambda declared: Shared(declared, restart, save_every)


def _asked(at: StateAddress, message: bytes) -> bytes:
    """The answer of a state. Raises StateLost."""
    connections: dict[StateAddress, Connection] = _open.__dict__.setdefault("by_address", {})
    while True:
        is_answered = is_sent = False
        try:
            connection = connections.get(at)
            if connection is not None and connection.poll():  # nothing is to come: its process has ended
                connections.pop(at).close()
                connection = None
            if connection is None:
                connection = connections[at] = _connected(at)
            connection.send_bytes(message)
            is_sent = True
            answer = connection.recv_bytes()
            is_answered = True
            return answer
        except (OSError, EOFError) as error:
            if at not in connections or not _is_unread(at, error, is_sent):
                raise StateLost(f"{at.name}: its process ended during a call") from error
        finally:
            if not is_answered and (broken := connections.pop(at, None)) is not None:
                broken.close()  # an answer that comes late is for no later call


def _is_unread(at: StateAddress, error: Exception, is_sent: bool) -> bool:
    """Whether the process ended before it had read the whole call, so that it is made again.

    A local socket is reset if its other end was closed before all was read; a network has other reasons.
    """
    return not is_sent or (isinstance(at.address, str) and isinstance(error, ConnectionResetError))


def _connected(at: StateAddress) -> Connection:
    until_s = time.monotonic() + CONNECT_S
    while True:
        try:
            return Client(at.address, authkey=at.key)
        except (OSError, EOFError):
            if time.monotonic() > until_s:
                raise
            time.sleep(POLL_S)
