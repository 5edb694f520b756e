"""Everything trimtab raises on purpose.

    TrimtabError               base of them all; the command line prints it and exits with `exit_code`
    ├── UsageError             wrong input: says which file, field and value, and what was expected (exit 2)
    │   ├── ScenarioError      a scenario file or one of its parts
    │   ├── ConfigError        a gateway's configuration, or another file that it names
    │   ├── TraceError         a trace file: names the line where there is one
    │   ├── ChainError         stages that make no chain: a cycle, an edge to nowhere
    │   ├── PolicyNotFound     no such policy; names the nearest ones
    │   └── StoreNewer         the database was written by a newer version of trimtab
    ├── PolicyError            a policy raised or returned nonsense: names policy, request and time (exit 3)
    ├── KernelError            a `@kernel` does not compile: names its file and line (exit 3)
    ├── StoreUnavailable       the database is gone, too slow, full or read-only; the next call tries it again
    ├── ClusterLost            the cluster that ran a chain is gone; the run can be resumed (exit 1)
    ├── ApiRefused             an API server's refusal of a call, with its status and reason (exit 1)
    └── MissingExtra           a feature needs an optional dependency; names the extra to install (exit 2)

A request that cannot be served is no error: it ends as a value, see `trimtab.domain.requests`.
"""

from __future__ import annotations


class TrimtabError(Exception):
    """Base of all errors that trimtab raises on purpose."""

    exit_code = 1


class UsageError(TrimtabError):
    """Input that cannot be used; the message names file, field, value and what was expected."""

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        field: str | None = None,
        value: object = None,
        expected: str | None = None,
    ) -> None:
        self.problem, self.file, self.field, self.value, self.expected = problem, file, field, value, expected
        super().__init__(self._text())

    def _text(self) -> str:
        where = ": ".join(part for part in (self.file, self.field) if part)
        text = f"{where}: {self.problem}" if where else self.problem
        if self.value is not None:
            text += f" (got {self.value!r})"
        return f"{text}; expected {self.expected}" if self.expected else text


class ScenarioError(UsageError):
    """A scenario, or a part of one, that does not validate."""


class ConfigError(UsageError):
    """A gateway's configuration, or another file that it names, that does not validate."""


class TraceError(UsageError):
    """A trace file that cannot be read as requests."""


class ChainError(UsageError):
    """Stages that make no chain."""


class ProblemError(UsageError):
    """An optimisation problem, or a file of one, that can't be solved as it stands."""


class PolicyNotFound(UsageError):  # noqa: N818 - reads as the sentence it prints
    """No policy goes by this name."""


class PolicyError(TrimtabError):
    """A policy raised, or returned something that is no decision."""

    exit_code = 3


class KernelError(TrimtabError):
    """A function marked with `@kernel` that does not compile."""

    exit_code = 3


class ClusterLost(TrimtabError):  # noqa: N818 - reads as the sentence it prints
    """The cluster that ran stages is gone."""


class ApiRefused(TrimtabError):  # noqa: N818 - reads as the sentence it prints
    """An API server refused a call. `status` is that of HTTP, `reason` a word of the server's."""

    def __init__(self, status: int, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.status, self.reason = status, reason


class MissingExtra(UsageError):  # noqa: N818 - reads as the sentence it prints
    """A feature whose optional dependency is not installed."""


class StoreUnavailable(TrimtabError):  # noqa: N818 - reads as the sentence it prints
    """The database is gone, too slow, full or read-only; it is tried again at the next call."""


class StoreNewer(UsageError):  # noqa: N818 - reads as the sentence it prints
    """The database was written by a newer version of trimtab."""
