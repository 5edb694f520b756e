"""The page of one run that served requests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trimtab.experiments.serving.serving_kind import SERVING
from trimtab.metrics import METRICS, Estimate
from trimtab.metrics.chain_metrics import RunPath, StageSummary, bottleneck_text, entering_frac
from trimtab.metrics.queue_metrics import QueueSummary
from trimtab.report import time_figures
from trimtab.report.comparison_columns import assumptions_text, bound_text
from trimtab.report.curve_cards import CDF, GANTT, HEAT, LINKS, curve_figures, time_cards, wide
from trimtab.report.data_figures import link_bars
from trimtab.report.fragments import explained, glossary, grid, grouped_rows, notes, section, stat
from trimtab.report.number_formats import capital, load_text, style_of, title_of
from trimtab.report.page import Page, html_of, origin
from trimtab.report.text_tables import run_groups

if TYPE_CHECKING:
    from trimtab.experiments.serving.run import Run


def run_page(run: Run, made_at: datetime | None = None) -> str:
    """The page of one run as HTML text."""
    return html_of(_run_page(run, made_at or datetime.now(UTC)))


def _run_page(run: Run, made_at: datetime) -> Page:
    curves = {run.policy: run.curves}
    summary = run.to_dict()
    bound_line = bound_text(summary["bound"], METRICS[SERVING.objective], SERVING.objective_title)
    bound = f"{bound_line} {assumptions_text(summary['bound'])}"
    tips = {title_of(metric): explained(metric) for metric in METRICS.values()}
    body = "".join(
        (
            notes(run.notes()),
            _run_stats(run),
            section("figures", "Over time", "", grid([CDF, *time_cards(curves, SERVING.items)]), wide(HEAT)),
            _network_section(run),
            _chains_section(run),
            _queues_section(run),
            section("metrics", "Metrics", bound, grouped_rows(run_groups(run.metrics), tips)),
            glossary(METRICS),
        )
    )
    drawn = curve_figures(curves, SERVING.items) | {"heat": time_figures.utilisation_heatmap(curves)}
    if run.links is not None:
        drawn |= {LINKS.id: link_bars(run.links)}
    if run.stages is not None:
        drawn |= {GANTT.id: time_figures.stage_gantt(run.stages)}
    head = {
        "Policy": run.policy,
        "Seed": str(run.seed),
        "Requests": f"{summary['requests']:,}",
        "Offered load": load_text(summary["offered_load"]),
        **origin(summary["scenario_hash"], summary["versions"], made_at),
    }
    return Page(run.scenario.name, f"One run of {run.policy}.", head, body, drawn)


def _network_section(run: Run) -> str:
    """What the links of the network carried."""
    if run.links is None:
        return ""
    most = run.links.sort("utilisation_frac", descending=True).row(0, named=True)
    how = (
        f"{most['link']} is the fullest: {100 * most['utilisation_frac']:.3g} % of its capacity, "
        f"{most['carried_gib']:.4g} GiB. Each direction of a link counts for itself."
    )
    return section("network", "Links of the network", how, wide(LINKS))


def _chains_section(run: Run) -> str:
    """The stages of the chains: where time goes, and where they ran."""
    if not run.stage_summaries:
        return ""
    how = f"{bottleneck_text(run.stage_summaries)}. Shares are of the paths that decided when runs ended."
    entering = f"{100 * entering_frac(run.stage_summaries):.3g}"
    groups = {"Waiting to enter": [("share of the paths", entering, "%")]}
    groups |= {stage.stage: _stage_rows(stage) for stage in run.stage_summaries}
    paths = {
        f"{path.which.capitalize()} run, {path.run_idx}: {path.completion_s:.4g} s": _path_rows(run, path)
        for path in run.run_paths
    }
    what = "Each stage waited for the one before. Seconds of waiting and transfers, loading, service."
    return section("chains", "Stages of chains", how, grouped_rows(groups, {}), wide(GANTT)) + section(
        "paths", "What decided when runs ended", what, grouped_rows(paths, {})
    )


def _queues_section(run: Run) -> str:
    """What each hierarchical queue had, waited and lost."""
    if not run.queue_summaries:
        return ""
    how = "Shares are dominant: the largest part, of any resource of all nodes, that its requests there take."
    groups = {queue.queue: _queue_rows(queue) for queue in run.queue_summaries}
    return section("queues", "Queues", how, grouped_rows(groups, {}))


def _queue_rows(queue: QueueSummary) -> list[tuple[str, str, str]]:
    return [
        ("finished", f"{queue.finished:,} of {queue.requests:,}", ""),
        ("waiting, mean", f"{queue.queueing_mean_s:.4g}", "s"),
        ("waiting, p99", f"{queue.queueing_p99_s:.4g}", "s"),
        ("share, mean", f"{100 * queue.share_mean_frac:.3g}", "%"),
        ("guaranteed", f"{100 * queue.guarantee_frac:.3g}", "%"),
        ("limit", f"{100 * queue.limit_frac:.3g}", "%"),
        ("below its guarantee", f"{queue.short_s:.4g}", "s"),
        ("taken back from it", f"{queue.preempted:,}", ""),
        ("work lost so", f"{queue.lost_s:.4g}", "s"),
    ]


def _path_rows(run: Run, path: RunPath) -> list[tuple[str, str, str]]:
    names = run.inputs.cluster.node_names
    return [
        (
            f"{step.stage} on {names[step.node_idx]}",
            f"{step.queueing_s:.4g} + {step.loading_s:.4g} + {step.service_s:.4g}",
            "s",
        )
        for step in path.steps
    ]


def _stage_rows(stage: StageSummary) -> list[tuple[str, str, str]]:
    return [
        ("served", f"{stage.served:,}", ""),
        ("waiting and transfers", f"{stage.queueing_s:.4g}", "s"),
        ("service", f"{stage.service_s:.4g}", "s"),
        ("moved to it", f"{stage.moved_gib:.4g}", "GiB"),
        ("share of the paths, waiting", f"{100 * stage.path_queueing_frac:.3g}", "%"),
        ("share of the paths, loading", f"{100 * stage.path_loading_frac:.3g}", "%"),
        ("share of the paths, service", f"{100 * stage.path_service_frac:.3g}", "%"),
    ]


def _run_stats(run: Run) -> str:
    cards = [_run_stat(name, run.metrics[name]) for name in SERVING.figures.stats]
    if run.bound is not None:
        least = style_of([Estimate(run.bound.mean_s, None)], "s")
        above = f"{run.policy} is {100 * run.distance_frac:.3g} % above it"
        cards.append(stat("Lower bound, completion mean", least.number(run.bound.mean_s), "s", "", above))
    return f'<div class="grid stats">{"".join(cards)}</div>'


def _run_stat(name: str, value: float) -> str:
    style = style_of([Estimate(value, None)], METRICS[name].unit)
    return stat(
        capital(title_of(METRICS[name])), style.number(value), style.unit, "", explained(METRICS[name])
    )
