"""`trimtab allocate`: one decision for a state in files."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path

import pytest

import trimtab
from support.replay_profiles import write_application
from support.training_runs import LEVELS, RATE_PER_S
from trimtab.cli.allocate_command import AllocationServer
from trimtab.errors import UsageError
from trimtab.experiments.training.allocate import Decisions

CLUSTER = """\
types: {node: {accelerators: 4, memory_gib: 64}}
nodes: [{type: node, count: 2}]
"""
JOBS = """\
job_id,submit_s,gpus,duration_s,held,attained_gpu_s,run_s
long,0,4,9000,node-1:4,36000,9000
wide,10,8,100,,0,0
small,20,2,50,,0,0
"""


SQUEUE = """\
JOBID|USER|STATE|SUBMIT_TIME|START_TIME|TIME|TIME_LIMIT|NODES|TRES_PER_NODE|NODELIST
7|u|RUNNING|2026-03-01T10:00:00|2026-03-01T10:10:00|50:00|2:00:00|1|gres/gpu:4|node-1
8_[1-2]|v|PENDING|2026-03-01T10:30:00|N/A|0:00|1:00:00|1|gres/gpu:2|
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    jobs, cluster = tmp_path / "jobs.csv", tmp_path / "cluster.yaml"
    jobs.write_text(JOBS)
    cluster.write_text(CLUSTER)
    return jobs, cluster


def test_what_squeue_prints_is_a_state(cli, files) -> None:
    files[0].write_text(SQUEUE)
    out = cli("allocate", "--jobs", str(files[0]), "--cluster", str(files[1]), "--policy", "fifo").stdout
    answer = json.loads(out)
    assert answer["now_s"] == 3600.0  # it has run for 50 min since 10:10; the first was submitted at 10:00
    assert [(job["job_id"], job["change"], job["nodes"]) for job in answer["jobs"]] == [
        ("7", "keep", {"node-1": 4}),
        ("8_1", "start", {"node-2": 2}),
        ("8_2", "start", {"node-2": 2}),
    ]


def test_it_prints_gpus_nodes_and_reasons_and_the_same_again(cli, files) -> None:
    command = ("allocate", "--jobs", str(files[0]), "--cluster", str(files[1]), "--policy", "fifo")
    result = cli(*command)
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert answer["format_version"] == 1
    by_id = {job["job_id"]: job for job in answer["jobs"]}
    # the running job goes on; the next in the queue does not fit, and first in, first out waits for it
    assert by_id["long"]["change"] == "keep"
    assert by_id["long"]["nodes"] == {"node-1": 4}
    assert by_id["wide"]["change"] == by_id["small"]["change"] == "wait"
    assert all(job["reason"] for job in answer["jobs"])
    assert cli(*command).stdout == result.stdout
    assert trimtab.allocate(*files, "fifo") == answer


def test_attained_service_counts(cli, files) -> None:
    answer = trimtab.allocate(*files, "tiresias(thresholds=3600)")
    by_id = {job["job_id"]: job for job in answer["jobs"]}
    # 36,000 GPU seconds put the long job into the second queue; the wide one takes all
    assert by_id["long"]["change"] == "stop"
    assert by_id["wide"]["nodes"] == {"node-1": 4, "node-2": 4}


def test_profiles_and_deadlines(cli, tmp_path, files) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    row = ",".join(str(v) for v in RATE_PER_S[0])
    (folder / "net.csv").write_text(f"global_batch_size,{','.join(map(str, LEVELS))}\n64,{row}\n")
    jobs = tmp_path / "state.csv"
    jobs.write_text(
        "job_id,submit_s,gpus,model,batch,work,deadline_s\nnow,0,1,net,64,300,110\nnever,0,1,net,64,300,50\n"
    )
    answer = trimtab.allocate(jobs, files[1], "elasticflow", profiles=folder, now_s=0.0)
    by_id = {job["job_id"]: job for job in answer["jobs"]}
    # 300 / 3 per second with 4 GPUs = 100 s; with all 8 GPUs, 300 / 4 = 75 s, too late for the other one
    assert by_id["never"]["change"] == "reject"
    assert "could not be kept" in by_id["never"]["reason"]
    assert by_id["now"]["gpus"] in (4, 8)


