"""Compare policies on the same requests: which one is faster, by how much, and how sure is that?"""

import trimtab as tt

comparison = tt.compare(
    "tiny",
    policies=["random", "round-robin", "power-of-d", "least-expected-wait", "least-expected-wait+edf"],
    seeds=3,
    sweep=(),  # only at the scenario's own load
)

bound_s = comparison.bound["completion_mean_s"]
for result in comparison.ranked("completion_mean_s"):
    mean = result.metrics["completion_mean_s"]
    ratio = mean.mean / bound_s
    print(f"{result.policy:26} {mean.mean:7.2f} ± {mean.ci95:5.2f} s   {ratio:.1f} × the lower bound")
