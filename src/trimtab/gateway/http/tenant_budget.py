"""How many retries or hedges each tenant may make: a fraction of its own requests."""

from __future__ import annotations


class TenantBudget:
    """A token bucket for each tenant, so that one tenant's failures leave the others their retries.

    A tenant's unused tokens are saved, `most` over all tenants, so that the requests of a full node that
    fails can all be retried. A tenant without tokens borrows from a common reserve, at most as much as it
    leaves there: the only borrower gets half (`at_first`), the next one half of the rest. What they earn
    next pays that back.

    *Source*: the bound on what is borrowed is the dynamic threshold of A. K. Choudhury, E. L. Hahne, "Dynamic
    queue length thresholds for shared-memory packet switches", IEEE/ACM Trans. Networking 6(2), 1998.
    """

    __slots__ = ("_balances", "_frac", "_lent", "_most", "_reserve")

    def __init__(self, frac: float, most: float = 1000.0, at_first: float = 100.0) -> None:
        self._frac, self._most, self._reserve = frac, most, 2.0 * min(most, at_first)
        self._balances: dict[str, float] = {}  # by tenant; negative = borrowed
        self._lent = 0.0

    def become(self, frac: float) -> None:
        """Change the fraction. A different fraction resets the saved tokens."""
        if frac != self._frac:
            self._frac, self._lent = frac, 0.0
            self._balances.clear()

    def has_one(self, tenant: str) -> bool:
        """Whether `take` would return True."""
        before = self._balances.get(tenant, 0.0)
        if before >= 1.0 or self._frac <= 0.0:
            return before >= 1.0
        borrowed = 1.0 - before
        return borrowed <= self._reserve - (self._lent + borrowed - _debt(before))

    def earn(self, tenant: str) -> None:
        """Count a request that arrived."""
        balances = self._balances
        before = balances.get(tenant, 0.0)
        most = max(1.0, self._most / (len(balances) or 1))
        self._set(tenant, before, min(before + self._frac, most))

    def take(self, tenant: str) -> bool:
        """Take one of the tenant's tokens. Returns False if there is none."""
        if not self.has_one(tenant):
            return False
        before = self._balances.get(tenant, 0.0)
        self._set(tenant, before, before - 1.0)
        return True

    def _set(self, tenant: str, before: float, after: float) -> None:
        self._balances[tenant] = after
        if before < 0.0 or after < 0.0:
            self._lent += _debt(after) - _debt(before)


def _debt(balance: float) -> float:
    return max(0.0, -balance)
