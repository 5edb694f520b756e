"""How long nodes take to load a model or an adapter, learned per item and type of nodes.

There are two sources: calls that load an item, which take as long as the load; and the first answer of a node
that did not hold the item, against the answers of nodes that do. The second is known once warm answers are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypedDict

from trimtab.gateway.decide.estimates import ClassKey

FORGET: Final = 0.8  # weight of the past at each load: about the last five count
MOST_COLD: Final = 64  # first answers that wait for warm ones
FIRST_LOAD_S: Final = 10.0  # of a model that calls load, until one load was measured

LoadKey = tuple[str, str]  # model or adapter, and type of nodes


class LoadFigures(TypedDict):
    """The known loads of an item on nodes of a type."""

    item: str
    type: str
    load_s: float
    loads: int  # observed


class ColdAnswer(NamedTuple):
    """A first answer, with its load."""

    at: LoadKey
    key: ClassKey
    units: float
    seconds: float


@dataclass(slots=True)
class _Mean:
    load_s: float = 0.0
    weight: float = 0.0
    n: int = 0

    def add(self, load_s: float) -> None:
        total = FORGET * self.weight * self.load_s + load_s
        self.weight = FORGET * self.weight + 1.0
        self.load_s, self.n = total / self.weight, self.n + 1


class LoadTimes:
    """The load times of all items. A reload keeps them."""

    def __init__(self) -> None:
        self._means: dict[LoadKey, _Mean] = {}
        self._cold: list[ColdAnswer] = []

    def observe(self, item: str, type_name: str, seconds: float) -> float:
        """A load took so long; returns the new estimate."""
        mean = self._means.setdefault((item, type_name), _Mean())
        mean.add(max(0.0, seconds))
        return mean.load_s

    def note_cold(self, answer: ColdAnswer) -> None:
        """A node has answered that did not hold the item before."""
        self._cold = [*self._cold, answer][-MOST_COLD:]

    def take_cold(self, key: ClassKey, type_name: str) -> list[ColdAnswer]:
        """The first answers of a class on a type whose warm answers are known now."""
        if not self._cold:
            return []
        found = [one for one in self._cold if one.key == key and one.at[1] == type_name]
        if found:
            self._cold = [one for one in self._cold if one not in found]
        return found

    @property
    def known(self) -> Mapping[LoadKey, float]:
        """The learned load times."""
        return {at: mean.load_s for at, mean in self._means.items()}

    def figures(self) -> list[LoadFigures]:
        """For displays."""
        return [
            {"item": item, "type": type_name, "load_s": mean.load_s, "loads": mean.n}
            for (item, type_name), mean in sorted(self._means.items())
        ]
