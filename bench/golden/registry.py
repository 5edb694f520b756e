"""All golden cases: one module for each study, with a function `goldens`."""

from __future__ import annotations

from bench.golden import elasticflow, gavel, hypersched, muxflow, pollux, sia
from bench.golden.cases import Golden

STUDIES = (elasticflow, pollux, gavel, sia, hypersched, muxflow)


def all_goldens() -> list[Golden]:
    return [golden for study in STUDIES for golden in study.goldens()]
