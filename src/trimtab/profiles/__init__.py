"""Latency profiles: how long the iterations of a language model take on a GPU, measured or reckoned."""

from trimtab.profiles.latency_profile import IterationTables, LatencyProfile
from trimtab.profiles.profile_files import load_profile, names

__all__ = ["IterationTables", "LatencyProfile", "load_profile", "names"]
