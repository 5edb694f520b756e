"""Experiments: a scenario, its runs, and their comparison.

From file to result: `scenario` finds and reads files that say what `spec` allows; `build` makes one seed of
it into cluster, requests and options; `run` is one policy on it, `compare` many policies and seeds: `tasks`
for the processes of `pool`, which `warm` prepares. `outcome` and `curves` turn a finished run into records,
and `bounds` says what no policy could have beaten. `recorded` reads traces, for `spec` and `build` alike.
"""
