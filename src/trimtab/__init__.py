"""trimtab schedules AI work: which node serves each request, and how balanced and fast that was.

    import trimtab as tt

    run = tt.simulate("tiny", policy="least-expected-wait", seed=0)
    run.metrics["completion_mean_s"], run.requests, run.nodes
    tt.compare("tiny", policies=["random", "power-of-d"], seeds=3)

Names are loaded when they are first used, so that `import trimtab` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trimtab.version import __version__ as __version__

if TYPE_CHECKING:
    from trimtab.compiled.kernel import helper, kernel
    from trimtab.domain.cluster_state import ClusterState, Node, Request
    from trimtab.domain.needs import Need
    from trimtab.domain.policy import Policy
    from trimtab.domain.requests import HOLD, reject
    from trimtab.domain.view import can_take, estimate_s, memory, missing_load_s
    from trimtab.errors import TrimtabError
    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.compare_policies import compare
    from trimtab.experiments.scenario import Scenario
    from trimtab.experiments.scenario.scenario_parts import scenario
    from trimtab.experiments.serving.run import Run, simulate
    from trimtab.experiments.size_and_fit import fit, size
    from trimtab.experiments.training.allocate import allocate
    from trimtab.traces import read_trace

__all__ = [
    "HOLD",
    "ClusterState",
    "Comparison",
    "Need",
    "Node",
    "Policy",
    "Request",
    "Run",
    "Scenario",
    "TrimtabError",
    "allocate",
    "can_take",
    "compare",
    "estimate_s",
    "fit",
    "helper",
    "kernel",
    "memory",
    "missing_load_s",
    "read_trace",
    "reject",
    "scenario",
    "simulate",
    "size",
]

_HOME = {
    "ClusterState": "trimtab.domain.cluster_state:ClusterState",
    "Comparison": "trimtab.experiments.compare:Comparison",
    "HOLD": "trimtab.domain.requests:HOLD",
    "Need": "trimtab.domain.needs:Need",
    "Node": "trimtab.domain.cluster_state:Node",
    "Policy": "trimtab.domain.policy:Policy",
    "Request": "trimtab.domain.cluster_state:Request",
    "Run": "trimtab.experiments.serving.run:Run",
    "Scenario": "trimtab.experiments.scenario:Scenario",
    "TrimtabError": "trimtab.errors:TrimtabError",
    "allocate": "trimtab.experiments.training.allocate:allocate",
    "can_take": "trimtab.domain.view:can_take",
    "compare": "trimtab.experiments.compare_policies:compare",
    "estimate_s": "trimtab.domain.view:estimate_s",
    "fit": "trimtab.experiments.size_and_fit:fit",
    "helper": "trimtab.compiled.kernel:helper",
    "kernel": "trimtab.compiled.kernel:kernel",
    "memory": "trimtab.domain.view:memory",
    "missing_load_s": "trimtab.domain.view:missing_load_s",
    "read_trace": "trimtab.traces:read_trace",
    "reject": "trimtab.domain.requests:reject",
    "scenario": "trimtab.experiments.scenario.scenario_parts:scenario",
    "simulate": "trimtab.experiments.serving.run:simulate",
    "size": "trimtab.experiments.size_and_fit:size",
}

_SHOWN = {"Comparison", "Run", "compare", "simulate"}


def _display_in_notebooks() -> None:
    """Give results, which know nothing of the report, its tables for display: here both meet."""
    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.serving.run import Run
    from trimtab.report.notebook import comparison_html, run_html
    from trimtab.report.paper_figure import plot
    from trimtab.report.results_folder import write_comparison_page, write_run_page
    from trimtab.report.text_tables import to_latex, to_markdown

    Comparison._repr_html_ = comparison_html  # type: ignore[attr-defined]
    Comparison.plot, Comparison.report = plot, write_comparison_page  # type: ignore[attr-defined]
    Comparison.to_latex, Comparison.to_markdown = to_latex, to_markdown  # type: ignore[attr-defined]
    Run._repr_html_, Run.report = run_html, write_run_page  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    if name == "chains":
        return importlib.import_module("trimtab.chains")
    if name not in _HOME:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    if name in _SHOWN:
        _display_in_notebooks()
    module, _, attribute = _HOME[name].partition(":")
    found = globals()[name] = getattr(importlib.import_module(module), attribute)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
