"""The ledger: what was spent on each source, in one JSON file.

A source is known by a name and by its content, so that neither a copy under another name nor a grown log
under the same one starts anew. Costs of all releases of a source add up, whatever their unit. A release is
entered before anything of it is written: who is killed in between has spent, and told nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import platformdirs

from trimtab.errors import UsageError
from trimtab.privacy.accounting import epsilon_of

VERSION: Final = 1
DEFAULT_BUDGET: Final = 8.0


@dataclass(frozen=True)
class Spending:
    """One release. `rho` is None where its cost is (ε, δ) alone; `delta_of_names` is a part of δ."""

    source: str
    sha256: str
    what: str
    unit: str
    epsilon: float
    delta: float
    when: str  # ISO 8601, UTC
    rho: float | None = None
    delta_of_names: float = 0.0


@dataclass(frozen=True)
class Balance:
    """What a source has spent, all in all, and its budget."""

    epsilon: float
    delta: float
    budget_epsilon: float
    releases: int
    ledger: str


def spent(entries: Sequence[Spending]) -> tuple[float, float]:
    """(ε, δ) of all releases together.

    ρ adds up, and is converted with the largest δ that one of them converted with; what has no ρ is added as
    it is.
    """
    with_rho = [entry for entry in entries if entry.rho is not None]
    converted = max((entry.delta - entry.delta_of_names for entry in with_rho), default=0.0)
    rho = sum(entry.rho or 0.0 for entry in with_rho)
    others = [entry for entry in entries if entry.rho is None]
    epsilon = sum(entry.epsilon for entry in others) + (epsilon_of(rho, converted) if with_rho else 0.0)
    delta = sum(entry.delta_of_names for entry in with_rho) + sum(entry.delta for entry in others)
    return epsilon, delta + converted


def default_ledger() -> Path:
    """The ledger of this user."""
    return Path(platformdirs.user_data_dir("trimtab")) / "privacy-ledger.json"


def content_hash(source: Path) -> str:
    """SHA-256 of a file, or of all files of a folder."""
    digest = hashlib.sha256()
    for file in [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file()):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def spend(path: Path, entry: Spending, budget_epsilon: float | None) -> Balance:
    """Enter a release, on the disk when this returns; what the source has spent with it.

    `budget_epsilon` fixes the budget of a source that has none yet; None: `DEFAULT_BUDGET`.

    Raises:
        UsageError: it would exceed the budget, another budget was fixed before, or no ledger can be kept
        there.
    """
    with _locked(path):
        data = _read(path)
        before = _of(data, entry.source, entry.sha256)
        fixed = data["budgets"].get(entry.source)
        if fixed is None:
            data["budgets"][entry.source] = budget_epsilon or DEFAULT_BUDGET
        elif budget_epsilon is not None and budget_epsilon != fixed:
            expected = f"{fixed:g}, fixed at its first release"
            raise UsageError(
                f"the budget of {entry.source} can't change",
                file=str(path),
                field="--budget",
                value=budget_epsilon,
                expected=expected,
            )
        budget = _budget(data, entry.source, before)
        epsilon, delta = spent([*before, entry])
        if epsilon > budget:
            _refuse(path, entry, before, budget)
        data["entries"].append(asdict(entry))
        _write(path, data)
    return Balance(epsilon, delta, budget, len(before) + 1, str(path))


def _refuse(path: Path, entry: Spending, before: Sequence[Spending], budget: float) -> None:
    own, low, high = entry.delta - entry.delta_of_names, 0.0, entry.rho or 0.0
    while high - low > 1e-4 * high:
        middle = (low + high) / 2.0
        fits = spent([*before, replace(entry, rho=middle)])[0] <= budget
        low, high = (middle, high) if fits else (low, middle)
    left = epsilon_of(low, own) if entry.rho is not None else budget - spent(before)[0]
    so_far = spent(before)[0]
    raise UsageError(
        f"{entry.source} would exceed its budget: ε {so_far:.4g} of {budget:g} is spent",
        file=str(path),
        field="--epsilon",
        value=entry.epsilon,
        expected=f"at most {int(left * 100) / 100:g}, which is left"
        if left >= 0.01
        else "no more: it is spent",
    )


def _of(data: dict[str, Any], source: str, sha256: str) -> list[Spending]:
    entries = [Spending(**entry) for entry in data["entries"]]
    return [entry for entry in entries if entry.source == source or entry.sha256 == sha256]


def _budget(data: dict[str, Any], source: str, entries: Sequence[Spending]) -> float:
    """The least of the budgets under the names that a source has had."""
    names = {source, *(entry.source for entry in entries)}
    return min((data["budgets"][name] for name in names if name in data["budgets"]), default=DEFAULT_BUDGET)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = dict(json.loads(path.read_text(encoding="utf-8")))
        version, _ = data["version"], [Spending(**entry) for entry in data["entries"]]
    except FileNotFoundError:
        return {"version": VERSION, "budgets": {}, "entries": []}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError("is no ledger", file=str(path), expected=f"what trimtab wrote ({error})") from error
    if version != VERSION:
        raise UsageError("is of another version", file=str(path), value=version, expected=str(VERSION))
    return data


def _write(path: Path, data: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Context in which no other process spends; turns OSErrors into UsageErrors."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        expected = "a folder that can be written to"
        problem = f"the ledger can't be kept: {error.strerror or error}"
        raise UsageError(problem, field="--ledger", value=str(path), expected=expected) from error
