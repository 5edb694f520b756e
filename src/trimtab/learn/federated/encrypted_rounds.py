"""A federation whose server adds updates that it cannot read.

Sites send weight × value and weight of each number, encrypted by `privacy.secure_sums`. The server adds them
and hands the sums out again; sites decrypt these and take the means. So the server learns who took part, and
nothing of what they sent; what it keeps and writes is ciphertext. It cannot clip updates, or take medians.

Here the values of an `Update` that is encrypted are its bytes, and its weights are none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from trimtab.domain.artifact import Artifact
from trimtab.errors import UsageError
from trimtab.learn.federated.aggregation import Rule, Update, counted, ratio
from trimtab.learn.federated.learning_problem import Problem, Site
from trimtab.learn.federated.rounds import LEAST_SITES, Federation, Terms
from trimtab.privacy.secure_sums import PublicKey, SumKey, encrypted_bytes

SUMS_FILE: Final = "sums.safetensors"
_UPDATE, _SUM, _PROVENANCE = "encrypted", "sum", "provenance"


class EncryptedFederation(Federation):
    """Rounds as of `Federation`; answers and history are ciphertexts."""

    def __init__(self, problem: Problem, terms: Terms, key: PublicKey) -> None:
        super().__init__(problem, terms)
        self._key = key

    def ask(self, known: int = 0) -> Artifact:
        """The encrypted sums of the rounds that a site does not know: it makes the question itself."""
        meta = {"identity": self.identity, "round": str(self.number)}
        return Artifact("ask", _named(self.history, known), meta)

    def told(self) -> dict[str, Any]:
        """As `Federation.told`, with the key and what a site does to its weights."""
        rule, terms = self.terms.rule, self.terms
        rows_max = rule.rows_max if np.isfinite(rule.rows_max) else None
        return {
            **super().told(),
            "sums": {
                "key": self._key.fingerprint,
                "at_least": terms.sites_min,
                "weights": rule.weights,
                "rows_max": rows_max,
            },
        }

    def update_bytes(self) -> int:
        """As `Federation.update_bytes`."""
        return encrypted_bytes(2 * self.problem.width(()))

    def result(self) -> tuple[str, bytes]:
        """The encrypted sums: what was learned, for those who have the key."""
        meta = {"identity": self.identity, _PROVENANCE: json.dumps(self._provenance())}
        return SUMS_FILE, Artifact("sums", _named(self.history), meta).content()

    def _checked(self, site: str, content: bytes) -> Update:
        made = self._of_this(site, content)
        held = made.arrays.get(_UPDATE, np.zeros(0, np.uint8))
        numbers = self._key.length(held.tobytes())
        if numbers != 2 * self.problem.width(()):
            raise UsageError(
                "has another length", value=numbers, expected=f"{2 * self.problem.width(())} numbers"
            )
        return _sealed(held.tobytes())

    def _combined(self) -> Update:
        return _sealed(
            self._key.summed([self.answers[site].values.tobytes() for site in sorted(self.answers)])
        )

    def _step(self, found: Update) -> float | None:
        return None

    def _terms_text(self) -> str:
        return f"{super()._terms_text()}, key {self._key.fingerprint}"


@dataclass(frozen=True)
class SealedSite:
    """A site's side: the question out of the sums, the answer encrypted, the result.

    `history` are the rounds whose sums it has decrypted.
    """

    problem: Problem
    key: SumKey
    rule: Rule
    at_least: int
    history: list[Update] = field(default_factory=list)

    @classmethod
    def of(cls, problem: Problem, told: Mapping[str, Any], key: SumKey) -> SealedSite:
        """As the server tells it. Raises UsageError where it has another key, or would show single sites."""
        if told.get("key") != key.fingerprint:
            raise UsageError(
                "is not the key of this federation",
                field="--sum-key",
                value=key.fingerprint,
                expected=str(told.get("key")),
            )
        rows_max = told.get("rows_max")
        rule = Rule(weights=told["weights"], rows_max=np.inf if rows_max is None else float(rows_max))
        return cls(problem, key, rule, max(LEAST_SITES, int(told["at_least"])))

    def answer(self, site: Site, ask: Artifact, identity: str) -> bytes:
        """A site's answer as it is sent. Raises UsageError for sums that cannot be read."""
        self._read(ask)
        update = counted(site.answer(self.problem.ask(self.history)), self.rule)
        numbers = np.concatenate([update.weights * update.values, update.weights])
        held = np.frombuffer(self.key.encrypted(numbers), np.uint8)
        return Artifact("update", {_UPDATE: held}, {"identity": identity}).content()

    def result(self, content: bytes) -> tuple[str, bytes]:
        """Name and content of the file with what was learned, from the server's."""
        made = Artifact.parsed(content, "result of the server")
        self._read(made)
        return self.problem.result(self.history, json.loads(made.meta.get(_PROVENANCE, "{}")))

    def _read(self, made: Artifact) -> None:
        """Decrypt the sums of the rounds that are not known yet."""
        while (held := made.arrays.get(_sum_of(len(self.history)))) is not None:
            sums = self.key.decrypted(held.tobytes(), self.at_least).values
            if len(sums) != 2 * self.problem.width(self.history):
                raise UsageError("has a sum of another length", file=made.name, value=len(sums))
            above, below = np.split(sums, 2)
            self.history.append(Update(ratio(above, below), below))


def _sealed(content: bytes) -> Update:
    return Update(np.frombuffer(content, np.uint8), np.zeros(0))


def _named(history: Sequence[Update], known: int = 0) -> dict[str, Any]:
    return {_sum_of(k): history[k].values for k in range(known, len(history))}


def _sum_of(k: int) -> str:
    return f"{_SUM}/{k:04}"
