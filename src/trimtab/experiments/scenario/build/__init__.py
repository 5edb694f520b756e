"""Builds the inputs of a run from a scenario and a seed: cluster, requests, options (see `run_inputs`).

Requests start as `columns`, drawn (`generated`, each purpose from its own one of the `streams`) or read from
a trace (`traced`, with `defaults` for known formats); then `cluster`, `requests` and `options` become arrays.
`capacity` is the arrival rate that is load 1.0.
"""

from trimtab.experiments.scenario.build.run_inputs import RunInputs, TraceInfo, build, same_inputs
from trimtab.experiments.scenario.build.scenario_workload import scenario_workload

__all__ = ["RunInputs", "TraceInfo", "build", "same_inputs", "scenario_workload"]
