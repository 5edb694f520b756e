"""Failure rates of tenants: by hand."""

import pytest

from trimtab.gateway.model import Tenant
from trimtab.gateway.nodes.tenant_holds import TenantFailures


def test_the_rate_leaves_out_the_node_in_question() -> None:
    failures, tenant = TenantFailures(), Tenant("a", 0)
    assert failures.failure_frac("a", 0) == pytest.approx(1 / 3)
    for node_idx, n in ((0, 5), (1, 2)):
        for _ in range(n):
            failures.failed(tenant, node_idx)
    failures.succeeded(tenant)
    assert failures.failure_frac("a", 0) == pytest.approx((2 + 0.5) / (1 + 2 + 1.5))
    assert failures.failure_frac("a", 1) == pytest.approx((5 + 0.5) / (1 + 5 + 1.5))
    assert failures.chance_of({"a": 2, "b": 1}, 0) == pytest.approx((2.5 / 4.5) ** 2 / 3)


def test_what_is_old_is_forgotten() -> None:
    failures, tenant = TenantFailures(), Tenant("a", 0)
    failures.failed(tenant, 1)
    failures.age()
    assert failures.failure_frac("a", 0) == pytest.approx((0.9 + 0.5) / (0.9 + 1.5))
    for _ in range(30):
        failures.age()
    assert failures.failure_frac("a", 0) == pytest.approx(1 / 3)
