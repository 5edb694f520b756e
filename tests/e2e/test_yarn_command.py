"""`trimtab yarn`: sections and scenarios from YARN's files and answers, and what it says where they fail."""

from __future__ import annotations

import json

import yaml

from support.yarn_files import FAIR_PAGE, REST_PAGE, configuration, save_answers


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


def test_an_import_is_a_scenario_with_its_jobs(cli, tmp_path):
    save_answers(tmp_path / "saved")
    told = json.loads(cli("yarn", "import", "saved", "yarn", "--json").stdout)
    assert (told["nodes"], told["jobs"], told["slots"]) == (1, 2, "cpus")
    assert [each["name"] for each in told["not_carried"]][-1] == "a"
    scenario = yaml.safe_load((tmp_path / told["scenario"]).read_text())
    assert scenario["queues"]["default"]["guarantee"] == 0.4


def test_an_import_that_fails_leaves_nothing(cli, tmp_path):
    save_answers(tmp_path / "saved", apps=None)
    done = cli("yarn", "import", "saved", "yarn")
    assert done.exit_code == 2
    assert "apps.json: apps: no jobs" in done.stderr
    assert not (tmp_path / "yarn").exists()
