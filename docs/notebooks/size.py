# %% [markdown]
# # Size a fleet
#
# Which mix of nodes is the cheapest that keeps the 99th percentile of completion below 40 s, also while one node is down?

# %%
import trimtab as tt
from trimtab.traces import make_trace
from trimtab.traces.arrivals import GammaArrivals
from trimtab.traces.generators import LognormalSizes

arrivals = GammaArrivals(process="gamma", rate_per_s=2.0, cv=2.0)
sizes = LognormalSizes(distribution="lognormal", mean=200, cv=1.2)
requests = make_trace(arrivals, sizes, 3000, seed=1)
types = """
types:
  a100: {memory_gib: 80, usd_per_hour: 3.7, speed: 1.0, slots: 4}
  l40s: {memory_gib: 48, usd_per_hour: 1.9, speed: 0.55, slots: 4}
classes:
  chat: {fixed_s: 0.2, unit_s: 0.02, unit: output token}
"""

# %% [markdown]
# On the command line this is `trimtab size requests.parquet --node-types types.yaml --slo 'completion_p99<40s' --fail 1`.

# %%
sized = tt.size(requests, types, "completion_p99<40s", fail=1)
sized.best.in_words(), sized.best.usd_per_hour, sized.best.metrics["completion_p99_s"], sized.is_proven

# %% [markdown]
# What less and more money gives, with one node down:

# %%
sized.table().select("fleet", "usd_per_hour", "completion_p99_s", "is_met")
