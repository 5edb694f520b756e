"""Queueing formulas: waits, losses and late fractions from rates and variances.

Every formula returns a `Station`. Rates are per second, times in seconds, `scv` = variance / mean².
"""

from trimtab.forecast.queueing.deadline import Family, late_frac
from trimtab.forecast.queueing.erlang import (
    erlang_b,
    erlang_b_offered,
    erlang_b_servers,
    erlang_b_unchecked,
    erlang_c,
    erlang_c_servers,
    erlang_c_unchecked,
)
from trimtab.forecast.queueing.formulas import ggc, mg1, mgc, mmc, mmck, processor_sharing, stretch
from trimtab.forecast.queueing.station import Demand, Method, Station

__all__ = [
    "Demand",
    "Family",
    "Method",
    "Station",
    "erlang_b",
    "erlang_b_offered",
    "erlang_b_servers",
    "erlang_b_unchecked",
    "erlang_c",
    "erlang_c_servers",
    "erlang_c_unchecked",
    "ggc",
    "late_frac",
    "mg1",
    "mgc",
    "mmc",
    "mmck",
    "processor_sharing",
    "stretch",
]
