"""Published formats of jobs and profiles, each by a small file of its kind; the real ones where they are."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from bench.golden.cases import DATA

from support.replay_profiles import toy_profile, write_application
from trimtab.domain.training_jobs import Records, configs, gpu_nodes
from trimtab.errors import TraceError, UsageError
from trimtab.experiments.compare import run_comparison
from trimtab.experiments.scenario.scenario_parts import Parts
from trimtab.experiments.training.job_profiles import ProfiledJobs, profile_kind, profiled_jobs
from trimtab.experiments.training.training_kind import TRAINING_KIND
from trimtab.experiments.training.training_scenario import TRAINING_JOBS, RulesSection, resolve_training
from trimtab.traces.read_jobs import holds_jobs, read_jobs
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.replay_truth import ReplayTruth

GAVEL_LINE = "ResNet-18 (batch size 32)\tpython3 main.py\tcifar10\t--num_steps\t1\t{steps}\t{gpus}\t{rest}"
FILES = {
    "sia-workload": "name,time,application,num_replicas,batch_size\na-0,107,toy,2,32\nb-1,110,toy,1,16\n",
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster\n"
    "2017-10-09 07:01:55,66.0,1,66.0,vc\n2017-10-09 07:00:55,30.0,2,60.0,vc\n",
    "chronus": "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,"
    "expect_value_list,best_effort,job_type\n0,u,1,10,50,vgg16,3,14,5-9,10,0,soft\n"
    "1,u,0,11,50,vgg16,3,14,5,10,0,strict\n2,u,2,12,50,vgg16,2,14,x,10,1,best\n",
    "muri": "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority\n0,8,2000,10,gpt2,4,5000,0,437,1,2,3,0\n",
    "acme-kalos": "job_id,arrival_time,num_iteration,iteration_computing_time,iteration_networking_time,"
    "gpu_workers,gpu_per_worker\n0,5.0,208,0.5,0.25,8,8.0\n",
    "helios": "job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1,u,4,16,1,COMPLETED,2020-04-01 00:00:13,2020-04-01 00:00:15,2020-04-01 01:00:15,3600,2\n"
    "2,u,0,16,1,CANCELLED,2020-04-01 00:01:13,,,0,0\n",
    "gavel-list": GAVEL_LINE.format(steps=100, gpus=2, rest="static\t1\t-1.0\t60\t7")
    + "\n"
    + GAVEL_LINE.format(steps=50, gpus=1, rest="static\t1\t-1.0\t30\t5"),
}
READ = {  # submission, GPUs, duration and deadline of each job, in order of submission, by hand
    "sia-workload": [(107, 2, None, None), (110, 1, None, None)],
    "philly": [(0, 2, 30, None), (60, 1, 66, None)],
    "chronus": [(600, 1, 180, 900), (720, 2, 120, np.inf)],  # minutes; jobs without GPUs are left out
    "muri": [(2, 8, 5, None)],  # milliseconds
    "acme-kalos": [(5, 64, 156, None)],
    "helios": [(0, 4, 3600, None)],
    "gavel-list": [(5, 1, 30, None), (7, 2, 60, None)],
}
COUNTS = {  # rows that the publishers state, less the jobs without GPUs
    "pollux_osdi21/workloads/workload-1.csv": 160,
    "elasticflow_traces/elasticVpollux_e.csv": 195,
    "ms_itp_2021/raw-traces/cluster05.csv.gz": 3629,
    "ms_itp_2021/elasticflow-traces/cluster01.csv.gz": 1595,
    "sia_workloads/newtrace/workload-4.csv": 960,
    "philly_2017/philly.csv.gz": 64483,
    "philly_chronus_deadlines/trace_job_Philly_MIX1.csv.gz": 30940 - 184,
    "philly_muri/trace1.csv.gz": 1494,
    "acme_2023/converted_kalos_trace.csv": 319,
    "gavel_throughputs/max_min_fairness.trace": 96,
    "shockwave_dynamic/460_0.2_5_100_10_1_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace": 460,
}
HEAD = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n"
ANY = {"any": 8}
data = pytest.mark.skipif(not DATA.exists(), reason="the recorded traces are not beside the checkout")


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("packed", [False, True])
def test_each_format_is_known_by_its_content(tmp_path: Path, form: str, packed: bool) -> None:
    file = tmp_path / ("jobs.gz" if packed else "jobs.txt")
    file.write_bytes(gzip.compress(FILES[form].encode()) if packed else FILES[form].encode())
    assert holds_jobs(file)
    table = read_jobs(file)
    assert table.format == form
    names = ("submit_s", "gpus", "duration_s", "deadline_s")
    rows = [tuple(row.get(name) for name in names) for row in table.jobs.iter_rows(named=True)]
    assert rows == READ[form]
    assert table.left_out == ({"that ask for no GPU": 1} if form in ("chronus", "helios") else {})


@pytest.mark.parametrize(
    ("form", "old", "new", "what"),
    [
        ("acme-kalos", "8.0", "eight", "line 2, .*gpu_per_worker.*: no value of gpus"),
        ("acme-kalos", "8.0", "0.3", "no value of gpus; expected a whole number"),
        ("chronus", "5-9", "soon", "no value of deadline_s"),
        ("gavel-list", "\t50\t", "\tmany\t", "line 2, total steps: no number .*many"),
        ("gavel-list", "\t60\t7", "\t60", "line 1, priority: no number .*static"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, form: str, old: str, new: str, what: str) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(FILES[form].replace(old, new))
    with pytest.raises(TraceError, match=what):
        read_jobs(file)


def test_published_files_beside_the_jobs_say_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text("time,active,total\n2017-10-03 00:00:00,312,420\n")
    assert holds_jobs(file)
    with pytest.raises(TraceError, match=r"holds nodes in use minute by minute, no jobs; .*trimtab forecast"):
        read_jobs(file)


@data
@pytest.mark.data
@pytest.mark.parametrize("file", COUNTS)
def test_published_traces_are_read_whole(file: str) -> None:
    table = read_jobs(DATA / file)
    assert len(table.jobs) == COUNTS[file]
    assert table.jobs["submit_s"].is_sorted()


def test_profiles_of_applications_replay_in_compare(tmp_path: Path) -> None:
    write_application(tmp_path / "profiles")
    assert profile_kind(tmp_path / "profiles") == "replay"
    made = made_of(tmp_path)
    # 400 units of progress at the initial batch 16 on one GPU: two passes of 8, a step of half a second each
    assert made.workload.duration_s[1] == pytest.approx(400 * 1.0)
    run = run_allocator(
        "fifo", made.workload, nodes=_nodes(), type_names=("any",), truth=made.model.truth(),
        clock="rounds(period_s=60)",
    )  # fmt: skip
    same = ReplayTruth([toy_profile(noise=3.0, gpus_max=64)])
    again = run_allocator(
        "fifo", made.workload, nodes=_nodes(), type_names=("any",), truth=same, clock="rounds(period_s=60)"
    )
    assert run.finish_s.tolist() == again.finish_s.tolist()
    least_s, gpu_s = made.model.least(made.workload)
    assert (run.finish_s - run.start_s >= least_s).all()
    assert (run.gpu_s >= gpu_s[:, 0]).all()
    # one GPU makes 16 samples a second, 1 unit of progress: no fewer than 400 GPU seconds
    assert gpu_s == pytest.approx(np.array([[400], [400]]))


def made_of(folder: Path, jobs: str = FILES["sia-workload"], types: Mapping[str, int] = ANY) -> ProfiledJobs:
    """Jobs with the profiles of the folder's applications."""
    trace = folder / "workload.csv"
    trace.write_text(jobs)
    return profiled_jobs(read_jobs(trace), folder / "profiles", RulesSection(), types)


