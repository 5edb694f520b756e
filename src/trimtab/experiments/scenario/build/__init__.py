"""Builds the inputs of a run from a scenario and a seed: cluster, requests, options (see `run_inputs`).

Requests start as columns, `generated`, or read from a trace (`traced`, with defaults for known formats);
then `cluster_arrays`, `request_arrays` and `serving_options` make arrays of all.
"""

from trimtab.experiments.scenario.build.run_inputs import (
    RunInputs,
    TraceInfo,
    build,
    same_inputs,
    scenario_workload,
)

__all__ = ["RunInputs", "TraceInfo", "build", "same_inputs", "scenario_workload"]
