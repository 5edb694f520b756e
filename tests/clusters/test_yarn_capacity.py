"""Queues of capacity-scheduler.xml: Hadoop's examples, with the figures of its pages; contradictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from support.yarn_files import ABSOLUTE_PARTS, REST_PAGE, capacity, configuration
from trimtab.clusters.yarn.imported_queues import ImportedQueues
from trimtab.domain.queue_tree import QueueTree, fair_shares
from trimtab.errors import UsageError
from trimtab.validation.queue_section import QueueSpec, tree_of

MONITOR = "yarn.resourcemanager.scheduler.monitor.enable"
TWO = {"root.queues": "a,b", "root.a.capacity": 40, "root.b.capacity": 60}


def tree(queues: ImportedQueues, *resources: str) -> QueueTree:
    section = TypeAdapter(dict[str, QueueSpec]).validate_python(queues.section)
    return tree_of(section, resources or ("gpus",))


def why(queues: ImportedQueues, name: str) -> list[str]:
    return [each.why for each in queues.not_carried if name in each.name]


def shares(made: QueueTree, wanted: dict[str, float], capacity_gpus: float = 100.0) -> dict[str, float]:
    """What each queue gets of so many GPUs where its leaves want this much, by the scheduler of trimtab."""
    amounts = made.amounts(np.array([capacity_gpus]))
    demand = np.array([wanted.get(path, 0.0) for path in made.leaf_paths])
    guarantee, limit = (np.ascontiguousarray(each[:, 0]) for each in (amounts.guarantee, amounts.limit))
    found = fair_shares(made.shape, guarantee, limit, demand, capacity_gpus)
    return dict(zip(made.paths, found.tolist(), strict=True))


def test_capacities_and_maxima_multiply_down_the_tree_as_in_the_answer_of_the_page(tmp_path: Path) -> None:
    made = tree(capacity(tmp_path, REST_PAGE))
    amounts = made.amounts(np.array([100.0]))
    for path, (least, most) in ABSOLUTE_PARTS.items():
        row = made.paths.index(path)
        assert amounts.guarantee[row, 0] == pytest.approx(least)
        assert amounts.limit[row, 0] == pytest.approx(most)


def test_queues_get_their_capacity_when_all_want_more_and_a_maximum_binds(tmp_path: Path) -> None:
    made = tree(capacity(tmp_path, REST_PAGE))
    everything = dict.fromkeys(made.leaf_paths, 100.0)
    busy = shares(made, everything)
    for path, (least, _) in ABSOLUTE_PARTS.items():
        assert busy[path] == pytest.approx(least)
    assert shares(made, {"a.a1.a1a": 100.0})["a.a1.a1a"] == pytest.approx(
        25.0
    )  # elasticity up to its maximum
    assert shares(made, {"b.b3": 100.0})["b.b3"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("weights", "percent"), [((3, 2, 5), (30, 20, 50)), ((3, 2, 5, 10), (15, 10, 25, 50))]
)
def test_weights_are_parts_of_their_sum_as_on_the_page(
    weights: tuple[int, ...], percent: tuple[float, ...], tmp_path: Path
) -> None:
    names = [f"q{k}" for k in range(len(weights))]
    properties = {f"root.{name}.capacity": f"{w}w" for name, w in zip(names, weights, strict=True)}
    made = tree(capacity(tmp_path, {"root.queues": ",".join(names), **properties}))
    busy = shares(made, dict.fromkeys(names, 100.0))
    assert [busy[name] for name in names] == pytest.approx(list(percent))


def test_absolute_resources_stay_amounts_or_become_parts_of_the_memory_there_is(tmp_path: Path) -> None:
    properties = {
        "root.queues": "a,b",
        "root.a.capacity": "[memory=10240,vcores=12,yarn.io/gpu=8,yarn.io/fpga=1]",
        "root.a.maximum-capacity": "[memory=20Gi,vcores=24]",
        "root.b.capacity": "[memory=30720,vcores=4,yarn.io/gpu=0]",
        "queue-mappings": "u:user1:a,u:user2:b",
    }
    dominant = {"resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"}
    found = capacity(tmp_path, properties | dominant)
    a = found.section["a"]
    assert a["guarantee"] == {"memory_gib": 10.0, "cpus": 12.0, "gpus": 8.0}
    assert a["limit"] == {"memory_gib": 20.0, "cpus": 24.0}
    assert a["user_limit"] == 0.5
    requests = found.for_requests().section["a"]
    assert requests["guarantee"] == {"ram_gib": 10.0, "cpu_cores": 12.0, "gpu_milli": 8000.0}
    assert requests["tenants"] == a["tenants"]
    assert found.is_dominant
    assert why(found, "root.a.capacity") == ["yarn.io/fpga is no resource of trimtab's"]
    assert why(found, "root.b.user-limit-factor") == ["give --total, what the cluster has"]
    parts = capacity(tmp_path, properties, "memory=100Gi,vcores=100,yarn.io/gpu=16")
    assert not parts.is_dominant
    assert (parts.section["a"]["guarantee"], parts.section["a"]["limit"]) == (0.1, 0.2)
    assert (parts.section["b"]["guarantee"], parts.section["b"]["user_limit"]) == (0.3, 0.3)


def test_absolute_capacities_above_the_total_are_refused(tmp_path: Path) -> None:
    properties = {**TWO, "root.a.capacity": "[memory=1Gi]", "root.b.capacity": "[memory=2Gi]"}
    with pytest.raises(UsageError, match=r"siblings below root: 3 memory_gib.*at most 2\.5"):
        capacity(tmp_path, properties, "memory=2.5Gi")


def test_a_user_may_have_the_factor_times_the_capacity(tmp_path: Path) -> None:
    """By the page, a factor of 1 keeps a user to the queue's capacity however idle the cluster is."""
    users = {"queue-mappings": "u:user1:a,u:user2:b"}
    found = capacity(tmp_path, TWO | users | {"root.b.user-limit-factor": 1.5})
    assert found.section["a"]["user_limit"] == pytest.approx(0.4)
    assert found.section["b"]["user_limit"] == pytest.approx(0.9)
    free = capacity(tmp_path, TWO | users | {"user-limit-factor": -1})
    assert "user_limit" not in free.section["a"]
    half = capacity(tmp_path, TWO | users | {"root.a.maximum-capacity": 80, "root.a.user-limit-factor": 0.5})
    assert half.section["a"]["user_limit"] == pytest.approx(0.25)  # .5 of 40 %, of a limit of 80 %


