"""Pages of measurements tell their age: which commit saved their figures, and if the sources changed since.

A page's *sources* are the packages whose code its figures measure. Their fingerprint at a commit joins the
tree ids that git has of them, so it is the same wherever the sources are the same.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/benchmarks"
LOOP = ("compiled", "domain", "engine", "policies")
SERVING = (*LOOP, "gateway", "live", "jobs")
TRAINING = ("domain", "solvers", "training", "experiments/training")
SOURCES = {
    "agents": (*LOOP, "learn/environments"),
    "auto": (*LOOP, "experiments"),
    "bursts": (*LOOP, "experiments"),
    "caches": LOOP,
    "case": (*LOOP, "experiments"),
    "chains": LOOP,
    "engines": (*LOOP, "chains", "clusters", "live"),
    "epp": SERVING,
    "federated": (*LOOP, "experiments", "learn/federated"),
    "forecast": ("forecast",),
    "fragmentation": LOOP,
    "gateway": SERVING,
    "golden": TRAINING,
    "imitation": (*LOOP, "learn"),
    "kubernetes": (*LOOP, "clusters"),
    "private-learning": ("privacy", "learn"),
    "learned": (*LOOP, "learn"),
    "learned-oracles": ("learn",),
    "live": SERVING,
    "live-signals": SERVING,
    "llm-truth": (*LOOP, "profiles"),
    "output-length": (*LOOP, "experiments"),
    "performance-models": ("training",),
    "llm-routers": LOOP,
    "policies": (*LOOP, "experiments"),
    "privacy": (*LOOP, "experiments", "privacy", "traces"),
    "shared-cluster": (*LOOP, "training", "experiments"),
    "simulator": LOOP,
    "slurm": (*LOOP, "clusters"),
    "solvers": ("solvers",),
    "mlf-rl": (*TRAINING, "learn"),
    "table8": TRAINING,
    "transfer": (*LOOP, "learn"),
    "training": TRAINING,
}
RESULTS = {"simulator": "results", "performance-models": "performance_models"}  # others: as the page
ELSEWHERE = {"case": ROOT / "docs/case/index.md"}  # pages that are not among the benchmarks
_AGE = re.compile(r"\n\*(?:Measured at|Measured before|Measured now)[^\n]*\*\n")


def _git(*arguments: str) -> str:
    """What git prints; empty where it fails or there is no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def commit_now() -> str:
    """The commit that is checked out, shortened; empty without a repository."""
    return _git("rev-parse", "--short=8", "HEAD")


def fingerprint(name: str, commit: str) -> str:
    """Twelve hex digits of a page's sources at a commit; rooms that were not there yet count as none."""
    trees = _git("ls-tree", "-d", commit, "--", *(f"src/trimtab/{room}" for room in SOURCES[name]))
    return hashlib.sha256(trees.encode()).hexdigest()[:12]


def page_of(name: str) -> Path:
    """The page of these figures."""
    return ELSEWHERE.get(name, PAGES / f"{name}.md")


def results_of(name: str) -> Path:
    """The file of a page's figures."""
    return ROOT / "bench" / f"{RESULTS.get(name, name)}.json"


def age(name: str) -> str:
    """One line about the age of a page's figures; empty where git does not know."""
    results = str(results_of(name))
    head = _git("rev-parse", "--short", "HEAD")
    if head and _git("status", "--porcelain", "--", results):
        return f"*Measured now, on commit {head} with what was not committed.*"
    commit, _, day = _git("log", "-1", "--format=%h %cs", "--", results).partition(" ")
    if not commit:
        return ""
    then, now = fingerprint(name, commit), fingerprint(name, "HEAD")
    at = f"commit {commit} ({day}, sources {then})"
    return f"*Measured at {at}.*" if then == now else f"*Measured before its sources changed, at {at}.*"


def aged(page: Path, text: str) -> str:
    """The text of a page with its age under the title; unchanged where git does not know it."""
    name = next((name for name in SOURCES if page_of(name) == page), None)
    line = age(name) if name else ""
    if not line:
        return text
    return re.sub(r"(^# [^\n]*\n)", rf"\1\n{line}\n", _AGE.sub("", text), count=1, flags=re.M)


def without_age(page: Path) -> str:
    """The text of a page as its benchmark writes it."""
    return _AGE.sub("", page.read_text(encoding="utf-8"))


def mark_pages() -> list[Path]:
    """Write the age of every page anew; returns the pages that changed."""
    changed = []
    for name in SOURCES:
        page = page_of(name)
        before = page.read_text(encoding="utf-8")
        if (now := aged(page, before)) != before:
            page.write_text(now, encoding="utf-8")
            changed.append(page)
    return changed
