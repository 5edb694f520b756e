"""Nodes that serve requests or train, for whole rounds each: a companion of the loop of training jobs."""

from __future__ import annotations

import numpy as np

from trimtab.domain.training_jobs import Flags
from trimtab.experiments.shared.request_side import RequestSide
from trimtab.experiments.shared.sharing_policies import Lending, Static
from trimtab.training.truths.progress import Running


class LentNodes:
    """Lends nodes as a way of sharing says.

    A node that is lent takes no new requests while jobs wait for it. It trains from the end of the round on
    in which its last request ended. While no job has it, it serves. One that trained serves again `return_s`
    after it was asked back. Nodes of a static partition only train.
    """

    def __init__(
        self, requests: RequestSide, sharing: Static | Lending, round_s: float, return_s: float
    ) -> None:
        self._requests, self._sharing = requests, sharing
        self._round_s, self._return_s = round_s, return_s
        rounds, self._n_nodes = requests.load.shape
        self.trains = np.zeros((rounds, self._n_nodes), np.bool_)
        self._begun = 0  # rounds
        self._lent = self._ready = np.zeros(self._n_nodes, np.bool_)

    def before(self, now_s: float) -> Flags:
        """Begin the round: which nodes may train."""
        t = round(now_s / self._round_s)
        self._pass(t)
        self._begin(t)
        return self._ready

    def after(self, now_s: float, running: Running, waiting: int) -> None:
        """Nodes with jobs take no more requests."""
        trains: Flags = np.any(running.gpus > 0, axis=0)
        self._serve(trains, wanted=waiting > 0)

    def finish(self) -> None:
        """The rounds after the last decision; then all nodes serve."""
        rounds = len(self.trains)
        self._pass(rounds)
        self._requests.end_round(rounds - 1)
        back_s = np.where(self.trains[-1], self._return_s, 0.0)
        keeps = ~self._lent if self._sharing.is_partition else np.ones_like(self._lent)
        self._requests.set_on(keeps, rounds * self._round_s, back_s)
        self._requests.go_to(np.inf)

    def _pass(self, t: int) -> None:
        """Rounds up to t in which there were no jobs, so that no decision was due."""
        while self._begun < t:
            self._begin(self._begun)
            self._serve(np.zeros(self._n_nodes, np.bool_), wanted=False)

    def _begin(self, t: int) -> None:
        if t > 0:
            self._requests.end_round(t - 1)
        keeps = self._sharing.keeps(self._requests.busy_nodes[:t], self._n_nodes)
        self._lent = np.arange(self._n_nodes) >= keeps
        self._ready = self._lent & (self._requests.is_empty | self._sharing.is_partition)
        self._begun = t + 1

    def _serve(self, trains: Flags, *, wanted: bool) -> None:
        t = self._begun - 1
        self.trains[t] = trains
        off = trains | (self._lent & ~self._ready & wanted)
        if self._sharing.is_partition:
            off = self._lent
        trained = self.trains[max(t - 1, 0)]
        self._requests.set_on(~off, t * self._round_s, np.where(trained, self._return_s, 0.0))
