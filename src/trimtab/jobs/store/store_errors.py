"""Errors of the store."""

from __future__ import annotations

from trimtab.errors import TrimtabError, UsageError


class StoreUnavailable(TrimtabError):  # noqa: N818 - reads as the sentence it prints
    """The database is gone, too slow, full or read-only; it is tried again at the next call."""


class StoreNewer(UsageError):  # noqa: N818 - reads as the sentence it prints
    """The database was written by a newer version of trimtab."""
