"""What a client asks for, and the job that is made of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from trimtab.gateway.jobs.job import Job, State
from trimtab.gateway.model import Facts


@dataclass(frozen=True, slots=True)
class Order:
    """What a client asks for."""

    tenant: str
    model: str
    kind: str
    method: str
    target: str
    request_type: str
    facts: Facts
    shown: dict[str, str] = field(default_factory=dict)  # what its API shows again: seconds, size
    priority: int = 0
    only_node: str = ""  # the node that alone can run it; "" = any


def new_job(order: Order, place: str, created_s: float) -> Job:
    """A queued job that nobody has claimed; its files lie in `place`. `created_s`: seconds since 1970."""
    prefix = "video" if order.kind == "video" else "job"
    return Job(
        id=f"{prefix}_{secrets.token_hex(16)}",
        tenant=order.tenant,
        model=order.model,
        kind=order.kind,
        method=order.method,
        target=order.target,
        request_type=order.request_type,
        facts=order.facts,
        shown=order.shown,
        priority=order.priority,
        place=place,
        only_node=order.only_node,
        state=State.QUEUED,
        owner=None,
        attempt=0,
        node="",
        backend_job_id="",
        idempotent=False,
        cancel_requested=False,
        deleted=False,
        not_before_s=0.0,
        created_s=created_s,
        dispatched_s=None,
        ended_s=None,
        expires_s=None,
        error_code="",
        error="",
        result_file="",
        result_bytes=0,
        result_type="",
    )
