"""Limits of a tenant: requests and tokens per minute, requests in flight, jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trimtab.gateway.config import TenantLimits
from trimtab.gateway.config.traffic import MIB
from trimtab.gateway.model import Attempt, Cause, Refusal, Usage
from trimtab.words import counted

BUSY_RETRY_S = 1.0  # Retry-After at the concurrency limit: the next end is unknown

_ROUNDING = 1e-9


class _Bucket:
    """A token bucket that holds one minute's amount, so that an idle tenant may use that at once."""

    __slots__ = ("at_s", "level", "per_minute", "per_s", "size")

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self.per_s = per_minute / 60.0
        self.size = max(1.0, per_minute)
        self.at_s = 0.0
        self.level = self.size

    def ask(self, now_s: float, amount: float) -> float:
        """Take `amount` if available and return 0; else take nothing and return the seconds to wait.

        An amount above the bucket's size waits for a full bucket.
        """
        level, size = self.level, self.size
        if now_s > self.at_s:
            level += (now_s - self.at_s) * self.per_s
            level = size if level > size else level  # `min` costs a call
            self.at_s = now_s
        if amount <= level:
            self.level = level - amount
            return 0.0
        lacking = (size if amount > size else amount) - level
        if lacking > _ROUNDING:
            self.level = level
            return lacking / self.per_s
        self.level = level - amount
        return 0.0

    def refill(self, now_s: float) -> None:
        """Add what came since the last look."""
        self.level, self.at_s = self.refilled(now_s), max(now_s, self.at_s)

    def refilled(self, now_s: float) -> float:
        """The rest of the limit by now."""
        return min(self.size, self.level + max(0.0, now_s - self.at_s) * self.per_s)

    def header_lines(self, now_s: float, what: bytes) -> bytes:
        """OpenAI's headers of a limit. `what`: requests or tokens."""
        level = self.refilled(now_s)
        reset = duration((self.size - level) / self.per_s).encode()
        return b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n" % (
            what,
            self.size,
            what,
            max(0.0, level),
            what,
            reset,
        )

    def take(self, amount: float) -> None:
        """Take `amount`, below zero if necessary. A negative amount is given back."""
        level = self.level - amount
        self.level = self.size if level > self.size else level


class _CountingBucket(_Bucket):
    """A bucket that also counts what was taken here, for other replicas."""

    __slots__ = ("taken",)

    def __init__(self, per_minute: float, taken: float) -> None:
        super().__init__(per_minute)
        self.taken = taken

    def ask(self, now_s: float, amount: float) -> float:
        wait_s = super().ask(now_s, amount)
        if not wait_s:
            self.taken += amount
        return wait_s

    def take(self, amount: float) -> None:
        super().take(amount)
        self.taken += amount


class Elsewhere(NamedTuple):
    """Use of a tenant's limits by other replicas since the last look, and their requests in flight."""

    requests: float = 0.0
    tokens: float = 0.0
    in_flight: int = 0  # running jobs included
    jobs: int = 0


class Taken(NamedTuple):
    """Use of a tenant's limits by this replica since its start, the rest, and the requests in flight."""

    requests: float
    tokens: float
    requests_left: float
    tokens_left: float
    in_flight: int
    jobs: int


