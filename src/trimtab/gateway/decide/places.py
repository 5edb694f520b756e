"""Where sessions and stored responses live: bounded maps, the oldest forgotten first."""

from __future__ import annotations

from typing import Final

MOST: Final = 65_536


class Homes:
    """(Tenant's name, name) → node's name. Sessions of two tenants are two, whatever their names."""

    __slots__ = ("_most", "_node_of")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._node_of: dict[tuple[str, str], str] = {}

    def set(self, tenant: str, name: str, node: str) -> str | None:
        """It lives there from now on. Returns a name of this tenant's or another's that is forgotten."""
        homes, key = self._node_of, (tenant, name)
        homes.pop(key, None)  # to the end of the order
        homes[key] = node
        if len(homes) <= self._most:
            return None
        oldest = next(iter(homes))
        del homes[oldest]
        return oldest[1]

    def get(self, tenant: str, name: str) -> str | None:
        """Where it lives, if it is known."""
        return self._node_of.get((tenant, name))


class OwnedHomes:
    """Homes of what has a name of its own everywhere: who made it first has it, nobody else."""

    __slots__ = ("_homes", "_owner_of")

    def __init__(self, most: int = MOST) -> None:
        self._homes = Homes(most)
        self._owner_of: dict[str, str] = {}

    def set(self, tenant: str, name: str, node: str) -> None:
        """It lives there from now on, unless it is another's."""
        if self._owner_of.setdefault(name, tenant) != tenant:
            return
        forgotten = self._homes.set(tenant, name, node)
        if forgotten is not None:
            del self._owner_of[forgotten]

    def get(self, tenant: str, name: str) -> str | None:
        """Where it lives, if it is known and this tenant's."""
        return self._homes.get(tenant, name)

    def is_foreign(self, tenant: str, name: str) -> bool:
        """Whether it is known to be another tenant's."""
        return self._owner_of.get(name, tenant) != tenant
