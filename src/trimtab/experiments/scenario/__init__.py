"""Scenarios: the schema of scenario files (`spec`), and the inputs of a run for one seed (`build`).

`scenario_files` finds and reads the files of every kind of work, `loader` those of requests and of clusters,
`builtin` holds the built-in scenarios, `from_recording` makes a scenario of a gateway's recording, and
`trace_rows` reads traces for both `spec` and `build`. `parts` is what a command replaces in a scenario.
"""

from trimtab.experiments.scenario.loader import (
    DEFAULT_SCENARIO,
    builtin_names,
    builtin_text,
    load_cluster,
    load_scenario,
    parse_scenario,
    resolve_scenario,
)
from trimtab.experiments.scenario.scenario_files import as_path
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