def test_user_limits_of_unknown_users_are_named_instead_of_holding_back_the_queue(tmp_path: Path) -> None:
    found = capacity(tmp_path, TWO)
    assert found.section["a"]["tenants"] == ["a"]
    assert "user_limit" not in found.section["a"]
    assert why(found, "user_limit of a") == [
        "no user is mapped to the queue; write it where its tenants are users"
    ]


def test_users_share_alike_below_the_least_user_limit(tmp_path: Path) -> None:
    found = capacity(
        tmp_path, TWO | {"root.a.minimum-user-limit-percent": 25, "root.b.ordering-policy": "fair"}
    )
    assert found.section["a"]["order"] == found.section["b"]["order"] == "fair"
    assert "above 4 of them too" in why(found, "root.a.minimum-user-limit-percent")[0]
    assert capacity(tmp_path, TWO).section["a"]["order"] == "priority"


def test_mappings_name_the_users_of_leaves(tmp_path: Path) -> None:
    rules = "u:user1:a, u:user2:b, g:staff:b, u:user1:b, u:%user:%user, u:user3:%primary_group"
    found = capacity(tmp_path, {**TWO, "queue-mappings": rules})
    assert {name: queue["tenants"] for name, queue in found.section.items()} == {
        "a": ["user1", "a"],
        "b": ["user2", "b"],
    }
    assert sorted(why(found, "queue-mappings")) == [
        "an earlier rule places this user",
        "depends on more than the user",
        "groups are not in the file",
    ]


