"""Classes that users name: from a file or a module, with the values of their parameters.

A class in a file gets a module name made of the file's path and content. The name is the same in every
process, because the cache of compiled kernels needs it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from trimtab.domain.artifact import NO_ARTIFACT, NONE, Artifact
from trimtab.domain.parameters import base_type, check_value, default_of, kinds_of, parameters_of
from trimtab.errors import UsageError

T = TypeVar("T")

_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}  # numbers that Python has no literal for
_CALL = re.compile(r"\s*((?:.+\.py:)?[\w.:-]+)\s*(?:\(([^()]*)\))?\s*")


def parse_call(text: str) -> tuple[str, str] | None:
    """Name and arguments of "name" or "name(parameter=value, …)"; None for anything else."""
    match = _CALL.fullmatch(text)
    return (match[1], match[2] or "") if match else None


def made_of(
    text: str, classes: Mapping[str, Any], what: str, field: str, error: type[UsageError] = UsageError
) -> Any:
    """The object that a text such as "name(parameter=value)" stands for, of one of these classes by name.

    Raises `error` for an unknown name, UsageError for values that the class does not take.
    """
    call = parse_call(text)
    if call is None or call[0] not in classes:
        expected = f"one of {', '.join(classes)}, with (parameter=value, …) if need be"
        raise error(f"no such {what}", field=field, value=text, expected=expected)
    cls = classes[call[0]]
    return cls(**values_of(cls, *call))


def label_of(name: str, made: object, text: Callable[[Any], str] = str) -> str:
    """The name with the parameters of an object that are not at their default, each as `text` has it."""
    changed = [
        f"{f.name}={text(getattr(made, f.name))}"
        for f in parameters_of(type(made))
        if getattr(made, f.name) != default_of(f)
    ]
    return f"{name}({','.join(changed)})" if changed else name


def class_at(name: str, base: type[T]) -> type[T] | None:
    """The class that `file.py:Class` or `module:Class` stands for; None for a name without a place.

    Raises UsageError where there is no such class, or none that derives from `base`.
    """
    place, colon, class_name = name.rpartition(":")
    if colon:
        module = file_module(Path(place)) if place.endswith(".py") else module_of(place)
        return _class_of(module, place, class_name, base)
    if name.endswith(".py"):
        raise UsageError("names no class", field="policy", value=name, expected=f"{name}:Class")
    return None


def _class_of(module: ModuleType, place: str, class_name: str, base: type[T]) -> type[T]:
    cls = getattr(module, class_name, None)
    if isinstance(cls, type) and issubclass(cls, base):
        return cls
    found = [
        n for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, base) and c is not base
    ]
    problem = "has no such class" if cls is None else f"is not a subclass of trimtab's {base.__name__}"
    there = ", ".join(found) or "none"
    raise UsageError(problem, file=place, field=class_name, expected=f"a policy class; there: {there}")


def module_of(dotted: str) -> ModuleType:
    """Import a module, installed or in the current folder."""
    try:
        with _current_folder_first():
            return importlib.import_module(dotted)
    except Exception as error:
        raise UsageError(f"does not import: {type(error).__name__}: {error}", file=dotted) from error


@contextmanager
def _current_folder_first() -> Iterator[None]:
    """Look for modules in the current folder first, as `python -m` does.

    This ends with the context, so that a file here cannot hide a library later.
    """
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)


def file_module(path: Path) -> ModuleType:
    """Import a file under a name that is the same in every process, and new when the file changes."""
    try:
        source = path.read_bytes()
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
        raise UsageError(problem, file=str(path), expected="a Python file with a policy class") from error
    digest = hashlib.sha256(bytes(path.resolve()) + source).hexdigest()[:12]
    name = f"trimtab_policy_{path.stem}_{digest}"
    return sys.modules[name] if name in sys.modules else _execute(name, path, source)


def _execute(name: str, path: Path, source: bytes) -> ModuleType:
    """Run this source text. Python's own bytecode cache would miss an edit within the same second."""
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None  # it ends in .py
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        exec(compile(source, str(path.resolve()), "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"does not import: {type(error).__name__}: {error}", file=str(path)) from error
    return module


def values_of(cls: type, name: str, arguments: str) -> dict[str, Any]:
    """The values in "parameter=value, …", checked against the types that the class declares."""
    kinds = kinds_of(cls)
    known = {f.name: kinds.get(f.name) for f in parameters_of(cls)}
    given: dict[str, Any] = {}
    for argument in filter(None, (part.strip() for part in arguments.split(","))):
        key, equals, text = (piece.strip() for piece in argument.partition("="))
        if not equals or key not in known:
            expected = f"parameter=value with one of: {', '.join(known) or 'none, it has no parameters'}"
            raise UsageError("no such parameter", field=name, value=argument, expected=expected)
        given[key] = _value(text, known[key], f"{name}.{key}")
    return given


def _value(text: str, kind: Any, field: str) -> Any:
    """A parameter's value, read as Python would, checked against what the class declares."""
    if kind is Artifact:
        return NO_ARTIFACT if text == NONE else Artifact.read(text, field)
    base = base_type(kind)
    try:
        value = ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
    except (ValueError, SyntaxError):
        value = _WORDS.get(text, text) if base is float else text
    if base is float and type(value) is int:
        value = float(value)
    if base is str and not isinstance(value, str):
        value = text
    check_value(kind, value, field)
    return value


def section(documentation: str, heading: str) -> str:
    """The text under a heading of a docstring, on one line; empty where there is none."""
    match = re.search(rf"^{re.escape(heading)}\n((?:[ \t]+.*(?:\n|$))+)", documentation, re.MULTILINE)
    return " ".join(match[1].split()) if match else ""
