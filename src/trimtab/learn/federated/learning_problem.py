"""What a federation learns, as the server and its sites see it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from trimtab.domain.artifact import Artifact
from trimtab.learn.federated.aggregation import Update

PROTOCOL: Final = "1"  # of the messages; sites of another one are refused


class Problem(Protocol):
    """What is learned. All is a function of the rounds so far, so that a server that ended can go on."""

    def told(self) -> dict[str, Any]:
        """Its settings, with its `kind`; a site makes the same problem from them."""

    def rounds(self) -> int:
        """How many rounds it takes."""

    def ask(self, history: Sequence[Update]) -> Artifact:
        """What sites are asked next, after the rounds that ended with these updates."""

    def width(self, history: Sequence[Update]) -> int:
        """Numbers in the answer."""

    def result(self, history: Sequence[Update], provenance: Mapping[str, Any]) -> tuple[str, bytes]:
        """Name and content of the file that gateway and simulator read."""


class Site(Protocol):
    """A site's side of a problem."""

    def answer(self, ask: Artifact) -> Update:
        """The update of a round, from the site's own data."""


def identity(told: Mapping[str, Any]) -> str:
    """Hash of a problem's settings and of the protocol: what server and sites must agree on."""
    text = json.dumps({"protocol": PROTOCOL, **told}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
