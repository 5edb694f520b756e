"""Completions for the shell. The module imports nothing slow, because Tab must answer at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

_NAME = re.compile(r'^    name: ClassVar\[str\] = "([^"]+)"$', re.MULTILINE)
_CLASS = re.compile(r"^class (\w+)\(([\w, ]+)\):", re.MULTILINE)
_KIND = re.compile(r"^    (?:def )?(dispatch|order)(?:\(| = staticmethod)", re.MULTILINE)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _sources(folder: Traversable) -> Iterable[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sources(entry)
        elif entry.name.endswith(".py"):
            yield entry.read_text(encoding="utf-8")


def policy_names(kind: str = "") -> list[str]:
    """Names of the catalogue, read from its sources: importing them would take a second."""
    names: dict[str, str] = {}
    bases: dict[str, list[str]] = {}
    kinds: dict[str, list[str]] = {}
    for source in _sources(resources.files("trimtab") / "policies"):
        for head in (classes := list(_CLASS.finditer(source))):
            following = [other.start() for other in classes if other.start() > head.start()]
            body = source[head.start() : min(following, default=len(source))]
            bases[head[1]], kinds[head[1]] = head[2].split(", "), _KIND.findall(body)
            if match := _NAME.search(body):
                names[match[1]] = head[1]

    def has_kind(name: str) -> bool:
        return kind in kinds.get(name, ()) or any(map(has_kind, bases.get(name, ())))

    return sorted(name for name, found in names.items() if not kind or has_kind(found))


def allocators(incomplete: str) -> list[str]:
    """Names of allocators of training jobs."""
    folder = resources.files("trimtab") / "training" / "allocators"
    found = (_NAME.search(source) for source in _sources(folder))
    return _starting((match[1] for match in found if match), incomplete)


def policies(incomplete: str) -> list[str]:
    """Names of policies, without their orders."""
    return _starting(policy_names(), incomplete)


def any_policies(incomplete: str) -> list[str]:
    """Names of policies and of allocators."""
    return sorted({*policies(incomplete), *allocators(incomplete)})


def policy_specs(incomplete: str) -> list[str]:
    """Policies that dispatch; after a `+`, orders."""
    name, plus, _ = incomplete.partition("+")
    specs = [f"{name}+{order}" for order in policy_names("order")] if plus else policy_names("dispatch")
    return _starting(specs, incomplete)


def builtin_scenarios(incomplete: str) -> list[str]:
    """Names of the built-in scenarios."""
    experiments = resources.files("trimtab") / "experiments"
    files = [
        f.name
        for kind in experiments.iterdir()
        if (kind / "builtin").is_dir()
        for f in (kind / "builtin").iterdir()
    ]
    return _starting((f.removesuffix(".yaml") for f in files if f.endswith(".yaml")), incomplete)


def scenarios(incomplete: str) -> list[str]:
    """Built-in scenarios, and YAML files of the current folder."""
    return builtin_scenarios(incomplete) + _starting((f.name for f in Path().glob("*.y*ml")), incomplete)


def metrics(incomplete: str) -> list[str]:
    """Names of metrics."""
    from trimtab.metrics.definitions import METRICS

    return _starting(METRICS, incomplete)


def public_traces(incomplete: str) -> list[str]:
    """Names of traces that can be downloaded."""
    from trimtab.traces.public_traces import CATALOGUE

    return _starting((trace.name for trace in CATALOGUE), incomplete)
