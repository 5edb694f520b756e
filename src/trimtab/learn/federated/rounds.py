"""The server's side of a federation: who is asked, whose answer counts, when a round ends; no connection.

Some sites are drawn for a round. It ends when all of them that are there have answered, or at its deadline
if enough have. A site that misses a round is not waited for until it is heard of again. Who answered with
what decides the result, and nothing else: a server that goes on from a checkpoint comes to the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.domain.artifact import Artifact
from trimtab.errors import UsageError
from trimtab.learn.federated.aggregation import Rule, Update, combined
from trimtab.learn.federated.learning_problem import Problem, Site, identity
from trimtab.version import versions

FORMAT: Final = "trimtab-federation"
LEAST_SITES: Final = 3  # of an encrypted sum: with two, each knows what the other sent


class RoundReport(NamedTuple):
    """A round that has ended."""

    number: int  # from 1
    answered: tuple[str, ...]
    missed: tuple[str, ...]  # drawn, without an answer
    refused: Mapping[str, str]  # site → why its answer did not count
    step: float | None  # length of the combined change; None = the server cannot read it


@dataclass(frozen=True)
class Terms:
    """How a federation goes on.

    Attributes:
        sites: names of all that may take part.
        rule: how their updates are combined.
        share_frac: of the sites, drawn for each round.
        sites_min: answers that a round needs.
        seed: of the draws.
    """

    sites: tuple[str, ...]
    rule: Rule = field(default_factory=Rule)
    share_frac: float = 1.0
    sites_min: int = 1
    seed: int = 0


class Federation:
    """A problem, its sites, and the rounds so far."""

    def __init__(self, problem: Problem, terms: Terms) -> None:
        self.problem, self.terms = problem, terms
        self.history: list[Update] = []
        self.reports: list[RoundReport] = []
        self.answers: dict[str, Update] = {}  # of the round under way
        self.refused: dict[str, str] = {}
        self.absent: set[str] = set()  # not waited for
        self.identity = identity(problem.told())

    @property
    def is_over(self) -> bool:
        """Whether all rounds have ended."""
        return len(self.history) >= self.problem.rounds()

    @property
    def number(self) -> int:
        """Of the round under way, from 1."""
        return len(self.history) + 1

    def drawn(self) -> tuple[str, ...]:
        """The sites of the round under way; of no more than are needed where some are absent."""
        terms = self.terms
        many = max(terms.sites_min, round(terms.share_frac * len(terms.sites)))
        draw = np.random.default_rng((terms.seed, self.number))
        order = [terms.sites[i] for i in draw.permutation(len(terms.sites))]
        return tuple(sorted(order[:many]))

    def ask(self, known: int = 0) -> Artifact:
        """What the drawn sites are asked, with what tells the round; of a site that knows so many rounds."""
        made = self.problem.ask(self.history)
        meta = {**made.meta, "identity": self.identity, "round": str(self.number)}
        return Artifact(made.name, dict(made.arrays), meta)

    def heard(self, site: str) -> None:
        """A site is there."""
        self.absent.discard(site)

    def take(self, site: str, number: int, content: bytes) -> str:
        """A site's answer to a round. Returns why it does not count; "" = it counts."""
        self.heard(site)
        if number != self.number or self.is_over:
            return f"round {number} has ended"
        if site not in self.drawn():
            return f"{site} was not drawn for round {number}"
        if site in self.answers:
            return f"{site} has answered round {number} already"
        try:
            update = self._checked(site, content)
        except UsageError as error:
            self.refused[site] = str(error)
            return str(error)
        self.refused.pop(site, None)
        self.answers[site] = update
        return ""

    def _of_this(self, site: str, content: bytes) -> Artifact:
        made = Artifact.parsed(content, f"update of {site}")
        if made.meta.get("identity") != self.identity:
            raise UsageError(
                "is of another schema or version",
                file=made.name,
                field="identity",
                value=made.meta.get("identity"),
                expected=self.identity,
            )
        return made

    def _checked(self, site: str, content: bytes) -> Update:
        made = self._of_this(site, content)
        shape = (self.problem.width(self.history),)
        update = Update(made.floats("values", shape), made.floats("weights", shape))
        if (update.weights < 0.0).any():
            raise UsageError("is below 0", file=made.name, field="weights", expected="rows, 0 or more")
        return update

    def waited_for(self) -> tuple[str, ...]:
        """Drawn sites whose answer the round waits for. Those that sent garbage are waited for no more."""
        missing = (site for site in self.drawn() if site not in self.answers and site not in self.refused)
        return tuple(site for site in missing if site not in self.absent)

    @property
    def has_enough(self) -> bool:
        """Whether as many have answered as a round needs."""
        return len(self.answers) >= self.terms.sites_min

    def end_round(self) -> RoundReport:
        """End the round with the answers that there are, at least as many as it needs."""
        found = self._combined()
        missed = tuple(site for site in self.drawn() if site not in self.answers)
        self.absent |= set(missed)
        report = RoundReport(
            self.number,
            tuple(sorted(self.answers)),
            missed,
            dict(self.refused),
            self._step(found),
        )
        self.history.append(found)
        self.reports.append(report)
        self.answers, self.refused = {}, {}
        return report

    def _combined(self) -> Update:
        return combined(self.answers, self.terms.rule)

    def _step(self, found: Update) -> float | None:
        return float((found.values**2).sum() ** 0.5)

    def told(self) -> dict[str, Any]:
        """What a site must know to take part."""
        return {"problem": self.problem.told()}

    def update_bytes(self) -> int:
        """Bytes of an answer to the round under way, at most, beside its header."""
        return 2 * np.dtype(np.float64).itemsize * self.problem.width(self.history)

    def result(self) -> tuple[str, bytes]:
        """Name and content of the file with what was learned, and how."""
        return self.problem.result(self.history, self._provenance())

    def _provenance(self) -> dict[str, Any]:
        rule = {key: value for key, value in vars(self.terms.rule).items() if value != np.inf}
        took_part = sorted({site for report in self.reports for site in report.answered})
        return {
            "made by": "trimtab federate",
            "problem": self.problem.told(),
            "rule": rule,
            "rounds": len(self.history),
            "sites": took_part,
            "versions": versions(),
        }

    # --- a server that ended goes on

    def checkpoint(self) -> bytes:
        """All that decides how it goes on."""
        arrays = {f"round/{k:04}/{name}": a for k, u in enumerate(self.history) for name, a in _named(u)}
        arrays |= {f"answer/{site}/{name}": a for site, u in self.answers.items() for name, a in _named(u)}
        meta = {
            "format": FORMAT,
            "identity": self.identity,
            "terms": self._terms_text(),
            "reports": json.dumps(self.reports),
            "refused": json.dumps(self.refused),
            "absent": json.dumps(sorted(self.absent)),
        }
        return Artifact("checkpoint", arrays, meta).content()

    def restore(self, content: bytes, file: str) -> None:
        """Go on from a checkpoint. Raises UsageError where it is of another federation."""
        made = Artifact.parsed(content, file)
        mine = {"format": FORMAT, "identity": self.identity, "terms": self._terms_text()}
        for key, value in mine.items():
            if made.meta.get(key) != value:
                raise UsageError(
                    "is of another federation",
                    file=file,
                    field=key,
                    value=made.meta.get(key),
                    expected=f"{value}, or another folder",
                )
        rounds = sum(key.startswith("round/") for key in made.arrays) // 2
        self.history = [_update(made, f"round/{k:04}") for k in range(rounds)]
        answered = {
            key.split("/", 1)[1].rpartition("/")[0] for key in made.arrays if key.startswith("answer/")
        }
        self.answers = {site: _update(made, f"answer/{site}") for site in sorted(answered)}
        self.reports = [
            RoundReport(number, tuple(answered), tuple(missed), refused, step)
            for number, answered, missed, refused, step in json.loads(made.meta["reports"])
        ]
        self.refused, self.absent = json.loads(made.meta["refused"]), set(json.loads(made.meta["absent"]))

    def _terms_text(self) -> str:
        return json.dumps({**vars(self.terms), "rule": vars(self.terms.rule)}, sort_keys=True)


def _named(update: Update) -> list[tuple[str, Any]]:
    return [("values", update.values), ("weights", update.weights)]


def _update(made: Artifact, key: str) -> Update:
    return Update(*(made.arrays[f"{key}/{name}"] for name in Update._fields))


def update_content(update: Update, identity_: str) -> bytes:
    """A site's answer as it is sent."""
    return Artifact("update", dict(_named(update)), {"identity": identity_}).content()


def learned_together(federation: Federation, sites: Mapping[str, Site]) -> Federation:
    """Run all rounds in this process, for experiments. A site that raises UsageError misses the round.

    Raises UsageError for a round with fewer answers than it needs.
    """
    while not federation.is_over:
        ask = federation.ask()
        for name in federation.drawn():
            if name in sites:
                try:
                    content = update_content(sites[name].answer(ask), federation.identity)
                except UsageError:
                    continue
                federation.take(name, federation.number, content)
        if not federation.has_enough:
            answered = sorted(federation.answers)
            raise UsageError(
                "has too few answers",
                field=f"round {federation.number}",
                value=answered,
                expected=f"at least {federation.terms.sites_min}",
            )
        federation.end_round()
    return federation
