"""Runs the notebooks' cells and writes them with their outputs: `python docs/notebooks/execute.py`."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def cells_of(text: str) -> list[tuple[str, str]]:
    """(kind, source) of each cell of a script in percent format."""
    cells = []
    for part in text.split("# %%")[1:]:
        head, _, source = part.partition("\n")
        kind = "markdown" if "[markdown]" in head else "code"
        source = source.strip("\n")
        if kind == "markdown":
            source = "\n".join(line.removeprefix("#").removeprefix(" ") for line in source.split("\n"))
        cells.append((kind, source))
    return cells


def run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Outputs of a cell: what it prints, and the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if value is not None:
        shown = {"text/plain": repr(value)}
        for kind, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
            if hasattr(value, method):
                shown[kind] = getattr(value, method)()
        data = {"output_type": "execute_result", "execution_count": None, "data": shown, "metadata": {}}
        outputs.append(data)
    return outputs


def notebook_of(script: Path) -> dict[str, Any]:
    """The notebook of a script, executed in an empty folder."""
    module = types.ModuleType(script.stem)
    sys.modules[script.stem] = module
    cells: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(cells_of(script.read_text("utf-8"))):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": run(source, module.__dict__)}
        cells.append(cell)
    language = {"language_info": {"name": "python"}}
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return {"cells": cells, "metadata": {**kernel, **language}, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    """Execute all notebooks."""
    for script in sorted(FOLDER.glob("*.py")):
        if script.name != Path(__file__).name:
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                text = json.dumps(notebook_of(script), indent=1, ensure_ascii=False) + "\n"
            script.with_suffix(".ipynb").write_text(text, "utf-8")
            print(f"wrote {script.with_suffix('.ipynb').name}")


if __name__ == "__main__":
    main()
