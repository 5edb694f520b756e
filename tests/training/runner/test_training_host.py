"""Real processes: changes of GPUs lose no sample; what breaks is named, and kept at its last checkpoint."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from support.train_runs import BY_PROGRESS, job, last_state, train
from trimtab.cli.app import app
from trimtab.errors import PolicyError, TrimtabError
from trimtab.training.runner.generation import Generation
from trimtab.training.runner.live_job import JobRow, LiveJob
from trimtab.training.runner.train_reports import listed_runs

ITEMS = 64


def test_one_two_one_ranks_train_as_one_rank_does(tmp_path: Path) -> None:
    """Each item twice, and the weights of a run without changes (sums of floats in another order)."""
    changed = train(
        tmp_path,
        f"{BY_PROGRESS}(script=0:1/0.3:2/0.6:1)",
        job("fit", 16 * ITEMS, "--gates", "40:2/80:1", gpus=1, gpus_max=2),
    )
    assert changed.state == "done"
    assert changed.recording.jobs[0].restarts == 2
    plain = train(tmp_path, "fifo", job("fit", 16 * ITEMS))
    assert plain.recording.jobs[0].restarts == 0
    states = [last_state(tmp_path, run.run_id, "fit") for run in (changed, plain)]
    assert states[0]["counts"] == [16.0] * ITEMS == states[1]["counts"]
    np.testing.assert_allclose(states[0]["weights"], states[1]["weights"], rtol=1e-12)


def test_a_job_that_is_preempted_resumes_behind_others(tmp_path: Path) -> None:
    """SRTF: the short job takes both slots as it comes, the long one goes on after it."""
    run = train(
        tmp_path,
        "srtf",
        job("long", 1600, "--step-s", 0.01, gpus=2, samples_per_s={2: 500}),
        job("short", 160, "--step-s", 0.01, gpus=2, submit_s=1.0, samples_per_s={2: 500}),
        nodes={"here": 2},
    )
    assert run.state == "done"
    long, short = run.recording.jobs
    assert short.completion_s < long.completion_s - 1.0
    assert (long.restarts, short.restarts) == (1, 0)
    assert last_state(tmp_path, run.run_id, "long")["counts"] == [25.0] * ITEMS


def test_what_breaks_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    """Each job breaks one rule as its GPUs change from 1 to 2 at 30 % and back at 60 %."""
    said: list[str] = []
    gates, more = ("--gates", "40:2/80:1"), {"gpus": 1, "gpus_max": 2}
    faults = ("silent", "deaf", "truncated", "other-generation", "disagree", "full", "crash")
    run = train(
        tmp_path,
        f"{BY_PROGRESS}(script=0:1/0.3:2/0.6:1)",
        job("well", 960, *gates, **more),
        *(job(fault, 960, *gates, "--fault", fault, **more) for fault in faults),
        job("missing", 960, command=["no-such-program"], **more),
        job("nowhere", 960, cwd=str(tmp_path / "no-such-folder"), **more),
        nodes={"here": 32},
        say=said.append,
        grace_s=1.5,
        report_within_s=15,
    )
    state = {j.id: j.state for j in run.recording.jobs}
    assert run.state == "failed"
    assert [name for name, s in state.items() if s == "failed"] == ["silent", "missing", "nowhere"]
    assert all(state[name] == "done" for name in ("well", *faults[1:]))
    told = "\n".join(said)
    for part in (
        "silent: failed: never reported: no line in 15 s",
        "deaf: did not stop on SIGTERM: killed after 1.5 s",
        "truncated, 10 bytes; expected",
        "written by generation 1, another than its folder's",
        "disagree: ranks disagree: they stopped rank 0 at step",
        "full: ",
        "No space left on device",
        "crash: rank 0 ended by SIGKILL",
        "missing: failed: rank 0 ended with code 127: no-such-program: No such file or directory; see",
        f"nowhere: failed: rank 0 ended with code 127: cwd {tmp_path / 'no-such-folder'}: No such file",
    ):
        assert part in told, f"{part!r} not in\n{told}"
    assert "well:" not in told
    for name in ("silent", "missing", "nowhere"):
        assert sum(text.startswith(f"{name}: ") for text in said) == 1, told  # each problem once
    for name in ("well", *faults[1:]):  # what was lost is trained on again: nothing twice in what is kept
        counts = np.array(last_state(tmp_path, run.run_id, name)["counts"])
        assert counts.tolist() == [15.0] * ITEMS, name


def test_the_program_goes_on_after_the_loop_and_the_model_is_where_the_run_says(tmp_path: Path) -> None:
    """Rank 0 works on for longer than the grace period, alone; the job is done when it is."""
    after, again, said = tmp_path / "after", tmp_path / "again", list[str]()
    run = train(
        tmp_path,
        "fifo",
        job("fit", 80, "--after", after, "--after-s", 1.0, gpus=2),
        job("fails", 80, "--after", again, "--fault", "after"),
        say=said.append,
        grace_s=0.3,
    )
    assert run.state == "done"
    fit, fails = run.recording.jobs
    assert fit.completion_s > 1.0
    assert json.loads(after.read_text()) == last_state(tmp_path, run.run_id, "fit")["weights"]
    assert fit.model is not None
    state = json.loads((Path(fit.model) / "state").read_text())
    assert state == last_state(tmp_path, run.run_id, "fit")
    first, second = again.read_text().splitlines()  # only what follows the loop is done again
    assert first == second
    assert (fails.state, fails.restarts) == ("done", 1)
    told = next(
        text for text in said if text.startswith("fails: rank 0 ended with code 1 after its training")
    )
    assert "; its last good checkpoint: step 10, 80 samples\n" in told
    assert told.endswith("\n    RuntimeError: no room for the model")


def test_a_node_that_is_gone_takes_its_jobs_back_to_their_checkpoints(tmp_path: Path) -> None:
    said: list[str] = []
    run = train(
        tmp_path,
        "fifo(backfill=True)",
        job("first", 1920, "--step-s", 0.01),  # longer than the other node is away
        job("second", 480, "--step-s", 0.01, "--fault", "kill-node", "--at", 25, preload=[]),
        nodes={"a": 1, "b": 1},
        say=said.append,
        checkpoint_period_s=0.05,
    )
    assert run.state == "done"
    assert [j.restarts for j in run.recording.jobs] == [0, 1]
    assert any("node b is gone; its last good checkpoint: step" in text for text in said)
    assert "node b is there again" in said
    counts = last_state(tmp_path, run.run_id, "second")["counts"]
    assert sum(counts) == 480
    assert max(counts) - min(counts) <= 1


def test_a_warm_program_starts_ranks_as_forks(tmp_path: Path) -> None:
    """The module is imported by the node's program once, not by the job; each has one thread."""
    heavy = "import os\nIMPORTED_BY, THREADS = os.getpid(), os.environ.get('OMP_NUM_THREADS')\n"
    (tmp_path / "heavy.py").write_text(heavy)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from heavy import IMPORTED_BY, THREADS\n"
        "from trimtab.training.elastic import ElasticJob\n"
        "job = ElasticJob()\n"
        "job.step_done()\n"
        "print('argv', sys.argv[1:], 'warm', IMPORTED_BY != os.getpid(), 'threads', THREADS)\n"
        "job.finish(lambda folder: None)\n"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        patched.delenv("OMP_NUM_THREADS", raising=False)
        cold = job("cold", 8, 7, command=["python", str(script)], preload=[])
        warm = job("warm", 8, 7, command=["python", str(script)], preload=["heavy"])
        run = train(tmp_path / "runs", "fifo", cold, warm)
    assert run.state == "done"
    for name in ("cold", "warm"):
        (log,) = (tmp_path / "runs" / run.run_id / "jobs" / name / "logs").iterdir()
        assert log.read_text() == f"argv ['7'] warm {name == 'warm'} threads 1\n"


