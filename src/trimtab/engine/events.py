"""The event heap, ordered by time, then kind, then serial. An event of an older request version is void."""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.engine.state import State

# At equal times events are taken in this order.
(
    STEP,
    COMPLETION,
    LOSS,
    SWITCH,
    TRANSFER,
    FLOW,
    FAILURE,
    REPAIR,
    TELEMETRY,
    PLAN,
    CANCELLATION,
    WINDOW,
    ARRIVAL,
    PREEMPTION,
) = range(14)

# An event's key: kind, then serial, then version, so that keys order as the three do.
SERIAL_BITS, VERSION_BITS = 30, 26
VERSIONS = 1 << VERSION_BITS


@helper(inline=True)
def kind_of(key: int) -> int:
    """Kind of an event."""
    return key >> (SERIAL_BITS + VERSION_BITS)


@helper(inline=True)
def serial_of(key: int) -> int:
    """Serial of an event's object: a request, a node with an engine, a fault process, a sample or a queue."""
    return (key >> VERSION_BITS) & ((1 << SERIAL_BITS) - 1)


@helper(inline=True)
def push_event(s: State, time_s: float, kind: int, serial: int, version: int) -> None:
    """Add an event. The caller ensures that the heap has room (`config.margin`)."""
    _enter(s, time_s, key_of(kind, serial, version))


@helper(inline=True)
def key_of(kind: int, serial: int, version: int) -> int:
    """An event's key: kind, serial and version in one integer."""
    return (kind << (SERIAL_BITS + VERSION_BITS)) | (serial << VERSION_BITS) | (version & (VERSIONS - 1))


@helper(inline=True)
def take_injected(s: State) -> None:
    """Move the host's injected events into the heap. They lie behind it, in the order of injection."""
    for _ in range(s.counts.injected[0]):
        k = s.counts.events[0]
        _enter(s, s.events.time_s[k], s.events.key[k])
    s.counts.injected[0] = 0


@helper(inline=True)
def _enter(s: State, time_s: float, key: int) -> None:
    times, keys = s.events.time_s, s.events.key
    k = s.counts.events[0]
    s.counts.events[0] = k + 1
    while k > 0:
        up = (k - 1) >> 2
        t = times[up]
        if t < time_s or (t == time_s and keys[up] <= key):
            break
        times[k] = t
        keys[k] = keys[up]
        k = up
    times[k] = time_s
    keys[k] = key


@helper(inline=True)
def drop_first_event(s: State) -> None:
    """Remove the first event of the heap (4-ary: a node's four children share a cache line)."""
    times, keys = s.events.time_s, s.events.key
    n = s.counts.events[0] - 1
    s.counts.events[0] = n
    time_s, key = times[n], keys[n]
    k = 0
    while True:
        first = 4 * k + 1
        if first >= n:
            break
        best, best_t, best_k = first, times[first], keys[first]
        for c in range(first + 1, min(first + 4, n)):
            t = times[c]
            if t < best_t or (t == best_t and keys[c] < best_k):
                best, best_t, best_k = c, t, keys[c]
        if time_s < best_t or (time_s == best_t and key < best_k):
            break
        times[k] = best_t
        keys[k] = best_k
        k = best
    times[k] = time_s
    keys[k] = key
