"""No result depends on the processor model: what differs between models is not called where results are made.

NumPy's transcendental functions, matrix products, `einsum` and linear algebra take other paths on other
processors, and so differ in the last bit; its sums in kernels differ between compiled and interpreted runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import trimtab

PACKAGE = Path(trimtab.__file__).parent
SHOWN_ONLY = ("report", "gateway", "cli")  # figures for readers, and statistics of a live gateway
NEURAL = PACKAGE / "chains" / "demo"  # pictures and sound of neural models: no numbers that are compared
TRANSCENDENTAL = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2"),
    *("power", "float_power", "cbrt", "hypot", "arctan2", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
    *("arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh"),
}
PRODUCTS = {"dot", "vdot", "inner", "matmul", "tensordot", "einsum"}
LINEAR_ALGEBRA = {"linalg", "roots", "polyfit", "convolve", "correlate", "cov", "corrcoef"}
REDUCTIONS = {"sum", "mean", "std", "var", "prod", "cumsum", "dot"}
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if "@" in path.read_text(encoding="utf-8")]


def _numpy_calls(tree: ast.AST, names: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in names
            and ast.unparse(node.value) in ("np", "numpy")
        ):
            yield f"line {node.lineno}: np.{node.attr}"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield f"line {node.lineno}: @"


def _reductions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_method and node.func.attr in REDUCTIONS:
            yield f"line {node.lineno}: {ast.unparse(node.func)}"


def _kernels(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            marks = {ast.unparse(mark).partition("(")[0] for mark in node.decorator_list}
            if marks & {"kernel", "helper"}:
                yield node


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_kernels_call_math_and_sum_in_loops(file: Path) -> None:
    found = []
    for function in _kernels(ast.parse(file.read_text(encoding="utf-8"))):
        found += _numpy_calls(function, TRANSCENDENTAL | PRODUCTS | REDUCTIONS)
        found += _reductions(function)
    assert not found, "call math.* and sum in a loop"


def test_results_are_made_without_what_differs_between_processors() -> None:
    names = TRANSCENDENTAL | PRODUCTS | LINEAR_ALGEBRA
    found = {
        str(file.relative_to(PACKAGE)): calls
        for file in PACKAGE.rglob("*.py")
        if file.relative_to(PACKAGE).parts[0] not in SHOWN_ONLY
        and not file.is_relative_to(NEURAL)
        and (calls := list(_numpy_calls(ast.parse(file.read_text("utf-8")), names)))
    }
    assert not found, "call compiled.elementwise with a function of math; sum products"
