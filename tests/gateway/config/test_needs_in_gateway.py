"""Needs of the policies in gateway.yaml: what the gateway lacks refuses the policy, or warns."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.domain.needs import Need
from trimtab.errors import ConfigError
from trimtab.gateway.config import config_warnings, parse_config

NEEDY = """
from dataclasses import dataclass
from trimtab import Need, Policy

@dataclass(frozen=True)
class Needy(Policy):
    name = "needy"
    needs = frozenset({Need.CHAINS, Need.PREFIX})

    def choose(self, cluster, request):
        return 0
"""
NODE = "nodes: [{name: a, url: 'http://x:1', models: [m]%s}]\n"


def lacking(text: str) -> set[Need]:
    return set(Need) - parse_config(text).provided()


@pytest.mark.parametrize(
    ("place", "field"),
    [
        ("policy: SPEC", "policy.default"),
        ("policy: {models: {m: SPEC}}", "policy.models.m"),
        ("routes: {r: {targets: [m], policy: SPEC}}", "routes.r.policy"),
        ("shadow: SPEC", "shadow.policy"),
    ],
)
def test_an_unmet_need_is_refused_with_its_place(tmp_path: Path, place: str, field: str) -> None:
    (tmp_path / "needy.py").write_text(NEEDY)
    spec = f"{tmp_path}/needy.py:Needy"
    with pytest.raises(ConfigError) as refused:
        parse_config(NODE % "" + place.replace("SPEC", f"'{spec}'"), "gateway.yaml")
    message = str(refused.value)
    assert "gateway.yaml" in message
    assert field in message
    assert "needy.py:Needy" in message
    assert "needs chains" in message
    assert "never provides it" in message


def test_a_need_that_the_configuration_switches_off_is_refused_with_its_key(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text(NEEDY.replace("Need.CHAINS, ", ""))
    text = NODE % "" + f"policy: '{tmp_path}/needy.py:Needy'\n"
    parse_config(text)
    with pytest.raises(ConfigError, match=r"expected `prefix_cache\.enabled`; this policy needs prefix"):
        parse_config(text + "prefix_cache: {enabled: false}")


def test_what_a_policy_does_without_is_a_warning() -> None:
    policies = "policy: {default: best-fit, models: {m: best-fit}}"
    config = parse_config(NODE % "" + policies)
    about = [warning for warning in config_warnings(config) if "best-fit" in warning]
    assert sorted(about) == [
        "policy 'best-fit' runs without residency: Memory of models counts where their sizes are declared.",
        "policy 'best-fit' runs without resources: Slots are the only resource.",
    ]


def test_a_demand_that_is_not_declared_is_noted_for_policies_that_weigh_resources() -> None:
    node = NODE % ", exporter_url: 'http://x:9100/metrics'"

    def noted(more: str) -> bool:
        return any("`models.NAME.demand`" in note for note in config_warnings(parse_config(node + more)))

    assert noted("policy: auto")
    assert noted("policy: late-binding")
    assert not noted("policy: least-connections")
    assert not noted("policy: auto\nmodels: {m: {demand: {gpu_gib: 1}}}")


def test_adapters_that_take_time_to_load_are_what_residency_is_about() -> None:
    assert Need.RESIDENCY in lacking(NODE % "")
    assert Need.RESIDENCY in lacking(NODE % ", adapters: [x], adapter_load_s: 0")
    assert Need.RESIDENCY not in lacking(NODE % ", adapters: [x]")
    assert Need.RESIDENCY not in lacking("nodes: [{name: a, url: 'http://x:1'}]")  # it may list adapters


@pytest.mark.parametrize(
    ("need", "fields", "more"),
    [
        (Need.RESOURCES, ", exporter_url: 'http://x:9100/metrics'", ""),
        (Need.RESOURCES, ", gpu_exporter_url: 'http://x:9400/metrics'", ""),
        (Need.RESOURCES, ", capacity: {gpu_gib: 80}", "models: {m: {demand: {gpu_gib: 8}}}"),
        (Need.REPORTED_LOAD, ", exporter_url: 'http://x:9100/metrics'", ""),
        (Need.REPORTED_LOAD, ", metrics_url: /metrics", ""),
        (Need.ZONES, ", zone: a}, {name: b, url: 'http://x:2', models: [m], zone: b", ""),
        (Need.ZONES, "}, {name: b, url: 'http://x:2', models: [m], zone: b", "zone: a"),
        (Need.PRICES, ", usd_per_hour: 1.5", ""),
    ],
)
def test_what_entries_of_nodes_meet(need: Need, fields: str, more: str) -> None:
    assert need in lacking(NODE % "")
    assert need not in lacking(NODE % fields + more)


def test_half_a_declaration_meets_nothing() -> None:
    assert Need.RESOURCES in lacking(NODE % ", capacity: {gpu_gib: 80}")
    assert Need.RESOURCES in lacking(NODE % "" + "models: {m: {demand: {gpu_gib: 8}}}")
    assert Need.ZONES in lacking(NODE % ", zone: a" + "zone: b"), "all nodes are equally near"


def test_nodes_that_come_later_may_declare_anything() -> None:
    assert Need.ZONES not in lacking("discovery: {file: nodes.yaml}")
    assert Need.ZONES in lacking("discovery: {dns: [{name: a, port: 1, zone: x}]}")


KEY = "  - {name: %s, sha256: ['%s'], %s}\n"
TWO_KEYS = "keys:\n" + KEY % ("a", "0" * 64, "may_set_priority: true") + KEY % ("b", "1" * 64, "weight: 2")


@pytest.mark.parametrize(
    ("order", "notes"),
    [
        ("policy: late-binding", ["keys.may_set_priority", "keys.weight"]),
        ("policy: late-binding+priority-ageing", ["keys.weight"]),
        ("policy: late-binding+drf", ["keys.may_set_priority"]),
        ("fairness: {enabled: true}", ["keys.may_set_priority"]),
        ("policy: downstream-aware(urgent_s=60)", ["keys.may_set_priority", "keys.weight"]),
        ("policy: late-binding+downstream-aware(priority_s=60)", ["keys.weight"]),
        ("policy: {default: late-binding+vtc, models: {m: auto+priority-deadline}}", []),
    ],
)
def test_what_no_order_reads_is_told(order: str, notes: list[str]) -> None:
    config = parse_config(NODE % "" + TWO_KEYS + order)
    assert [note.partition(":")[0] for note in config.without_effect()] == notes


@pytest.mark.parametrize("spec", ["late-binding+edf", "hungarian"])
def test_fairness_is_an_order_itself(spec: str) -> None:
    fair = NODE % "" + "fairness: {enabled: true}\n"
    assert (
        parse_config(fair + "policy: late-binding+vtc").with_order("late-binding+vtc") == "late-binding+vtc"
    )
    with pytest.raises(ConfigError, match=r"policy\.default"):
        parse_config(fair + f"policy: {spec}")