def _nodes() -> Records:
    return gpu_nodes(0, [4, 4])


def test_types_of_profiles_are_those_of_the_cluster(tmp_path: Path) -> None:
    write_application(tmp_path / "profiles", "-t4")
    assert len(made_of(tmp_path, types={"T4": 8}).workload) == 2
    with pytest.raises(TraceError, match=r"cluster.types: .*got 'a100'.*expected node types .* t4"):
        made_of(tmp_path, types={"a100": 8})


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("1,110,toy", "1,110,gpt", r"job b-1, model: .*'gpt'.*folder .*profiles/gpt .*there are toy"),
        (",1,16", ",1,100", r"job b-1, batch: .*got 100.0.*expected at most 64"),
    ],
)
def test_an_application_without_a_profile_and_a_batch_that_was_never_measured_are_named(
    tmp_path: Path, old: str, new: str, what: str
) -> None:
    write_application(tmp_path / "profiles")
    with pytest.raises(TraceError, match=what):
        made_of(tmp_path, FILES["sia-workload"].replace(old, new))


def test_lists_of_gavel_run_whole_steps(tmp_path: Path) -> None:
    trace, speeds = tmp_path / "jobs.trace", tmp_path / "throughputs.json"
    trace.write_text(FILES["gavel-list"])
    rates = {"('ResNet-18 (batch size 32)', 1)": {"null": 2.0}}
    rates["('ResNet-18 (batch size 32)', 2)"] = {"null": 4.0}
    slow = {key: {"null": value["null"] / 2} for key, value in rates.items()}
    speeds.write_text(json.dumps({"v100": rates, "k80": slow}))
    table = read_jobs(trace)
    made = profiled_jobs(table, speeds, RulesSection(), {"V100": 4})
    assert made.workload.duration_s.tolist() == [25.0, 25.0]  # 50 steps at 2/s, 100 steps at 4/s
    assert [seconds.tolist() for seconds in made.model.least(made.workload)] == [[25, 25], [[25], [50]]]
    assert made.model.clock("events") == "step-rounds(period_s=120)"
    # of each ratio to the time alone the mean: half of the GPUs need 25 s, half need 50 s
    both = profiled_jobs(table, speeds, RulesSection(), {"V100": 4, "k80": 4})
    assert both.workload.duration_s == pytest.approx(2 / (1 / 25 + 1 / 50))
    assert both.model.least(both.workload)[1].tolist() == [[25, 50], [50, 100]]
    trace.write_text(FILES["gavel-list"].replace("static\t1\t-1.0\t60", "gns\t1\t-1.0\t60"))
    with pytest.raises(TraceError, match=r"job 0, mode.*'gns'.*samples_per_epoch.json, or mode static"):
        profiled_jobs(read_jobs(trace), speeds, RulesSection(), {"V100": 4})
    trace.write_text(FILES["gavel-list"].replace("static\t1\t-1.0\t60", "fixed\t1\t-1.0\t60"))
    with pytest.raises(TraceError, match=r"job 0, mode: .*'fixed'.*expected one of static, accordion, gns"):
        profiled_jobs(read_jobs(trace), speeds, RulesSection(), {"V100": 4})
    trace.write_text(FILES["gavel-list"].replace("\t100\t2", "\t100\t3"))
    with pytest.raises(TraceError, match=r"job 0, .*, 3'.*expected a key .*, 3\)"):
        profiled_jobs(read_jobs(trace), speeds, RulesSection(), {"V100": 4})


