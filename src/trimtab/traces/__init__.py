"""Traces: recorded and synthetic workloads as typed columns, one row for each request.

`read_trace` reads public formats and any table by a column mapping, `make_trace` draws a synthetic workload,
`summarise` describes either, `write_trace` saves it. Downloads live in `trimtab.traces.download`.

Names are loaded when they are first used: the gateway writes by `gateway_format` and needs no table library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.traces.generators import ArrivalSpec, SizeSpec, make_trace
    from trimtab.traces.mapping import TraceMapping
    from trimtab.traces.read import Trace, read_trace
    from trimtab.traces.recognition import FORMAT_NAMES
    from trimtab.traces.slicing import TraceOptions, apply_options
    from trimtab.traces.summary import TraceSummary, rate_series, summarise
    from trimtab.traces.write import write_trace

__all__ = [
    "FORMAT_NAMES",
    "ArrivalSpec",
    "SizeSpec",
    "Trace",
    "TraceMapping",
    "TraceOptions",
    "TraceSummary",
    "apply_options",
    "make_trace",
    "rate_series",
    "read_trace",
    "summarise",
    "write_trace",
]

_MODULES = {
    "mapping": ("TraceMapping",),
    "read": ("Trace", "read_trace"),
    "recognition": ("FORMAT_NAMES",),
    "slicing": ("TraceOptions", "apply_options"),
    "summary": ("TraceSummary", "rate_series", "summarise"),
    "generators": ("ArrivalSpec", "SizeSpec", "make_trace"),
    "write": ("write_trace",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    found = globals()[name] = getattr(module, name)
    return found
