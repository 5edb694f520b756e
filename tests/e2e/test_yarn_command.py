"""`trimtab yarn`: sections and scenarios from YARN's files and answers, and what it says where they fail."""

from __future__ import annotations

import json

import polars as pl
import pytest
import yaml

import trimtab as tt
from support.yarn_files import FAIR_PAGE, REST_PAGE, app, configuration, leaf, node, save_answers
from trimtab.gateway.config import load_config
from trimtab.training.runner.job_list import job_list_of


def test_a_section_follows_what_it_lacks_in_comments(cli, tmp_path):
    file = tmp_path / "capacity-scheduler.xml"
    file.write_text(configuration({**REST_PAGE, "maximum-am-resource-percent": 0.1}))
    text = cli("yarn", "queues", file).stdout
    assert yaml.safe_load(text)["queues"]["a"]["queues"]["a1"]["limit"] == 0.5
    assert "#   yarn.scheduler.capacity.maximum-am-resource-percent = 0.1: has no counterpart\n" in text
    told = json.loads(cli("yarn", "queues", file, "--json").stdout)
    assert told["queues"] == yaml.safe_load(text)["queues"]
    assert (told["scheduler"], told["dominant_resource"]) == ("capacity", False)
    named = {each["name"] for each in told["not_carried"]}
    assert "yarn.scheduler.capacity.maximum-am-resource-percent" in named


def test_contradictions_end_with_2_and_print_no_section(cli, tmp_path):
    file = tmp_path / "fair-scheduler.xml"
    file.write_text(FAIR_PAGE.replace("90000 mb", "9000 mb"))
    done = cli("yarn", "queues", file)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "fair-scheduler.xml: line 5, root.sample_queue, <minResources>: above the maximum" in done.stderr


def test_a_section_fits_a_gateway_and_a_list_of_jobs(cli, tmp_path):
    properties = {"root.queues": "a,b", "root.a.capacity": 40, "root.b.capacity": 60}
    users = {"queue-mappings": "u:user1:a,u:user2:b"}
    (tmp_path / "capacity-scheduler.xml").write_text(configuration(properties | users))
    keys = "".join(f"  - {{name: user{k}, sha256: '{str(k) * 64}'}}\n" for k in (1, 2))
    head = f"policy: least-connections+hdrf\nkeys:\n{keys}nodes: [{{name: n, url: 'http://127.0.0.1:9'}}]\n"
    section = cli("yarn", "queues", "capacity-scheduler.xml", "--for", "gateway").stdout
    (tmp_path / "gateway.yaml").write_text(head + section)
    config = load_config(tmp_path / "gateway.yaml")
    assert list(config.queues) == ["a", "b", "default"]
    assert not [note for note in config.policy_notes() if "queues" in note]
    jobs = "".join(
        f"- {{id: {n}, command: python x.py, samples: 1, tenant: user{k}}}\n" for k, n in ((1, "x"), (2, "y"))
    )
    text = f"nodes: {{here: 4}}\njobs:\n{jobs}" + cli("yarn", "queues", "capacity-scheduler.xml").stdout
    listed = job_list_of(text, "jobs.yaml", tmp_path)
    assert listed.queues["a"].tenants == ("user1",)


def test_an_import_is_a_scenario_with_its_jobs(cli, tmp_path):
    save_answers(tmp_path / "saved")
    told = json.loads(cli("yarn", "import", "saved", "yarn", "--json").stdout)
    assert (told["nodes"], told["jobs"], told["slots"]) == (1, 2, "cpus")
    assert {each["name"] for each in told["not_carried"]} >= {"user_limit of a"}
    scenario = yaml.safe_load((tmp_path / told["scenario"]).read_text())
    assert scenario["queues"]["default"]["guarantee"] == 0.4


def test_an_import_that_fails_leaves_nothing(cli, tmp_path):
    save_answers(tmp_path / "saved", apps=None)
    done = cli("yarn", "import", "saved", "yarn")
    assert done.exit_code == 2
    assert "apps.json: apps: no jobs" in done.stderr
    assert not (tmp_path / "yarn").exists()


SLOTS, WORK_S = 60, 20.0


def contended(folder, section, tenants):
    """A scenario whose tenants all have requests of 1 s that wait: all come at once, as many of each."""
    n = int(SLOTS * WORK_S)
    columns = {"arrival_s": [k / (1000.0 * n) for k in range(n)], "size": [1.0] * n}
    names = [tenants[k % len(tenants)] for k in range(n)]
    pl.DataFrame({**columns, "tenant": names}).write_csv(folder / "trace.csv")
    scenario = {
        "cluster": {
            "types": {"one": {"memory_gib": 1, "slots": SLOTS}},
            "nodes": [{"type": "one", "queue_max": 0}],
        },
        "workload": {"trace": {"file": "trace.csv", "mapping": {"time_unit": "s"}}},
    }
    (folder / "s.yaml").write_text(yaml.safe_dump(scenario) + section)  # as `>>` does
    return "s.yaml"


