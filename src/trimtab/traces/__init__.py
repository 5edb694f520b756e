"""Traces: recorded and synthetic workloads as typed columns, one row for each request.

`read_trace` reads public formats and any table by a column mapping, `make_trace` draws a synthetic workload,
`summarise` describes either, `write_trace` saves it. Downloads live in `trimtab.traces.download`.
"""

from trimtab.traces.mapping import TraceMapping
from trimtab.traces.read import FORMAT_NAMES, Trace, read_trace
from trimtab.traces.slicing import TraceOptions, apply_options
from trimtab.traces.summary import TraceSummary, rate_series, summarise
from trimtab.traces.synthetic import ArrivalSpec, SizeSpec, make_trace
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