def test_a_dry_run_shows_changes_only(cli, files) -> None:
    state = ("--jobs", str(files[0]), "--cluster", str(files[1]))
    result = cli("allocate", *state, "--policy", "tiresias(thresholds=3600)", "--dry-run")
    assert result.exit_code == 0
    assert "stop" in result.stdout
    assert "small" not in result.stdout


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("node-1:4", "node-9:4", "node-9:4"),
        ("node-1:4", "node-1:5", "more GPUs of a node than it has"),
        ("small,20", "long,20", "two jobs have the same id"),
    ],
)
def test_a_state_that_cannot_be_is_refused(cli, files, old: str, new: str, what: str) -> None:
    files[0].write_text(JOBS.replace(old, new))
    result = cli("allocate", "--jobs", str(files[0]), "--cluster", str(files[1]), "--policy", "fifo")
    assert result.exit_code == 2
    assert what in result.stderr
    assert "Traceback" not in result.stderr


STATE = {
    "now_s": 30,
    "jobs": [
        {
            "job_id": "long",
            "submit_s": 0,
            "gpus": 4,
            "duration_s": 9000,
            "held": {"node-1": 4},
            "run_s": 9000,
        },
        {"job_id": "wide", "submit_s": 10, "gpus": 8, "duration_s": 100},
        {"job_id": "small", "submit_s": 20, "gpus": 2, "duration_s": 50},
    ],
}
BAD_STATES = {
    "[1]": "is no state",
    "{": "no JSON",
    '{"jobs": [], "extra": 1}': "extra",
    '{"jobs": [{"job_id": "a", "gpus": 1}]}': "lack submit_s",
    '{"jobs": [{"job_id": "a", "submit_s": 0, "gpus": 0, "duration_s": 1}]}': "asks for no GPU",
    '{"jobs": [{"job_id": "a", "submit_s": 0, "gpus": 1, "duration_s": 1, "held": {"no": 1}}]}': "'no:1'",
    '{"jobs": [{"job_id": "a", "submit_s": 0, "gpus": 1, "duration_s": 1}], "down": ["n"]}': "no such node",
    '{"format_version": 2, "jobs": []}': "format_version",
}


def test_states_come_in_line_by_line_and_answers_go_out(cli, files) -> None:
    lines = [json.dumps(STATE | {"id": 7}), "", *BAD_STATES, json.dumps({"jobs": []})]
    command = ("allocate", "--jobs", "-", "--cluster", str(files[1]), "--policy", "fifo(backfill=true)")
    result = cli(*command, stdin="\n".join(lines) + "\n")
    assert result.exit_code == 2  # some lines could not be answered
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(answers) == len(BAD_STATES) + 2
    assert answers[0]["id"] == 7
    by_id = {job["job_id"]: job for job in answers[0]["jobs"]}
    assert by_id["long"]["held"] == by_id["long"]["nodes"] == {"node-1": 4}
    assert by_id["small"]["nodes"] == {"node-2": 2}
    for answer, what in zip(answers[1:-1], BAD_STATES.values(), strict=True):
        assert what in answer["error"]["message"]
    assert answers[-1]["jobs"] == []
    assert "Traceback" not in result.stderr
    del answers[0]["id"]
    assert trimtab.allocate(STATE["jobs"], files[1], "fifo(backfill=true)", now_s=30) == answers[0]


def test_a_node_that_is_down_gets_nothing(files) -> None:
    answer = trimtab.allocate(STATE["jobs"], files[1], "fifo(backfill=true)", now_s=30, down=["node-1"])
    assert answer["gpus"] == 4
    assert {job["job_id"]: job["nodes"] for job in answer["jobs"]} == {
        "long": {"node-2": 4},
        "wide": {},
        "small": {},
    }


