"""Unequal, partly busy backends in two zones, some behind a slow link; and generated requests for them.

What the gateway is told of them is what it would be told of real ones: type, zone, weight, the bandwidth of a
link, and where node_exporter answers. What others use of a machine, and how far away a zone is, it measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bench.live.course import MEGAPIXELS, NodeSetup
from bench.live.traffic import Asked, Floats
from support.backends import Options

SPEEDS: Final = {"big": 2.0, "small": 0.7}
SLOTS: Final = 2
BASE_S, IMAGE_S = 2.0, 2.0  # at speed 1, of a request and of each image
STEPS: Final = 10
IMAGES, CHANCES = (1, 2, 4), (0.4, 0.4, 0.2)
BUSY_FRAC, BUSY_S, CALM_S = 0.7, 60.0, 40.0  # of busy nodes: what others use, for how long, and the rest
AWAY_S: Final = 1.0  # a round trip to the far zone
LINK_MIB_PER_S, FREE_MIB_PER_S = 2.0, 1024.0
PAYLOAD_MIB, WITH_PAYLOAD = 8, 0.15  # of the body of a share of the requests
LOAD: Final = 0.4  # of the capacity, what others use left out
FACTOR_SIGMA: Final = 0.3  # of the logarithm of what a request takes over its estimate


@dataclass(frozen=True)
class Place:
    """A backend by what is special about it."""

    kind: str
    is_busy: bool = False
    is_far: bool = False
    is_slow_link: bool = False


PLACES: Final = (  # no policy gains from their order: the first ones are neither the best nor the worst
    Place("small"),
    Place("big", is_busy=True),
    Place("big", is_far=True, is_slow_link=True),
    Place("small", is_busy=True, is_far=True),
    Place("big"),
    Place("small", is_busy=True, is_slow_link=True),
    Place("big", is_busy=True, is_far=True),
    Place("small", is_far=True),
)
SETTINGS: Final[Mapping[str, Any]] = {
    "zone": "near",
    "polling": {"period_s": 0.5, "timeout_s": 2.0},
    "health": {"period_s": 1.0},
}


def nodes() -> Iterator[NodeSetup]:
    """The backends, with their entries in gateway.yaml."""
    for number, place in enumerate(PLACES):
        options = Options(
            kind="image",
            name=f"{place.kind}-{number}",
            slots=SLOTS,
            speed=SPEEDS[place.kind],
            base_s=BASE_S,
            step_s=IMAGE_S / STEPS / MEGAPIXELS,
            busy_frac=BUSY_FRAC if place.is_busy else 0.0,
            busy_s=BUSY_S,
            calm_s=CALM_S,
            busy_phase_s=number * (BUSY_S + CALM_S) / len(PLACES),
            link_mib_per_s=LINK_MIB_PER_S if place.is_slow_link else 0.0,
            away_s=AWAY_S if place.is_far else 0.0,
        )
        mib_per_s = LINK_MIB_PER_S if place.is_slow_link else FREE_MIB_PER_S
        entry = {
            "type": place.kind,
            "capacity": SLOTS,
            "weight": SPEEDS[place.kind],
            "zone": "far" if place.is_far else "near",
            "nic_gib_per_s": mib_per_s / 1024.0,
            "exporter_url": "{url}/machine",
        }
        yield NodeSetup(options, entry)


@dataclass(frozen=True)
class Generated:
    """Requests, and when they come."""

    arrival_s: Floats
    asked: list[Asked]


def generated(number: int, requests: int) -> Generated:
    """Poisson arrivals at `LOAD`; sizes, factors and payloads by chance."""
    draws = np.random.default_rng(number)
    images = draws.choice(IMAGES, requests, p=CHANCES)
    factor = np.exp(draws.normal(-(FACTOR_SIGMA**2) / 2, FACTOR_SIGMA, requests))
    extra = np.where(draws.random(requests) < WITH_PAYLOAD, PAYLOAD_MIB << 20, 0)
    rows = zip(images.tolist(), factor.tolist(), extra.tolist(), strict=True)
    asked = [Asked(n, STEPS, f, extra_bytes) for n, f, extra_bytes in rows]
    return Generated(np.cumsum(draws.exponential(1.0 / rate_per_s(), requests)), asked)


def rate_per_s() -> float:
    """Requests per second."""
    used = BUSY_FRAC * BUSY_S / (BUSY_S + CALM_S)
    speed = sum(SPEEDS[place.kind] * (1.0 - used * place.is_busy) for place in PLACES)
    mean_s = BASE_S + IMAGE_S * float(np.dot(IMAGES, CHANCES))
    return LOAD * SLOTS * speed / mean_s
