"""Tenants: whose key it is, what they may use, and what a reload leaves as it was."""

from __future__ import annotations

import gc
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import ConfigError
from trimtab.gateway.config import TenantLimits, digest_of, parse_config
from trimtab.gateway.tenancy.tenant_limits import Limits
from trimtab.gateway.tenancy.tenants import MOST_NAMED, Tenants, new_key

A, B = digest_of(b"key-a"), digest_of(b"key-b")


def tenants(text: str, **environ: str) -> Tenants:
    return Tenants(parse_config(text), environ)


def test_a_key_leads_to_its_tenant_and_no_other() -> None:
    found = tenants(
        f"keys: [{{name: a, sha256: [{A}, {digest_of(b'new')}], weight: 3}}, {{name: b, env: K}}]", K="kb"
    )
    a, b = found.by_key(b"key-a"), found.by_key(b"kb")
    assert a is not None
    assert b is not None
    assert (a.name, a.weight, a.idx, b.name, b.idx) == ("a", 3, 0, "b", 1)
    assert found.by_key(b"new") is a
    for wrong in (b"", b"key-A", A.encode(), bytes.fromhex(A), b"key-a "):
        assert found.by_key(wrong) is None


def test_flags_come_from_the_configuration() -> None:
    flags = "may_set_priority: true, may_name_tenant: true, background: true"
    tenant = tenants(f"keys: [{{name: a, sha256: {A}, {flags}}}]").by_key(b"key-a")
    assert tenant is not None
    assert tenant.may_set_priority
    assert tenant.may_name_tenant
    assert tenant.background


def test_without_keys_everybody_is_anonymous_only_where_that_was_asked_for() -> None:
    everybody = tenants(f"insecure_no_auth: true\nkeys: [{{name: a, sha256: {A}}}]")
    nobody = everybody.by_key(b"")
    assert nobody is not None
    assert nobody.name == "anonymous"
    assert everybody.by_key(b"EMPTY") is nobody
    assert everybody.by_key(b"key-a") is not nobody
    assert tenants("{}").by_key(b"") is None


def test_a_key_that_the_environment_lacks() -> None:
    with pytest.raises(ConfigError, match="environment variable K"):
        tenants("keys: [{name: a, env: K}]")
    with pytest.raises(ConfigError, match="environment variable K"):
        tenants("keys: [{name: a, env: K}]", K="")


def test_one_key_in_two_environment_variables() -> None:
    with pytest.raises(ConfigError, match="same key as 'a'") as caught:
        tenants("keys: [{name: a, env: K}, {name: b, env: L}]", K="hush", L="hush")
    assert "hush" not in str(caught.value)


def test_new_keys_are_fresh_and_their_digest_fits() -> None:
    (key, digest), (other, _) = new_key(), new_key()
    assert key != other
    assert re.fullmatch(r"tt-[A-Za-z0-9_-]{43}", key)
    found = tenants(f"keys: [{{name: a, sha256: '{digest}'}}]")
    assert found.by_key(key.encode()) is not None


def test_no_key_and_no_digest_is_kept_in_the_open() -> None:
    found = tenants("keys: [{name: a, env: K}]", K="hush-hush")
    reachable = gc.get_referents(found, *found, *(tenant.limits for tenant in found))
    assert b"hush-hush" not in repr((found, list(found), reachable)).encode()


def test_tenants_that_a_trusted_key_names() -> None:
    found = tenants(f"keys: [{{name: a, sha256: {A}}}]\nlimits: {{requests_per_minute: 1}}")
    assert found.named("a") is found.by_key(b"key-a")
    user = found.named("user-7")
    assert user is not None
    assert user is found.named("user-7")
    assert (user.idx, user.may_name_tenant) == (1, False)
    assert user.limits.admit(0.0) is None
    assert user.limits.admit(0.0) is not None  # limits of all tenants are its own
    for wrong in ("", "a b", "a\r\nx: y", "x" * 101, "-a", "ä"):
        assert found.named(wrong) is None


def test_named_tenants_are_bounded() -> None:
    found = tenants("{}")
    assert all(found.named(f"user-{k}") for k in range(MOST_NAMED))
    assert found.named("one-too-many") is None
    assert found.named("user-0") is not None
    assert len(found) == MOST_NAMED


def limits(**given: float | None) -> Limits:
    return Limits(TenantLimits.model_validate(given))


def test_requests_per_minute() -> None:
    some = limits(requests_per_minute=6)
    assert [some.admit(0.0) for _ in range(6)] == [None] * 6
    refusal = some.admit(0.0)
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (429, "requests_limit", 10.0)
    assert some.admit(9.9) is not None
    assert some.admit(10.0) is None
    assert some.in_flight == 7


