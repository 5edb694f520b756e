"""List scheduling of stages of runs, and of tasks that wait: a rank, then the node of earliest finish."""
