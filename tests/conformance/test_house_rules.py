"""What every policy's source and documentation must be like."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import trimtab.policies
from trimtab.compiled.kernel import is_kernel
from trimtab.policies import describe, names, policy_class
from trimtab.policies.catalogue import section

HEADINGS = ("Idea", "Source", "Reads", "Cost", "When it wins / loses", "Deviations from the source")
ALLOWED = {
    "__future__",
    "collections",
    "dataclasses",
    "hashlib",
    "math",
    "numpy",
    "scipy",
    "trimtab",
    "typing",
}
MODULES = [
    info.name
    for info in pkgutil.walk_packages(trimtab.policies.__path__, "trimtab.policies.")
    if info.name != "trimtab.policies.catalogue"
]


@pytest.mark.parametrize("name", names())
def test_documentation_has_its_headings(name: str) -> None:
    text = describe(name).documentation
    positions = [text.find(f"\n{heading}\n") for heading in HEADINGS]
    assert positions == sorted(positions)
    assert min(positions) > 0
    assert all(section(text, heading) for heading in HEADINGS)
    assert text.count("\n\n") == 1  # first line, then the headings
    assert re.search(r"O\(", section(text, "Cost"))
    assert re.search(r"\b(19|20)\d\d\b", section(text, "Source"))  # the year


@pytest.mark.parametrize("name", names())
def test_a_policy_is_a_frozen_bag_of_parameters_in_a_file_of_its_name(name: str) -> None:
    cls = policy_class(name)
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert Path(inspect.getfile(cls)).stem == name.replace("-", "_")
    assert all(p.default is not None for p in describe(name).parameters)


@pytest.mark.parametrize("name", names())
def test_a_policy_runs_compiled(name: str) -> None:
    cls = policy_class(name)
    assert is_kernel(cls.order)
    assert name not in names("dispatch") or is_kernel(cls.dispatch)


def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_no_clock_no_global_generator_no_files(module: str) -> None:
    spec = pkgutil.resolve_name(module).__spec__
    tree = ast.parse(Path(spec.origin).read_text())
    assert {name.split(".")[0] for name in imported(tree)} <= ALLOWED
    assert not {"numpy.random", "trimtab.engine"} & {".".join(n.split(".")[:2]) for n in imported(tree)}
    names_read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names_read & {"open", "print", "input", "eval", "exec", "__import__"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"random", "default_rng", "now", "monotonic", "perf_counter"}
