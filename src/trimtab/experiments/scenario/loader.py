"""Scenario and cluster files: YAML text → checked scenario, and the built-in scenarios."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.experiments.scenario.spec.scenario import ClusterPart, Scenario
from trimtab.traces.gateway_recording import is_recording
from trimtab.validation.names import nearest
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

DEFAULT_SCENARIO = "aigc-images"
CLUSTER_SECTION_KEYS = ("models", "adapters", "classes")


def builtin_names() -> tuple[str, ...]:
    """Names of the built-in scenarios."""
    return tuple(
        sorted(f.name.removesuffix(".yaml") for f in _builtin_folder().iterdir() if _is_yaml(f.name))
    )


def builtin_text(name: str) -> str:
    """The text of a built-in scenario, with comments.

    Raises:
        ScenarioError: no built-in scenario has this name.
    """
    if name not in builtin_names():
        raise _no_such_scenario(name)
    return (_builtin_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def _builtin_folder() -> Traversable:
    return resources.files("trimtab.experiments.scenario") / "builtin"


def _is_yaml(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _no_such_scenario(name: str) -> ScenarioError:
    expected = f"a built-in scenario or a YAML file: {nearest(name, builtin_names())}"
    return ScenarioError("no such scenario", value=name, expected=expected)


def as_path(given: object, field: str) -> Path:
    """A name or path as a Path. Raises UsageError for anything else."""
    if not isinstance(given, str | os.PathLike):
        expected = "a name, a path or a Scenario" if field == "scenario" else "a path"
        raise UsageError(f"is a {type(given).__name__}", field=field, value=given, expected=expected)
    return Path(given)


def load_scenario(name_or_path: str | os.PathLike[str]) -> Scenario:
    """A built-in scenario by name, or one from a YAML file.

    Raises:
        ScenarioError: no such name or file, malformed YAML, or wrong fields (all are listed).
    """
    path = as_path(name_or_path, "scenario")
    if str(path) in builtin_names():
        return parse_scenario(builtin_text(str(path)), str(path))
    if not path.exists() and not _is_yaml(path.name):
        raise _no_such_scenario(str(name_or_path))
    return parse_scenario(read_yaml(path, ScenarioError), str(path), path.parent)


def parse_scenario(text: str, file: str = "scenario", folder: Path | None = None) -> Scenario:
    """A scenario from the text of a file; traces are looked up relative to `folder`, if given."""
    data = _data(text, file)
    data.setdefault("name", Path(file).stem)
    return _scenario(data, file, folder)


def load_cluster(path: str | Path) -> ClusterPart:
    """The cluster of a file: a cluster section, alone or under `cluster:`, or a whole scenario.

    Raises:
        ScenarioError: as for scenarios.
    """
    file, folder = str(path), Path(path).parent
    data = _data(read_yaml(Path(path), ScenarioError), file)
    if "workload" in data:
        return _scenario(data, file, folder)
    if "cluster" not in data:
        beside = {key: data.pop(key) for key in CLUSTER_SECTION_KEYS if key in data}
        data = {"cluster": data, **beside}
    return checked(lambda: ClusterPart.model_validate(data), ClusterPart, file, ScenarioError)


def resolve_scenario(
    name_or_path: str | Path | None = None,
    *,
    trace: str | Path | None = None,
    cluster: str | Path | None = None,
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
        raise ScenarioError("nothing runs on it", field="cluster", value=str(cluster), expected=expected)
    part = None if cluster is None else load_cluster(cluster)
    if name_or_path is None and trace is not None:
        base, trace = _from_trace(Path(trace), part), None
    else:
        base = load_scenario(DEFAULT_SCENARIO if name_or_path is None else name_or_path)
    return base.with_overrides(trace=trace, cluster=part, load=load, policies=policies, seeds=seeds)


def _from_trace(trace: Path, part: ClusterPart | None) -> Scenario:
    if part is None and is_recording(trace):
        return scenario_of(trace)
    if part is None:
        expected = "a cluster file (--cluster FILE), a scenario, or a recording of the gateway"
        raise ScenarioError("a trace alone makes no scenario", field="cluster", expected=expected)
    name = trace.name.removesuffix(".gz").rsplit(".", 1)[0]
    fields = {key: getattr(part, key) for key in ("cluster", *CLUSTER_SECTION_KEYS)}
    return Scenario.model_validate({"name": name, "workload": {"trace": {"file": trace}}, **fields})


def _data(text: str, file: str) -> dict[Any, Any]:
    return parsed_yaml(text, file, ScenarioError, "no scenario", "keys such as cluster and workload")


def _scenario(data: dict[Any, Any], file: str, folder: Path | None) -> Scenario:
    return checked(lambda: Scenario.model_validate(_in_folder(data, folder)), Scenario, file, ScenarioError)


def _in_folder(value: Any, folder: Path | None) -> Any:
    """The data with every relative `file:` resolved against the folder of the scenario file."""
    if folder is None:
        return value
    if isinstance(value, dict):
        return {
            k: str(folder / v) if k == "file" and isinstance(v, str) else _in_folder(v, folder)
            for k, v in value.items()
        }
    return [_in_folder(v, folder) for v in value] if isinstance(value, list) else value
