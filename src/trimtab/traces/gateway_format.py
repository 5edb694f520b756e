"""The format of the gateway's recordings: JSON Lines, each line complete in itself.

A line without `record` is a request that has ended, in the names of `trimtab.traces.formats` where one fits.
What is absent is zero, none or unknown. Times are seconds from the start of the recording; `deadline_s` is
relative to the arrival. Every other line says in `record` what it is.

The gateway writes by these types, and `gateway_recording` reads by them. This module loads no library.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypedDict, get_args

VERSION: Final = 1

RecordName = Literal["head", "state", "estimates", "signals", "use", "node", "plan", "load", "dropped"]
NodeEvent = Literal["up", "down", "drained", "added", "removed", "capacity"]
NODE_EVENTS: Final = get_args(NodeEvent)
Redaction = Literal["none", "pseudonyms", "coarse", "unlinked"]
"""What a recording leaves out of requests, least first (`gateway.record.redaction`)."""

NOTE_START: Final = b'{"record"'
"""How every line begins that is no request."""

HEAD_START: Final = b'{"record":"head"'
"""How the first line of every file begins."""

FILE_PREFIX: Final = "trimtab-"

FILE_NAME: Final = re.compile(
    rf"{FILE_PREFIX}(?P<recording>\d{{8}}T\d{{6}}Z-[0-9a-f]{{8}})-w(?P<worker>\d+)-(?P<number>\d{{6}})\.jsonl(\.gz)?"
)

RequestRow = TypedDict(
    "RequestRow",
    {
        "arrival_s": float,
        "finish_s": float,
        "started_s": float,  # the node got it
        "first_byte_s": float,
        "wait_s": float,
        "service_s": float,
        "estimate_s": float | None,  # of its service, on the node that served it
        "kind": str,
        "class": str,
        "model": str,  # "" where no node has listed it: the name is what a client wrote
        "adapter": str,
        "units": float,  # as estimated on arrival
        "actual_units": float,
        "tenant": str,  # a pseudonym, unless the head's `redact` says none
        "priority": int,
        "deadline_s": float,
        "images": int,
        "steps": int,
        "megapixels": float,
        "audio_s": float,
        "video_s": float,
        "payload_bytes": int,  # of the body, where it is large enough to be a transfer
        "transfer_s": float,  # of `service_s`, until that body was written
        "prompt_tokens": int,
        "max_tokens": int,
        "output_tokens": int,
        "cached_tokens": int,
        "session": int,  # a number that means nothing outside the recording
        "prefix_blocks": list[int],  # likewise
        "candidates": Sequence[int],  # positions of nodes, best first
        "node": int,  # position
        "retries": int,
        "outcome": str,
        "refusal": str,
        "status": int,  # HTTP
    },
    total=False,
)
"""A request."""


class NodeRow(TypedDict):
    """A node, without its address and its credentials."""

    idx: int
    name: str
    type: str
    slots: int
    max_tokens: float
    health: str


class ClassRow(TypedDict):
    """A class with its present estimate: (fixed_s + unit_s × units) seconds on each node type."""

    name: str
    unit: str
    fixed_s: Mapping[str, float]
    unit_s: Mapping[str, float]
    served_by: Sequence[int] | None  # positions of nodes; None = all of the types above


def new_recording_id(grain_s: int = 1) -> str:
    """Start time, rounded down to `grain_s`, and a random part: two starts give two recordings."""
    start_s = time.time() // grain_s * grain_s
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(start_s))}-{secrets.token_hex(4)}"


def file_name(recording: str, worker: int, number: int) -> str:
    """Name of a file of a recording; `number` counts the files of a worker."""
    return f"{FILE_PREFIX}{recording}-w{worker}-{number:06d}.jsonl"
