"""Figures 8(a) and 8(b) of ElasticFlow (ASPLOS 2023), with its artifact's simulator as the model."""

from __future__ import annotations

from functools import cache, partial
from math import nan
from pathlib import Path

from bench.golden.cases import DATA, Golden
from bench.golden.trace_runs import Rules, run_trace
from trimtab.training.job_records import JobRecords
from trimtab.training.workloads import WorkloadOptions

FIG_8A, FIG_8B = "ElasticFlow Fig 8(a), jobs on time of 195", "ElasticFlow Fig 8(b), deadlines met"
FIG_8A_SHARE = "ElasticFlow Fig 8(a), share of jobs on time"
ARTIFACT = {
    "elasticflow": (
        "elasticflow(admit=together,gain=increase,levels=all,search=exact)",
        "elasticflow-every",
        "iterations",
        "elasticflow",
    ),
    "edf": ("edf", "none", "iterations", "measured"),
    "tiresias": (
        "tiresias(thresholds=3250/7200,requeue=true,jump=artifact)",
        "elasticflow-tiresias",
        "duration",
        "measured",
    ),
    "gandiva": ("gandiva", "elasticflow-gandiva", "duration", "measured"),
}  # allocator, restart cost, work, limits: as the artifact runs each
PUBLISHED_8A = {"elasticflow": 142, "edf": 23, "tiresias": 56, "gandiva": 18}
PUBLISHED_8B = {
    "edf": (0.182, 0.228, 0.007, 0.375, 0.105, 0.252),
    "gandiva": (0.246, 0.286, 0.228, 0.228, 0.381, 0.325),
    "tiresias": (0.478, 0.470, 0.120, 0.420, 0.466, 0.373),
    "elasticflow": (0.788, 0.822, 0.631, 0.832, 0.607, 0.896),
}
CLUSTERS = {"01": 64, "02": 64, "04": 128, "05": 64, "06": 64, "08": 128}  # nodes of 8 A100
A100 = DATA / "elasticflow_profiles" / "throughputs_A100"
PROGRAM_8B = {("edf", "01"): 0.187, ("gandiva", "01"): 0.162, ("tiresias", "01"): 0.493}
WITHIN, WITHIN_FRAC = 0.05, 0.12  # of a figure; what is less of both
MISSED_8B = {
    ("edf", "08"),
    ("tiresias", "05"),
    ("tiresias", "08"),
    ("elasticflow", "01"),
    ("elasticflow", "05"),
    ("elasticflow", "06"),
}
MISSED_NOTE = (
    "the same code gives Fig 8(a) exactly. The published figure is a constant in the artifact's plotting "
    "script, not read from a log; whether its program gives that figure on the published trace is not known"
)
PROGRAM_NOTE = (
    "the published program itself, run on the published trace, gives {:g}, and so does trimtab; the {:g} of "
    "the paper is a constant in the artifact's plotting script"
)


def run_8a(name: str, *, rules: Rules | None = None, allocator: str = "") -> JobRecords:
    spec, restart, work, limits = ARTIFACT[name]
    rules = rules or Rules(
        restart=restart,
        finish_rounding="up",
        work=WorkloadOptions(work_from=work, limits=limits, gpu="T4"),
    )
    trace = DATA / "elasticflow_traces" / "elasticVpollux_e.csv"
    profiles = DATA / "elasticflow_profiles" / "throughputs_T4"
    return run_trace(allocator or spec, trace, profiles, [4] * 16, rules)


def run_8b(name: str, cluster: str) -> JobRecords:
    spec, restart, work, limits = ARTIFACT[name]
    spec = spec.replace("search=exact", "search=lazy")  # 142 on Fig 8(a) too; exact takes hours
    options = WorkloadOptions(work_from=work, limits=limits, gpu="A100")
    rules = Rules(restart=restart, finish_rounding="up", work=options)
    return run_trace(spec, cluster_trace(cluster), A100, [8] * CLUSTERS[cluster], rules)


def jobs_on_time(name: str) -> float:
    return float(run_8a(name).on_time.sum())


def as_in_the_paper() -> float:
    rules = Rules(restart="elasticflow", work=WorkloadOptions(limits="measured", gpu="T4"))
    return float(run_8a("elasticflow", rules=rules, allocator="elasticflow").on_time.sum())