def test_jobs_run_where_they_ask_to_and_one_that_uses_more_memory_is_ended(tmp_path: Path) -> None:
    """Three jobs for one slot of node b, whose CPUs are for one; `hog` takes more memory than it may."""
    said: list[str] = []
    hog = "import time; from trimtab.training.elastic import ElasticJob; job = ElasticJob()\n"
    hog += "job.step_done(); held = bytearray(600 << 20); time.sleep(600)"
    nodes = {"a": 2, "b": {"slots": 2, "labels": ["fast"], "cpus": 1}}
    asks = {"labels": ["fast"], "cpus_per_gpu": 1}
    run = train(
        tmp_path,
        "fifo",
        job("one", 80, **asks),
        job("two", 80, **asks),
        job("hog", 80, command=["python", "-c", hog], memory_gib_per_gpu=0.1, preload=[]),
        nodes=nodes,
        say=said.append,
        retries=0,
    )
    assert {told.id: told.state for told in run.recording.jobs} == {
        "one": "done",
        "two": "done",
        "hog": "failed",
    }
    (text,) = (text for text in said if text.startswith("hog: failed"))
    assert "rank 0 ended by SIGKILL: used 0." in text
    assert "GiB of memory; memory_gib_per_gpu allows 0.1; see" in text
    one, two = (told.completion_s for told in run.recording.jobs[:2])
    assert two > one
    scenario = yaml.safe_load((run.recording.folder / "scenario.yaml").read_text())
    assert scenario["cluster"]["nodes"][1]["labels"] == ["fast"]
    words = "compare", str(run.recording.folder / "scenario.yaml"), "--policy", "fifo", "--no-sweep"
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output


