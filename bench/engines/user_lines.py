"""Lines of user code: what a program needs for one piece of work, counted in its own file.

Counted are the statements of the module that the piece's function uses, directly or through others, imports
among them, and what connects it to its engine. Blank lines, comments, docstrings and the work itself, which
all share, are not; nor is what only other pieces of work use.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable

SILENT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def lines_needed(source: str, piece: str, connect: str, others: Iterable[str]) -> int:
    """How many lines of a module's source a piece of work needs, by the names of functions."""
    module = ast.parse(source)
    own = _needed(module, [piece])
    needed = own | _needed(module, [connect]) - (_needed(module, others) - own)
    lines = {line for each in needed for line in range(_first_line(each), (each.end_lineno or 0) + 1)}
    return len(lines & _lines_of_code(source) - _lines_of_docstrings(module))


def _needed(module: ast.Module, names: Iterable[str]) -> set[ast.stmt]:
    """The statements that make these names, and what those use."""
    makers = {name: statement for statement in module.body for name in _made(statement)}
    needed: set[ast.stmt] = set()
    open_names = list(names)
    while open_names:
        statement = makers.get(open_names.pop())
        if statement is not None and statement not in needed:
            needed.add(statement)
            open_names += [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return needed


def _made(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module makes."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def _first_line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])


def _lines_of_code(source: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {line for t in tokens if t.type not in SILENT for line in range(t.start[0], t.end[0] + 1)}


def _lines_of_docstrings(module: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
            and ast.get_docstring(node) is not None
        ):
            text = node.body[0]
            found |= set(range(text.lineno, (text.end_lineno or 0) + 1))
    return found
