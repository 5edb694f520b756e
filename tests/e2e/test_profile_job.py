"""`trimtab profile job`: speeds from files and torch modules, and as the estimate of a comparison."""

from __future__ import annotations

import json

import pytest
import yaml

SPEEDS = "global_batch_size,1,2,4,8\n32,10,18,,\n64,6,11,19,\n"
CLUSTER = {"types": {"gpu": {"memory_gib": 16, "accelerators": 4}}, "nodes": [{"type": "gpu", "count": 2}]}
NETS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(64, 256), torch.nn.Linear(256, 64)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

class Branch(Net):
    def forward(self, x):
        y = self.a(x)
        return self.b(y) if y.sum() > 0 else y
"""


def job(cli, *arguments):
    done = cli("profile", "job", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    return told, {(row["batch"], row["gpus"]): row["seconds"] for row in told["steps"]}


def test_a_file_of_runs_is_joined_and_extended(cli, tmp_path):
    (tmp_path / "net.csv").write_text(SPEEDS)
    told, seconds = job(cli, "net.csv", "--gpus", "1,2,4,8")
    assert (told["job"], told["way"]) == ("net", "runs")
    assert seconds[64, 4] == pytest.approx(1 / 19)
    assert seconds[32, 4] == pytest.approx(0.1 * (10 / 18) ** 2)  # the line of logarithms goes on
    (tmp_path / "wide.csv").write_text(SPEEDS.replace("10", "5"))
    _, seconds = job(cli, "net.csv", "--way", "metadata", "--batch", "48", "--gpus", "1")
    assert 0.1 < seconds[48, 1] < 0.17


def test_losses_tell_when_a_job_has_converged(cli, tmp_path):
    (tmp_path / "net.csv").write_text(SPEEDS)
    rows = [f"{k},{1 / (0.02 * k + 0.5) + 0.3}" for k in range(0, 1000, 20)]
    (tmp_path / "losses.csv").write_text("\n".join(["step,loss", *rows]))
    told, _ = job(cli, "net.csv", "--losses", "losses.csv", "--fall", "0.01")
    found = told["convergence"]
    assert found["slope"] == pytest.approx(0.02, rel=0.05)
    assert 400 < found["steps"] < 800
    done = cli("profile", "job", "net.csv", "--losses", "losses.csv")
    assert "converges after" in done.stdout


def test_a_loss_that_rises_never_converges_and_extrapolation_is_told(cli, tmp_path):
    (tmp_path / "net.csv").write_text("global_batch_size,1,2\n32,10,18\n64,6,\n")
    (tmp_path / "losses.csv").write_text("\n".join(["step,loss", *(f"{k},{k}" for k in range(1, 20))]))
    told, _ = job(cli, "net.csv", "--losses", "losses.csv", "--gpus", "2,4")
    assert told["convergence"]["steps"] is None
    assert told["notes"] == [
        "batch 32: measured on 1 to 2 GPUs; 4 extrapolated",
        "batch 64: measured on 1 GPU; 2, 4 extrapolated",
    ]
    done = cli("profile", "job", "net.csv", "--losses", "losses.csv")
    assert "the loss does not fall" in done.stdout
    assert "note: batch 64: measured on 1 GPU; 2, 4, 8 extrapolated" in done.stderr


def test_what_it_writes_is_the_estimate_of_a_comparison(cli, tmp_path):
    (tmp_path / "speeds").mkdir()
    (tmp_path / "speeds" / "net.csv").write_text(SPEEDS.replace(",,", ",30,").replace("19,", "19,33"))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "net.csv").write_text(SPEEDS)
    (tmp_path / "seen").mkdir()
    job(cli, "runs/net.csv", "--gpus", "1,2,4", "--out", "seen/net.csv")
    assert (tmp_path / "seen" / "net.csv").read_text().startswith("global_batch_size,1,2,4\n32,10,18,32.4\n")
    rows = "".join(f"j{k},{10 * k},2,{100 + k},net,64\n" for k in range(6))
    (tmp_path / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s,model,batch\n" + rows)
    about = {
        "kind": "training",
        "cluster": CLUSTER,
        "jobs": {"trace": {"file": "jobs.csv", "profiles": "speeds"}},
        "rules": {"estimate_profiles": "seen", "work_from": "duration"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(about))
    done = cli("compare", "run.yaml", "-p", "srtf", "--seeds", "1", "--no-sweep", "-j", "1")
    assert done.exit_code == 0, done.stderr
    (tmp_path / "seen" / "net.csv").rename(tmp_path / "seen" / "other.csv")
    done = cli("compare", "run.yaml", "-p", "srtf", "--seeds", "1", "--no-sweep", "-j", "1")
    assert done.exit_code == 2
    assert "rules.estimate_profiles" in done.stderr


def test_a_torch_module_by_its_graph_and_by_runs(cli, tmp_path):
    pytest.importorskip("torch", reason="needs the extra learn")
    (tmp_path / "nets_of_a_test.py").write_text(NETS)
    options = ("--input", "64", "--batch", "16", "--gpus", "1,2,3", "--link-us", "0")
    _, graph = job(cli, "nets_of_a_test:Net", *options)
    assert set(graph) == {(16, 1), (16, 2)}
    assert 1e-5 < graph[16, 1] < 1e-1
    job(cli, "nets_of_a_test:Net", *options, "--way", "runs", "--measure", "mine.json")
    job(cli, "nets_of_a_test:Net", *options, "--way", "operators", "--measured", "mine.json")
    done = cli("profile", "job", "nets_of_a_test:Branch", *options)
    assert done.exit_code == 2
    assert "operator item" in done.stderr
    for wrong, told in (
        (("--input", "65", "--way", "runs"), "does not run: RuntimeError"),
        (("--input", "0x64"), "no shape of a sample (got '0x64'); expected numbers above 0"),
        (("--input", f"{10**20}"), "no memory for so large an input"),
        (("--input", "64", "--batch", "1", "--gpus", "2"), "no batch that GPUs can share (got [1])"),
        (
            ("--input", "64", "--measured", "nets_of_a_test.py"),
            "nets_of_a_test.py: no measured steps; expected",
        ),
        (("--input", "64", "--measured", "."), ".: can't be read: Is a directory"),
    ):
        done = cli("profile", "job", "nets_of_a_test:Net", *wrong)
        assert done.exit_code == 2
        assert told in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("none.csv",), "none.csv: no profiles"),
        (("net.csv", "--batch", "48"), "of 32, 64, which were measured"),
        (("net.csv", "--gpus", "1,x"), "--gpus: no numbers (got '1,x')"),
        (("net.csv", "--way", "graph"), "way: no way of a file (got 'graph')"),
        (("net.csv", "--gpus", "1000000000"), "expected whole numbers from 1 to 100,000"),
        (("net.csv", "--gpus", "²"), "--gpus: no numbers"),
        (
            ("net.csv", "--losses", "net.csv"),
            "net.csv: no losses; expected a CSV file with the columns step and",
        ),
        (("net.csv", "--losses", "."), ".: can't be read: Is a directory"),
        (("net.csv", "--losses", "back.csv"), "steps that do not grow"),
        (("net.csv", "--losses", "below.csv"), "below.csv: no losses (got -6.0); expected numbers above 0"),
        (("net.csv", "--input", "3"), "--input: has no meaning for a file"),
        (("net.csv", "--measure", "mine.json"), "--measure: has no meaning for a file"),
        (("json:dumps",), "no torch module"),
        (("json:loads.x",), "no torch module"),
    ],
)
def test_wrong_input_is_told(cli, tmp_path, arguments, told):
    if ":" in arguments[0]:
        pytest.importorskip("torch", reason="needs the extra learn")
    (tmp_path / "net.csv").write_text(SPEEDS)
    for name, step, loss in (("back", -1, 1), ("below", 1, -1)):
        rows = [f"{step * k},{loss * k}" for k in range(1, 7)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["step,loss", *rows]))
    done = cli("profile", "job", *arguments)
    assert done.exit_code == 2, done.stdout
    assert told in done.stderr
