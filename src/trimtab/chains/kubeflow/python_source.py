"""The source that a compiled Python component carries, made ready for a file with others."""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from trimtab.chains.kubeflow import dsl
from trimtab.chains.kubeflow.pipeline_spec import Container
from trimtab.errors import ChainError

EXECUTOR: Final = "kfp.dsl.executor_main"
_HEADER: Final = re.compile(
    r"(?m)^(?:import kfp|from kfp import dsl|from kfp\.dsl import \*|from typing import \*)[ \t]*\n"
)
_INSTALLED: Final = re.compile(r"-m pip install ((?:(?!&&).)*)", re.DOTALL)
_QUOTED: Final = re.compile(r"'([^']+)'")
_UNKNOWN: Final = frozenset(
    {
        "EmbeddedInput", "PipelineTaskFinalStatus", "SlicedClassificationMetrics", "TaskConfig", "get_uri",
        "run_notebook",
    }
)  # fmt: skip
RESERVED: Final = frozenset({*dsl.NAMES, *typing.__all__, *dir(builtins)}) | {
    "after", "chain", "component", "dsl", "kfp", "program", "task",
}  # fmt: skip


@dataclass(frozen=True)
class PythonSource:
    """The functions of a component, without the imports that Kubeflow puts before them."""

    text: str
    function: str
    packages: tuple[str, ...]  # that its image installs first
    imports_kfp: bool


def is_python(container: Container) -> bool:
    """Whether a container runs a Python component."""
    return any(EXECUTOR in part for part in container.command)


def python_source(container: Container, file: str, where: str) -> PythonSource:
    """The source of a Python component. Raises ChainError where it carries none that runs without kfp."""
    text, args = container.command[-1], container.args
    if "def " not in text:
        problem = "is a function that only the image has"
        raise ChainError(problem, file=file, field=f"{where}.command", expected="a component with its source")
    try:
        function = args[args.index("--function_to_execute") + 1]
    except (ValueError, IndexError):
        expected = "--function_to_execute NAME"
        raise ChainError("names no function", file=file, field=f"{where}.args", expected=expected) from None
    body = _HEADER.sub("", text).strip("\n") + "\n"
    try:
        tree = ast.parse(body)
    except SyntaxError as error:
        problem = f"is no Python: {error.msg} (line {error.lineno})"
        raise ChainError(problem, file=file, field=f"{where}.command", expected="a function") from error
    if unknown := sorted({*_dsl_names(tree)} - {*dsl.NAMES} | _loaded(tree) & _UNKNOWN):
        problem = f"uses {unknown[0]} of kfp, which is not supported"
        raise ChainError(problem, file=file, field=f"{where}.command", expected=", ".join(dsl.NAMES))
    if function not in defined(body):
        raise ChainError("defines no such function", file=file, field=f"{where}.command", value=function)
    command = " ".join(container.command[:-1])
    packages = [name for found in _INSTALLED.findall(command) for name in _QUOTED.findall(found)]
    own = {"kfp", "typing-extensions", "--no-deps"}
    wanted = tuple(name for name in packages if re.split(r"[=<>!~\[; ]", name)[0] not in own)
    return PythonSource(body, function, wanted, _imports_kfp(tree))


def defined(text: str) -> list[str]:
    """The names that a text defines at its top."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign):
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return found


def names_in(text: str) -> set[str]:
    """The names that a text reads."""
    return _loaded(ast.parse(text))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """A text with names of its own replaced; attributes and keywords of calls stay."""
    if not names:
        return text
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    lines = text.splitlines(keepends=True)
    depth, places = 0, []
    for k, token in enumerate(tokens):
        depth += (token.string in "([{" and token.type == tokenize.OP) - (
            token.string in ")]}" and token.type == tokenize.OP
        )
        is_attribute = k > 0 and tokens[k - 1].string == "."
        is_keyword = depth > 0 and k + 1 < len(tokens) and tokens[k + 1].string == "="
        if token.type == tokenize.NAME and token.string in names and not is_attribute and not is_keyword:
            places.append((token.start, token.end, names[token.string]))
    for (row, start), (_, end), name in reversed(places):
        line = lines[row - 1]
        lines[row - 1] = f"{line[:start]}{name}{line[end:]}"
    return "".join(lines)


def _loaded(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _dsl_names(tree: ast.AST) -> Iterator[str]:
    """What a text takes of `dsl`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value
            is_dsl = isinstance(owner, ast.Name) and owner.id == "dsl"
            is_kfp = isinstance(owner, ast.Attribute) and owner.attr == "dsl"
            if is_dsl or is_kfp:
                yield node.attr


def _imports_kfp(tree: ast.AST) -> bool:
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    return any(module.partition(".")[0] == "kfp" for module in modules)
