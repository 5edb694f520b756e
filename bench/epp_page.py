"""docs/benchmarks/epp.md from bench/epp.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.page import markdown_table

HEAD = """<!-- Made by `python -m bench.epp` from what it measured; `--docs` writes it anew. -->

# Endpoint picker

`trimtab epp` behind Envoy 1.40 with `deploy/envoy.yaml`, tenants, limits and recorder on. An *empty picker* is the same gRPC
server that decides nothing. *By headers*: Envoy shows the heads of requests and responses. *With bodies*: it shows
buffered request bodies of 1 KiB, and the bodies of responses as they come.
"""

MEANING = """*Added* is the median latency less that of Envoy alone. *Decisions a second of a processor* are requests divided by the
processor time that the picker took for them: what one process can do where a core is its own. Most of what a picker costs
is gRPC.
"""

NODES = """Mean and 99th percentile of completion times of the same {requests} image requests of a recorded trace, at the same times, over
twelve simulated backends of two speeds (4 : 1) that take one request at a time. Envoy alone sends each request at once to one
of two random backends, the one with fewer requests. The picker holds requests until a backend is free and knows which are
fast, by what it has learned.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    speed = {row["name"]: row for row in results["speed"]["rows"]}
    alone = speed["Envoy alone"]
    rows = [
        [
            name,
            f"{row['p50_ms']:.2f}",
            "" if row is alone else f"{row['p50_ms'] - alone['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['per_s']:,.0f}",
            f"{row['cpu_us']:.0f}" if row["cpu_us"] else "",
            f"{1e6 / row['cpu_us']:,.0f}" if row["cpu_us"] else "",
        ]
        for name, row in speed.items()
    ]
    heads = [
        "",
        "p50 in ms",
        "added",
        "p99 in ms",
        "requests a second",
        "picker µs",
        "decisions a second of a processor",
    ]
    nodes = [
        [row["name"], f"{row['mean_s']:.2f}", f"{row['p99_s']:.2f}"] for row in results["unequal"]["rows"]
    ]
    on = results["speed"]["machine"]
    where = (
        f"Medians of {results['rounds']} turns. Latency of one request at a time; requests a second with "
        f"{results['connections']} connections. On {on['cpu']}, {on['cores']} cores, which backends, load, Envoy and picker "
        f"share; load average before and after {on['load_average']} and {results['speed']['load_average_after']}."
    )
    return "\n".join(
        [
            HEAD,
            "## What it costs\n",
            markdown_table(heads, rows),
            where,
            "",
            MEANING,
            "## What it gains on unequal nodes\n",
            NODES.format(requests=results["requests"]),
            markdown_table(["", "mean in s", "p99 in s"], nodes),
        ]
    )
