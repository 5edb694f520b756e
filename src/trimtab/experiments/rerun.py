"""Repeats what a folder of results was made by, and compares the figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.errors import UsageError
from trimtab.experiments.compare import Comparison
from trimtab.experiments.compare.task_pool import Progress
from trimtab.experiments.compare_policies import compare
from trimtab.experiments.kinds import load_any
from trimtab.experiments.provenance import sha256_of
from trimtab.experiments.scenario import load_scenario
from trimtab.experiments.serving.run import Run, simulate
from trimtab.experiments.tuning import Goal, Tuning, tune_policy
from trimtab.validation.yaml_text import parsed_yaml

RESULTS: Final = "results.json"
_NAME: Final = "policy"
_COMPARED: Final = (
    *("results", "sweep", "bound", "metrics", "offered_load", "seeds"),
    *("verdict", "requests", "validation", "test", "front", "trained"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure that is not what it was."""

    where: str
    before: object
    now: object


@dataclass(frozen=True, slots=True)
class Rerun:
    """A repeated comparison, run or tuning.

    `figures` is how many were compared, `differences` those that are not equal; `changed_files` the files
    whose content is another, `changed_versions` name → before and now.
    """

    folder: Path
    figures: int
    differences: tuple[Difference, ...]
    changed_files: tuple[str, ...]
    changed_versions: Mapping[str, tuple[str, str]]
    result: Comparison | Run | Tuning

    @property
    def is_equal(self) -> bool:
        """Whether every figure is what it was."""
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        """The output of `trimtab rerun --json`."""
        return {
            "folder": str(self.folder),
            "is_equal": self.is_equal,
            "figures": self.figures,
            "differences": [{"where": d.where, "before": d.before, "now": d.now} for d in self.differences],
            "changed_files": list(self.changed_files),
            "changed_versions": {name: list(both) for name, both in self.changed_versions.items()},
        }


def rerun(
    folder: Path, *, trace: Path | None = None, jobs: int | None = None, progress: Progress | None = None
) -> Rerun:
    """Repeat the comparison, run or tuning whose results are in a folder; `trace` is where its trace is now.

    Raises:
        UsageError: no results, results of before they told what made them, or a file that is not there.
    """
    before = _results(folder)
    made = before["made_by"]
    data = _settings(made["scenario_yaml"], folder)
    moved = {} if trace is None else _moved(folder, data, made["files"], trace)
    files = list(_changed(folder, made["files"], moved))
    scenario = load_any(_replaced(data, moved), str(folder / RESULTS))
    result: Comparison | Run | Tuning
    if "tuning" in before:
        told = before["tuning"]
        result = tune_policy(
            load_scenario(scenario),
            made["policies"][0],
            Goal.parsed(told["objective"]),
            candidates=told["candidates"],
            seed=told["seed"],
            jobs=jobs,
            progress=progress,
        )
    elif "policy" in before:
        result = simulate(load_scenario(scenario), made["policies"][0], before["seed"])
    else:
        loads = [point["load"] for point in before["sweep"]]
        result = compare(
            scenario,
            made["policies"],
            before["seeds"],
            sweep=tuple(dict.fromkeys(loads)),
            jobs=jobs,
            progress=progress,
        )
    now = json.loads(json.dumps(_finite(result.to_dict())))
    known = result.kind.metrics if isinstance(result, Comparison) else {}
    wanted = _without(
        {key: before[key] for key in _COMPARED if key in before},
        {name for name, metric in known.items() if metric.is_timed},
    )
    differences = list(_differences("", wanted, now))
    versions = {
        name: (told, now["versions"].get(name, "none"))
        for name, told in before["versions"].items()
        if now["versions"].get(name) != told
    }
    return Rerun(folder, _count(wanted), tuple(differences), tuple(files), versions, result)


def _results(folder: Path) -> dict[str, Any]:
    path = folder / RESULTS if folder.is_dir() else folder
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        expected = (
            f"a folder that `trimtab compare`, `trimtab tune` or `trimtab run --out` wrote, with {RESULTS}"
        )
        raise UsageError("holds no results", file=str(folder), expected=expected) from error
    if not isinstance(found, dict) or "made_by" not in found:
        expected = "results of trimtab that tell what made them, the key made_by"
        raise UsageError("cannot be repeated", file=str(path), expected=expected)
    return found


def _changed(folder: Path, files: Mapping[str, str | None], moved: Mapping[str, str]) -> Iterator[str]:
    """The files whose content has changed. Raises UsageError for a file that is not there."""
    for name, told in files.items():
        path = Path(moved.get(name, name))
        now = sha256_of(path)
        if now is None and told is not None:
            expected = "the file that the results were made from, or --trace FILE for a trace"
            raise UsageError("is not there", file=str(folder), field=str(path), expected=expected)
        if now != told:
            yield str(path)


def _settings(text: str, folder: Path) -> dict[Any, Any]:
    """The values of a scenario, of any kind of work."""
    file = str(folder / RESULTS)
    return parsed_yaml(text, file, UsageError, "no scenario", "keys such as cluster and workload")


def _moved(folder: Path, data: Any, files: Mapping[str, str | None], trace: Path) -> dict[str, str]:
    """The trace of the settings → where it is now; of several, the one of that content. Raises UsageError."""
    named = list(dict.fromkeys(_traces(data)))
    if len(named) > 1:
        content = sha256_of(trace)
        named = [name for name in named if files.get(name) == content]
    if not named:
        expected = "a trace that the results were made from"
        raise UsageError(
            "takes no place here", file=str(folder), field="--trace", value=trace, expected=expected
        )
    return {named[0]: str(trace.absolute())}


def _traces(value: Any) -> Iterator[str]:
    """Paths of traces in settings."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict) and isinstance(value.get("trace"), dict) and "file" in value["trace"]:
        yield str(value["trace"]["file"])
    for each in inner:
        yield from _traces(each)


def _replaced(value: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(inner, moved) for key, inner in value.items()}
    if isinstance(value, list):
        return [_replaced(inner, moved) for inner in value]
    return moved.get(value, value) if isinstance(value, str) else value


def _finite(value: Any) -> Any:
    """As in a file of results, which has null for what is not finite."""
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and value - value != 0.0 else value


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner, names) for key, inner in value.items() if key not in names}
    return [_without(inner, names) for inner in value] if isinstance(value, list) else value


def _differences(where: str, before: Any, now: Any) -> Iterator[Difference]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key, value in before.items():
            if key == _NAME:  # a policy in a file has its folder in its name
                continue
            yield from _differences(f"{where}.{key}" if where else key, value, now.get(key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for idx, (old, new) in enumerate(zip(before, now, strict=True)):
            name = old.get(_NAME, idx) if isinstance(old, Mapping) else idx
            yield from _differences(f"{where}[{name}]", old, new)
    elif before != now:
        yield Difference(where, before, now)


def _count(value: Any) -> int:
    if isinstance(value, Mapping):
        return sum(map(_count, value.values()))
    return sum(map(_count, value)) if isinstance(value, list) else 1