def share_on_time(allocator: str, clock: str) -> float:
    work = WorkloadOptions(work_from="duration", limits="measured", gpu="T4")
    run = run_8a("edf", rules=Rules(clock=clock, work=work), allocator=allocator)
    return float(run.on_time.mean())


def share_kept(allocator: str) -> float:
    """Jobs admitted and on time."""
    work = WorkloadOptions(work_from="duration", limits="measured", gpu="T4")
    run = run_8a("edf", rules=Rules(work=work), allocator=allocator)
    return float((run.on_time & run.admitted).mean())


def deadlines_met(name: str, cluster: str) -> float:
    return float(run_8b(name, cluster).on_time.mean())


@cache
def chronus_8b(cluster: str) -> JobRecords:
    work = WorkloadOptions(work_from="duration", limits="measured", gpu="A100")
    return run_trace("chronus", cluster_trace(cluster), A100, [8] * CLUSTERS[cluster], Rules(work=work))


def chronus_met(cluster: str, only_admitted: bool) -> float:
    run = chronus_8b(cluster)
    return float((run.on_time & run.admitted if only_admitted else run.on_time).mean())


def _note(name: str, cluster: str) -> str:
    if program := PROGRAM_8B.get((name, cluster)):
        return PROGRAM_NOTE.format(program, PUBLISHED_8B[name][list(CLUSTERS).index(cluster)])
    return MISSED_NOTE if (name, cluster) in MISSED_8B else ""


def cluster_trace(cluster: str) -> Path:
    return DATA / "ms_itp_2021" / "elasticflow-traces" / f"cluster{cluster}.csv.gz"


def goldens() -> list[Golden]:
    exact = [
        Golden(FIG_8A, name, published, partial(jobs_on_time, name), is_fast=name != "gandiva")
        for name, published in PUBLISHED_8A.items()
    ]
    others = [
        Golden(
            FIG_8A_SHARE,
            "themis",
            0.312,
            partial(share_on_time, "themis(received=false)", ""),
            0.03,
            is_fast=False,
            note="fractions of time in closed form, jobs in order of them, as in the artifact",
        ),
        Golden(
            FIG_8A_SHARE,
            "themis, isolated time as in the artifact",
            nan,
            partial(
                share_on_time,
                "themis(isolated=artifact,received=false)",
                "rounds(period_s=60,from_first=true)",
            ),
            is_fast=False,
            note="its conic solver's fractions of jobs that do not bind are not defined by the programme",
        ),
        Golden(
            FIG_8A_SHARE,
            "chronus",
            0.262,
            partial(share_kept, "chronus"),
            0.03,
            is_fast=False,
            note="admitted and on time, the measure of ElasticFlow's artifact",
        ),
        Golden(
            FIG_8A_SHARE,
            "chronus, greedy packing in place of the programme",
            nan,
            partial(share_kept, "chronus(select=greedy)"),
            is_fast=False,
        ),
        Golden(
            FIG_8A_SHARE,
            "chronus, jobs that were not admitted too",
            nan,
            partial(share_on_time, "chronus", ""),
            is_fast=False,
            note="they run in what is spare, and some end in time",
        ),
    ]
    beside = Golden(
        FIG_8A,
        "elasticflow, true to the paper",
        nan,
        as_in_the_paper,
        note="admits one by one, prefers the largest decrease of GPU time, charges changes only",
    )
    clusters = [
        Golden(
            FIG_8B,
            f"{name}, cluster {cluster}",
            published,
            partial(deadlines_met, name, cluster),
            min(WITHIN, WITHIN_FRAC * published),
            is_fast=name == "edf" and cluster == "01",
            note=_note(name, cluster),
            is_missed=(name, cluster) in MISSED_8B,
            program=PROGRAM_8B.get((name, cluster), nan),
        )
        for name, figures in PUBLISHED_8B.items()
        for cluster, published in zip(CLUSTERS, figures, strict=True)
    ]
    leased = [
        Golden(
            FIG_8B,
            "chronus, cluster 01",
            0.474,
            partial(chronus_met, "01", True),
            WITHIN,
            is_fast=False,
            is_missed=True,
            note="admitted and on time; Themis and the other clusters of Chronus are not computed",
        ),
        Golden(
            FIG_8B,
            "chronus, cluster 01, jobs that were not admitted too",
            nan,
            partial(chronus_met, "01", False),
            is_fast=False,
            note="they run in what is spare, and some end in time",
        ),
    ]
    return [*exact, beside, *others, *clusters, *leased]
