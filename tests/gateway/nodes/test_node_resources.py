"""Capacities and use of resources, from what a node declares and reports: against sums by hand."""

import pytest

from trimtab.domain.cluster import RESOURCES
from trimtab.gateway.nodes.node_resources import capacity_of, said_by, use_of

MACHINE = {
    "cpu_cores": 16.0,
    "cpu_busy_frac": 0.5,
    "memory_gib": 64.0,
    "memory_used_frac": 0.25,
    "disk_busy_frac": 0.9,
    "disk_read_bytes_per_s": 2.0**28,
    "disk_write_bytes_per_s": 2.0**28,
    "net_link_gib_per_s": 0.5,
    "net_receive_bytes_per_s": 2.0**27,
    "net_transmit_bytes_per_s": 2.0**26,
}
GPUS = {"gpus": 2.0, "gpu_busy_frac": 0.75, "gpu_memory_gib": 160.0, "gpu_memory_used_frac": 0.95}


def by_name(values: list[float | None] | list[float]) -> dict[str, float | None]:
    return {name: value for name, value in zip(RESOURCES, values, strict=True) if value}


def test_what_is_reported_counts_where_nothing_is_declared() -> None:
    capacity = {"cpu_cores": 16.0, "ram_gib": 64.0, "io_gib_per_s": 1.0, "network_gib_per_s": 0.5}
    assert by_name(capacity_of({}, MACHINE)) == capacity
    used = {"cpu_cores": 8.0, "ram_gib": 16.0, "io_gib_per_s": 0.9, "network_gib_per_s": 0.125}
    assert by_name(use_of({}, MACHINE)) == pytest.approx(used)
    assert by_name(use_of({}, GPUS)) == pytest.approx({"gpu_milli": 1500.0, "gpu_gib": 152.0})


def test_what_is_declared_is_a_part_of_the_machine() -> None:
    declared = {"cpu_cores": 4.0, "io_gib_per_s": 2.0}
    assert by_name(capacity_of(declared, MACHINE))["cpu_cores"] == 4.0  # type: ignore[arg-type]
    used = by_name(use_of(declared, MACHINE))  # type: ignore[arg-type]
    assert used["cpu_cores"] == 4.0, "eight of the machine's sixteen are busy, no more than it has count"
    assert used["io_gib_per_s"] == pytest.approx(0.9), "the disk's busy share is one of what it reports"


def test_the_cache_in_use_says_more_than_memory_reserved_for_it() -> None:
    assert by_name(use_of({}, {**GPUS, "kv_used_frac": 0.1}))["gpu_gib"] == pytest.approx(16.0)


def test_without_a_capacity_no_use_is_known() -> None:
    assert use_of({}, {"cpu_busy_frac": 0.5, "kv_used_frac": 0.5}) == [None] * len(RESOURCES)
    assert by_name(use_of({"cpu_cores": 2.0}, {"cpu_busy_frac": 0.5})) == {"cpu_cores": 1.0}


def test_a_page_speaks_of_some_resources_only() -> None:
    assert {RESOURCES[k] for k in said_by({"kv_used_frac": 0.5, "running": 3.0})} == {"gpu_gib"}
    machine = {"cpu_cores", "ram_gib", "io_gib_per_s", "network_gib_per_s"}
    assert {RESOURCES[k] for k in said_by(MACHINE)} == machine
    assert said_by({}) == frozenset()
