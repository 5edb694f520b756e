"""Latency profiles: how long the iterations of a language model take on a GPU, measured or reckoned."""

from trimtab.profiles.fit_profile import FittedProfile, HeldBackError
from trimtab.profiles.latency_profile import IterationTables, LatencyProfile
from trimtab.profiles.profile_files import load_profile, names, profile_text
from trimtab.profiles.sources import Described, fit_files

__all__ = [
    "Described",
    "FittedProfile",
    "HeldBackError",
    "IterationTables",
    "LatencyProfile",
    "fit_files",
    "load_profile",
    "names",
    "profile_text",
]
