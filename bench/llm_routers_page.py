"""docs/benchmarks/llm-routers.md from bench/llm-routers.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.page import markdown_table
from trimtab.metrics import Estimate, mean_ci95

OURS = "llm-headroom"

HEAD = """<!-- Made by `python -m bench.llm_routers` from what it measured; `--docs` writes it anew. -->

# Routers of requests to language models

The highest rate a replica, in requests per second, at which 90 % of all requests meet both targets: of the time to the
first token (TTFT) and of the time between tokens (TPOT). Replicas serve Llama-3.1-8B by continuous batching. They are
rooflines, not measurements: H100, or H100 and L40S in turn where they are *unequal*; batches of 256, 2,048 tokens an
iteration, prefix caches in the KV memory. Policies see the nodes as they are, and an expected answer length: the mean so
far of prompts of about the same length.

- *Azure conversation*, *Mooncake conversation*: windows of the recorded traces, the second with its prefixes and prompts
  of 12,000 tokens. *bursts as in BurstGPT*: Azure's lengths with Gamma gaps of CV 4. *ServeGen m-small*: its clients of ten
  minutes, each with its laws of gaps and lengths. Rates change by stretching the time.
- 2,000 requests a replica and five seeds; 750 of Mooncake; 1,000 and three seeds on 64 replicas, of Mooncake 375 from two
  copies of its trace at once, each begun at another place and with prompts of its own. A seed moves the window of a trace: on 16 replicas and more the window is the whole trace, so
  the intervals of Azure and Mooncake there say little. All policies get the same requests.
- The constants of `llm-headroom` were chosen on two other seeds. Like `predicted-latency` with SLOs it knows the targets.
  Rates are found within 2 %.
- Mooncake on 64 replicas was measured at commit ab485b07, all else at 0bba65a0, when a replica told the seconds of its
  iterations only after its first request.
- Ratios are taken seed by seed over the best of all other policies in that cell, which is chosen afterwards, ± half the
  width of their 95 % interval.
"""

MEANING = """## What it means

On equal replicas all other routers that see load come within a few percent of each other: the replicas are full, whoever
chooses. On unequal ones those that know speeds win. `predicted-latency` with SLOs packs by least headroom, as published,
and fills one replica to its bound while others idle; without SLOs it is among the best. `cache-aware` ignores load below
its thresholds.

`llm-headroom` gains most of its lead near saturation, where it gathers requests that are late anyway, mostly long prompts,
at few replicas. That is a choice about who waits, and the second table shows its price: more requests are in time and the
ninetieth percentile is lower, but the largest TTFT is up to ten times that of the others. Its parameter `others` sets how
far it goes. In bursts on unequal replicas with a bound on TTFT it gains little, and its p99 there is the worse.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on, cells = results["machine"], results["cells"]
    where = f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}.\n"
    parts = [HEAD, where, _ratios(cells), MEANING, "## What requests see\n", _PRICE]
    parts += [_seen(name, cells[name]) for name in _shown(cells)]
    parts.append("## All rates\n")
    parts += [_rates(workload, cells) for workload in dict.fromkeys(c["workload"] for c in cells.values())]
    return "\n".join(parts)


_PRICE = """At the highest rate of the best other policy, first seed.
"""


def _name(policy: str) -> str:
    return policy.replace("ttft_slo_s={ttft},tpot_slo_s={tpot}", "SLOs").partition("(ttft_s")[0]


def _ours(cell: Mapping[str, Any]) -> str:
    return next(policy for policy in cell["rates"] if policy.startswith(OURS))


def _best(cell: Mapping[str, Any]) -> str:
    others = [policy for policy in cell["rates"] if not policy.startswith(OURS)]
    return max(others, key=lambda policy: float(np.mean(cell["rates"][policy])))


def _ratio(cell: Mapping[str, Any]) -> Estimate:
    rates = cell["rates"]
    return mean_ci95(np.array(rates[_ours(cell)]) / np.array(rates[_best(cell)]))


def _text(value: Estimate) -> str:
    return f"{value.mean:.3f}" if value.ci95 is None else f"{value.mean:.3f} ± {value.ci95:.3f}"


def _ratios(cells: Mapping[str, Any]) -> str:
    rows, means, lost = [], [], 0
    for cell in cells.values():
        found, best = _ratio(cell), _best(cell)
        is_lost = found.mean + (found.ci95 or 0.0) < 1.0
        lost += is_lost
        means.append(found.mean)
        where = [cell["workload"], str(cell["replicas"]), cell["nodes"]]
        targets = f"{cell['ttft_s']:g} s, {1e3 * cell['tpot_s']:g} ms"
        rates = [f"{np.mean(cell['rates'][policy]):.3g}" for policy in (best, _ours(cell))]
        verdict = "**loss**" if is_lost else ("gain" if found.mean - (found.ci95 or 0.0) > 1.0 else "equal")
        rows.append([*where, targets, f"`{_name(best)}`", *rates, _text(found), verdict])
    head = ["workload", "replicas", "nodes", "TTFT, TPOT", "best other", "its rate", f"`{OURS}`", "ratio", ""]
    summary = f"`{OURS}` over the best other policy: {np.mean(means):.3f} in the mean of {len(means)} cells, "
    return (
        f"{summary}from {min(means):.3f} to {max(means):.3f}; losses: {lost}.\n\n{markdown_table(head, rows)}"
    )


def _shown(cells: Mapping[str, Any]) -> list[str]:
    """Sixteen replicas of each workload, at the targets of which TTFT is the narrow one."""
    return [name for name, cell in cells.items() if cell["replicas"] == 16 and cell["bound"] == "TTFT"]


def _seen(name: str, cell: Mapping[str, Any]) -> str:
    policies = dict.fromkeys(
        (_best(cell), "least-connections", "scorers", "kv-cost", "predicted-latency", _ours(cell))
    )
    columns = {
        "goodput": "goodput",
        "TTFT mean s": "ttft_mean_s",
        "p50": "ttft_p50_s",
        "p90": "ttft_p90_s",
        "p99": "ttft_p99_s",
        "largest": "ttft_p100_s",
        "TPOT p90 s": "tpot_p90_s",
        "end to end mean s": "end_to_end_mean_s",
    }
    rows = [
        [f"`{_name(policy)}`", *(f"{cell['at_best'][policy][key]:.3g}" for key in columns.values())]
        for policy in policies
    ]
    return f"### {name}\n\n{markdown_table(['policy', *columns], rows)}"


def _rates(workload: str, cells: Mapping[str, Any]) -> str:
    chosen = [cell for cell in cells.values() if cell["workload"] == workload]
    head = ["policy", *(f"{cell['replicas']} {cell['nodes']}, {cell['bound']}" for cell in chosen)]
    rows = [
        [f"`{_name(policy)}`", *(_short(cell["rates"][policy]) for cell in chosen)]
        for policy in chosen[0]["rates"]
    ]
    return f"### {workload}\n\n{markdown_table(head, rows)}"


def _short(rates: list[float]) -> str:
    found = mean_ci95(np.array(rates))
    return f"{found.mean:.3g}" if found.ci95 is None else f"{found.mean:.3g} ± {found.ci95:.1g}"
