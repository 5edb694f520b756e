"""What is run: scenario files (`spec` says what they may hold) and what becomes of a seed of one (`build`).

`loader` finds and reads the files, `builtin` holds those that come with trimtab, `from_recording` makes a
scenario of a gateway's recording, and `trace_rows` reads traces for `spec` and `build` alike.
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