def test_jobs_without_a_profile_may_run_as_recorded(tmp_path: Path) -> None:
    profiles, trace = tmp_path / "profiles", tmp_path / "jobs.csv"
    profiles.mkdir()
    (profiles / "bert.csv").write_text("global_batch_size,1,2,8\n8,2.0,3.0,9.0\n")
    trace.write_text(HEAD + "a,0,10,gpt,900,8,3,50\nb,5,20,bert,900,8,1,10\nc,9,30,bert,900,8,2,10\n")
    with pytest.raises(TraceError, match="unprofiled: recorded"):
        profiled_jobs(read_jobs(trace), profiles, RulesSection(), {"any": 8})
    made = profiled_jobs(read_jobs(trace), profiles, RulesSection(unprofiled="recorded"), {"any": 8})
    assert made.notes == ("without a profile: 1 job, with the GPUs and the duration that are recorded",)
    assert made.workload.scales.tolist() == [False, True, True]
    assert made.workload.work.tolist() == [50, 20, 30]
    least_s, _ = made.model.least(made.workload)
    assert least_s == pytest.approx([50, 20 / 9, 30 / 9])
    run = run_allocator("fifo", made.workload, nodes=_nodes(), type_names=("any",), truth=made.model.truth())
    assert run.finish_s - run.start_s == pytest.approx([50, 10, 10])
    # between two levels of a curve speeds are what they were before the other table had a level there
    jobs, speed = np.zeros(1, [("job_idx", "i8")]), made.model.truth().begin(made.workload)
    jobs["job_idx"] = 1
    assert speed.goodput(jobs, configs(np.array([3, 5]))) == pytest.approx([4.0, 6.0])


