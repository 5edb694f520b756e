"""Amounts of resources as YARN writes them, in trimtab's names and units.

Four ways: `[memory=10240,vcores=12,yarn.io/gpu=8]` of the Capacity Scheduler, `vcores=4, memory-mb=1024`,
`10000 mb, 4 vcores` and `50 % memory, 25 % cpu` of the Fair Scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from trimtab.clusters.yarn.hadoop_xml import Value

Amounts = Mapping[str, float]
GPUS, CPUS, MEMORY = "gpus", "cpus", "memory_gib"

_NAMES: Final = {
    "memory": MEMORY,
    "memory-mb": MEMORY,
    "mb": MEMORY,
    "vcores": CPUS,
    "cpu": CPUS,
    "yarn.io/gpu": GPUS,
    "gpu": GPUS,
}
_UNITS: Final = {  # Hadoop's UnitsConversionUtil
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
}
_GIB: Final = 2.0**30
_AMOUNT: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*|%)")


class Named(NamedTuple):
    """Amounts by trimtab's names, and resources that it does not know."""

    amounts: dict[str, float]
    unknown: tuple[str, ...]


def gib(number: float, unit: str = "Mi") -> float:
    """Memory in GiB; a number without unit is MiB."""
    return number * _UNITS[unit or "Mi"] / _GIB


def is_absolute(value: Value) -> bool:
    """Whether a capacity is `[…]`."""
    return value.text.startswith("[")


def absolute(value: Value) -> Named:
    """`[memory=10240,vcores=12]`. Raises UsageError: an unknown unit, no number, a resource twice."""
    inner = re.fullmatch(r"\[(.*)\]", value.text)
    if inner is None:
        raise value.refused("cannot be used", "[memory=10240,vcores=12,yarn.io/gpu=8]")
    return _pairs(value, inner[1])


def resources(value: Value) -> Named | dict[str, float]:
    """An amount of the Fair Scheduler: absolute, or parts of the cluster by resource. Raises UsageError.

    `50%` is a part of each resource.
    """
    text = value.text
    if "=" in text:
        percents = re.fullmatch(r"(\s*[\w./-]+\s*=\s*[\d.]+\s*%\s*,?)+", text)
        return _parts(value, [part.split("=") for part in _listed(text)]) if percents else _pairs(value, text)
    if "%" in text:
        single = re.fullmatch(r"\s*([\d.]+)\s*%\s*", text)
        if single:
            return dict.fromkeys((MEMORY, CPUS, GPUS), _part(value, single[1]))
        found = [re.fullmatch(r"([\d.]+)\s*%\s*([\w./-]+)", part) for part in _listed(text)]
        return _parts(value, [(match[2], f"{match[1]}%") if match else ("", "") for match in found])
    return _old_amounts(value)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pairs(value: Value, text: str) -> Named:
    """`memory=10240, vcores=12`."""
    named: dict[str, float] = {}
    unknown: list[str] = []
    for part in _listed(text):
        name, _, amount = (each.strip() for each in part.partition("="))
        found = _AMOUNT.fullmatch(amount)
        if found is None or found["unit"] not in _UNITS:
            known = ", ".join(filter(None, _UNITS))
            raise value.refused(
                f"no amount of {name or part!r}: {amount!r}", f"a number, or one with {known}"
            )
        ours = _NAMES.get(name)
        if ours is None:
            unknown.append(name)
        elif ours in named:
            raise value.refused(f"{name} is given twice", "each resource once")
        else:
            number, unit = float(found["number"]), found["unit"]
            named[ours] = gib(number, unit) if ours == MEMORY else number * _UNITS[unit]
    return Named(named, tuple(unknown))


def _parts(value: Value, pairs: Iterable[tuple[str, str] | list[str]]) -> dict[str, float]:
    """Parts of the cluster by resource, from names and percentages."""
    parts: dict[str, float] = {}
    for name, percent in pairs:
        if name.strip() not in _NAMES:
            raise value.refused(f"no part of a known resource {name!r}", "50 % cpu, 50 % memory")
        parts[_NAMES[name.strip()]] = _part(value, percent.strip().removesuffix("%"))
    return parts


def _part(value: Value, percent: str) -> float:
    try:
        number = float(percent)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 100:
        raise value.refused("cannot be used", "percentages from 0 to 100")
    return number / 100.0


def _old_amounts(value: Value) -> Named:
    """`10000 mb, 4 vcores`: both are needed."""
    named: dict[str, float] = {}
    for part in _listed(value.text):
        found = re.fullmatch(r"(\d+)\s*([A-Za-z]+)", part)
        unit = found[2] if found else ""
        if found is None or unit not in ("mb", "vcores"):
            raise value.refused(f"unknown unit in {part!r}", "such as 10000 mb, 4 vcores")
        named[_NAMES[unit]] = gib(float(found[1])) if unit == "mb" else float(found[1])
    if len(named) != 2:
        raise value.refused("lacks memory or vcores", "both, such as 10000 mb, 4 vcores")
    return Named(named, ())
