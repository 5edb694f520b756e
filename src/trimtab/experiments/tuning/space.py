"""The parameters of a policy that are searched, as points of a unit cube."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.parameters import Tunable, base_type, kinds_of, tunable
from trimtab.domain.policy import Decider, Policy, name_of
from trimtab.errors import UsageError
from trimtab.policies import find
from trimtab.policies.catalogue import respelled
from trimtab.validation.tuned_policy import spelled

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter: of the policy that dispatches, or of the order."""

    is_of_order: bool
    parameter: str
    title: str
    search: Tunable
    is_whole: bool

    def value(self, place: float) -> float | int:
        """The value at a place from 0 to 1, to three digits, within the range."""
        at = min(max(float(f"{self.search.at(place):.3g}"), self.search.least), self.search.most)
        return round(at) if self.is_whole else at


class Space:
    """All values that the parameters of a policy may take. Raises UsageError where there are none."""

    def __init__(self, spec: str) -> None:
        self.spec = spelled(spec)
        self._decider = find(spec)
        parts = (self._decider.dispatch,) if self._decider.has_own_order else tuple(self._decider)
        self.axes = tuple(
            Axis(
                is_of_order,
                parameter,
                f"{name_of(part)}.{parameter}" if is_of_order else parameter,
                search,
                base_type(kind) is int,
            )
            for is_of_order, part in zip((False, True), parts, strict=False)
            for parameter, kind in _kinds(part).items()
            if (search := tunable(kind)) is not None
        )
        if not self.axes:
            expected = (
                "a policy with a number that says its range: Annotated[float, Tunable(0.1, 10.0, 'log')]"
            )
            raise UsageError("has no parameter to tune", field="policy", value=spec, expected=expected)

    def start(self) -> Floats:
        """The point of the policy as it was given, [axes]."""
        return np.array([axis.search.place(_value(self._decider, axis)) for axis in self.axes])

    def given(self) -> dict[str, float]:
        """The values of the policy as it was given."""
        return self.read(self.spec)

    def values(self, point: Floats) -> dict[str, float]:
        """Parameter → its value at a point [axes]."""
        return {axis.title: axis.value(float(place)) for axis, place in zip(self.axes, point, strict=True)}

    def read(self, policy: str) -> dict[str, float]:
        """Parameter → its value in a policy of these classes."""
        decider = find(policy)
        return {axis.title: _value(decider, axis) for axis in self.axes}

    def spelled(self, values: Mapping[str, float]) -> str | None:
        """The policy with these values; None where its class refuses them together."""
        parts = list(self._decider)
        try:
            for is_of_order in (False, True):
                changed = {a.parameter: values[a.title] for a in self.axes if a.is_of_order is is_of_order}
                if changed:
                    parts[is_of_order] = replace(parts[is_of_order], **changed)  # type: ignore[type-var]
        except UsageError:
            return None
        order = None if self._decider.has_own_order else parts[1]
        return respelled(self.spec, Decider.of(parts[0], order))


def _kinds(part: Policy) -> dict[str, Any]:
    cls: type = type(part)
    return kinds_of(cls)


def _value(decider: Decider, axis: Axis) -> float:
    value: float = getattr(decider[axis.is_of_order], axis.parameter)
    return value