def test_a_scenario_without_jobs_asks_for_them() -> None:
    scenario = TRAINING_JOBS.load("pollux-simulator")
    with pytest.raises(UsageError, match=r"jobs: .*no jobs of its own; expected --trace FILE"):
        run_comparison(TRAINING_KIND, scenario, ["fifo"], jobs=1)


@data
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "trace", "profiles", "policy", "metric", "published"),
    [
        (
            "pollux-simulator", "pollux_osdi21/workloads/workload-1.csv", "pollux_osdi21/profiles",
            "tiresias(service=held,place=spread)", "completion_mean_s", 2473.65,
        ),
        (
            "elasticflow-simulator", "elasticflow_traces/elasticVpollux_e.csv",
            "elasticflow_profiles/throughputs_T4",
            "tiresias(thresholds=3250/7200,requeue=true,jump=artifact)",
            "deadline_satisfied_frac", 56 / 195,
        ),
        (
            "shockwave-simulator",
            "shockwave_dynamic/120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace",
            "shockwave_dynamic", "gandiva-fair", "rho_max", 1.854,
        ),
    ],
)  # fmt: skip
def test_published_set_ups_give_published_figures(
    name: str, trace: str, profiles: str, policy: str, metric: str, published: float
) -> None:
    scenario = resolve_training(TRAINING_JOBS.load(name), Parts(trace=DATA / trace, profiles=DATA / profiles))
    comparison = run_comparison(TRAINING_KIND, scenario, [policy], sweep=(), jobs=1)
    assert comparison.results[0].metrics[metric].mean == pytest.approx(published, rel=3e-4)


@pytest.mark.parametrize(
    ("profile", "what"),
    [
        ("global_batch_size,1,1.5\n8,2,3\n", r"bert.csv: line 2, 1.5: no column of speeds .*whole number"),
        ("global_batch_size,0,1\n8,2,3\n", "line 2, 0: no column of speeds"),
        ("global_batch_size,1,2\n8,-2,3\n", "line 2, 1: no speed .*got '-2'"),
        ("global_batch_size,1,2\n8,inf,3\n", "line 2, 1: no speed .*got 'inf'"),
        ("global_batch_size,1,2\n8,2,3\n8,4,5\n", "line 3, global_batch_size: twice .*got 8.0"),
        ("global_batch_size,1,2\n8,1,2,3\n", "line 2: too many values"),
        ("global_batch_size,1,2\n8,0,nan\n", "line 2: runs with no number of GPUs"),
        ("global_batch_size,1,2\n", "bert.csv: no rows"),
        ("", "bert.csv: no rows"),
        ("batch,1,2\n8,2,3\n", "line 2, global_batch_size: no number"),
        (b"\xff\xfe\x00\x01", "bert.csv: can't be read"),
        ("global_batch_size,1,2\n8,2,3\n", r"job a, gpus: asks for GPUs with .*got 4.*expected 1 to 2"),
    ],
)
def test_bad_tables_of_speed_are_named(tmp_path: Path, profile: str | bytes, what: str) -> None:
    folder, trace = tmp_path / "profiles", tmp_path / "jobs.csv"
    folder.mkdir()
    (folder / "bert.csv").write_bytes(profile if isinstance(profile, bytes) else profile.encode())
    trace.write_text(HEAD + "a,0,10,bert,900,8,4,50\n")
    with pytest.raises(TraceError, match=what):
        profiled_jobs(read_jobs(trace), folder, RulesSection(), {"any": 8})


