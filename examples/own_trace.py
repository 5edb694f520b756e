"""Policies on a trace of one's own: any table with arrivals, read by its column names.

Usage: python own_trace.py [trace.csv cluster.yaml]
"""

import sys
import tempfile
from pathlib import Path

import trimtab as tt

CLUSTER = """
types:
  big: {memory_gib: 80, slots: 4}
  small: {memory_gib: 24, speed: 0.5, slots: 2}
nodes:
  - {type: big, count: 2}
  - {type: small, count: 3}
"""
# arrival_s and size are trimtab's own names; a scenario file maps others (workload.trace.mapping).
TRACE = "arrival_s,size\n" + "".join(f"{0.4 * i:.1f},{1 + i % 7}\n" for i in range(400))


def compare(trace: Path, cluster: Path) -> None:
    for policy in ("round-robin", "least-connections", "least-expected-wait"):
        metrics = tt.simulate(policy=policy, trace=trace, cluster=cluster).metrics
        mean_s, p99_s = metrics["completion_mean_s"], metrics["completion_p99_s"]
        print(f"{policy:20} {mean_s:7.2f} s mean, {p99_s:7.2f} s p99")


if len(sys.argv) == 3:
    compare(Path(sys.argv[1]), Path(sys.argv[2]))
else:
    with tempfile.TemporaryDirectory() as folder:
        trace, cluster = Path(folder) / "trace.csv", Path(folder) / "cluster.yaml"
        trace.write_text(TRACE)
        cluster.write_text(CLUSTER)
        compare(trace, cluster)