def test_mappings_in_json_are_read_as_the_page_converts_them(tmp_path: Path) -> None:
    rules = """{"rules": [
        {"type": "user", "matches": "user1", "policy": "custom", "customPlacement": "root.a"},
        {"type": "user", "matches": "*", "policy": "user", "fallbackResult": "skip"},
        {"type": "group", "matches": "devs", "policy": "custom", "customPlacement": "root.b"},
        {"type": "user", "matches": "*", "policy": "defaultQueue"},
        {"type": "user", "matches": "*", "policy": "reject"}]}"""
    properties = {**TWO, "mapping-rule-format": "json", "mapping-rule-json": rules, "queue-mappings": "u:x:b"}
    found = capacity(tmp_path, properties)
    assert found.section["a"]["tenants"] == ["user1", "a"]
    assert why(found, "mapping-rule-json") == ["groups are not in the file", "depends on more than the user"]
    assert why(found, "queue-mappings") == ["the other format of mappings is in force"]


def test_the_queue_default_takes_whom_none_names(tmp_path: Path) -> None:
    properties = {"root.queues": "default,a", "root.default.capacity": 70, "root.a.capacity": 30}
    found = capacity(tmp_path, properties | {"queue-mappings": "u:user1:a,u:user2:default"})
    assert "tenants" not in found.section["default"]
    assert found.section["a"]["tenants"] == ["user1"]


def test_a_stopped_queue_is_left_out_by_name(tmp_path: Path) -> None:
    found = capacity(tmp_path, TWO | {"root.a.state": "STOPPED", "queue-mappings": "u:user1:a"})
    assert list(found.section) == ["b"]
    assert why(found, "root.a.state") == ["no work enters it: left out with the queues below it"]
    assert why(found, "queue-mappings") == ["its queue is stopped"]


def test_preemption_waits_for_the_monitor_and_for_the_kill(tmp_path: Path) -> None:
    wait = "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill"
    site = configuration({MONITOR: "true", wait: 10_000, "yarn.resourcemanager.hostname": "rm"}, prefix="")
    found = capacity(tmp_path, TWO | {"root.a.disable_preemption": "true"}, site=site)
    assert found.section["a"]["notice_s"] == 13.0  # 3 s is the default of the interval
    assert (found.section["a"]["preemptible"], "preemptible" in found.section["b"]) == (False, False)
    assert not why(found, "hostname")
    off = capacity(tmp_path, TWO)
    assert "notice_s" not in off.section["a"]
    assert why(off, MONITOR) == ["queues do not preempt; where they do, yarn-site.xml tells"]


def test_queues_inherit_whether_they_may_be_preempted(tmp_path: Path) -> None:
    below = {"root.a.queues": "x,y", "root.a.x.capacity": 50, "root.a.y.capacity": 50}
    flags = {"root.a.disable_preemption": "true", "root.a.y.disable_preemption": "false"}
    found = capacity(tmp_path, TWO | below | flags).section
    assert [q.get("preemptible", True) for q in found["a"]["queues"].values()] == [False, True]
    assert "preemptible" not in found["a"]
    assert not why(capacity(tmp_path, TWO | below | flags), "disable_preemption")


