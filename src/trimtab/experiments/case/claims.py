"""Claims about strategies, each as comparisons of rows that may turn out otherwise, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from trimtab.experiments.case.case_workload import CAUSES
from trimtab.experiments.case.study import CaseStudy, Group, differences
from trimtab.metrics import mean_ci95


class Part(NamedTuple):
    """What a claim says of one row: its metric is less or more than that of another."""

    row: str
    metric: str
    sign: Literal["<", ">"]
    other: str


class Claim(NamedTuple):
    """What is said of a strategy. It holds at a load where all of its parts do."""

    text: str
    parts: tuple[Part, ...] = ()
    untold: str = ""  # why nothing here can say


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim, and what was measured."""

    claim: Claim
    verdict: str
    measured: tuple[str, ...]  # one text for each part


_MEAN, _P99, _VAR_U, _VAR_T = "completion_mean_s", "completion_p99_s", "utilisation_var", "completion_var_s2"
_RULE_ROW = "estimates of cost"

CLAIMS: Final = (
    Claim(
        "Round robin evens the load.",
        (Part("round robin", _VAR_U, "<", "random"), Part("round robin", _VAR_U, "<", "least connections")),
    ),
    Claim(
        "Round robin ignores that tasks and nodes are unlike, so completion is slow and uneven.",
        (
            Part("round robin", _MEAN, ">", "least connections"),
            Part("round robin", _VAR_T, ">", "least connections"),
        ),
    ),
    Claim("Random avoids the periodic bias of round robin.", (Part("random", _MEAN, "<", "round robin"),)),
    Claim(
        "Least connections sees load, but not what a task costs, and overloads nodes.",
        (
            Part("least connections", _MEAN, "<", "random"),
            Part("least connections", _MEAN, ">", _RULE_ROW),
            Part("least connections", "queueing_mean_s", ">", _RULE_ROW),
        ),
    ),
    Claim(
        "Monitoring CPU, memory, I/O and network (load-aware) does better than counting connections.",
        (Part("load-aware, reactive", _MEAN, "<", "least connections"),),
    ),
    Claim(
        "A forecast of the load by exponential smoothing improves that.",
        (Part("load-aware, smoothing", _MEAN, "<", "load-aware, reactive"),),
    ),
    Claim(
        "A forecast by ARIMA improves that.",
        (Part("load-aware, ARIMA", _MEAN, "<", "load-aware, reactive"),),
    ),
    Claim(
        "Taking the node with the most free CPU and memory mends the imbalance of round robin.",
        (
            Part("resource-aware, most free", _VAR_U, "<", "round robin"),
            Part("resource-aware, most free", _MEAN, "<", "round robin"),
        ),
    ),
    Claim(
        "Matching demand and capacity (Hungarian) does better than the simple form.",
        (Part("resource-aware, Hungarian", _MEAN, "<", "resource-aware, most free"),),
    ),
    Claim(
        "A queue by priority and deadline meets more deadlines.",
        (Part("estimates, priority queue", "deadline_satisfied_frac", ">", _RULE_ROW),),
    ),
    Claim(
        "Learned policies find better rules than those made by hand.",
        (Part("learned, residual", _MEAN, "<", "late binding"),),
    ),
    Claim("DQN learns to do better than the rules.", (Part("learned, DQN", _MEAN, "<", _RULE_ROW),)),
    Claim(
        "Actor and critic learn to do better than the rules.", (Part("learned, A2C", _MEAN, "<", _RULE_ROW),)
    ),
    Claim(
        "Weights that were trained on this cluster after others (transfer) beat the rule that they correct.",
        (Part("transferred", _MEAN, "<", "late binding"),),
    ),
    Claim(
        "Placing models before work arrives lowers latency.",
        (Part("predicted, preallocated", _MEAN, "<", _RULE_ROW),),
    ),
    Claim(
        "Splitting an image into parts side by side lowers latency.", (Part("split", _MEAN, "<", _RULE_ROW),)
    ),
    Claim(
        "Caching features of parts lowers latency further.",
        (Part("split, features cached", _MEAN, "<", "split"),),
    ),
    Claim(
        "Caching parameters lowers latency and raises utilisation.",
        (
            Part(_RULE_ROW, _MEAN, "<", "parameters not cached"),
            Part(_RULE_ROW, "utilisation_mean_frac", ">", "parameters not cached"),
        ),
    ),
    Claim("Compressing data before it travels lowers latency.", (Part("compressed", _MEAN, "<", _RULE_ROW),)),
    Claim(
        "Routes that mind congestion lower latency.", (Part("routed by congestion", _MEAN, "<", _RULE_ROW),)
    ),
    Claim(
        "Strategies together do better than each alone.",
        (
            Part("all together", _MEAN, "<", "split, features cached"),
            Part("all together", _MEAN, "<", "late binding"),
        ),
    ),
    Claim(
        "Together they raise efficiency and utilisation markedly.",
        (
            Part("all together", "usd_per_1k", "<", "round robin"),
            Part("all together", "utilisation_mean_frac", ">", "round robin"),
        ),
    ),
    Claim("Containers raise utilisation.", untold="containers are not part of the model"),
    Claim(
        "Order within a stream overloads nodes.",
        untold="streams whose steps wait on each other are not modelled",
    ),
)