def test_a_failing_allocator_is_an_answer_too(cli, tmp_path, files) -> None:
    own = tmp_path / "broken.py"
    own.write_text(
        "from dataclasses import dataclass\n"
        "from trimtab.domain.allocator import Allocator\n"
        "@dataclass(frozen=True)\n"
        "class Broken(Allocator):\n"
        "    name = 'broken'\n"
        "    def allocate(self, jobs, cluster, now_s, speed, memory):\n"
        "        return 1 / 0\n"
    )
    state = ("--jobs", str(files[0]), "--cluster", str(files[1]), "--policy", f"{own}:Broken")
    result = cli("allocate", *state)
    assert result.exit_code == 3
    assert "allocator 'broken' at 20 s: ZeroDivisionError" in result.stderr


def test_the_server_answers_as_the_command_does(files) -> None:
    server = AllocationServer(("127.0.0.1", 0), Decisions(files[1], "fifo(backfill=true)"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        talk = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)

        def ask(method: str, path: str, body: str | None = None) -> tuple[int, dict]:
            talk.request(method, path, body)
            response = talk.getresponse()
            return response.status, json.loads(response.read())

        assert ask("GET", "/healthz") == (
            200,
            {"status": "ok", "policy": "fifo(backfill=True)", "gpus": 8},
        )
        status, answer = ask("POST", "/v1/allocate", json.dumps(STATE))
        assert status == 200
        assert answer == trimtab.allocate(STATE["jobs"], files[1], "fifo(backfill=true)", now_s=30)
        assert ask("POST", "/v1/allocate", json.dumps(STATE)) == (200, answer)
        for text, what in BAD_STATES.items():
            status, told = ask("POST", "/v1/allocate", text)
            assert status == 400
            assert what in told["error"]["message"]
        assert ask("POST", "/other", "{}")[0] == 404
        assert ask("GET", "/v1/allocate")[0] == 405
        talk.putrequest("POST", "/v1/allocate")
        talk.putheader("Content-Length", str(1 << 40))
        talk.endheaders()
        assert talk.getresponse().status == 413
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_dry_run_sets_the_queue_beside_the_policy(cli, files) -> None:
    state = ("--jobs", str(files[0]), "--cluster", str(files[1]))
    result = cli("allocate", *state, "--policy", "tiresias(thresholds=3600)", "--dry-run")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "long 4: node-1 4 – stop other jobs go first" in lines
    assert any(line.startswith("wide – 8: node-1 4, node-2 4 start") for line in lines)
    assert lines[-1].endswith("8 of 8 GPUs given, 4 held by the queue; 1 start, 1 stop, 1 wait")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "--jobs, --serve: missing or both"),
        (("--serve", "nowhere"), "--serve: no address (got 'nowhere'); expected PORT or HOST:PORT"),
        (("--jobs", "-", "--dry-run"), "--dry-run: does not go with --jobs -"),
        (("--jobs", "none.csv"), "none.csv: cannot be read"),
    ],
)
def test_options_that_do_not_fit_are_refused(cli, files, arguments: tuple[str, ...], what: str) -> None:
    result = cli("allocate", "--cluster", str(files[1]), "--policy", "fifo", *arguments)
    assert result.exit_code == 2
    assert what in result.stderr


def test_replayed_applications_learn_from_what_they_ran_with(tmp_path) -> None:
    write_application(tmp_path / "profiles")
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    job = {"submit_s": 0, "gpus": 1, "model": "toy", "batch": 16, "work_left": 200, "run_s": 100}
    jobs = [
        job | {"job_id": "one", "held": {"node-1": 2}},
        job | {"job_id": "new", "work_left": 400, "run_s": 0},
    ]
    answer = trimtab.allocate(jobs, cluster, "sia", profiles=tmp_path / "profiles", now_s=120.0)
    by_id = {job["job_id"]: job for job in answer["jobs"]}
    # at most twice what it ran with; the new one begins with one GPU
    assert 1 <= by_id["one"]["gpus"] <= 4
    assert by_id["new"]["gpus"] == 1
    with pytest.raises(UsageError, match="needs goodput"):
        trimtab.allocate(STATE["jobs"], cluster, "pollux", now_s=30)
