"""How the usual chunks of streams cross this process: read, looked at and sent by compiled code.

It runs in a thread of its own, without Python: it waits until one of the nodes' sockets that were given to it
has something, and hands that on. What is anything else than whole chunks of one event of content each, framed
as the relay would frame them, it leaves to Python; so it does with what the client's socket does not take.
"""

from __future__ import annotations

import platform
import select
import socket
from typing import Any, Final

import numba
import numpy as np
from numba import types

from trimtab.compiled.kernel import helper, kernel
from trimtab.gateway.api.sse import TYPE_BYTES, USAGE

ROWS: Final = 8_192  # sockets of nodes are looked after up to this descriptor
SPACE: Final = 4_096  # bytes that are read at once
EVENTS: Final = 64
EVENT_WORDS: Final = 3 if platform.machine() == "x86_64" else 4  # `struct epoll_event` is packed there only
_FLAGS, _DESCRIPTOR = 0, EVENT_WORDS - 2

ASHORE, ABOARD, LANDED, GONE = 0, 1, 2, 3  # states of a row; GONE: it left after it had landed
NOTHING: Final = -1  # was sent, and nothing looked at

PLACE: Final = np.dtype(
    [
        ("state", np.int32),
        ("client", np.int32),  # descriptor of the socket that gets what the node sends
        ("content_at", np.int64),  # address of what marks an event of content
        ("content_bytes", np.int64),
        ("chunks", np.int64),  # handed on since it came aboard
        ("payload_bytes", np.int64),  # of those
        ("last_s", np.float64),  # when the last of them came
        ("got_bytes", np.int32),  # of what was read last
        ("sent_bytes", np.int32),  # of these; NOTHING = Python is to look at them
    ],
    align=True,
)

# words of `numbers`: lock of all rows, time, what the bell is rung with, how many have landed, `USAGE`
LOCK, TIME, ONE, LANDINGS, USAGE_AT, NUMBERS = 0, 8, 10, 11, 12, 13
_MONOTONIC: Final = 1  # as `time.monotonic` and the event loop
_IN: Final = getattr(select, "EPOLLIN", 1)
_RECEIVE: Final = int(getattr(socket, "MSG_DONTWAIT", 0))
_SEND: Final = _RECEIVE | int(getattr(socket, "MSG_NOSIGNAL", 0))
_WORD: Final = 8
_MAX_DIGITS, _LEAST_BYTES = 3, 16
_CR, _LF, _0, _9, _A, _F = b"\r\n09af"

_int, _word = types.int32, types.int64


def _external(name: str, returns: Any, *takes: Any) -> Any:
    """A function of the C library; addresses and sizes are words."""
    return types.ExternalFunction(name, returns(*takes))


_wait = _external("epoll_wait", _int, _int, _word, _int, _int)
_recv = _external("recv", _word, _int, _word, _word, _int)
_send = _external("send", _word, _int, _word, _word, _int)
_write = _external("write", _word, _int, _word, _word)
_find = _external("memmem", _word, _word, _word, _word, _word)
_time = _external("clock_gettime", _int, _int, _word)
_lock = _external("pthread_mutex_lock", _int, _word)
_unlock = _external("pthread_mutex_unlock", _int, _word)

CARRY: Final = types.void(
    *(types.int64,) * 3,
    types.Array(types.int64, 1, "C"),
    types.Array(types.int32, 1, "C"),
    types.Array(numba.from_dtype(PLACE), 1, "C"),
    types.Array(types.uint8, 1, "C"),
    types.Array(types.uint8, 2, "C"),
    types.Array(types.int64, 1, "C"),
)


