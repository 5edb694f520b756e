"""The workload of a tuning, as a command line names it: a scenario, or a trace on a cluster."""

from __future__ import annotations

from pathlib import Path

from trimtab.errors import UsageError
from trimtab.experiments.scenario import Scenario, resolve_scenario
from trimtab.experiments.scenario.loader import builtin_names


def workload_of(
    name: str, cluster: Path | None, load: float | None, field: str = "TRACE|SCENARIO"
) -> Scenario:
    """A built-in scenario, a scenario file, or a trace, which needs the cluster unless it is a recording.

    Raises UsageError for a name of none of these, and for a load that is not a positive number.
    """
    if name in builtin_names() or name.endswith((".yaml", ".yml")):
        return resolve_scenario(name, cluster=cluster, load=load)
    if not Path(name).exists():
        expected = f"a trace, a YAML file, or one of {', '.join(builtin_names())}"
        raise UsageError("no such workload", field=field, value=name, expected=expected)
    return resolve_scenario(trace=name, cluster=cluster, load=load)
