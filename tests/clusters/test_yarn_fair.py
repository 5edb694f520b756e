"""Queues of fair-scheduler.xml: Hadoop's example, with the figures of its page; files that contradict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clusters.test_yarn_capacity import shares, tree, why
from support.yarn_files import FAIR_PAGE, configuration, fair
from trimtab.errors import UsageError

TOTAL = "memory=200000,vcores=100"


def test_the_example_of_the_page(tmp_path: Path) -> None:
    found = fair(tmp_path, FAIR_PAGE)
    sample, group = found.section["sample_queue"], found.section["secondary_group_queue"]
    assert (sample["weight"], group["weight"], sample["max_running"]) == (2.0, 3.0, 50)
    assert sample["guarantee"] == {"memory_gib": 10_000 / 1024}  # of `fair` only memory counts
    assert sample["limit"] == {"memory_gib": pytest.approx(90_000 / 1024)}
    assert sample["queues"]["sample_sub_queue"]["guarantee"] == {"memory_gib": pytest.approx(5000 / 1024)}
    assert group["limit"] == {"memory_gib": pytest.approx(40_000 / 1024)}  # queueMaxResourcesDefault
    named = " ".join(each.name for each in found.not_carried)
    for name in ("maxAMShare", "aclSubmitApps", "reservation", "maxChildResources", "userMaxAppsDefault"):
        assert f"<{name}>" in named
    assert why(found, '<user name="sample_user">')
    assert why(found, 'type="parent"')
    assert {each.value for each in found.not_carried if each.name == '<rule name="default">'} == {
        "sample_queue"
    }


def test_minima_maxima_and_weights_of_the_example_hold_on_a_cluster(tmp_path: Path) -> None:
    """On 200,000 MB: 2 : 3 where neither binds; 40,000 MB bind the one, 90,000 MB the other."""
    made = tree(fair(tmp_path, FAIR_PAGE, TOTAL))
    subs = {f"sample_queue.{name}": 200_000.0 for name in ("sample_sub_queue", "sample_reservable_queue")}
    alone = shares(made, subs, 200_000.0)
    assert alone["sample_queue"] == pytest.approx(80_000)  # its two queues' 40,000 MB each, below its 90,000
    both = shares(made, subs | {"secondary_group_queue": 200_000.0}, 200_000.0)
    assert both["secondary_group_queue"] == pytest.approx(40_000)
    weights = fair(
        tmp_path, FAIR_PAGE.replace("40000 mb", "400000 mb").replace("90000 mb", "400000 mb"), TOTAL
    )
    split = shares(tree(weights), subs | {"secondary_group_queue": 200_000.0}, 200_000.0)
    assert split["sample_queue"] == pytest.approx(80_000)  # 2 of 5
    assert split["secondary_group_queue"] == pytest.approx(120_000)  # 3 of 5
    scarce = fair(tmp_path, FAIR_PAGE.replace("3.0", "300.0").replace("40000 mb", "400000 mb"), TOTAL)
    least = shares(tree(scarce), subs | {"secondary_group_queue": 200_000.0}, 200_000.0)
    assert least["sample_queue"] == pytest.approx(10_000)  # a minimum share is kept whatever the weights
    assert least["sample_queue.sample_sub_queue"] >= 5_000 - 1e-6


def test_a_weight_of_two_gets_twice_as_much_and_zero_what_is_left(tmp_path: Path) -> None:
    text = """<queue name="a"><weight>2</weight></queue><queue name="b"/>
      <queue name="c"><weight>0</weight></queue>"""
    found = fair(tmp_path, text)
    busy = shares(tree(found), dict.fromkeys("abc", 90.0), 90.0)
    assert busy["a"] == pytest.approx(2 * busy["b"])
    assert busy["c"] < 1e-3
    assert shares(tree(found), {"c": 90.0}, 90.0)["c"] == pytest.approx(90.0)
    assert why(found, "root.c, <weight>") == ["1e-06 in its place: after all others"]


def test_percentages_are_of_the_cluster_at_every_level(tmp_path: Path) -> None:
    text = """<queue name="a">
      <maxResources>50%</maxResources><minResources>vcores=20%,memory-mb=20%</minResources>
      <queue name="x">
        <maxResources>25 % cpu, 25 % memory</maxResources><minResources>10%</minResources></queue>
      <queue name="y"/></queue><pool name="b"/>"""
    made = tree(fair(tmp_path, text))
    amounts = made.amounts(np.array([100.0]))
    rows = {path: k for k, path in enumerate(made.paths)}
    assert amounts.limit[[rows["a"], rows["a.x"], rows["b"]], 0] == pytest.approx([50, 25, 100])
    assert amounts.guarantee[[rows["a"], rows["a.x"], rows["a.y"]], 0] == pytest.approx([20, 10, 0])


def test_a_parent_has_the_minima_of_its_queues(tmp_path: Path) -> None:
    queues = "".join(
        f'<queue name="{n}"><minResources>{m} mb, 0 vcores</minResources></queue>'
        for n, m in zip("xy", (1024, 2048), strict=True)
    )
    found = fair(tmp_path, f'<queue name="a">{queues}</queue>')
    assert found.section["a"]["guarantee"] == {"memory_gib": 3.0}
    assert why(found, "root.a, <minResources>") == ["raised to what its queues have, 3 memory_gib"]


def test_policies_orders_and_the_dominant_resource(tmp_path: Path) -> None:
    drf = "<schedulingPolicy>drf</schedulingPolicy>"
    text = f"""<queue name="root">{drf}
      <queue name="a">{drf}<minResources>memory-mb=2048, vcores=4, yarn.io/gpu=2</minResources></queue>
      <queue name="b"><schedulingPolicy>fifo</schedulingPolicy></queue></queue>"""
    found = fair(tmp_path, text)
    assert found.is_dominant
    assert found.section["a"]["guarantee"] == {"memory_gib": 2.0, "cpus": 4.0, "gpus": 2.0}
    assert (found.section["a"]["order"], found.section["b"]["order"]) == ("fair", "priority")


def test_a_minimum_is_taken_back_after_its_timeout_and_a_part_of_the_fair_share_too(tmp_path: Path) -> None:
    minimum = "<minResources>10%</minResources><minSharePreemptionTimeout>30</minSharePreemptionTimeout>"
    text = f"""<defaultFairSharePreemptionTimeout>60</defaultFairSharePreemptionTimeout>
      <queue name="a">{minimum}</queue>
      <queue name="b"><weight>3</weight>
        <fairSharePreemptionThreshold>0.8</fairSharePreemptionThreshold></queue>"""
    found = fair(tmp_path, text)
    assert (found.section["a"]["guarantee"], found.section["a"]["notice_s"]) == (0.1, 30.0)
    assert found.section["b"]["guarantee"] == pytest.approx(0.8 * 3 / 4)
    assert found.section["b"]["notice_s"] == 60.0
    assert why(found, "yarn.scheduler.fair.preemption") == [
        "taken to be on, since timeouts are given; give yarn-site.xml too"
    ]
    off = fair(tmp_path, text, site=configuration({"yarn.scheduler.fair.assignmultiple": "true"}, prefix=""))
    assert "notice_s" not in off.section["a"]
    assert why(off, "minSharePreemptionTimeout") == [
        "yarn.scheduler.fair.preemption is not true in yarn-site.xml"
    ]
    assert why(off, "assignmultiple") == ["has no counterpart"]


def test_queues_below_one_that_must_not_be_preempted_must_not_either(tmp_path: Path) -> None:
    text = """<queue name="a"><allowPreemptionFrom>false</allowPreemptionFrom><queue name="x"/></queue>
      <queue name="b"><allowPreemptionFrom>true</allowPreemptionFrom></queue>"""
    found = fair(tmp_path, text).section
    assert found["a"]["queues"]["x"]["preemptible"] is False
    assert "preemptible" not in found["b"]


REFUSED = [
    ('<queue name="a"/><queue name="a"/>', r"line 1, root, <queue name=…>: .*got 'a'.*name of its own"),
    ('<queue name="a.b"/>', r"got 'a\.b'.*without a period"),
    ("<weight>1</weight>", r"allocations: no queues"),
    ('<queue name="a"><weight>-1</weight></queue>', r"root\.a, <weight>: .*got '-1'"),
    ('<queue name="a"><weight>1</weight><weight>2</weight></queue>', r"root\.a, <weight>: given twice"),
    (
        '<queue name="a"><minResources>5 gb, 1 vcores</minResources></queue>',
        r"<minResources>: unknown unit in '5 gb'",
    ),
    ('<queue name="a"><maxResources>5 mb</maxResources></queue>', r"lacks memory or vcores.*got '5 mb'"),
    ('<queue name="a"><maxResources>120%</maxResources></queue>', r"percentages from 0 to 100"),
    (
        '<queue name="a"><minResources>50%</minResources><maxResources>20%</maxResources></queue>',
        r"root\.a, <minResources>: above the maximum.*got '50%'.*at most 20 %",
    ),
    (
        "".join(f'<queue name="{n}"><minResources>60%</minResources></queue>' for n in "ab"),
        r"root, <minResources>: minima add up to 120 %: a 60 % \+ b 60 %; expected at most 100 %",
    ),
    (
        '<queue name="a"><schedulingPolicy>drf</schedulingPolicy></queue>',
        r"drf below a parent of the policy fair",
    ),
    (
        '<queue name="a"><schedulingPolicy>fifo</schedulingPolicy><queue name="b"/></queue>',
        r"root\.a, <schedulingPolicy>: fifo is for leaves",
    ),
    ('<queue name="a"><maxRunningApps>x</maxRunningApps></queue>', r"<maxRunningApps>: .*got 'x'"),
    (
        '<queue name="a"><maxResources>9 mb, 1 vcores</maxResources><queue name="b"><maxResources>5%'
        "</maxResources></queue></queue>",
        r"root\.a\.b, <maxResources>: not given as its parent's.*--total",
    ),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_contradictions_name_file_element_value_and_what_was_expected(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        fair(tmp_path, text)
    assert "fair-scheduler.xml" in str(refused.value)