def test_tokens_per_minute_are_corrected_afterwards() -> None:
    some = limits(tokens_per_minute=600)
    assert some.admit(0.0, 500) is None
    refusal = some.admit(0.0, 200)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("tokens_limit", pytest.approx(10))
    some.correct(-300)  # it used 200, not 500
    assert some.admit(0.0, 400) is None
    some.correct(600)  # it used 1000: in debt
    refusal = some.admit(0.0, 1)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(60.1)


def test_what_is_more_than_a_minute_allows_waits_for_a_full_bucket_and_leaves_a_debt() -> None:
    some = limits(tokens_per_minute=60)
    assert some.admit(0.0, 90) is None
    refusal = some.admit(0.0, 90)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(90)
    assert some.admit(90.0, 90) is None


def test_nothing_is_taken_from_who_is_refused() -> None:
    some = limits(requests_per_minute=60, tokens_per_minute=60, concurrency=5)
    assert some.admit(0.0, 60) is None
    assert all(some.admit(0.0, 10) is not None for _ in range(100))
    assert all(some.admit(60.0, 1) is None for _ in range(4))
    assert some.in_flight == 5


def test_concurrency() -> None:
    some = limits(concurrency=2)
    assert some.admit(0.0) is None
    assert some.admit(0.0) is None
    refusal = some.admit(0.0)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (429, "concurrency_limit")
    assert refusal.retry_after_s > 0
    some.release()
    assert some.admit(0.0) is None


def test_no_limits_no_refusals() -> None:
    some = limits()
    assert all(some.admit(0.0, 1e9) is None for _ in range(1000))


@given(
    st.integers(1, 30),
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 200)), min_size=1, max_size=60),
)
def test_over_any_span_no_more_than_a_bucket_and_its_refill(
    rate: int, arrivals: list[tuple[float, int]]
) -> None:
    some, now_s, admitted = limits(tokens_per_minute=rate), 0.0, 0
    for gap_s, tokens in arrivals:
        now_s += gap_s
        if some.admit(now_s, float(min(tokens, rate))) is None:
            admitted += min(tokens, rate)
    assert admitted <= rate * (1 + now_s / 60) + 1e-6


def test_a_reload_keeps_who_stays_as_they_are() -> None:
    first = f"{{name: a, sha256: {A}, limits: {{requests_per_minute: 1}}}}"
    found = tenants(f"keys: [{first}]")
    a = found.by_key(b"key-a")
    assert a is not None
    assert a.limits.admit(0.0) is None
    same_limits = a.limits
    found.update(
        parse_config(
            f"keys: [{{name: b, sha256: {B}}}, {{name: a, sha256: {A}, limits: {{requests_per_minute: 1}}}}]"
        )
    )
    assert found.by_key(b"key-a") is a
    assert a.limits is same_limits
    assert a.limits.admit(0.0) is not None
    b = found.by_key(b"key-b")
    assert b is not None
    assert (a.idx, b.idx) == (0, 1)
    found.update(parse_config(f"keys: [{{name: a, sha256: {B}, limits: {{requests_per_minute: 5}}}}]"))
    assert found.by_key(b"key-a") is None
    assert found.by_key(b"key-b") is a
    assert a.limits is same_limits  # who was admitted before releases what counts now
    assert a.limits.in_flight == 1
    assert [a.limits.admit(0.0) for _ in range(5)] == [None] * 5
    assert a.limits.admit(0.0) is not None


def test_a_reload_that_is_refused_changes_nothing() -> None:
    found = tenants(f"keys: [{{name: a, sha256: {A}}}]")
    a = found.by_key(b"key-a")
    with pytest.raises(ConfigError):
        found.update(parse_config("keys: [{name: b, env: NOT_THERE}]"), {})
    assert found.by_key(b"key-a") is a
    assert len(found) == 1


def test_who_loses_the_keys_loses_the_rights() -> None:
    found = tenants(f"keys: [{{name: a, sha256: {A}, may_name_tenant: true}}]")
    a = found.by_key(b"key-a")
    found.update(parse_config("insecure_no_auth: true"), {})
    assert a is not None
    assert not a.may_name_tenant
    assert found.by_key(b"key-a") is not a


def test_running_jobs_count_as_requests_and_requests_leave_less_room_for_jobs() -> None:
    bounded = limits(concurrency=3, max_jobs=10)
    assert bounded.max_jobs() == 3
    assert bounded.admit(0.0) is None
    assert bounded.max_jobs() == 2
    bounded.begin_job()
    assert bounded.max_jobs() == 2  # the store counts it
    bounded.begin_job()
    refusal = bounded.admit(0.0)
    assert refusal is not None
    assert refusal.code == "concurrency_limit"
    bounded.end_job()
    assert bounded.admit(0.0) is None
    assert limits(max_jobs=7).max_jobs() == 7
    assert limits(max_jobs=None).max_jobs() is None
    assert limits(max_jobs_mib=1.5).max_job_bytes() == 1_572_864
    assert limits(max_jobs_mib=None).max_job_bytes() is None