def parts(requests):
    """The part of each tenant, once the first to come have ended, and while all have some that wait."""
    early = requests.filter((pl.col("start_s") > 0.5) & (pl.col("finish_s") < 0.4 * WORK_S))
    return {name: n / early.height for name, n in early.group_by("tenant").len().iter_rows()}


def test_compare_shows_queues_beside_flat_fairness(cli, tmp_path):
    """By the page, a queue of weight 2 gets twice as much as one of weight 1; tenants alike get the same."""
    file = tmp_path / "fair-scheduler.xml"
    file.write_text(
        '<allocations><queue name="a"><weight>2.0</weight></queue><queue name="b"/></allocations>'
    )
    scenario = contended(tmp_path, cli("yarn", "queues", file).stdout, "ab")
    policies = ("least-connections+hdrf", "least-connections+fair-share")
    done = cli(
        "compare", scenario, *(f"--policy={name}" for name in policies), "-n", 1, "-j", 1, "--no-sweep"
    )
    assert done.exit_code == 0, done.stderr
    records = tmp_path / "trimtab-out" / "requests"
    queues, flat = (parts(pl.read_parquet(records / name / "*.parquet")) for name in policies)
    assert queues == {"a": pytest.approx(2 / 3, abs=0.003), "b": pytest.approx(1 / 3, abs=0.003)}
    assert flat == {"a": pytest.approx(1 / 2, abs=0.003), "b": pytest.approx(1 / 2, abs=0.003)}


def test_weights_and_user_limits_split_a_fleet_as_the_page_says(cli, tmp_path):
    """Weights 3, 2, 5: 30, 20, 50 %. Below a user limit of 25 %, 2 users have half each, 4 a quarter."""
    file = tmp_path / "capacity-scheduler.xml"
    three = {f"root.{name}.capacity": f"{w}w" for name, w in zip("abc", (3, 2, 5), strict=True)}
    file.write_text(configuration({"root.queues": "a,b,c", **three}))
    run = tt.simulate(
        contended(tmp_path, cli("yarn", "queues", file).stdout, "abc"), "least-connections+hdrf"
    )
    assert parts(run.requests) == {
        name: pytest.approx(p, abs=0.003) for name, p in zip("abc", (0.3, 0.2, 0.5), strict=True)
    }
    for users in (2, 3, 4):
        names = [f"user{k}" for k in range(users)]
        two = {"root.queues": "a,b", "root.a.capacity": 60, "root.b.capacity": 40}
        mapped = {"queue-mappings": ",".join([*(f"u:{name}:a" for name in names), "u:other:b"])}
        file.write_text(configuration({**two, **mapped, "root.a.minimum-user-limit-percent": 25}))
        section = cli("yarn", "queues", file).stdout
        run = tt.simulate(contended(tmp_path, section, [*names, "other"]), "least-connections+hdrf")
        found = parts(run.requests)
        assert found.pop("other") == pytest.approx(0.4, abs=0.003)
        assert found == {name: pytest.approx(0.6 / users, abs=0.003) for name in names}


def test_an_imported_cluster_is_compared_under_its_queues_and_without_them(cli, tmp_path):
    """Jobs of one GPU and 100 s wait in queues of the weights 3 and 1: 6 and 2 of 8 GPUs; alike, 4 each."""
    entries = [{"key": "yarn.io/gpu", "value": "100"}]
    times = {"launchTime": 2000, "finishedTime": 102_000, "resourceSecondsMap": {"entry": entries}}
    apps = [
        app(f"job-{k:03}", *(("a", "user1") if k % 2 else ("b", "user2")), startedTime=1000 + k, **times)
        for k in range(160)
    ]
    queues = [leaf(name, capacity=0, weight=w, userLimitFactor=9) for name, w in (("a", 3), ("b", 1))]
    info = {"type": "capacityScheduler", "queueName": "root", "queues": {"queue": queues}}
    nodes = {"node": [node(gpus=8)]}
    save_answers(tmp_path / "saved", nodes=nodes, apps={"app": apps}, scheduler={"schedulerInfo": info})
    assert cli("yarn", "import", "saved", "yarn").exit_code == 0
    scenario = (tmp_path / "yarn" / "scenario.yaml").read_text()
    (tmp_path / "yarn" / "flat.yaml").write_text(scenario + "queue_scheme: flat\n")
    found = {}
    for name in ("scenario", "flat"):
        arguments = ("-p", "fifo", "-n", 1, "-j", 1, "--no-sweep", "--out", name)
        done = cli("compare", f"yarn/{name}.yaml", *arguments)
        assert done.exit_code == 0, done.stderr
        jobs = pl.read_parquet(tmp_path / name / "jobs" / "fifo" / "*.parquet")
        busy = jobs.filter(pl.col("start_s").is_between(50.0, 950.0))  # nine rounds, in which both wait
        found[name] = dict(busy.group_by("tenant").len().iter_rows())
    assert found == {"scenario": {"user1": 54, "user2": 18}, "flat": {"user1": 36, "user2": 36}}
