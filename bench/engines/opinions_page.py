"""The tables of docs/concepts/engines.md: a common opinion of each engine beside what was measured here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from bench.engines.claims import CLAIMS
from bench.engines.page import basis, good, middle, user_lines, values
from bench.page import markdown_table

BEGIN, END = "<!-- tables: made by `python -m bench.engines --docs` -->", "<!-- end of the tables -->"
NO_YARN = "not measured here: no ResourceManager to be had without Maven"
Figures = Mapping[str, Any]
Told = Callable[[Figures], str]
OPINIONS: Mapping[str, Mapping[str, tuple[str, Told]]]


def with_opinions(text: str, figures: Figures) -> str:
    """The text of the page with its tables made anew."""
    tables = []
    for title, engines in OPINIONS.items():
        rows = [[engine, opinion, told(figures)] for engine, (opinion, told) in engines.items()]
        tables.append(f"### {title}\n\n{markdown_table(['engine', 'common opinion', 'measured here'], rows)}")
    made = "\n".join([BEGIN, "", *tables, END])
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: made, text, flags=re.S)


def _time_of(name: str, key: str, unit: str, digits: int) -> Told:
    return lambda figures: f"{middle(figures, name, key):,.{digits}f} {unit}"


def _join(*parts: str | Told) -> Told:
    return lambda figures: "".join(part if isinstance(part, str) else part(figures) for part in parts)


def _images(name: str) -> Told:
    return _join("images ", _time_of(name, "images_over", "times the ideal", 1))


def _task(name: str) -> Told:
    return _join("a task costs ", _time_of(name, "nothing_ms", "ms", 1))


def _paced(name: str) -> Told:
    return _join("unequal workers: paced chains ", _time_of(name, "paced_over", "times the ideal", 2))


def _rate(name: str) -> Told:
    def told(figures: Figures) -> str:
        per_s = 1e3 / middle(figures, name, "nothing_ms")
        return f"two workers only; one driver started {per_s:,.{0 if per_s >= 10 else 1}f} tasks a second"

    return told


def _killed(name: str) -> Told:
    def told(figures: Figures) -> str:
        runs = good(figures, name)
        ended = sum(run["fault"]["is_right"] for run in runs)
        again = middle(figures, name, "again")
        lost = values(figures, name, "lost_s")
        cost = f", {middle(figures, name, 'lost_s'):.1f} s lost" if lost else ""
        return f"{name}, a process killed: {ended} of {len(runs)} runs ended right, {again:.0f} stages began again{cost}"

    return told


def _claim(engine: str, feature: str, words: str) -> Told:
    return lambda figures: f"{words}: {CLAIMS[engine][feature].verdict} ({basis(figures, engine, feature)})"


def _easy(name: str) -> Told:
    return _join(
        lambda _: f"{user_lines(name)} lines for the images; ",
        _time_of(name, "cold_s", "s to the first result", 1),
    )


def _as_told(text: str) -> Told:
    return lambda _: text


_NONE = _as_told(NO_YARN)
OPINIONS = {
    "Suitable for": {
        "YARN": ("large offline data", _NONE),
        "Spark": (
            "iterative computing and analysis",
            _join(_task("Spark"), "; ", _images("Spark"), "; iterations over cached data not measured"),
        ),
        "Ray": (
            "reinforcement learning and distributed deep learning",
            _join("a call of an actor costs ", _time_of("Ray actors", "nothing_ms", "ms", 1), "; ",
                  _claim("Ray", "gpu", "fractions of a GPU"), "; training not measured here"),
        ),
        "Dask": ("parallel Python", _join(_images("Dask"), "; ", _task("Dask"))),
        "Kubeflow": (
            "machine-learning pipelines",
            _join("local runner: a component costs ", _time_of("Kubeflow local", "nothing_ms", "ms", 0), ", so coarse steps; "
                  "its server not measured here: no Kubernetes image of it"),
        ),
    },
    "Static or dynamic scheduling": {
        "YARN": ("static", _NONE),
        "Spark": ("static", _join("tasks of a stage go to whichever worker is free; the graph is static (",
                                  _claim("Spark", "fan-out", "fan-out"), "); ", _paced("Spark"))),
        "Ray": ("dynamic", _join(_claim("Ray", "fan-out", "fan-out"), "; ", _paced("Ray tasks"), " with tasks, ",
                                 _time_of("Ray actors", "paced_over", "with actors", 2))),
        "Dask": ("dynamic", _join(_claim("Dask", "fan-out", "fan-out"), "; ", _paced("Dask"),
                                  ": it takes workers for equal and steals afterwards")),
        "Kubeflow": ("both", _join(_claim("Kubeflow", "fan-out", "loops over outputs"),
                                   "; the local runner runs one component at a time")),
    },
    "Programming model": {
        "YARN": ("MapReduce", _as_told("not measured here: it gives out containers; MapReduce is one of its programs")),
        "Spark": ("resilient distributed datasets", _as_told("`parallelize(…).map(…).map(…).collect()`; three steps of a chain ran as one task")),
        "Ray": ("actors", _as_told("tasks, actors and datasets: one program of each was measured")),
        "Dask": ("task graph", _as_told("`client.map` and `submit` on futures; the graph grows as it runs")),
        "Kubeflow": ("components", _as_told("functions whose source is copied into a process of their own; values pass as files")),
    },
    "Ease of use": {
        "YARN": ("hard: Java, a cluster to run", _NONE),
        "Spark": ("middling: short programs, a JVM to tune", _easy("Spark")),
        "Ray": ("easy: decorators", _join("tasks: ", _easy("Ray tasks"))),
        "Dask": ("easy: as NumPy and pandas", _easy("Dask")),
        "Kubeflow": ("hard: Kubernetes first", _join("local runner: ", _easy("Kubeflow local"))),
    },
    "Scaling": {
        "YARN": ("thousands of machines", _NONE),
        "Spark": ("thousands of machines", _rate("Spark")),
        "Ray": ("thousands of machines, millions of tasks", _rate("Ray tasks")),
        "Dask": ("hundreds of machines: one scheduler", _rate("Dask")),
        "Kubeflow": ("as Kubernetes does", _join("local runner: ", _rate("Kubeflow local"))),
    },
    "Fault tolerance": {
        "YARN": ("containers and masters of programs are started again", _NONE),
        "Spark": ("lineage: lost partitions are computed again", _killed("Spark")),
        "Ray": ("tasks are tried again, actors if asked", _join(_killed("Ray tasks"), "; ", _killed("Ray actors"))),
        "Dask": ("lost results are computed again; its scheduler is a single point",
                 _join(_killed("Dask"), ": what the worker held was lost with it")),
        "Kubeflow": ("steps are tried again", _join(_killed("Kubeflow local"), ", with `set_retry`")),
    },
}  # fmt: skip
