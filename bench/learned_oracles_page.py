"""docs/benchmarks/learned-oracles.md from bench/learned-oracles.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.page import markdown_table

BARS = {"Q-learning": 0.01, "DQN": 0.05, "A2C": 0.05, "PPO": 0.05}  # of the mean; the worst seed within twice

HEAD = """<!-- Made by `python -m bench.learned_oracles` from what it measured; `--docs` writes it anew. -->

# Methods of learning against known optima

Three small problems of queues can be solved exactly, so what a method of `trimtab.learn` misses can be stated. The optimum is
that of relative value iteration on the uniformised chain; tests compare it with closed forms (M/M/1, M/M/2, Erlang's loss) and with all
thresholds. **The cost of a learned policy is that of its stationary distribution, not of a simulation**, and the policy is the one
at the end of training, without exploring; no run was left out and no best checkpoint chosen.

| problem | what is decided | form of the optimal policy |
|---|---|---|
| unequal servers | start a request on the fast server, on the slow one, or wait | the slow server is used only above a length of the queue (Lin and Kumar 1984) |
| two-class admission | take or refuse a request; refusals cost 8 and 1 | slots are kept for the dear class (Miller 1969) |
| two queues | which node gets the request, at once and for good | a switching curve (Hajek 1984) |
"""

TABLE = """## Cost above the optimum

Five seeds each. The bars: Q-learning within 1 % in the mean of the seeds, DQN, A2C and PPO within 5 %, the worst seed within twice
that, with at most 2 million steps; evolution strategies have none. Each method has the same settings on all problems. They were
chosen on seeds 0 to 3 of these problems, and the seeds of the table were not used for that; still, it says what tuned methods
can do here, not what they do untuned. All but evolution strategies discount by 0.98 and subtract the average reward; a discount of 0.98 leaves the optimal
policies as they are. Resets draw states evenly: without that, some policies wait for ever in states that training never met; in the tuning this cost up to nine times the optimum.
"""

LOST = """**What was lost.** DQN misses its bar on the unequal servers: all seeds start the slow server at once, which costs 6.4 %
(with a queue of at most 12 instead of 20, its two seeds of the tuning came within 0.1 %). The likely cause: values differ by some tens between an empty and a full queue, and the
gain of waiting in one state is a small part of that; this was not tested further. Evolution strategies often stay
at the rule that they reach first, to take whatever is allowed.
"""

ONE = """## What the common mistake costs

A scheduler that sees the state of one node only, here the first of the two queues, cannot learn the switching curve, however
long it trains. The same methods, settings and seeds; the only change is the observation. The best that this observation allows is far from
the optimum, and the methods end far from that too. What part of this comes from the observation alone and what from resets, which draw the
length of the unseen queue evenly, was not separated.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    on = results["machine"]
    where = (
        f"Measured on {on['cpu']}, {on['cores']} cores, {on['system']}; CPU seconds are those of a seed.\n"
    )
    seen = (
        f"The best rule of this kind, a length of the first queue above which requests go to the second, costs "
        f"{_percent(results['best_of_one_node'])} more than the optimum.\n"
    )
    tables = (
        TABLE,
        where,
        _runs(results["runs"]),
        LOST,
        _losses(results["runs"]),
        ONE,
        seen,
        _runs(results["one_node"], bars=False),
    )
    return "\n".join([HEAD, _problems(results["problems"]), *tables])


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0) + 0.0:.1f} %" if share < 1 else f"{share + 1:.1f} ×"


def _problems(problems: list[Mapping[str, Any]]) -> str:
    rows = []
    for problem in problems:
        rules = "; ".join(f"{name}: {_percent(share)}" for name, share in problem["rules"].items())
        rows.append([problem["name"], str(problem["states"]), f"{problem['cost']:.4f}", rules])
    return markdown_table(["problem", "states", "least cost a step", "simple rules above it"], rows)


def _runs(runs: list[Mapping[str, Any]], *, bars: bool = True) -> str:
    rows = []
    for run in runs:
        excess = run["excess"]
        mean, worst = float(np.mean(excess)), max(excess)
        row = [run["problem"], run["method"], f"{run['steps'] / 1e6:.1f} M", f"{run['cpu_s']:.1f}"]
        row += [" · ".join(_percent(share) for share in excess), _percent(mean), _percent(worst)]
        bar = BARS.get(run["method"])
        met = "" if bar is None else "yes" if mean <= bar and worst <= 2 * bar else "**no**"
        rows.append([*row, met] if bars else row)
    head = ["problem", "method", "steps", "CPU s", "seeds 10 to 14", "mean", "worst"]
    return markdown_table([*head, "bar met"] if bars else head, rows)


def _losses(runs: list[Mapping[str, Any]]) -> str:
    rows = []
    for run in runs:
        losses = "; ".join(f"{name} {a:g} → {b:g}" for name, (a, b) in run["first_and_last_losses"].items())
        settings = ", ".join(f"{name} {value:g}" for name, value in run["settings"].items())
        rows.append([run["problem"], run["method"], losses, settings])
    intro = "Losses of the last seed in the first and the last segment of training (normalised, except for Q-learning), and what is set apart from defaults.\n"
    return f"{intro}\n{markdown_table(['problem', 'method', 'losses', 'settings'], rows)}"