@pytest.mark.parametrize(
    ("samples", "schedule", "what"),
    [
        ("{", "", "samples_per_epoch.json: no samples of epochs"),
        ("{}", "", "samples_per_epoch.json: no samples of epochs"),
        ('{"samples_per_epoch": {"LM": 9}}', "", "samples_per_epoch: .* samples of its model .*ResNet-18"),
        ('{"samples_per_epoch": {"ResNet-18": 9}}', "a,b\n1,2\n", "batch_schedules.csv: file: no schedules"),
        (
            '{"samples_per_epoch": {"ResNet-18": 9}}',
            "file,job,job_type,mode,gpus,batch_by_epoch\njobs.trace,0,x,gns,1,32y4\n",
            "line 2, batch_by_epoch: no schedule .*32y4",
        ),
        (  # of a list of another name
            '{"samples_per_epoch": {"ResNet-18": 9}}',
            "file,job,job_type,mode,gpus,batch_by_epoch\nother.trace,0,x,gns,1,32x4\n",
            "batch_schedules.csv: job 1, mode: .* has no batch schedule .*gns.*of file jobs.trace and job 1",
        ),
    ],
)
def test_bad_files_beside_throughputs_are_named(
    tmp_path: Path, samples: str, schedule: str, what: str
) -> None:
    (tmp_path / "samples_per_epoch.json").write_text(samples)
    (tmp_path / "batch_schedules.csv").write_text(schedule)
    (tmp_path / "throughputs.json").write_text(
        json.dumps({"any": {f"('ResNet-18 (batch size 32)', {n})": {"null": 2.0} for n in (1, 2)}})
    )
    trace = tmp_path / "jobs.trace"
    trace.write_text(FILES["gavel-list"].replace("static", "gns"))
    with pytest.raises(TraceError, match=what):
        profiled_jobs(read_jobs(trace), tmp_path, RulesSection(), {"any": 4})


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("placements.csv", "11,", "1x1,", "placements.csv: line .*, placement: no number .*1x1"),
        ("placements.csv", ",1.0,", ",-1.0,", "line 3, step_time: no time .*got -1.0"),
        ("scalability.csv", "num_nodes", "nodes", "scalability.csv: line 2, num_nodes: no number"),
    ],
)
def test_bad_measurements_are_named(tmp_path: Path, file: str, old: str, new: str, what: str) -> None:
    write_application(tmp_path / "profiles")
    place = tmp_path / "profiles" / "toy" / file
    place.write_text(place.read_text().replace(old, new))
    with pytest.raises(TraceError, match=what):
        made_of(tmp_path)


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ("gpus_min\na,0,2,10,3\n", "line 2, gpus_min: does not fit .*got 3.*no more than gpus"),
        ("gpus_max\na,0,2,10,1\n", "line 2, gpus_max: is less than it asks for"),
        ("gpus_min\n", "no jobs; expected at least one row"),
    ],
)
def test_limits_of_a_job_fit_what_it_asks_for(tmp_path: Path, rows: str, what: str) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s," + rows)
    with pytest.raises(TraceError, match=what):
        read_jobs(trace)
