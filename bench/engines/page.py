"""docs/benchmarks/engines.md from bench/engines.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.engines.claims import CLAIMS, FEATURES, SHOWN_BY, Claim
from bench.engines.profile_ray import BARE, ONE_CALL, TASKS_OF_RAY, TWO_CALLS
from bench.engines.user_lines import lines_needed
from bench.engines.workload import BLOCK, CHAINS, IMAGES, STAGES, WORKERS
from bench.page import markdown_table

PROGRAMS = Path(__file__).with_name("programs")
STEPS = {"ms": "elapsed, ms a task", "driver_ms": "driver, ms", "others_ms": "others, ms"}
LEAST_ROUNDS = 3
SPEED = sum(1 / slow for slow in WORKERS.values())  # of both workers, the fast one is 1
PROGRAM = {  # contender → file of its program
    "processes": "plain_pool",
    "Ray tasks": "ray_tasks",
    "Ray actors": "ray_actors",
    "Ray Data": "ray_data",
    "Dask": "dask_futures",
    "Spark": "spark_rdd",
    "Kubeflow local": "kfp_local",
    "Slurm arrays": "slurm_array",
    "trimtab, processes": "trimtab_chain",
    "trimtab, Ray": "trimtab_chain",
    "trimtab, in Dask's scheduler": "dask_futures",
    "trimtab, Dask": "trimtab_chain",
    "trimtab, Slurm": "trimtab_chain",
    "trimtab, Kubeflow imported": "kfp_imported",
}
ALONE = {  # with trimtab → the engine alone
    "trimtab, processes": "processes",
    "trimtab, Ray": "Ray tasks",
    "trimtab, in Dask's scheduler": "Dask",
    "trimtab, Dask": "Dask",
    "trimtab, Slurm": "Slurm arrays",
    "trimtab, Kubeflow imported": "Kubeflow local",
}
SAME = {"trimtab, Kubeflow imported": "kfp_local"}  # programs that are written for the engine alone

HEAD = """<!-- Made by `python -m bench.engines` from what it measured; `--docs` writes it anew. -->

# Engines

