"""Scenarios: the schema of scenario files (`spec`), and the inputs of a run for one seed (`build`).

`loader` finds and reads the files, `builtin` holds the built-in scenarios, `from_recording` makes a scenario
of a gateway's recording, and `trace_rows` reads traces for both `spec` and `build`.
"""

from trimtab.experiments.scenario.loader import (
    DEFAULT_SCENARIO,
    as_path,
    builtin_names,
    builtin_text,
    load_cluster,
    load_scenario,
    parse_scenario,
    resolve_scenario,
)
from trimtab.experiments.scenario.spec.scenario import ClusterPart, Scenario, scenario_schema

__all__ = [
    "DEFAULT_SCENARIO",
    "ClusterPart",
    "Scenario",
    "as_path",
    "builtin_names",
    "builtin_text",
    "load_cluster",
    "load_scenario",
    "parse_scenario",
    "resolve_scenario",
    "scenario_schema",
]
