"""No result depends on the processor model: what differs between models is not called where results are made.

NumPy's transcendental functions, matrix products, `einsum` and linear algebra take other paths on other
processors, and so differ in the last bit; its sums in kernels differ between compiled and interpreted runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import trimtab

PACKAGE = Path(trimtab.__file__).parent
# Figures for readers, statistics of a live gateway, profiles that are written with four digits.
FITTED = ("profiles/fit_profile", "profiles/mean_iterations", "profiles/scaled_profile")
TRAINED = ("learn/methods/", "learn/oracles/")  # by torch, whose products differ as well
SHOWN_ONLY = ("report/", "gateway/", "cli/", *FITTED, *TRAINED)
TREES = {
    file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8"))
    for file in sorted(PACKAGE.rglob("*.py"))
}
TRANSCENDENTAL = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2"),
    *("power", "float_power", "cbrt", "hypot", "arctan2", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
    *("arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh"),
}
PRODUCTS = {"dot", "vdot", "inner", "matmul", "tensordot", "einsum"}
LINEAR_ALGEBRA = {"linalg", "roots", "polyfit", "convolve", "correlate", "cov", "corrcoef"}
REDUCTIONS = {"sum", "mean", "std", "var", "prod", "cumsum", "dot"}


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


def test_kernels_call_math_and_sum_in_loops() -> None:
    names = TRANSCENDENTAL | PRODUCTS | REDUCTIONS
    found: dict[str, list[str]] = {}
    for file, tree in TREES.items():
        for function in _kernels(tree):
            found.setdefault(file, []).extend([*_numpy_calls(function, names), *_reductions(function)])
    assert len(found) > 50, "the files with kernels were not found"
    assert {file: calls for file, calls in found.items() if calls} == {}, "call math.* and sum in a loop"


def test_results_are_made_without_what_differs_between_processors() -> None:
    names = TRANSCENDENTAL | PRODUCTS | LINEAR_ALGEBRA
    found = {
        file: calls
        for file, tree in TREES.items()
        if not file.startswith(SHOWN_ONLY) and (calls := list(_numpy_calls(tree, names)))
    }
    assert found == {}, "call compiled.elementwise with a function of math; sum products"