def judged(study: CaseStudy) -> list[Judged]:
    """Every claim with its verdict: those about causes first."""
    causes = [_cause(study, cause) for cause in CAUSES]
    return [*causes, *(_claim(study, claim) for claim in CLAIMS)]


def _cause(study: CaseStudy, cause: str) -> Judged:
    """A cause overloads some nodes while others idle: work waits longer, although slots stay idle."""
    claim = Claim(f"{cause.capitalize()}: some nodes are overloaded while others idle (under round robin).")
    waits = mean_ci95(
        differences(
            study.causes[cause]["round-robin"]["queueing_mean_s"],
            study.causes["none"]["round-robin"]["queueing_mean_s"],
        )
    )
    idle = mean_ci95(study.causes[cause]["round-robin"]["idle_frac"]).mean
    told = waits.ci95 is not None and waits.mean > max(waits.ci95, 1.0)
    half = f" ± {waits.ci95:.2g}" if waits.ci95 is not None else ""
    text = f"queueing {waits.mean:+.3g}{half} s against none of the causes, {100 * idle:.0f} % of slots idle"
    return Judged(claim, "holds" if told and idle > 0.1 else "does not hold", (text,))


def _claim(study: CaseStudy, claim: Claim) -> Judged:
    if claim.untold:
        return Judged(claim, "not measured", (claim.untold,))
    loads = list(study.strategies)
    rows = study.strategies[loads[-1]]
    missing = sorted({part.row for part in claim.parts if part.row not in rows})
    if missing:
        return Judged(claim, "not measured", (f"no weights for {', '.join(missing)}: `make case-train`",))
    told = {load: [_told(study.strategies[load], part) for part in claim.parts] for load in loads}
    held = [load for load, parts in told.items() if min(parts) > 0]
    if len(held) == len(loads):
        verdict = "holds"
    elif held:
        verdict = f"holds only at load {', '.join(held)}"
    else:
        is_opposite = all(min(parts) < 0 for parts in told.values())
        verdict = "does not hold" if is_opposite else "does not hold: no difference beyond chance in a part"
    return Judged(claim, verdict, tuple(_measured(study, part) for part in claim.parts))


def _told(rows: Group, part: Part) -> int:
    """1 = as the part says, beyond the interval of paired differences; −1 = the other way; 0 = neither."""
    change = mean_ci95(differences(rows[part.row][part.metric], rows[part.other][part.metric]))
    if change.ci95 is None or abs(change.mean) <= change.ci95:
        return 0
    return 1 if (change.mean < 0) == (part.sign == "<") else -1


def _measured(study: CaseStudy, part: Part) -> str:
    """Both means at each load."""
    of = [
        f"{_mean(rows, part.row, part.metric):.3g} against {_mean(rows, part.other, part.metric):.3g}"
        for rows in study.strategies.values()
    ]
    return f"`{part.metric}` of {part.row} {part.sign} {part.other}: {'; '.join(of)}"


def _mean(rows: Group, row: str, metric: str) -> float:
    return mean_ci95(rows[row][metric]).mean
