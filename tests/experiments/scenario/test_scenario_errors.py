"""Scenario files that are wrong: each message names the file, the field, the value and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.errors import ScenarioError
from trimtab.experiments.scenario import (
    builtin_text,
    load_cluster,
    load_scenario,
    parse_scenario,
    resolve_scenario,
)
from trimtab.experiments.scenario.build import build

TINY = builtin_text("tiny")
ARRIVAL = "{process: poisson, rate_per_s: 1.0}"


def error_of(text: str) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "mine.yaml")
    assert caught.value.exit_code == 2
    return caught.value


def edited(old: str, new: str) -> str:
    assert old in TINY
    return TINY.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "field", "value", "expected"),
    [
        ("rate_per_s: 1.0", "rate_per_s: -1", "workload.generate.arrival.rate_per_s", -1, "greater than 0"),
        ("requests: 300", "requests: 0", "workload.generate.requests", 0, "at least|or equal to 1"),
        ("requests: 300", f"requests: {10**10}", "workload.generate.requests", 10**10, "equal to 1000"),
        ("slots: 2,", "slots: two,", "cluster.types.slow.slots", "two", "a valid integer"),
        ("slots: 2,", "slotz: 2,", "cluster.types.slow.slotz", None, "'slots'"),
        ("{type: fast,", "{type: fsat,", "cluster.nodes[0].type", "fsat", "'fast'"),
        ("model: small,", "model: smal,", "classes.short.model", "smal", "'small'"),
        ("load: 0.7", "load: .nan", "workload.load", None, "finite"),
        ("load: 0.7", "load: .inf", "workload.load", None, "finite"),
        ("process: poisson", "process: posson", "workload.generate.arrival.process", "posson", "'poisson'"),
        ("mean: 30", "mean: -4", "workload.generate.mix.long.size.mean", -4, "greater than 0"),
        ("{0: 0.8, 1: 0.2}", "{high: 1}", "workload.priorities.high", "high", "a valid integer"),
        ("blue: 0.6", "blue: -1", "workload.tenants.blue", -1, "or equal to 0"),
        ("load: 0.7", "load: 0.7\n  tenant_weights: {blue: 0}", "workload.tenant_weights.blue", 0, "than 0"),
        ("model: small,", "model: small, holding_cost: -2,", "classes.short.holding_cost", -2, "than 0"),
        ("short: {share", "shrot: {share", "workload.generate.mix.shrot", "shrot", "'short'"),
        ("seeds: 3", "seeds: 0", "seeds", 0, "or equal to 1"),
        ("seeds: 3", "seeds: [0, -2]", "seeds[1]", -2, "or equal to 0"),
        ("unit_s: 0.1,", "unit_s: {fats: 0.1},", "classes.short.unit_s", None, "'fast', 'slow'"),
        ("fixed_s: 0.2, unit_s: 0.1,", "", "classes.short", None, "above 0"),
        ("load_s: 2}", "load_s: {fast: 2}}", "models.small.load_s", None, "'slow'"),
        ("load: 0.7", "load: 0.7\n  origin: {moon: 1}", "workload.origin.moon", "moon", "'default'"),
        ("seeds: 3", "faults: [{node: f-9, mtbf_s: 1, mttr_s: 1}]", "faults[0].node", "f-9", "one of"),
        ("seeds: 3", "faults: [{at_s: 1}]", "faults[0]", None, "either at_s and duration_s"),
        ("seeds: 3", "serving: {telemetry: {delay_s: 1}}", "serving.telemetry", None, "period_s"),
    ],
)  # fmt: skip
def test_one_wrong_field_is_named_with_its_value(
    old: str, new: str, field: str, value: object, expected: str
) -> None:
    error = error_of(edited(old, new))
    assert (error.file, error.field) == ("mine.yaml", field)
    assert value is None or error.value == value
    assert any(part in str(error.expected) for part in expected.split("|"))
    assert "mine.yaml" in str(error)
    assert field in str(error)


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ("[{after_frac: 1.0}]", "changes[0].after_frac", "less than 1"),
        ("[{after_frac: 0.5, rate_factor: 0}]", "changes[0].rate_factor", "greater than 0"),
        ("[{after_frac: 0.5, shares: {shrot: 1}}]", "changes[0].shares.shrot", "'short'"),
        ("[{after_frac: 0.5}, {after_frac: 0.5}]", "", "rising"),
    ],
)
def test_regimes_that_cannot_follow_each_other(changes: str, field: str, expected: str) -> None:
    error = error_of(edited("    mix:\n", f"    changes: {changes}\n    mix:\n"))
    assert str(error.field) == f"workload.generate.{field}".rstrip(".")
    assert expected in str(error.expected)


RESOURCES = (
    edited("slots: 2,", "slots: 2, resources: {cpu_cores: 8, gpu_milli: 1000},")
    .replace("speed: 2.0,", "speed: 2.0, resources: {cpu_cores: 16},")
    .replace("slo_s: 15", "slo_s: 15, demand: {cpu_cores: 2, gpu_milli: 250}")
)


@pytest.mark.parametrize(
    ("old", "new", "field", "value", "expected"),
    [
        ("{cpu_cores: 16}", "{cores: 16}", "cluster.types.fast.resources.cores", "cores", "'cpu_cores'"),
        ("{cpu_cores: 16}", "{cpu_cores: 0}", "cluster.types.fast.resources.cpu_cores", 0, "greater than 0"),
        ("cpu_cores: 2", "cpu_cores: -2", "classes.short.demand.cpu_cores", -2, "equal to 0"),
        ("cpu_cores: 2", "cpu_cores: .nan", "classes.short.demand.cpu_cores", None, "finite"),
        ("cpu_cores: 2", "cpu_cores: 10000000000", "classes.short.demand.cpu_cores", 10**10, "less than"),
        ("cpu_cores: 2", "ram_gib: 2", "classes.short.demand.ram_gib", 2, "'cpu_cores', 'gpu_milli'"),
        # 12 cores are on fast only, accelerators on slow only
        ("cpu_cores: 2", "cpu_cores: 12", "classes.short.demand", None, "slow has {'cpu_cores': 8.0"),
    ],
)  # fmt: skip
def test_resources_that_do_not_fit_are_named(
    old: str, new: str, field: str, value: object, expected: str
) -> None:
    assert old in RESOURCES
    parse_scenario(RESOURCES, "mine.yaml")
    error = error_of(RESOURCES.replace(old, new, 1))
    assert error.field == field
    assert value is None or error.value == value
    assert expected in str(error.expected)


def test_all_problems_are_listed_at_once() -> None:
    text = edited("requests: 300", "requests: -3").replace("slots: 2,", "slotz: 2,").replace(ARRIVAL, "{}")
    message = str(error_of(text))
    assert message.startswith("mine.yaml: 3 problems")
    for field in ("workload.generate.requests", "cluster.types.slow.slotz", "workload.generate.arrival"):
        assert field in message


def test_all_dangling_names_are_listed_at_once() -> None:
    message = str(error_of(edited("model: small", "model: smal").replace("type: slow", "type: slwo")))
    assert "2 problems" in message
    assert "cluster.nodes[1].type" in message
    assert "classes.short.model" in message


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: [1, 2\nb: 3\n", 2, "malformed YAML"),
        ("cluster:\n  types: {a: 1\n", 3, "malformed YAML"),
        ("seeds: 3\nname: x\nseeds: 4\n", 3, "'seeds' is given twice"),
        ("a: b: c\n", 1, "malformed YAML"),
    ],
)
def test_malformed_yaml_names_line_and_column(text: str, line: int, problem: str) -> None:
    error = error_of(text)
    assert str(error.field).startswith(f"line {line}, column ")
    assert problem in str(error)


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "just words\n"])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    assert "expected keys such as cluster" in str(error_of(text))


def test_missing_sections_are_named() -> None:
    message = str(error_of("seeds: 3\n"))
    assert "cluster: missing" in message
    assert "workload: missing" in message


def test_unknown_scenario_names_the_nearest() -> None:
    with pytest.raises(ScenarioError, match="'tiny'"):
        load_scenario("tyny")


def test_a_file_that_is_not_there_or_is_binary(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"nowhere\.yaml.*No such file"):
        load_scenario(tmp_path / "nowhere.yaml")
    with pytest.raises(ScenarioError, match="cannot be read"):
        load_cluster(tmp_path)
    (tmp_path / "picture.yaml").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ScenarioError, match="not UTF-8"):
        load_scenario(tmp_path / "picture.yaml")


def test_overrides_are_checked_too() -> None:
    tiny = load_scenario("tiny")
    with pytest.raises(ScenarioError, match=r"workload\.load.*-1.*greater than 0"):
        tiny.with_overrides(load=-1.0)
    with pytest.raises(ScenarioError, match="seeds"):
        tiny.with_overrides(seeds=0)
    with pytest.raises(ScenarioError, match="cluster"):
        resolve_scenario(trace="some.csv")


def test_a_cluster_that_does_not_fit_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "bare.yaml").write_text("types: {x: {memory_gib: 80}}\nnodes: [{type: x, count: 2}]\n")
    with pytest.raises(ScenarioError, match=r"classes\.sd15\.unit_s.*node types of the cluster: 'x'"):
        resolve_scenario("aigc-images", cluster=tmp_path / "bare.yaml")


def aliases(first: str, each: str) -> str:
    """Twelve lines, every one of which stands for ten of the line before."""
    tens = (each.format(", ".join([f"*a{i - 1}"] * 10)) for i in range(1, 12))
    return "\n".join(f"a{i}: &a{i} {text}" for i, text in enumerate([first, *tens]))


@pytest.mark.parametrize(
    "text",
    ["name: &a [*a]", "name: &a {b: [*a]}", aliases("[x]", "[{}]"), aliases("{x: 1}", "{{<<: [{}]}}")],
)
def test_aliases_without_end_are_refused_unexpanded(text: str) -> None:
    assert "alias inside what it stands for" in error_of(text).problem


def test_an_alias_may_be_used_often() -> None:
    again = edited("{blue: 0.6, green: 0.4}", "{blue: &share 0.6, green: *share}")
    assert parse_scenario(again).workload.tenants == {"blue": 0.6, "green": 0.6}


@pytest.mark.parametrize("depth", [900, 3000])
def test_nesting_without_end_is_refused(depth: int) -> None:
    assert error_of("name: " + "[" * depth + "]" * depth).problem == "nested too deeply"


@pytest.mark.parametrize("text", ["name: 2001-99-99", "seeds: !!int x"])
def test_dates_and_numbers_that_are_none_are_malformed(text: str) -> None:
    assert "malformed YAML" in error_of(text).problem


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("unit: step, slo_s: 15", "unit: step, slo_ttft_s: 15", "classes.short.slo_ttft_s", 15.0),
        ("requests: 300", "requests: 1", "workload.load", None),
    ],
)
def test_what_is_found_when_requests_are_made_names_the_file(
    tmp_path: Path, old: str, new: str, field: str, value: object
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(edited(old, new))
    changed = load_scenario(path).replaced(policies=["random"])
    with pytest.raises(ScenarioError) as caught:
        build(changed, 0)
    error = caught.value
    assert (error.file, error.field, error.value) == (str(path), field, value)
    assert error.expected


@pytest.mark.parametrize(
    ("queues", "told"),
    [
        ("{x: {tenants: [a]}}", "a queue for this tenant, or one of the name 'default'"),
        ("{x: {tenants: [a, zoe]}, default: {}}", "queues.x.tenants.1"),
        ("{x: {tenants: [a], limit: {gpus: 3}}, default: {}}", "amounts of slots"),
        ("{x: {tenants: [a], guarantee: {slots: 99}}, default: {}}", "at least its guarantee, 99 slots"),
    ],
)
def test_queues_that_do_not_fit_the_scenario(queues: str, told: str) -> None:
    text = TINY.replace("tenants: {", "tenants: {a: 1, ", 1) + f"\nqueues: {queues}\n"
    with pytest.raises(ScenarioError) as refused:
        build(parse_scenario(text, "mine.yaml"), 0)
    assert "mine.yaml" in str(refused.value)
    assert told in str(refused.value)