The same two pieces of work on each engine, alone and with trimtab, on the same two workers: `fast` and `slow`, each with one slot.
The slow one does all of its work twice, or sleeps twice as long. A worker is what the engine calls a machine (a Ray node, a Dask worker with its nanny, a
worker of Spark's standalone master, a node of Slurm), all on one machine of two cores. Kubeflow's local runner has no workers: it runs one
component after the other, in a process at full speed. Slurm decides every second, without delay for batches (`sched_interval=1,batch_sched_delay=0`): by its
defaults each pass would cost three seconds. What this means for a choice: [Which engine?](../concepts/engines.md)

Measure anew: `make bench-engines` (about 12 minutes; interrupted, it goes on where it was). Programs of users are in `bench/engines/programs`, one file for each engine,
written as its documentation writes such work; all outputs are compared with plain Python's.
"""

RUNS = """## Makespans

- *images*: {images:,} pictures → thumbnails → embeddings → pairs of near-duplicates, in blocks of {block} (Slurm: 8 jobs, Kubeflow: one block). Beside it, the time over the ideal:
  plain Python in one process, measured right after, over the speed of both workers ({speed:g}).
- *paced*: {chains} chains of {stages} stages that sleep known, skewed seconds. The ideal is {ideal:.2f} s: all sleep over the speed of both workers.
  Programs of Ray tasks, Dask and trimtab have a task for each stage; in the others a task is a chain (Slurm: three; Kubeflow: one stage of all chains).
  trimtab alone is told how long stages are (`size=`).
- *task*: many tasks without work: milliseconds for each, with both workers.
- *start*: from nothing to the first result: daemons, connection, worker processes. The other columns are warm.
- *load*: load average of the machine's two cores when the engine's turn began, median.
- *lines*: lines of user code for the images; connection and imports count, blank lines, comments and the work itself do not (`bench/engines/user_lines.py`).

Engines take turns; each round starts them anew. Median (least to most). Of six runs, least to most is the 95 % interval of the median.
"""

BESIDE = """With trimtab over the engine alone; above 1, in bold, trimtab is slower. Of images the times over the ideal are compared, because the machine was not equally busy:
"""

FAULTS = """## A worker is killed in the middle

The process that ends the second stage of the thirteenth chain is killed once (SIGKILL), as the system does when memory is short. Machines stay. *Began again*: stages that
began more than once, of {stages}. *Lost*: seconds over the makespan of the same round without a fault.
"""

SAYS = """## What each can express

Yes, partly or no, and where it is from: *shown* by a tiny program that ran here (`bench/engines/shown.py`), *documented* by a sentence that is quoted below, or *not found* in
documentation and interface.
"""

LOSES = """## Where trimtab loses to plain Ray, and why

On Ray, a stage without work takes trimtab {ours:.2f} ms where a task takes {theirs:.2f} ms: {ratio:.1f} times as long. The way from one to the other, with the same two workers
in one run (median of {rounds}; *driver*: processor time of the program, *others*: of Ray's processes and workers, all on two cores):
"""

REASONS = """- *Actors, so that models stay loaded, and one call at a time from an event loop in Python*: {tasks:.2f} ms for tasks, {bare:.2f} ms for the bare loop.
- *trimtab's host around that loop*: {bare:.2f} to {one:.2f} ms. It decides, notes begin and end of each stage, and keeps values under digests, all in Python: {driver:.2f} ms of the driver's
  processor for each stage in place of {plain:.2f} ms. Meanwhile the worker that has just ended is idle.
- *Two calls at a time for a slot* (`StageNode(depth=2)`): {two:.2f} ms, since the next stage is at the worker already. It is not the default, because what is sent is bound.

The host's thread while it ran such stages (cProfile, which makes Python slower):
"""

BUYS = """What it buys: decisions that see all that is ready, how long stages take and how fast each worker is. Stages of 50 ms hardly feel the cost: see *paced*. Short stages that follow each
other, and say so (`cost_s`), run in one attempt; items in blocks pay once for a block.
"""


def page(figures: Mapping[str, Any]) -> str:
    """The whole page."""
    on, versions = figures["machine"], figures["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    loads = [run["load_average"] for runs in figures["runs"].values() for run in runs if "error" not in run]
    measured = (
        f"Measured on {on['cpu']}, {on['cores']} cores, {on['memory_gb']} GB, which other work shared: load average "
        f"{min(loads):.1f} to {max(loads):.1f}, median {median(loads):.1f}. {named}.\n"
    )
    fewest, most = (pick(len(good(figures, name)) for name in figures["runs"]) for pick in (min, max))
    if fewest < LEAST_ROUNDS:
        measured += f"\n**Rounds: {fewest} to {most}, where {LEAST_ROUNDS} are wanted.** Seconds of different rows met a different load: compare those over the ideal.\n"
    about = {"images": IMAGES, "block": BLOCK, "speed": SPEED, "chains": CHAINS, "stages": STAGES}
    parts = [HEAD, measured, RUNS.format(**about, ideal=figures["ideal_s"]), _runs(figures), _failed(figures)]
    parts += [_beside(figures), FAULTS.format(stages=CHAINS * STAGES), _faults(figures), SAYS, _says(figures)]
    return "\n".join(part for part in [*parts, _sources(figures), _loses(figures)] if part)


def good(figures: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The rounds of a contender that were measured."""
    return [run for run in figures["runs"].get(name, ()) if "error" not in run]


def values(figures: Mapping[str, Any], name: str, key: str) -> list[float]:
    """All that was measured of a contender under this key, or derived from it."""
    runs = good(figures, name)
    if key == "images_over":
        return [s / (run["plain_s"] / SPEED) for run in runs for s in run["images_s"]]
    if key == "paced_over":
        return [s / figures["ideal_s"] for run in runs for s in run["paced_s"]]
    if key == "lost_s":
        return [run["fault"]["seconds"] - median(run["paced_s"]) for run in runs if run["fault"]["is_right"]]
    if key == "again":
        return [run["fault"]["again"] for run in runs]
    found = [run[key] for run in runs]
    return [s for each in found for s in each] if found and isinstance(found[0], list) else found


def middle(figures: Mapping[str, Any], name: str, key: str) -> float:
    """The median of what was measured; not a number where nothing was."""
    found = values(figures, name, key)
    return median(found) if found else float("nan")


def user_lines(name: str) -> int:
    """Lines of a contender's program for the images."""
    source = (PROGRAMS / f"{SAME.get(name, PROGRAM[name])}.py").read_text(encoding="utf-8")
    return lines_needed(source, "images", "connected", ("paced", "nothing"))


def _spread(found: Sequence[float], digits: int = 2) -> str:
    if not found:
        return "–"
    return f"{median(found):,.{digits}f} ({min(found):,.{digits}f} to {max(found):,.{digits}f})"


def _runs(figures: Mapping[str, Any]) -> str:
    rows = []
    for name in figures["runs"]:
        if good(figures, name):
            row = [
                _spread(values(figures, name, key))
                for key in ("images_s", "images_over", "paced_s", "paced_over")
            ]
            row += [_spread(values(figures, name, "nothing_ms")), _spread(values(figures, name, "cold_s"), 1)]
            loads = values(figures, name, "load_average")
            rows.append([name, *row, str(user_lines(name)), f"{median(loads):.0f}"])
    head = [
        "engine",
        "images, s",
        "over ideal",
        "paced, s",
        "over ideal",
        "task, ms",
        "start, s",
        "lines",
        "load",
    ]
    return markdown_table(head, rows)


def _failed(figures: Mapping[str, Any]) -> str:
    """What was not measured, and outputs that were wrong."""
    told = []
    for name, runs in figures["runs"].items():
        errors = [run["error"] for run in runs if "error" in run]
        told += (
            [f"- Not measured in {len(errors)} of {len(runs)} rounds: {name} ({errors[0]})"] if errors else []
        )
        wrong = sum(not run["is_right"] for run in good(figures, name))
        told += [f"- **Wrong output** in {wrong} rounds: {name}"] if wrong else []
    return "\n".join([*told, ""]) if told else "Every output was that of plain Python.\n"


def _beside(figures: Mapping[str, Any]) -> str:
    """With trimtab over alone, rounds paired."""
    rows = []
    for ours, theirs in ALONE.items():
        cells = []
        for key in ("images_over", "paced_s", "nothing_ms", "cold_s"):
            pairs = zip(values(figures, ours, key), values(figures, theirs, key), strict=False)
            ratios = [a / b for a, b in pairs]
            lost = "**" if ratios and median(ratios) > 1.0 else ""
            cells.append(f"{lost}{_spread(ratios)}{lost}")
        rows.append([f"{ours}, over {theirs} alone", *cells])
    table = markdown_table(["ratio of times", "images", "paced", "task", "start"], rows)
    return f"{BESIDE}\n{table}"


def _faults(figures: Mapping[str, Any]) -> str:
    rows = []
    for name in figures["runs"]:
        runs = good(figures, name)
        if runs:
            ended = sum(run["fault"]["is_right"] for run in runs)
            errors = [run["fault"]["error"] for run in runs if run["fault"]["error"]]
            again = _spread(values(figures, name, "again"), 0)
            rows.append([name, f"{ended} of {len(runs)}", again, _spread(values(figures, name, "lost_s"))])
            rows[-1].append(f"`{_plain(errors[0])}`" if errors else "")
    return markdown_table(["engine", "ended with the right output", "began again", "lost, s", "else"], rows)


def _plain(error: str) -> str:
    """The kind of an error, and the beginning of what it says."""
    return error.replace("|", "/").replace("`", "'")[:90].strip(" '")


def basis(figures: Mapping[str, Any], engine: str, feature: str) -> str:
    """What a claim rests on."""
    if CLAIMS[engine][feature].url:
        return "documented"
    seen = _seen(figures, engine).get(feature, "")
    if seen.startswith("failed"):
        return "not shown here"
    return "shown" if seen else "not found"


def _seen(figures: Mapping[str, Any], engine: str) -> Mapping[str, str]:
    """What the tiny programs of an engine saw: of each the last round in which it did not fail, if there is one."""
    found: dict[str, str] = {}
    for name, program in PROGRAM.items():
        is_its = program == SHOWN_BY[engine] and name.startswith("trimtab") == (engine == "trimtab")
        for run in good(figures, name) if is_its else ():
            for feature, told in run["shown"].items():
                if not told.startswith("failed") or feature not in found:
                    found[feature] = told
    return found


def _says(figures: Mapping[str, Any]) -> str:
    rows = [
        [
            title,
            *(f"{CLAIMS[engine][feature].verdict}, {basis(figures, engine, feature)}" for engine in CLAIMS),
        ]
        for feature, title in FEATURES.items()
    ]
    return markdown_table(["", *CLAIMS], rows)


def _sources(figures: Mapping[str, Any]) -> str:
    """What was seen, and the sentences quoted."""
    lines = []
    for engine, claims in CLAIMS.items():
        seen = _seen(figures, engine)
        told = [_source(FEATURES[feature], claim, seen.get(feature, "")) for feature, claim in claims.items()]
        lines += [f"- {engine}: {'; '.join(filter(None, told))}."] if any(told) else []
    return "\n".join([*lines, ""])


def _source(title: str, claim: Claim, seen: str) -> str:
    if claim.url:
        return f"*{title}*: [“{claim.told}”]({claim.url})"
    return f"*{title}*: {seen}" if seen else ""


def _loses(figures: Mapping[str, Any]) -> str:
    found = figures["profile"]
    if not found:
        return ""
    ours, theirs = (middle(figures, name, "nothing_ms") for name in ("trimtab, Ray", "Ray tasks"))
    steps = found["steps"]
    told = LOSES.format(ours=ours, theirs=theirs, ratio=ours / theirs, rounds=len(steps[TASKS_OF_RAY]))
    table = markdown_table(
        ["", *STEPS.values()],
        [[name, *(_step(runs, key) for key in STEPS)] for name, runs in steps.items()],
    )
    ms = {name: median(run["ms"] for run in runs) for name, runs in steps.items()}
    driver, plain = (median(run["driver_ms"] for run in steps[name]) for name in (ONE_CALL, TASKS_OF_RAY))
    reasons = REASONS.format(
        tasks=ms[TASKS_OF_RAY], bare=ms[BARE], one=ms[ONE_CALL], two=ms[TWO_CALLS], driver=driver, plain=plain
    )
    shares = markdown_table(["area", "share, %"], _shares(found["shares"].items()))
    return "\n".join([told, table, reasons, shares, BUYS])


def _step(runs: Sequence[Mapping[str, float]], key: str) -> str:
    return _spread([run[key] for run in runs]) if key in runs[0] else ""


def _shares(shares: Iterable[tuple[str, float]]) -> list[list[str]]:
    return [[area, f"{100 * share:.0f}"] for area, share in shares]
