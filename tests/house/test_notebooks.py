"""The notebooks of the documentation are those of their scripts, executed, and in step with the code."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trimtab as tt

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if path.name != "execute.py")


@pytest.fixture(scope="module")
def execute() -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / "execute.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_has_the_cells_of_its_script_and_their_outputs(
    script: Path, execute: dict[str, Any]
) -> None:
    text = script.with_suffix(".ipynb").read_text("utf-8")
    notebook = json.loads(text)
    assert notebook["nbformat"] == 4
    found = [(cell["cell_type"], cell["source"]) for cell in notebook["cells"]]
    assert found == execute["cells_of"](script.read_text("utf-8"))
    shown = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert shown[-1]
    assert "/tmp/" not in text
    assert str(Path.home()) not in text


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_executes_and_shows_what_it_showed(
    script: Path, execute: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, script.stem, raising=False)
    now = execute["notebook_of"](script)
    before = json.loads(script.with_suffix(".ipynb").read_text("utf-8"))
    assert list(map(shown, now["cells"])) == list(map(shown, before["cells"]))


def shown(cell: dict[str, Any]) -> list[Any]:
    """The outputs of a cell; of figures only that there is one, as their drawing is matplotlib's."""
    return [
        {**(output.get("data") or output), "image/svg+xml": "image/svg+xml" in output.get("data", {})}
        for output in cell.get("outputs", [])
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_calls_what_there_is(script: Path) -> None:
    assert list(unknown(script.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import trimtab as tt\ntt.nonsense", ["tt.nonsense"]),
        ("from trimtab.traces import nonsense", ["trimtab.traces.nonsense"]),
        ("import trimtab as tt\ntt.compare('tiny', polices=[])", ["tt.compare(polices=…)"]),
        ("import trimtab as tt\nc = tt.compare('tiny')\nc.results\nc.nonsense()", ["c.nonsense"]),
        ("import trimtab as tt\nc = tt.compare('tiny')\nc.table('wide').nonsense()", []),  # not ours to know
        ("import trimtab as tt\ntt.simulate('tiny').plots()", ["tt.simulate(…).plots"]),
    ],
)
def test_what_there_is_not_is_found(source: str, told: list[str]) -> None:
    assert list(unknown(source)) == told


def unknown(source: str) -> Iterator[str]:
    """Names of trimtab that a source uses and that are not there: imports, attributes, keywords."""
    tree = ast.parse(source)
    results: dict[str, Any] = {}  # variable → class of what a function of trimtab returned to it
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trimtab"):
            module = importlib.import_module(node.module or "")
            missing = (alias.name for alias in node.names if not hasattr(module, alias.name))
            yield from (f"{node.module}.{name}" for name in missing)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            results[node.targets[0].id] = returned_by(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (function := of_trimtab(node.func)) is not None:
            known = inspect.signature(function).parameters
            is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
            given = (keyword.arg for keyword in node.keywords if keyword.arg)
            yield from (f"{ast.unparse(node.func)}({k}=…)" for k in given if not is_open and k not in known)
        elif isinstance(node, ast.Attribute):
            yield from unknown_attribute(node, results)


def unknown_attribute(node: ast.Attribute, results: dict[str, Any]) -> Iterator[str]:
    if isinstance(node.value, ast.Name) and node.value.id == "tt":
        if not hasattr(tt, node.attr):
            yield f"tt.{node.attr}"
        return
    is_variable = isinstance(node.value, ast.Name)
    owner = results.get(node.value.id) if isinstance(node.value, ast.Name) else returned_by(node.value)
    if owner is None:
        return
    fields = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else ()
    if not hasattr(owner, node.attr) and node.attr not in fields:
        call = node.value.func if isinstance(node.value, ast.Call) else node.value
        yield f"{ast.unparse(call)}{'' if is_variable else '(…)'}.{node.attr}"


def of_trimtab(node: ast.expr) -> Any:
    """The function `tt.NAME`; None for anything else."""
    is_ours = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tt"
    found = getattr(tt, node.attr, None) if is_ours and isinstance(node, ast.Attribute) else None
    return found if inspect.isfunction(found) else None


def returned_by(node: ast.expr) -> Any:
    """The class that a call `tt.NAME(…)` returns; None for anything else."""
    function = of_trimtab(node.func) if isinstance(node, ast.Call) else None
    return (
        None if function is None else function.__globals__.get(inspect.signature(function).return_annotation)
    )
