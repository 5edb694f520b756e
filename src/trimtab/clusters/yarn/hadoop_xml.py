"""Hadoop's XML files: properties (`<configuration>`), or the Fair Scheduler's allocations (`<allocations>`).

Read by expat alone: a document type, and so every entity of a file's own, is refused before it is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.parsers import expat

from trimtab.errors import UsageError

_VARIABLE: Final = re.compile(r"\$\{([^}$\s]+)\}")
_MOST_DEEP: Final = 100  # elements inside each other


@dataclass
class Element:
    """One element of a file."""

    tag: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    line: int = 0  # 0 = it comes from no file of lines
    children: list[Element] = field(default_factory=list)
    content: str = ""

    @property
    def text(self) -> str:
        """Its text without spaces around it."""
        return self.content.strip()

    def named(self, *tags: str) -> Iterator[Element]:
        """Its children of these tags."""
        return (child for child in self.children if child.tag in tags)


@dataclass(frozen=True)
class Value:
    """A value, and where it stands."""

    text: str
    file: str
    name: str  # of its property or element
    line: int = 0

    def refused(self, problem: str, expected: str) -> UsageError:
        """The error that names file, line, property and value."""
        place = f"line {self.line}, {self.name}" if self.line else self.name
        return UsageError(problem, file=self.file, field=place, value=self.text, expected=expected)

    def number(self, least: float, most: float, what: str) -> float:
        """A number within bounds. Raises UsageError."""
        try:
            number = float(self.text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:
            raise self.refused("cannot be used", what)
        return number

    def whole(self, least: int, what: str) -> int:
        """A whole number. Raises UsageError."""
        if not re.fullmatch(r"[+-]?\d+", self.text) or int(self.text) < least:
            raise self.refused("cannot be used", what)
        return int(self.text)

    def is_true(self) -> bool:
        """A word of true or false. Raises UsageError."""
        if self.text.lower() not in ("true", "false"):
            raise self.refused("cannot be used", "true or false")
        return self.text.lower() == "true"


def read_bytes(path: Path) -> bytes:
    """A file. Raises UsageError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise UsageError(problem, file=str(path), expected="a configuration file of YARN") from error


def parsed(data: bytes, file: str) -> Element:
    """The root of a document. Raises UsageError."""
    parser = expat.ParserCreate()
    open_elements = [Element("")]

    def refused(problem: str, value: object, expected: str) -> UsageError:
        place = f"line {parser.CurrentLineNumber}"
        return UsageError(problem, file=file, field=place, value=value, expected=expected)

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(open_elements) > _MOST_DEEP:
            raise refused("nested too deeply", tag, f"at most {_MOST_DEEP} elements inside each other")
        made = Element(tag, attributes, parser.CurrentLineNumber)
        open_elements[-1].children.append(made)
        open_elements.append(made)

    def end(_: str) -> None:
        open_elements.pop()

    def text(content: str) -> None:
        open_elements[-1].content += content

    def document_type(name: str, *_: Any) -> None:
        raise refused("a document type, whose entities could be endless", f"<!DOCTYPE {name}", "none")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, document_type
    parser.buffer_text = True
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        place, problem = f"line {error.lineno}", f"malformed XML: {expat.ErrorString(error.code)}"
        raise UsageError(problem, file=file, field=place) from error
    return open_elements[0].children[0]


def properties_of(root: Element, file: str) -> dict[str, Value]:
    """Name → value of a `<configuration>`. Raises UsageError: a property twice, an element that is none."""
    found: dict[str, Value] = {}
    for element in root.children:
        names, values = list(element.named("name")), list(element.named("value"))
        if element.tag != "property" or len(names) != 1 or len(values) > 1:
            raise UsageError(
                "no property",
                file=file,
                field=f"line {element.line}",
                value=f"<{element.tag}>",
                expected="<property> with one <name> and one <value>; what it includes as a file of its own",
            )
        name, text = names[0].text, values[0].text if values else ""
        value = Value(text, file, name, element.line)
        if name in found and found[name].text != text:
            raise value.refused(
                f"given twice: {found[name].text!r} on line {found[name].line}", "one of them"
            )
        found[name] = value
    return found


def resolved(properties: Mapping[str, Value]) -> dict[str, Value]:
    """With the values of `${NAME}` in place. Raises UsageError: no such property, or a cycle of them."""

    def text_of(value: Value, inside: tuple[str, ...]) -> str:
        def put(match: re.Match[str]) -> str:
            name = match[1]
            if name in inside:
                raise value.refused(f"contains itself by ${{{name}}}", "a value without a cycle")
            if name not in properties:
                raise value.refused(f"no property {name}", "a file with it, or its value in place of it")
            return text_of(properties[name], (*inside, name))

        return _VARIABLE.sub(put, value.text)

    return {
        name: Value(text_of(value, (name,)), value.file, name, value.line)
        for name, value in properties.items()
    }
