# %% [markdown]
# # Choose a policy
#
# Requests of one hour come from a log; two kinds of nodes serve them. Which policy should send each request to a node?

# %%
import trimtab as tt
from trimtab.traces import make_trace
from trimtab.traces.arrivals import GammaArrivals
from trimtab.traces.generators import LognormalSizes

arrivals = GammaArrivals(process="gamma", rate_per_s=2.0, cv=2.0)
sizes = LognormalSizes(distribution="lognormal", mean=200, cv=1.2)
requests = make_trace(arrivals, sizes, 3000, seed=1)  # your own: tt.read_trace("log.csv", columns={…})
requests.head(3)

# %%
cluster = """
types:
  a100: {memory_gib: 80, usd_per_hour: 3.7, speed: 1.0, slots: 4}
  l40s: {memory_gib: 48, usd_per_hour: 1.9, speed: 0.55, slots: 4}
nodes:
  - {type: a100, count: 2}
  - {type: l40s, count: 4}
classes:
  chat: {fixed_s: 0.2, unit_s: 0.02, unit: output token, slo_s: 20}
"""
policies = ["late-binding", "least-expected-completion", "power-of-d", "least-connections", "round-robin"]
comparison = tt.compare(
    trace=requests, cluster=cluster, policies=policies, load=0.8, seeds=3, sweep=(0.5, 0.7, 0.9), jobs=1
)
comparison

# %% [markdown]
# Bars have 95 % intervals where random numbers matter; lines are the same policies at other loads.

# %%
comparison.plot("completion_p99_s")

# %%
comparison.plot("completion_p99_s", over="load")

# %%
print(comparison.to_markdown(["completion_mean_s", "completion_p99_s", "slo_attained_frac"]))
