"""Latency profiles: how long the iterations of a language model take on a GPU, measured or reckoned.

What makes profiles of measurements (`fit_profile`, `sources`) is imported by its own name: it loads SciPy.
"""

from trimtab.profiles.latency_profile import IterationTables, LatencyProfile
from trimtab.profiles.profile_files import load_profile, names, profile_text

__all__ = ["IterationTables", "LatencyProfile", "load_profile", "names", "profile_text"]
