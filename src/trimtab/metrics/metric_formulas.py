"""Formulas of the metrics. GLOSSARY.md explains their symbols; a test compares the two."""

from __future__ import annotations

from typing import Final

FORMULAS: Final[dict[str, str]] = {
    "completion_mean_s": "mean of Cᵢ, i ∈ F",
    "completion_p50_s": "P50 of Cᵢ, i ∈ F",
    "completion_p90_s": "P90 of Cᵢ, i ∈ F",
    "completion_p99_s": "P99 of Cᵢ, i ∈ F",
    "completion_var_s2": "mean of (Cᵢ − C̄)², i ∈ F",
    "completion_cv": "√completion_var_s2 ÷ completion_mean_s",
    "queueing_mean_s": "mean of Qᵢ, i ∈ W",
    "queueing_p50_s": "P50 of Qᵢ, i ∈ W",
    "queueing_p90_s": "P90 of Qᵢ, i ∈ W",
    "queueing_p99_s": "P99 of Qᵢ, i ∈ W",
    "slowdown_mean": "mean of Dᵢ, i ∈ F",
    "slowdown_p50": "P50 of Dᵢ, i ∈ F",
    "slowdown_p99": "P99 of Dᵢ, i ∈ F",
    "utilisation_mean_frac": "ū = mean of uₖ, k ∈ N",
    "utilisation_var": "mean of (uₖ − ū)², k ∈ N",
    "utilisation_cv": "√utilisation_var ÷ ū",
    "utilisation_allocated_mean_frac": "v̄ = mean of vₖ, k ∈ N",
    "utilisation_allocated_var": "mean of (vₖ − v̄)², k ∈ N",
    "utilisation_allocated_cv": "√utilisation_allocated_var ÷ v̄",
    "idle_frac": "1 − Σ Lₖ ÷ Σ (mₖ Uₖ), k ∈ N",
    "idle_node_frac": "1 − v̄",
    "finished_frac": "count(FINISHED) ÷ count(A)",
    "rejected_frac": "count(REJECTED) ÷ count(A)",
    "rejected_fits_no_node_frac": "count(REJECTED, FITS_NO_NODE) ÷ count(A)",
    "rejected_refused_frac": "count(REJECTED, REFUSED) ÷ count(A)",
    "rejected_queue_full_frac": "count(REJECTED, QUEUE_FULL) ÷ count(A)",
    "rejected_policy_frac": "count(REJECTED, reason ≥ POLICY) ÷ count(A)",
    "cancelled_frac": "count(CANCELLED) ÷ count(A)",
    "lost_frac": "count(LOST) ÷ count(A)",
    "unfinished_frac": "count(HELD … RETRYING) ÷ count(A)",
    "slo_attained_frac": "count(i ∈ F: Cᵢ ≤ σᵢ and fᵢ ≤ dᵢ) ÷ count(A)",
    "deadline_satisfied_frac": "count(i ∈ F: fᵢ ≤ dᵢ < ∞) ÷ count(i ∈ A: dᵢ < ∞)",
    "jain_tenants": "J(xₜ) over tenants t with a request in A",
    "jain_nodes": "J(uₖ), k ∈ N",
    "starvation_max_s": "longest interval within [aᵢ, sᵢ], i ∈ A, free of all sⱼ of the same tenant; "
    "without sᵢ until it ended or the window closed",
    "throughput_per_s": "count(F) ÷ T",
    "goodput_per_s": "count(i ∈ F: Cᵢ ≤ σᵢ and fᵢ ≤ dᵢ) ÷ T",
    "makespan_s": "max fᵢ − min aᵢ",
    "model_loads": "counted by the host",
    "adapter_loads": "counted by the host",
    "moved_gib": "counted by the host",
    "retries": "counted by the host",
    "prefix_hit_frac": "Σ cached tokens ÷ Σ prompt tokens of service starts; nan without prefix caches",
    "result_hit_frac": "hits ÷ requests that a result could answer; nan without a result cache",
    "accelerator_s_per_1k": "1000 · Σₖ Lₖ gₖ ÷ mₖ ÷ count(F)",
    "usd_per_hour": "Σₖ pₖ, of unpaid times pₖ · up ÷ window",
    "usd": "Σₖ pₖ T ÷ 3600",
    "usd_per_1k": "1000 · Σₖ pₖ T ÷ 3600 ÷ count(F)",
    "utilisation_links_frac": "Σ GiB carried ÷ (Σ capacity · T), each direction of a link for itself; "
    "nan without a network",
    "utilisation_links_var": "mean of (yₗ − ȳ)², yₗ = GiB carried ÷ (capacity · T)",
    "utilisation_links_max_frac": "max yₗ",
    "fetched_gib": "counted by the host",
    "returned_gib": "counted by the host",
    "stretch_mean": "mean of Cᵢ ÷ Pᵢ, i ∈ F a run, Pᵢ its longest path with the best true service times, "
    "no transfers",
    "stretch_p99": "P99 of Cᵢ ÷ Pᵢ, likewise",
    "first_output_mean_s": "mean over finished runs of (earliest finish of an instance without successors) − "
    "aᵢ",
    "stage_queueing_mean_s": "mean over served instances of start − ready; transfers are part of it",
    "stage_queueing_p99_s": "P99 of start − ready",
    "recomputed_s": "sum of the service of the earlier attempts",
    "ttft_mean_s": "mean of t₁ − a over finished requests that made tokens; "
    "nan where no node serves a language model",
    "ttft_p50_s": "50th percentile of t₁ − a",
    "ttft_p99_s": "99th percentile of t₁ − a",
    "tpot_mean_s": "mean of (f − t₁) ÷ (output tokens − 1), of requests with two tokens or more",
    "tpot_p50_s": "50th percentile of it",
    "tpot_p99_s": "99th percentile of it",
    "itl_p50_s": "from a histogram over all tokens after the first, 20 bins for each power of ten; "
    "waits after a preemption left out",
    "itl_p99_s": "likewise",
    "kv_peak_frac": "mean of largest tokens needed by a batch ÷ capacity",
    "preemptions": "Σ over requests",
    "preempted": "Σ over requests; nan without queues",
    "preempted_lost_s": "Σ of (time taken back − start) of these attempts",
    "queue_short_max_s": "max over queues of the time with a held request that its guarantee and all limits "
    "would take",
    "jain_queues": "J(x) over leaf queues with a request in A, x the mean relative speed of their requests",
}
"""By name; those of resources are in `RESOURCE_FORMULAS`."""

RESOURCE_FORMULAS: Final = (
    "w̄ʳ = Σ Wʳₖ ÷ Σ (Mʳₖ Uₖ), k ∈ N with finite Mʳₖ > 0, r = {}",
    "variance of Wʳₖ ÷ (Mʳₖ Uₖ), k as above, r = {}",
    "1 − w̄ʳ, r = {}",
)
"""Utilisation, its variance and the idle rate of a resource, whose name goes in for {}."""
