"""Answers of a ResourceManager about `/ws/v1/cluster/` `nodes`, `scheduler`, `apps`: asked for, or saved.

JSON or XML, as Hadoop's "ResourceManager REST APIs" documents them. It writes a list of one as the one
itself, and some versions write the entries of a map under one key again and again: both read as lists here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from trimtab.clusters.yarn.hadoop_xml import Element, parsed
from trimtab.errors import UsageError

NAMES: Final = ("nodes", "scheduler", "apps")
_TIMEOUT_S: Final = 120.0
_SAVE: Final = "curl --negotiate -u : {url} > {name}.json"
_KIND: Final = "type"  # xsi:type of XML

Answer = Mapping[str, Any]


def fetched(address: str) -> dict[str, bytes]:
    """The three answers of a ResourceManager as they came. Raises UsageError."""
    found = {}
    for name in NAMES:
        url = f"{address.rstrip('/')}/ws/v1/cluster/{name}"
        request = Request(url, headers={"Accept": "application/json"})
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as reply:
                found[name] = reply.read()
        except HTTPError as error:
            expected = f"an answer; where it asks who you are, `{_SAVE.format(url=url, name=name)}` first"
            raise UsageError(f"refused: HTTP {error.code}", field=url, expected=expected) from error
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            expected = "the address of a ResourceManager, such as http://rm.example:8088"
            raise UsageError(f"no answer: {reason}", field=url, expected=expected) from error
    return found


def is_address(source: str) -> bool:
    """Whether a source is an address, not a folder."""
    return source.startswith(("http://", "https://"))


def saved(folder: Path) -> dict[str, Path]:
    """Name → file of saved answers: nodes.json, scheduler.json, apps.json, or .xml. Raises UsageError."""
    found = {}
    for name in NAMES:
        files = [folder / f"{name}{ending}" for ending in (".json", ".xml")]
        there = [file for file in files if file.is_file()]
        if not there:
            expected = f"{files[0].name}: `{_SAVE.format(url=f'RM/ws/v1/cluster/{name}', name=name)}`"
            raise UsageError("an answer is missing", file=str(folder), field=files[0].name, expected=expected)
        found[name] = there[0]
    return found


def answer_of(data: bytes, file: str, name: str) -> Answer:
    """What is below the key or root `name` of an answer. Raises UsageError."""
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"<"):
        root = parsed(text, file)
        found: Any = {root.tag: _plain(root)}
    else:
        try:
            found = json.loads(text, object_pairs_hook=_with_repeated)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"no JSON: {error}", file=file, expected=f"an answer with {name!r}") from error
    if not isinstance(found, Mapping) or name not in found:
        keys = list(found) if isinstance(found, Mapping) else type(found).__name__
        raise UsageError("another answer", file=file, value=keys, expected=f"the key {name!r}")
    below = found[name]
    return below if isinstance(below, Mapping) else {}  # null, or empty text: nothing is there


def each(value: Any) -> list[Answer]:
    """A list of tables, where one alone is the list of it, and null of none."""
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [one for one in several if isinstance(one, Mapping)]


def _with_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a key that comes again has the list of its values."""
    found: dict[str, Any] = {}
    repeated: set[str] = set()
    for key, value in pairs:
        if key in repeated:
            found[key].append(value)
        elif key in found:
            found[key] = [found[key], value]
            repeated.add(key)
        else:
            found[key] = value
    return found


def _plain(element: Element) -> Any:
    """An element as JSON would have it."""
    kind = [(_KIND, text) for name, text in element.attributes.items() if name.endswith(":type")]
    if not element.children:
        return dict(kind) if kind else element.text
    return _with_repeated([*kind, *((child.tag, _plain(child)) for child in element.children)])


def number(table: Answer, key: str, file: str, place: str) -> float:
    """A number of an answer; 0 where there is none. Raises UsageError."""
    value = table.get(key)
    try:
        return 0.0 if value is None or value == "" else float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(
            "no number", file=file, field=f"{place}, {key}", value=value, expected="one"
        ) from error