class Limits:
    """The remaining limits of one tenant. Times are seconds of the loop's clock."""

    __slots__ = (
        "_elsewhere",
        "_given",
        "_is_shared",
        "_requests",
        "_tokens",
        "concurrency",  # that is left for this replica; None = no bound
        "in_flight",
        "jobs",
    )

    def __init__(self, limits: TenantLimits, *, is_shared: bool = False) -> None:
        """`is_shared`: count what is taken, for other replicas."""
        self.in_flight = 0  # admitted and not released, running jobs included
        self.jobs = 0  # running jobs
        self._given, self._is_shared, self._elsewhere = limits, is_shared, Elsewhere()
        self._requests: _Bucket | None = None
        self._tokens: _Bucket | None = None
        self._begin()

    def become(self, limits: TenantLimits) -> None:
        """Change the limits. Unchanged limits keep their state, and requests in flight stay counted."""
        if limits != self._given:
            self._given = limits
            self._begin()

    def _begin(self) -> None:
        self._requests = self._bucket(self._given.requests_per_minute, self._requests)
        self._tokens = self._bucket(self._given.tokens_per_minute, self._tokens)
        self._bound_concurrency()

    def _bucket(self, per_minute: float | None, before: _Bucket | None) -> _Bucket | None:
        if per_minute is None:
            return None
        return _CountingBucket(per_minute, _taken(before)) if self._is_shared else _Bucket(per_minute)

    def _bound_concurrency(self) -> None:
        most = self._given.concurrency
        self.concurrency = None if most is None else max(0, most - self._elsewhere.in_flight)

    # --- replicas

    @property
    def is_bounded(self) -> bool:
        """Whether there is anything to share."""
        return not (self._requests is None and self._tokens is None and self._given.concurrency is None)

    def taken(self, now_s: float) -> Taken:
        """The figures for other replicas."""
        requests, tokens = self._requests, self._tokens
        return Taken(
            requests=_taken(requests),
            tokens=_taken(tokens),
            requests_left=0.0 if requests is None else requests.refilled(now_s),
            tokens_left=0.0 if tokens is None else tokens.refilled(now_s),
            in_flight=self.in_flight,
            jobs=self.jobs,
        )

    def count_elsewhere(self, now_s: float, elsewhere: Elsewhere) -> None:
        """Count what other replicas did since the last call."""
        for bucket, amount in ((self._requests, elsewhere.requests), (self._tokens, elsewhere.tokens)):
            if bucket is not None:
                bucket.refill(now_s)
                _Bucket.take(bucket, amount)
        self._elsewhere = elsewhere
        self._bound_concurrency()

    def lower(self, now_s: float, requests_left: float, tokens_left: float, age_s: float) -> None:
        """Begin with no more than another replica had left `age_s` ago, and what came since."""
        for bucket, left in ((self._requests, requests_left), (self._tokens, tokens_left)):
            if bucket is not None:
                bucket.refill(now_s)
                bucket.level = min(bucket.level, left + age_s * bucket.per_s)

    # --- requests

    def admit(self, now_s: float, tokens: float = 0.0) -> Refusal | None:
        """Take a slot and the request's expected tokens, or take nothing and return a refusal.

        The caller calls `release` once at the end of an admitted request.
        """
        if self.concurrency is not None and self.in_flight >= self.concurrency:
            limit = f"{counted(self._given.concurrency or 0, 'request')} at a time"
            return _refusal("concurrency_limit", limit, BUSY_RETRY_S)
        requests, budget = self._requests, self._tokens
        if requests is not None and (wait_s := requests.ask(now_s, 1.0)):
            return _refusal("requests_limit", f"{counted(requests.per_minute, 'request')} per minute", wait_s)
        if budget is not None and (wait_s := budget.ask(now_s, tokens)):
            if requests is not None:
                requests.take(-1.0)
            return _refusal("tokens_limit", f"{counted(budget.per_minute, 'token')} per minute", wait_s)
        self.in_flight += 1
        return None

    def header_lines(self, now_s: float) -> bytes:
        """Header lines with limit, rest, and time until the limit is whole again; b"" = no such limit."""
        lines = b""
        if self._requests is not None:
            lines = self._requests.header_lines(now_s, b"requests")
        if self._tokens is not None:
            lines += self._tokens.header_lines(now_s, b"tokens")
        return lines

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens are limited. If not, they need not be estimated."""
        return self._tokens is not None

    def release(self) -> None:
        """End an admitted request."""
        self.in_flight -= 1

    def begin_job(self) -> None:
        """A job of this tenant runs: it counts as a request in flight."""
        self.in_flight += 1
        self.jobs += 1

    def end_job(self) -> None:
        """A job has stopped running."""
        self.in_flight -= 1
        self.jobs -= 1

    def max_jobs(self) -> int | None:
        """Unfinished jobs that the tenant may have now, beside its requests in flight; None = no bound."""
        most = self._given.max_jobs
        if self._given.concurrency is None:
            return most
        requests_elsewhere = self._elsewhere.in_flight - self._elsewhere.jobs
        left = self._given.concurrency - requests_elsewhere - (self.in_flight - self.jobs)
        return left if most is None else min(most, left)

    def max_job_bytes(self) -> int | None:
        """Bytes that the inputs and results of its jobs may take; None = no bound."""
        most_mib = self._given.max_jobs_mib
        return None if most_mib is None else int(most_mib * MIB)

    def correct(self, tokens_delta: float) -> None:
        """Count more tokens than expected, or fewer if negative."""
        if self._tokens is not None:
            self._tokens.take(tokens_delta)

    def settle(self, tokens: float, usage: Usage | None, attempts: Sequence[Attempt]) -> None:
        """End an admitted request, and count its used tokens instead of the expected ones."""
        self.release()
        if usage is not None:
            self.correct(usage.prompt_tokens + usage.completion_tokens - tokens)
        elif all(attempt.cause is Cause.CONNECT or not attempt.sent_s for attempt in attempts):
            self.correct(-tokens)


def duration(seconds: float) -> str:
    """A duration as OpenAI's headers have it, Go's form: 1h0m5s, 6m0s, 1.5s, 20ms; whole milliseconds."""
    milliseconds = math.ceil(seconds * 1e3 - _ROUNDING)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    rest = f"{rest_ms / 1e3:g}s"
    if not minutes:
        return rest
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}" if hours else f"{minutes}m{rest}"


def _taken(bucket: _Bucket | None) -> float:
    return bucket.taken if isinstance(bucket, _CountingBucket) else 0.0


def _refusal(code: str, limit: str, retry_after_s: float) -> Refusal:
    return Refusal(429, code, f"Rate limit reached: {limit}.", retry_after_s)
