"""Where sessions and stored responses live: bounded maps, the oldest forgotten first."""

from __future__ import annotations

from typing import Final

MOST: Final = 65_536


class Homes:
    """Name → node's name."""

    __slots__ = ("_most", "_node_of")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._node_of: dict[str, str] = {}

    def set(self, name: str, node: str) -> None:
        """It lives there from now on."""
        homes = self._node_of
        homes.pop(name, None)  # to the end of the order
        homes[name] = node
        if len(homes) > self._most:
            del homes[next(iter(homes))]

    def get(self, name: str) -> str | None:
        """Where it lives, if it is known."""
        return self._node_of.get(name)