def test_what_has_no_counterpart_is_named(tmp_path: Path) -> None:
    properties = {
        **TWO,
        "maximum-am-resource-percent": 0.2,
        "root.a.acl_submit_applications": "user1",
        "root.a.accessible-node-labels.fast.capacity": 100,
        "root.c.capacity": 10,
        "root.b.max-parallel-apps": 7,
    }
    found = capacity(tmp_path, properties)
    assert found.section["b"]["max_running"] == 7
    for name in ("maximum-am-resource-percent", "acl_submit_applications", "accessible-node-labels.fast"):
        assert why(found, name) == ["has no counterpart"]
    assert why(found, "root.c.capacity") == ["its queue is in no list of queues"]
    text = found.text()
    assert "#   yarn.scheduler.capacity.maximum-am-resource-percent = 0.2: has no counterpart" in text
    assert text.index("queues:\n") > text.index("maximum-am-resource-percent")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"root.b.capacity": 50}, r"line 4, .*root\.b\.capacity: .*40 \+ 50 = 90 \(got '50'\).*add up to 100"),
    ({"root.b.capacity": 160}, r"root\.b\.capacity: .*got '160'.*percentage from 0 to 100"),
    ({"root.a.maximum-capacity": 30}, r"root\.a\.maximum-capacity: below the capacity.*40 %.*got '30'"),
    ({"root.queues": "a,b,c"}, r"root\.c\.capacity: c is listed in .*root\.queues, but has no capacity"),
    ({"root.queues": "a,b,a"}, r"root\.queues: .*got 'a,b,a'.*each once"),
    ({"root.b.capacity": "3w"}, r"root\.b\.capacity: not given as its siblings' are .*expected a percentage"),
    ({"root.a.capacity": "many"}, r"root\.a\.capacity: .*got 'many'"),
    ({"root.a.capacity": "[memory=1q]", "root.b.capacity": "[memory=1]"}, r"no amount of 'memory': '1q'.*Gi"),
    ({"root.a.capacity": "[memory=1", "root.b.capacity": "[memory=1]"}, r"got '\[memory=1'"),
    ({"root.capacity": 90}, r"root\.capacity: .*got '90'.*root has all"),
    ({"root.a.state": "PAUSED"}, r"root\.a\.state: no such state.*RUNNING or STOPPED"),
    ({"root.a.state": "STOPPED", "root.b.state": "STOPPED"}, r"no queue that runs"),
    ({"root.a.max-parallel-apps": "x"}, r"root\.a\.max-parallel-apps: .*got 'x'.*whole number"),
    ({"root.a.user-limit-factor": 0}, r"user-limit-factor: leaves nothing to a user"),
    ({"root.a.minimum-user-limit-percent": 200}, r"minimum-user-limit-percent: .*got '200'"),
    ({"queue-mappings": "user1:a"}, r"queue-mappings: no mapping: 'user1:a'.*u:USER:QUEUE"),
    ({"queue-mappings": "u:user1:z"}, r"queue-mappings: no leaf queue 'z'.*one of a, b"),
    ({"mapping-rule-format": "json", "mapping-rule-json": "{}"}, r"mapping-rule-json: no rules"),
    ({"root.a.capacity": "${x}"}, r"root\.a\.capacity: no property x"),
    (
        {"root.a.queues": "c", "root.a.c.capacity": "[memory=5Gi]", "root.a.c.maximum-capacity": 5},
        "as its cap",
    ),
    ({"root.a.maximum-capacity": "[memory=5]"}, r"not given as the capacity is.*a percentage"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_contradictions_name_file_property_value_and_what_was_expected(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        capacity(tmp_path, TWO | changes)
    assert "capacity-scheduler.xml" in str(refused.value)


def test_variables_are_put_in_place_and_cycles_of_them_refused(tmp_path: Path) -> None:
    properties = {**TWO, "root.a.capacity": "${mine}"}
    site = configuration({"mine": 40}, prefix="")
    assert capacity(tmp_path, properties, site=site).section["a"]["guarantee"] == 0.4
    with pytest.raises(UsageError, match=r"contains itself by \$\{mine\}"):
        capacity(
            tmp_path, properties, site=configuration({"mine": "${other}", "other": "${mine}"}, prefix="")
        )


XML = [
    (
        '<!DOCTYPE x [<!ENTITY a "b">]><configuration>&a;</configuration>',
        r"line 1: a document type.*got '<!DOCTYPE",
    ),
    ("<configuration><property></configuration>", r"line 1: malformed XML: mismatched tag"),
    ("<other/>", r"another file \(got '<other>'\)"),
    ("<configuration><include href='x'/></configuration>", r"line 1: no property \(got '<include>'\)"),
    ("<a>" * 200, r"nested too deeply"),
]


@pytest.mark.parametrize(("text", "message"), XML)
def test_xml_is_read_without_entities(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        capacity(tmp_path, TWO, site=text)


def test_a_property_given_twice_must_say_the_same(tmp_path: Path) -> None:
    two = "<property><name>{0}</name><value>{1}</value></property>"
    name = "yarn.scheduler.capacity.root.a.capacity"
    text = f"<configuration>{two.format(name, 40)}\n{two.format(name, 50)}</configuration>"
    with pytest.raises(
        UsageError, match=r"line 2, .*root\.a\.capacity: given twice: '40' on line 1 \(got '50'\)"
    ):
        capacity(tmp_path, TWO, site=text)
