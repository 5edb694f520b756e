"""Ask the request records of a run one's own questions, with polars."""

import polars as pl

import trimtab as tt

run = tt.simulate("tiny", "least-expected-wait+edf", seed=0)

waits = (
    run.requests.filter(pl.col("status") == "finished")
    .with_columns(wait_s=pl.col("start_s") - pl.col("arrival_s"))
    .group_by("class", "priority")
    .agg(pl.len().alias("requests"), pl.col("wait_s").mean(), pl.col("wait_s").quantile(0.99).alias("p99_s"))
    .sort("class", "priority")
)
print(waits)
print(run.nodes.select("node", "type", "finished", "busy_frac").sort("busy_frac"))
