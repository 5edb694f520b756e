"""Scenario and cluster files: YAML text → checked scenario, and the scenarios that come with trimtab."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Hashable, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from trimtab.domain.errors import ScenarioError, UsageError
from trimtab.experiments.spec.problems import checked
from trimtab.experiments.spec.references import nearest
from trimtab.experiments.spec.scenario import ClusterPart, Scenario, scenario_schema

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

DEFAULT_SCENARIO = "aigc-images"
CLUSTER_SECTION_KEYS = ("models", "adapters", "classes")
MOST_VALUES = 1_000_000  # of a file, with every alias written out


def builtin_names() -> tuple[str, ...]:
    """Names of the scenarios that come with trimtab."""
    return tuple(
        sorted(f.name.removesuffix(".yaml") for f in _builtin_folder().iterdir() if _is_yaml(f.name))
    )


def builtin_text(name: str) -> str:
    """The file of a built-in scenario, comments and all.

    Raises:
        ScenarioError: there is none of this name.
    """
    if name not in builtin_names():
        raise _no_such_scenario(name)
    return (_builtin_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def _builtin_folder() -> Traversable:
    return resources.files("trimtab.experiments") / "builtin"


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
        ScenarioError: no such name or file, malformed YAML, or fields that are wrong, all of them listed.
    """
    path = as_path(name_or_path, "scenario")
    if str(path) in builtin_names():
        return parse_scenario(builtin_text(str(path)), str(path))
    if not path.exists() and not _is_yaml(path.name):
        raise _no_such_scenario(str(name_or_path))
    return parse_scenario(_read(path), str(path), path.parent)


def parse_scenario(text: str, file: str = "scenario", folder: Path | None = None) -> Scenario:
    """A scenario from the text of a file; traces are looked up relative to `folder`, if given."""
    data = _parsed(text, file)
    data.setdefault("name", Path(file).stem)
    return checked(lambda: Scenario.model_validate(_in_folder(data, folder)), Scenario, file)


def load_cluster(path: str | Path) -> ClusterPart:
    """The cluster of a file, which holds a cluster section, or it under `cluster:`, or a whole scenario.

    Raises:
        ScenarioError: as for scenarios.
    """
    file, folder = str(path), Path(path).parent
    data = _parsed(_read(Path(path)), file)
    if "workload" in data:
        return checked(lambda: Scenario.model_validate(_in_folder(data, folder)), Scenario, file)
    if "cluster" not in data:
        beside = {key: data.pop(key) for key in CLUSTER_SECTION_KEYS if key in data}
        data = {"cluster": data, **beside}
    return checked(lambda: ClusterPart.model_validate(data), ClusterPart, file)


def resolve_scenario(
    name_or_path: str | Path | None = None,
    *,
    trace: str | Path | None = None,
    cluster: str | Path | None = None,
    load: float | None = None,
    policies: Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
) -> Scenario:
    """The scenario that a command line asks for: a file or built-in one, with parts replaced.

    Without a scenario, a trace and a cluster make one; with neither it is the default scenario.

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
    if part is None:
        expected = "a cluster file (--cluster FILE) or a scenario to run it on"
        raise ScenarioError("a trace alone makes no scenario", field="cluster", expected=expected)
    name = trace.name.removesuffix(".gz").rsplit(".", 1)[0]
    fields = {key: getattr(part, key) for key in ("cluster", *CLUSTER_SECTION_KEYS)}
    return Scenario.model_validate({"name": name, "workload": {"trace": {"file": trace}}, **fields})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(
            f"cannot be read: {error.strerror}", file=str(path), expected="a YAML file"
        ) from error
    except UnicodeDecodeError as error:
        raise ScenarioError("cannot be read: not UTF-8", file=str(path), expected="a YAML file") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key given twice: YAML would silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key if isinstance(key, Hashable) else None)
        return super().construct_mapping(node, deep)


def _parsed(text: str, file: str) -> dict[Any, Any]:
    try:
        data = _loaded(text)
    except RecursionError as error:
        raise ScenarioError("nested too deeply", file=file) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        field = None if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
        raise ScenarioError(f"malformed YAML: {error.problem}", file=file, field=field) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that is none
        raise ScenarioError(f"malformed YAML: {error}", file=file) from error
    if not isinstance(data, dict):
        kind = "empty" if data is None else type(data).__name__
        raise ScenarioError(
            f"no scenario but {kind}", file=file, expected="keys such as cluster and workload"
        )
    return data


def _loaded(text: str) -> Any:
    """What a document says. Raises YAMLError, also where aliases make it endless or huge."""
    loader = _UniqueKeyLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _n_values(root, {}) > MOST_VALUES:
            problem = f"more than {MOST_VALUES:,} values, or an alias inside what it stands for"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=root.start_mark)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _n_values(node: yaml.Node, known: dict[yaml.Node, float]) -> float:
    """Values of a node with every alias written out; infinite where it contains itself."""
    if node not in known:
        known[node] = math.inf  # until it is counted
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        flat = itertools.chain(*parts) if isinstance(node, yaml.MappingNode) else parts
        known[node] = 1 + sum(_n_values(part, known) for part in flat)
    return known[node]


def _in_folder(value: Any, folder: Path | None) -> Any:
    """Every relative `file:` as seen from the folder of the scenario file."""
    if folder is None:
        return value
    if isinstance(value, dict):
        return {
            k: str(folder / v) if k == "file" and isinstance(v, str) else _in_folder(v, folder)
            for k, v in value.items()
        }
    return [_in_folder(v, folder) for v in value] if isinstance(value, list) else value
