"""Artifacts as values between stages: they travel with their content, so that workers need no common disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trimtab.chains.kubeflow.dsl import ARTIFACTS, Artifact

INPUTS, OUTPUTS, PARAMETERS = "inputs", "outputs", "parameters"  # folders of an attempt
INTEGER, NUMBER, BOOLEAN, TEXT = "NUMBER_INTEGER", "NUMBER_DOUBLE", "BOOLEAN", "STRING"
KINDS: Final = {
    str: TEXT, int: INTEGER, float: NUMBER, bool: BOOLEAN, list: "LIST", dict: "STRUCT",
}  # fmt: skip


@dataclass(frozen=True)
class ArtifactValue:
    """An artifact that a stage has written.

    `content` is the bytes of its file, of each file of its folder by path, or None: it lies elsewhere, at
    `uri`, or was never written.
    """

    schema_title: str
    name: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | Mapping[str, bytes] | None = None
    uri: str = ""

    def placed(self, folder: Path, name: str) -> Artifact:
        """The artifact for a component that reads it, with its content below the folder."""
        kind, metadata = ARTIFACTS.get(self.schema_title, Artifact), dict(self.metadata)
        if self.uri:
            return kind(self.name, self.uri, metadata)
        place = folder / INPUTS / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self.content, bytes):
            place.write_bytes(self.content)
        elif self.content is not None:
            place.mkdir()
            for path, data in self.content.items():
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_bytes(data)
        return kind(self.name, str(place), metadata)


def empty_artifact(folder: Path, name: str, kind: type[Artifact]) -> Artifact:
    """The artifact for a component that writes it."""
    place = folder / OUTPUTS / name
    place.parent.mkdir(parents=True, exist_ok=True)
    return kind(name, str(place))


def taken(artifact: Artifact, folder: Path) -> ArtifactValue:
    """An artifact that a component has written, with its content if that lies below the folder."""
    place = Path(artifact.path)
    if not place.is_relative_to(folder):
        return ArtifactValue(artifact.schema_title, artifact.name, artifact.metadata, None, artifact.uri)
    content: bytes | dict[str, bytes] | None = None
    if place.is_dir():
        files = sorted(path for path in place.rglob("*") if path.is_file())
        content = {str(path.relative_to(place)): path.read_bytes() for path in files}
    elif place.is_file():
        content = place.read_bytes()
    return ArtifactValue(artifact.schema_title, artifact.name, artifact.metadata, content)


def parameter_file(folder: Path, name: str) -> Path:
    """Where a component writes the value of an output parameter."""
    place = folder / PARAMETERS / name
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def read_parameter(place: Path, kind: str) -> Any:
    """The value in such a file: a text as it is, all else as JSON. Raises ValueError."""
    text = place.read_text(encoding="utf-8")
    if kind == TEXT:
        return text
    return typed(json.loads(text.lower() if kind == BOOLEAN else text), kind)


def typed(value: Any, kind: str) -> Any:
    """A number as its declared kind; JSON knows one kind only."""
    if kind == INTEGER and isinstance(value, float) and value.is_integer():
        return int(value)
    return float(value) if kind == NUMBER and isinstance(value, int) else value
