"""Scenarios of requests and cluster files, and which scenario a command line means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.experiments.scenario.scenario_files import GivenScenario, ScenarioFiles, in_folder
from trimtab.experiments.scenario.spec.scenario import ClusterPart, Scenario
from trimtab.traces.gateway_recording import is_recording
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

DEFAULT_SCENARIO = "aigc-images"
CLUSTER_SECTION_KEYS = ("models", "adapters", "classes")


REQUESTS: Final = ScenarioFiles(Scenario, "trimtab.experiments.scenario", "cluster and workload")
builtin_names: Final = REQUESTS.builtins
builtin_text: Final = REQUESTS.text
load_scenario: Final = REQUESTS.load
parse_scenario: Final = REQUESTS.parse


def load_cluster(path: str | Path) -> ClusterPart:
    """The cluster of a file: a cluster section, alone or under `cluster:`, or a whole scenario.

    Raises:
        ScenarioError: as for scenarios.
    """
    file, folder = str(path), Path(path).parent
    data = _data(read_yaml(Path(path), ScenarioError), file)
    return REQUESTS.parse(data, file, folder) if "workload" in data else part_of(data, path)


def cluster_part(given: ClusterPart | str | Path) -> ClusterPart:
    """The cluster, read where it is a file. Raises ScenarioError."""
    return given if isinstance(given, ClusterPart) else load_cluster(given)


def parse_cluster(given: str | Mapping[Any, Any], file: str = "cluster") -> ClusterPart:
    """The cluster of a text, or of values, as `load_cluster` has it from a file. Raises ScenarioError."""
    return part_of(_data(given, file) if isinstance(given, str) else dict(given), file)


def part_of(data: dict[Any, Any], path: str | Path) -> ClusterPart:
    """The cluster of the values of a file, whose paths are relative to it. Raises ScenarioError."""
    file, data = str(path), in_folder(data, Path(path).parent)
    if "cluster" not in data:
        beside = {key: data.pop(key) for key in CLUSTER_SECTION_KEYS if key in data}
        data = {"cluster": data, **beside}
    return checked(lambda: ClusterPart.model_validate(data), ClusterPart, file, ScenarioError)


def resolve_scenario(
    name_or_path: GivenScenario | None = None,
    *,
    trace: str | Path | None = None,
    cluster: ClusterPart | str | Path | None = None,
    load: float | None = None,
    policies: Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
) -> Scenario:
    """The scenario of a command line: a file or a built-in one, with parts replaced.

    Without a scenario, a trace and a cluster make one; without them it is the default scenario.

    Raises:
        ScenarioError: a part cannot be read, or the parts do not fit together.
    """
    if cluster is not None and name_or_path is None and trace is None:
        expected = "a scenario or a trace (--trace FILE) to put on this cluster"
        shown = None if isinstance(cluster, ClusterPart) else str(cluster)
        raise ScenarioError("nothing runs on it", field="cluster", value=shown, expected=expected)
    part = None if cluster is None else cluster_part(cluster)
    if name_or_path is None and trace is not None:
        base, trace = scenario_on(Path(trace), part), None
    else:
        named = DEFAULT_SCENARIO if name_or_path is None else name_or_path
        base = load_scenario(named)
    return base.with_overrides(trace=trace, cluster=part, load=load, policies=policies, seeds=seeds)


def scenario_on(trace: Path, part: ClusterPart | None) -> Scenario:
    """A trace on a cluster as a scenario; a recording of the gateway needs none. Raises ScenarioError."""
    if part is None and is_recording(trace):
        return scenario_of(trace)
    if part is None:
        expected = "a cluster file (--cluster FILE), a scenario, or a recording of the gateway"
        raise ScenarioError("a trace alone makes no scenario", field="cluster", expected=expected)
    name = trace.name.removesuffix(".gz").rsplit(".", 1)[0]
    fields = {key: getattr(part, key) for key in ("cluster", *CLUSTER_SECTION_KEYS)}
    return Scenario.model_validate({"name": name, "workload": {"trace": {"file": trace}}, **fields})


def _data(text: str, file: str) -> dict[Any, Any]:
    return parsed_yaml(text, file, ScenarioError, "no scenario", f"keys such as {REQUESTS.keys}")
