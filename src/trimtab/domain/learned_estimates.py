"""Estimates that sites learned together, as a value that gateway and simulator begin with.

For each class of requests: output tokens by the length of the prompt, seconds on each type of nodes, and
demand of resources. They come as a safetensors file, see `domain/artifact.py`, and stay where they were put:
what a gateway observes itself replaces them. `trimtab federate` makes such files (`learn/federated`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import frexp
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.artifact import Artifact
from trimtab.domain.cluster import RESOURCES
from trimtab.errors import UsageError

Floats = NDArray[np.float64]

FORMAT, VERSION = "trimtab-learned-estimates", "1"
ANY: Final = "*"  # the class of all that no other name fits
_FIRST_OCTAVE, _LAST_OCTAVE = 4, 17  # prompts of 16 to 131,072 tokens; shorter and longer ones count as these
_PER_OCTAVE: Final = 2
KNOTS: Final = _PER_OCTAVE * (_LAST_OCTAVE - _FIRST_OCTAVE) + 1
_EXPECTED: Final = "a file of `trimtab federate`"


def place(prompt_tokens: float) -> tuple[int, float]:
    """The knot below a prompt's length, at most the last but one, and how far it is to the next, 0 to 1.

    Knots are half octaves, 2^k and 1.5 × 2^k; in between the place is linear in tokens.
    """
    part, exponent = frexp(prompt_tokens)
    at = _PER_OCTAVE * (exponent - 1 - _FIRST_OCTAVE + 2.0 * part - 1.0)
    if at <= 0.0:
        return 0, 0.0
    below = min(int(at), KNOTS - 2)
    return below, min(at - below, 1.0)


def class_idx(classes: Sequence[str], name: str) -> int | None:
    """Position of the class that stands for this name: itself, its last part or "*"; None = there is none."""
    for known in (name, name.rpartition("/")[2], ANY):
        if known in classes:
            return classes.index(known)
    return None


class LengthCurve:
    """Expected output tokens by the length of the prompt: `tokens` [KNOTS] at the knots, linear between."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: Sequence[float]) -> None:
        self._tokens = tuple(tokens)

    def at(self, prompt_tokens: float) -> float:
        """Expected output tokens of one answer."""
        below, part = place(prompt_tokens)
        return (1.0 - part) * self._tokens[below] + part * self._tokens[below + 1]


@dataclass(frozen=True)
class LearnedEstimates:
    """The estimates of a file.

    Attributes:
        classes: names; a class of another name counts as its last part (`model/chat` as `chat`), else as "*".
        types: names of node types.
        lengths: expected output tokens at the knots, [classes, KNOTS].
        service: fixed seconds and seconds per unit, [classes, types, 2].
        demand: what a request takes of each resource, [classes, resources of `domain.cluster`].
        rows: name of an array above → rows it was learned from, [classes, …].
        provenance: who learned it, how, from how much.
        path: of the file; "" if it was made in memory.
    """

    classes: tuple[str, ...]
    types: tuple[str, ...]
    lengths: Floats
    service: Floats
    demand: Floats
    rows: Mapping[str, Floats]
    provenance: Mapping[str, Any]
    path: str = ""

    @classmethod
    def read(cls, path: str, field: str | None = None) -> LearnedEstimates:
        """From a file; `field` is the setting that names it. Raises UsageError."""
        return cls.of(Artifact.read(path, field))

    @classmethod
    def of(cls, artifact: Artifact) -> LearnedEstimates:
        """From an artifact. Raises UsageError where it holds something else, or another version of it."""
        meta, file = artifact.meta, artifact.path or artifact.name
        for key, expected in (("format", FORMAT), ("version", VERSION)):
            if meta.get(key) != expected:
                raise UsageError(
                    "is of another kind",
                    file=file,
                    field=key,
                    value=meta.get(key),
                    expected=f"{expected!r}: {_EXPECTED}",
                )
        classes, types = (_names(meta.get(key, ""), key, file) for key in ("classes", "types"))
        c, g, r = len(classes), len(types), len(RESOURCES)
        found = {
            key: artifact.floats(key, shape)
            for key, shape in {
                **{"lengths": (c, KNOTS), "service": (c, g, 2), "demand": (c, r)},
                **{"lengths_rows": (c, KNOTS), "service_rows": (c, g), "demand_rows": (c, r)},
            }.items()
        }
        for key, array in found.items():
            if (array < 0.0).any():
                raise UsageError("has numbers below 0", file=file, field=key, expected=_EXPECTED)
        return cls(
            classes,
            types,
            lengths=found["lengths"],
            service=found["service"],
            demand=found["demand"],
            rows={key: found[f"{key}_rows"] for key in ("lengths", "service", "demand")},
            provenance=_parsed(meta.get("provenance", "{}"), "provenance", file, dict),
            path=artifact.path,
        )

    def artifact(self, name: str) -> Artifact:
        """As an artifact, for a file."""
        arrays = {key: getattr(self, key) for key in self.rows}
        arrays |= {f"{key}_rows": rows for key, rows in self.rows.items()}
        return Artifact(
            name,
            {key: np.asarray(array, np.float64) for key, array in arrays.items()},
            {
                "format": FORMAT,
                "version": VERSION,
                "classes": json.dumps(self.classes),
                "types": json.dumps(self.types),
                "provenance": json.dumps(self.provenance, sort_keys=True),
            },
        )

    def class_idx(self, name: str) -> int | None:
        """Position of the class that stands for this name; None = there is none."""
        return class_idx(self.classes, name)

    def length(self, class_name: str) -> LengthCurve | None:
        """Output tokens of a class by the length of the prompt; None = nothing was learned."""
        c = self.class_idx(class_name)
        if c is None or not self.rows["lengths"][c].any():
            return None
        return LengthCurve(self.lengths[c].tolist())

    def line(self, class_name: str, type_name: str) -> tuple[float, float] | None:
        """Fixed seconds and seconds per unit of a class on a type of nodes; None = nothing was learned."""
        c = self.class_idx(class_name)
        if c is None or type_name not in self.types:
            return None
        g = self.types.index(type_name)
        if not self.rows["service"][c, g]:
            return None
        return float(self.service[c, g, 0]), float(self.service[c, g, 1])

    def demand_of(self, class_name: str) -> Floats | None:
        """Demand of one request of a class, [resources]; None = nothing was learned."""
        c = self.class_idx(class_name)
        return None if c is None or not self.rows["demand"][c].any() else self.demand[c]


def _names(text: str, key: str, file: str) -> tuple[str, ...]:
    found = _parsed(text, key, file, list)
    if not all(isinstance(name, str) and name for name in found) or len(set(found)) < len(found):
        raise UsageError("is no list of names, each once", file=file, field=key, expected=_EXPECTED)
    return tuple(found)


def _parsed(text: str, key: str, file: str, kind: type) -> Any:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError("is no JSON", file=file, field=key, expected=_EXPECTED) from error
    if not isinstance(found, kind):
        raise UsageError(f"is no {kind.__name__}", file=file, field=key, expected=_EXPECTED)
    return found
