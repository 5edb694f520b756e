"""Figures of private tenants: totals with noise, released on a fixed period.

Nothing else of their requests leaves the process: metrics, recordings, receipts, request logs, spans and the
shadow's comparison leave them out. In their place a private tenant has five running totals of each day (UTC):
requests, failed ones, prompt and output tokens, seconds of service.

Guarantee: (ε, δ) of differential privacy for any `requests` requests of the tenant, added or removed, over
the releases of all days together. Each request is in one window of one day (`privacy.continual`), so that
days and restarts compose in parallel. It counts `max_prompt_tokens`, `max_output_tokens` and `max_service_s`
at most. A person is protected as far as `requests` reaches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trimtab.gateway.config import KeySpec, PrivacySpec
from trimtab.gateway.model import Attempt, Exchange, Observer, ObserverCalls, Outcome
from trimtab.privacy.accounting import epsilon_of, rho_of
from trimtab.privacy.continual import RunningTotals
from trimtab.privacy.mechanisms import Noise, gaussian_noise

DAY_S: Final = 86_400
_PER_S: Final = 1000  # service is counted in milliseconds


@dataclass(frozen=True, slots=True)
class PrivateFigures:
    """What a private tenant shows, since the start of the process; none of it falls."""

    requests: int = 0
    failed: int = 0  # failed or expired
    prompt_tokens: int = 0
    output_tokens: int = 0
    service_s: float = 0.0
    epsilon: float = 0.0  # what today's releases have spent


class _Counts:
    """The totals of one tenant."""

    def __init__(self, spec: PrivacySpec, now_s: float, noise: Noise) -> None:
        self.spec, self._noise, self._rho = spec, noise, rho_of(spec.epsilon, spec.delta)
        self.window = np.zeros(5, np.int64)
        self._before = np.zeros(5, np.int64)  # totals of earlier days
        self._latest = np.zeros(5, np.int64)
        self._shown = np.zeros(5, np.int64)
        self._bounds = np.array(
            [1, 1, spec.max_prompt_tokens, spec.max_output_tokens, math.ceil(spec.max_service_s * _PER_S)]
        )
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._day, self._slot = int(now_s // DAY_S), int(now_s // self.spec.period_s)
        self._epsilon = 0.0
        windows = max(1, int(DAY_S / self.spec.period_s))
        sensitivities = [int(bound) * self.spec.requests for bound in self._bounds]
        self._totals = RunningTotals(windows, sensitivities, self._rho, self._noise)

    def count(self, exchange: Exchange) -> None:
        usage, attempts = exchange.usage, exchange.attempts
        service_s = max(0.0, attempts[-1].ended_s - attempts[-1].begun_s) if attempts else 0.0
        self.window += np.minimum(
            self._bounds,
            (
                1,
                exchange.outcome in (Outcome.FAILED, Outcome.EXPIRED),
                0 if usage is None else usage.prompt_tokens,
                0 if usage is None else usage.completion_tokens,
                int(min(service_s, self.spec.max_service_s) * _PER_S),
            ),
        )

    def release(self, now_s: float) -> None:
        """Release the totals if a period has passed. They stay as they are once the day's budget is spent."""
        if int(now_s // self.spec.period_s) == self._slot:
            return
        self._slot = int(now_s // self.spec.period_s)
        if not self._totals.is_spent:
            self._latest = self._totals.add(self.window)
            self.window = np.zeros(5, np.int64)
            self._shown = np.maximum(self._shown, self._before + self._latest)
            self._epsilon = epsilon_of(self._totals.spent_rho, self.spec.delta)
        if int(now_s // DAY_S) != self._day:
            self._before, self._latest = self._before + self._latest, np.zeros(5, np.int64)
            self._begin(now_s)

    def figures(self) -> PrivateFigures:
        requests, failed, prompt, output, service = self._shown.tolist()
        return PrivateFigures(requests, failed, prompt, output, service / _PER_S, self._epsilon)


class PrivateTenants(Observer):
    """Counts the requests of private tenants. Call `tick` often; it releases when periods end.

    Raises MissingExtra if a tenant is private and OpenDP is missing.
    """

    def __init__(
        self,
        keys: Iterable[KeySpec],
        clock: Callable[[], float] = time.time,
        noise: Noise = gaussian_noise,
    ) -> None:
        """`clock`: seconds since 1970."""
        self._clock, self._noise = clock, noise
        self._counts: dict[str, _Counts] = {}
        self.declare(keys)

    def __bool__(self) -> bool:
        """Whether any tenant is private."""
        return bool(self._counts)

    def declare(self, keys: Iterable[KeySpec]) -> None:
        """Take over the settings of a configuration. A tenant that was private stays so."""
        for key in keys:
            known = self._counts.get(key.name)
            if key.privacy is not None and (known is None or known.spec != key.privacy):
                self._counts[key.name] = _Counts(key.privacy, self._clock(), self._noise)

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """An Observer method."""
        for exchange in exchanges:
            if exchange.tenant is not None and exchange.tenant.name in self._counts:
                self._counts[exchange.tenant.name].count(exchange)

    def tick(self) -> None:
        """Release what is due."""
        now_s = self._clock()
        for counts in self._counts.values():
            counts.release(now_s)

    def figures(self) -> Mapping[str, PrivateFigures]:
        """By tenant."""
        return {name: counts.figures() for name, counts in self._counts.items()}


def is_public(exchange: Exchange) -> bool:
    """Whether what is known of a request may leave the process."""
    return exchange.tenant is None or not exchange.tenant.is_private


class PublicOnly(Observer):
    """An observer that is told of public requests only."""

    def __init__(self, observer: Observer) -> None:
        self._calls = ObserverCalls.of((observer,))
        self.sees_inner = observer.sees_inner

    def arrived(self, exchange: Exchange) -> None:
        """An Observer method."""
        if is_public(exchange):
            for tell in self._calls.arrived:
                tell(exchange)

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        """An Observer method."""
        if is_public(exchange):
            for tell in self._calls.started:
                tell(exchange, attempt)

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        """An Observer method."""
        if is_public(exchange):
            for tell in self._calls.lost:
                tell(exchange, attempt)

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """An Observer method."""
        if public := list(filter(is_public, exchanges)):
            for tell in self._calls.ended:
                tell(public)
