"""The case study: 100 GPU nodes, 10,000 images; strategies alone and together; claims about them, judged."""

from __future__ import annotations

from trimtab.experiments.case.claims import Judged, judged
from trimtab.experiments.case.effects import Effect, effects
from trimtab.experiments.case.study import FACTORS, METRICS, QUICK, CaseStudy, Group, Scale, run_case

__all__ = [
    "FACTORS",
    "METRICS",
    "QUICK",
    "CaseStudy",
    "Effect",
    "Group",
    "Judged",
    "Scale",
    "effects",
    "judged",
    "run_case",
]
