"""YAML files as people write them: no key twice, no size without bound, errors with line and column."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from trimtab.errors import UsageError

MOST_VALUES = 1_000_000  # of a file, with every alias written out


def read_yaml(path: Path, kind: type[UsageError]) -> str:
    """The text of a file. Raises an error of this kind where it cannot be read."""
    file, expected = str(path), "a YAML file"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise kind(f"cannot be read: {error.strerror}", file=file, expected=expected) from error
    except UnicodeDecodeError as error:
        raise kind("cannot be read: not UTF-8", file=file, expected=expected) from error


def parsed_yaml(text: str, file: str, kind: type[UsageError], missing: str, expected: str) -> dict[Any, Any]:
    """The table that a document is.

    Raises an error of this kind for anything else: `missing` says what the file then is not ("no scenario"),
    `expected` what should be there.
    """
    data = document(text, file, kind)
    if not isinstance(data, dict):
        found = "empty" if data is None else type(data).__name__
        raise kind(f"{missing} but {found}", file=file, expected=expected)
    return data


def document(text: str, file: str, kind: type[UsageError]) -> Any:
    """The value of a document, None where it is empty. Raises an error of this kind where it is malformed."""
    try:
        return _loaded(text)
    except RecursionError as error:
        raise kind("nested too deeply", file=file) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        field = None if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
        raise kind(f"malformed YAML: {error.problem}", file=file, field=field) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that is none
        raise kind(f"malformed YAML: {error}", file=file) from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key given twice: YAML would silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key if isinstance(key, Hashable) else None)
        return super().construct_mapping(node, deep)


def _loaded(text: str) -> Any:
    """The value of a document. Raises YAMLError, also where aliases make it endless or huge."""
    loader = _UniqueKeyLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _n_values(root, {}) > MOST_VALUES:
            problem = f"more than {MOST_VALUES:,} values, or an alias inside what it stands for"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=root.start_mark)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _n_values(node: yaml.Node, known: dict[yaml.Node, float]) -> float:
    """Values of a node with every alias written out; infinite where it contains itself."""
    if node not in known:
        known[node] = math.inf  # until it is counted
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        flat = itertools.chain(*parts) if isinstance(node, yaml.MappingNode) else parts
        known[node] = 1 + sum(_n_values(part, known) for part in flat)
    return known[node]
