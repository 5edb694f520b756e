"""`trimtab fit`: from a log to a cluster file that a comparison uses."""

from __future__ import annotations

import json

import yaml

from support.e2e_files import write_cluster


def test_a_log_becomes_a_cluster_that_runs(cli, tmp_path):
    log = tmp_path / "log.csv"
    speeds = {"big-1": 0.02, "small-1": 0.05}
    rows = [
        (f"{60 * i},{10 + i % 50},{node}", (10 + i % 50) * s) for i in range(90) for node, s in speeds.items()
    ]
    text = "".join(f"{row},{1000 * (0.2 + took_s):.6f}\n" for row, took_s in rows)
    log.write_text("at,out,host,ms\n" + text)
    options = ["--map", "arrival_s=at", "--map", "output_tokens=out", "--map", "node=host"]
    done = cli(
        *(
            "fit",
            log,
            "--cluster",
            write_cluster(tmp_path / "c.yaml"),
            *options,
            "--map",
            "recorded_s=ms*0.001",
        ),
        *("--out", "fitted.yaml", "--html", "fit.html", "--json"),
    )
    assert done.exit_code == 0, done.stderr
    fits = json.loads(done.stdout)["fits"]
    assert [(f["node_type"], round(f["fixed_s"], 4), round(f["unit_s"], 4)) for f in fits] == [
        ("big", 0.2, 0.02),
        ("small", 0.2, 0.05),
    ]
    classes = yaml.safe_load((tmp_path / "fitted.yaml").read_text())["classes"]
    assert round(classes["request"]["unit_s"]["small"], 4) == 0.05
    assert (tmp_path / "fit.html").stat().st_size < 2e6
    run = cli("run", "--trace", log, *options, "--cluster", "fitted.yaml", "--json")
    assert run.exit_code == 0, run.stderr


def test_what_is_missing_is_named_with_the_option(cli, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("arrival_s,size\n0,1\n1,2\n")
    assert "--cluster FILE" in cli("fit", log).stderr
    done = cli("fit", log, "--cluster", write_cluster(tmp_path / "c.yaml"))
    assert done.exit_code == 2
    assert "--map recorded_s=COLUMN" in done.stderr
