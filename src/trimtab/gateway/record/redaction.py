"""Redaction profiles: what a recording keeps of who asked, for how much and when.

Every profile leaves out bodies, headers, addresses, keys, ids of requests and names of models that no node
lists. Sessions and blocks of prompts are numbers of the recording alone.

| profile | tenant | session, prefix_blocks | times and sizes |
|---|---|---|---|
| none | name | numbers | exact |
| pseudonyms | keyed hash; the key is never written | numbers | exact |
| coarse | keyed hash | numbers | rounded |
| unlinked | – | – | rounded |

Rounded: arrivals are whole seconds, and what is counted from an arrival, like every size, has two significant
digits. Rounding keeps the order, so that no request ends before it starts. The start of the recording is
rounded down to the hour. What remains are the columns of few values (model, class, node, outcome, priority),
and lines about nodes and plans. `trimtab trace audit` counts how many requests are still alone with theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from typing import Any, Final, Literal, cast

from trimtab.traces.gateway_format import Redaction, RequestRow

Tenants = Literal["name", "pseudonym", "absent"]

HOUR_S: Final = 3600
_SINCE_ARRIVAL: Final = ("started_s", "first_byte_s", "finish_s")
_SIZES: Final = (
    *("wait_s", "service_s", "estimate_s", "transfer_s", "deadline_s", "units", "actual_units"),
    *("prompt_tokens", "max_tokens", "output_tokens", "cached_tokens", "payload_bytes"),
    *("images", "steps", "megapixels", "audio_s", "video_s"),
)


@dataclass(frozen=True, slots=True)
class Profile:
    """What stays of a request."""

    tenants: Tenants
    has_links: bool  # sessions, and blocks of prompts
    is_exact: bool  # times and sizes


PROFILES: Final[dict[Redaction, Profile]] = {
    "none": Profile("name", has_links=True, is_exact=True),
    "pseudonyms": Profile("pseudonym", has_links=True, is_exact=True),
    "coarse": Profile("pseudonym", has_links=True, is_exact=False),
    "unlinked": Profile("absent", has_links=False, is_exact=False),
}


def two_digits(value: float) -> float:
    """The value with two significant digits: at most 5 % off."""
    return float(f"{value:.1e}")


def coarse(row: RequestRow) -> RequestRow:
    """The row with rounded times and sizes."""
    rounded: dict[str, Any] = {**row}
    arrival_s = row["arrival_s"]
    rounded["arrival_s"] = whole_s = float(floor(arrival_s))
    for name in _SINCE_ARRIVAL:
        if name in rounded:
            rounded[name] = whole_s + two_digits(rounded[name] - arrival_s)
    for name in _SIZES:
        if (size := rounded.get(name)) is not None:
            rounded[name] = type(size)(two_digits(size))
    return cast(RequestRow, rounded)
