"""A job as the dispatcher sees it: an exchange without a client."""

from __future__ import annotations

import asyncio

from trimtab.gateway.job_api.job_handlers import METHOD, facts_of
from trimtab.gateway.model import Attempt, Endpoint, Exchange, Node, Refusal, Tenant
from trimtab.jobs import Job


class JobExchange(Exchange):
    """`decided` waits for the dispatcher's decision; the runner sends the request."""

    __slots__ = ("_decision",)

    def __init__(self, job: Job, endpoint: Endpoint, tenant: Tenant) -> None:
        super().__init__()
        self.id = job.id
        path = job.target.partition("?")[0]
        self.method, self.path, self.target = METHOD, path, job.target.encode("latin-1")
        self.endpoint, self.tenant, self.facts = endpoint, tenant, facts_of(job)
        self.priority, self.background = job.priority, tenant.background
        self.session, self.only_node = self.facts.session, job.only_worker
        self.arrived_s = asyncio.get_running_loop().time()
        self._decision: asyncio.Future[Node | Refusal] = asyncio.get_running_loop().create_future()

    def start(self, node: Node) -> None:
        """Send it to this node."""
        now_s = asyncio.get_running_loop().time()
        self.started_s = self.started_s or now_s
        self.attempts.append(Attempt(node, now_s))
        self._decide(node)

    def refuse(self, refusal: Refusal) -> None:
        """End the job: no node takes it."""
        self.refusal = refusal
        self._decide(refusal)

    def count_begin(self) -> None:
        """Count it as a request in flight of its tenant, whose bound it was accepted under."""
        if self.tenant is not None and self.tenant.limits is not None:
            self.tenant.limits.begin_job()

    def count_end(self) -> None:
        """Count the end of a running job."""
        if self.tenant is not None and self.tenant.limits is not None:
            self.tenant.limits.end_job()

    async def decided(self) -> Node | Refusal:
        """The next decision of the dispatcher."""
        decision = await self._decision
        self._decision = asyncio.get_running_loop().create_future()
        return decision

    def _decide(self, decision: Node | Refusal) -> None:
        if not self._decision.done():
            self._decision.set_result(decision)