def test_a_run_that_cannot_be_recorded_stops_its_jobs_at_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = LiveJob.begin

    def full(self: LiveJob, generation: Generation) -> None:
        if self.spec.id == "second":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        begin(self, generation)

    monkeypatch.setattr(LiveJob, "begin", full)
    jobs = job("first", 8000, "--step-s", 0.01), job("second", 8, submit_s=1.0)
    with pytest.raises(TrimtabError, match="cannot be recorded, so its jobs are stopped: No space left"):
        train(tmp_path, "fifo", *jobs)
    (run,) = tmp_path.glob("train_*")
    assert 0 < sum(last_state(tmp_path, run.name, "first")["counts"]) < 8000
    (listed,) = listed_runs(tmp_path, 5)
    assert listed["state"] == "stopped"


@pytest.mark.parametrize("stall", ["time.sleep(3600)", "sum(range(10**15))", "os.kill(os.getpid(), 9)"])
def test_an_allocator_that_stalls_holds_up_nothing(
    tmp_path: Path, stall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second job's decision never comes back. The first trains on, and stops at a checkpoint at once.

    `sum` of a range never lets go of the interpreter. A process that dies is told as the allocator's.
    """
    policy = tmp_path / "slow.py"
    policy.write_text(
        "import os, time\n"
        "from trimtab.domain.allocator import Allocator\n"
        "from trimtab.training.allocators.fifo import Fifo\n"
        "class Slow(Allocator):\n"
        "    def init(self, cluster, n_jobs):\n"
        "        return []\n"
        "    def allocate(self, jobs, cluster, now_s, speed, memory):\n"
        "        memory.append(now_s)\n"
        "        if len(memory) > 1:\n"
        f"            {stall}\n"
        "        return Fifo().allocate(jobs, cluster, now_s, speed, memory)\n"
    )
    seen = list[int]()

    def show(rows: Sequence[JobRow], now_s: float) -> None:
        seen.append(rows[0].samples)
        if now_s > 1.0 and rows[0].samples > seen[0] and not seen.count(-1):
            seen.append(-1)
            os.kill(os.getpid(), signal.SIGINT)

    jobs = job("first", 80_000, "--step-s", 0.01), job("second", 8, submit_s=0.5)
    if "kill" in stall:
        with pytest.raises(PolicyError, match="Slow': the process in which it decides has ended"):
            train(tmp_path, f"{policy}:Slow", *jobs)
    else:
        monkeypatch.setattr("trimtab.training.runner.train_jobs.SIMULATED_S", 1.0)  # it stalls there, too
        assert train(tmp_path, f"{policy}:Slow", *jobs, show=show).state == "stopped"
    (run,) = tmp_path.glob("train_*")
    assert 0 < sum(last_state(tmp_path, run.name, "first")["counts"]) < 80_000


def test_a_run_whose_jobs_are_done_waits_for_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last job ends while its allocator decides about it: the end of its process is no failure."""
    policy = tmp_path / "late.py"
    policy.write_text(
        "import dataclasses, time\n"
        "from trimtab.domain.allocator import Allocator\n"
        "from trimtab.training.allocators.fifo import Fifo\n"
        "class Late(Allocator):\n"
        "    def init(self, cluster, n_jobs):\n"
        "        return []\n"
        "    def allocate(self, jobs, cluster, now_s, speed, memory):\n"
        "        memory.append(now_s)\n"
        "        if len(memory) > 1:\n"
        "            time.sleep(3600)\n"
        "        found = Fifo().allocate(jobs, cluster, now_s, speed, memory)\n"
        "        return dataclasses.replace(found, wake_s=now_s + 0.05)\n"
    )
    monkeypatch.setattr("trimtab.training.runner.train_jobs.SIMULATED_S", 1.0)  # it stalls there, too
    assert train(tmp_path, f"{policy}:Late", job("only", 80, "--step-s", 0.01)).state == "done"


def test_an_allocator_that_fails_is_named_and_the_jobs_are_kept(tmp_path: Path) -> None:
    policy = tmp_path / "broken.py"
    policy.write_text(
        "from trimtab.domain.allocator import Allocator\n"
        "from trimtab.training.allocators.fifo import Fifo\n"
        "class Broken(Allocator):\n"
        "    def allocate(self, jobs, cluster, now_s, speed, memory):\n"
        "        if len(jobs) > 1:\n"
        "            raise KeyError('x')\n"
        "        return Fifo().allocate(jobs, cluster, now_s, speed, memory)\n"
    )
    jobs = job("first", 8000, "--step-s", 0.01), job("second", 8, submit_s=1.0)
    with pytest.raises(PolicyError, match=r"allocator 'Broken' at 1\.\d* s: KeyError: 'x'"):
        train(tmp_path, f"{policy}:Broken", *jobs)
    (run,) = tmp_path.glob("train_*")
    assert 0 < sum(last_state(tmp_path, run.name, "first")["counts"]) < 8000