@kernel(nogil=True)
def carry(
    poll: int,
    bell: int,
    end: int,
    numbers: Any,
    events: Any,
    places: Any,
    buffer: Any,
    rests: Any,
    landed: Any,
) -> None:
    """Hand on until there is something to read at `end`. All three are descriptors.

    places : [ROWS] by the descriptor of the node's socket; buffer : [SPACE] what was read last
    landed : [ROWS] descriptors whose rows Python has to take back; each time the bell is rung
    rests : [ROWS, SPACE] what was read last of those
    """
    words = numbers.ctypes.data
    lock, time = words + _WORD * LOCK, words + _WORD * TIME
    while True:
        count = _wait(poll, events.ctypes.data, EVENTS, -1)
        _time(_MONOTONIC, time)
        now_s = numbers[TIME] + numbers[TIME + 1] * 1e-9
        rings = False
        for k in range(count):
            node = events[EVENT_WORDS * k + _DESCRIPTOR]
            if node == end:
                return
            flags = events[EVENT_WORDS * k + _FLAGS]
            _lock(lock)
            if places.state[node] == ABOARD and not _crosses(
                flags, node, places, buffer, now_s, numbers[USAGE_AT]
            ):
                for i in range(places.got_bytes[node]):
                    rests[node, i] = buffer[i]
                places.state[node] = LANDED
                landed[numbers[LANDINGS]] = node
                numbers[LANDINGS] += 1
                rings = True
            _unlock(lock)
        if rings:
            _write(bell, words + _WORD * ONE, _WORD)


@helper
def _crosses(flags: int, node: int, places: Any, buffer: Any, now_s: float, usage_at: int) -> bool:
    """Read and hand on; False = Python goes on with it. Where the node has closed nothing is read here."""
    places.got_bytes[node] = 0
    places.sent_bytes[node] = NOTHING
    if flags != _IN:
        return False
    at = buffer.ctypes.data
    got = _recv(node, at, SPACE, _RECEIVE)
    if got <= 0:
        return False
    places.got_bytes[node] = got
    if got == SPACE:  # there may be more, of which nobody would be told
        return False
    begin, chunks, payload_bytes = 0, 0, 0
    while begin < got:
        payload = payload_of(buffer, begin, got)
        size = payload + _framing_bytes(payload)
        if (
            not payload
            or not _find(
                at + begin, min(size, TYPE_BYTES), places.content_at[node], places.content_bytes[node]
            )
            or _find(at + begin, size, usage_at, len(USAGE))
        ):
            return False
        begin += size
        chunks += 1
        payload_bytes += payload
    places.chunks[node] += chunks
    places.payload_bytes[node] += payload_bytes
    places.last_s[node] = now_s
    sent = _send(places.client[node], at, got, _SEND)
    places.sent_bytes[node] = max(sent, 0)
    return bool(sent == got)


@helper
def payload_of(text: Any, begin: int, end: int) -> int:
    """Bytes of the payload of the chunk that begins there, if it is all there and one event; else 0."""
    at, payload = begin, 0
    while at < end and at < begin + _MAX_DIGITS and _digit(text[at]) >= 0:
        payload = 16 * payload + _digit(text[at])
        at += 1
    stop = at + 2 + payload
    if (
        payload < _LEAST_BYTES
        or at - begin + 4 != _framing_bytes(payload)  # no zero before it
        or stop + 2 > end
        or text[at] != _CR
        or text[at + 1] != _LF
        or text[stop - 2] != _LF
        or text[stop - 1] != _LF
        or text[stop] != _CR
        or text[stop + 1] != _LF
    ):
        return 0
    for k in range(at + 1, stop - 2):  # no line ends with CR and LF, and no event before
        if text[k + 1] == _LF and (text[k] == _LF or text[k] == _CR):
            return 0
    return payload


@helper
def _framing_bytes(payload: int) -> int:
    """Bytes of a chunk besides its payload, where its size has two or three digits."""
    return 6 if payload < 256 else 7


@helper
def _digit(byte: int) -> int:
    """The value of a hexadecimal digit as the relay writes it; -1 = it is none."""
    if _0 <= byte <= _9:
        return byte - _0
    return byte - _A + 10 if _A <= byte <= _F else -1
