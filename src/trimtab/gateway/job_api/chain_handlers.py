"""The endpoints of chains: /v1/chains lists them, POST /v1/chains/NAME runs one as a job."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import orjson

from trimtab.chains.graph import Chain
from trimtab.errors import UsageError
from trimtab.gateway.api.endpoints import path_id
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.job_api.chain_runner import CHAIN_KIND, JSON_TYPE
from trimtab.gateway.job_api.chain_workers import ChainWorkers
from trimtab.gateway.job_api.job_handlers import JobRequest, RefusedError, guarded, json_answer, parameters_of
from trimtab.gateway.job_api.job_requests import charged
from trimtab.gateway.job_api.job_views import job_view
from trimtab.gateway.model import Facts, Refusal, Tenant
from trimtab.jobs import ACTIVE, Job, JobQueue, JobSpec, JobState

MOST_WAIT_S: Final = 300.0  # that a client may ask for
_WAIT: Final = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})", re.IGNORECASE)
_KEYS: Final = {"input", "inputs", "deadline_s"}
_LOOK_S: Final = 0.25  # between two looks at a job that a client waits for


class ChainsApi:
    """Answers requests for chains."""

    def __init__(self, workers: ChainWorkers, jobs: JobQueue) -> None:
        self._workers, self._jobs = workers, jobs

    async def answer(self, exchange: ProxiedExchange, body: bytes) -> LocalAnswer | Refusal:
        """Any request for these paths."""
        endpoint, tenant = exchange.endpoint, exchange.tenant
        assert endpoint is not None
        assert tenant is not None
        request = JobRequest(
            exchange.method, exchange.target.decode(), endpoint, tenant.name, priority=exchange.priority
        )
        name = path_id(endpoint, request.path)
        if not name:
            shown = [self._view(each) for each in self._workers.chains if _allows(tenant, each)]
            return json_answer(200, {"object": "list", "data": shown})
        if name not in self._workers.chains or not _allows(tenant, name):
            return Refusal(404, "no_such_chain", f"There is no chain `{name[:100]}`.")
        if exchange.method != "POST":
            return json_answer(200, self._view(name))
        if exchange.request.body.spooled:
            with exchange.request.body.file() as file:
                body = await asyncio.to_thread(file.read, exchange.request.body.size)
        wait_s = _wait_s(exchange.request.headers.get(b"prefer", b""))
        return await guarded(self._run(exchange, request, tenant, name, body, wait_s), request)

    async def _run(
        self,
        exchange: ProxiedExchange,
        request: JobRequest,
        tenant: Tenant,
        name: str,
        body: bytes,
        wait_s: float,
    ) -> LocalAnswer:
        self._check(name, _object(body))
        facts = Facts(name)
        if (refusal := charged(exchange, tenant, facts)) is not None:
            raise RefusedError(refusal.status, refusal.code, refusal.message, refusal.retry_after_s)
        spec = JobSpec(
            tenant=request.tenant,
            queue=name,
            kind=CHAIN_KIND,
            target=request.path,
            input_type=JSON_TYPE,
            parameters=parameters_of(facts),
            priority=request.priority,
        )
        job = await self._jobs.submit(spec, body)
        return await self._waited(job, wait_s)

    async def _waited(self, job: Job, wait_s: float) -> LocalAnswer:
        """The result, if it is there in this time, else the job."""
        loop = asyncio.get_running_loop()
        end_s, pause_s = loop.time() + wait_s, 0.02
        while job.state in ACTIVE and loop.time() < end_s:
            await asyncio.sleep(min(pause_s, max(0.0, end_s - loop.time())))
            pause_s = min(2.0 * pause_s, _LOOK_S)
            job = await self._jobs.find(job.id, job.tenant) or job
        where = ("location", f"/v1/jobs/{job.id}")
        if job.state in ACTIVE:
            return json_answer(202, job_view(job), where, ("retry-after", "1"))
        path = self._jobs.result_path(job) if job.state is JobState.DONE else None
        if path is None:
            raise RefusedError(502, job.error_code or f"job_{job.state.value}", job.error or job.state.value)
        safe = ("x-content-type-options", "nosniff")
        return LocalAnswer(200, (("content-type", job.result_type), safe, where), path)

    def _check(self, name: str, asked: dict[str, Any]) -> None:
        unknown = set(asked) - _KEYS
        if unknown or ("input" in asked) == ("inputs" in asked):
            found = f"found {', '.join(sorted(unknown))}" if unknown else "found both or none"
            raise RefusedError(
                400, "invalid_run", f"Expected `input` or `inputs`, and `deadline_s`; {found}."
            )
        deadline_s = asked.get("deadline_s", 1.0)
        if type(deadline_s) not in (int, float) or not deadline_s > 0:
            raise RefusedError(400, "invalid_deadline", "deadline_s: expected seconds above 0.")
        inputs = asked.get("inputs", [asked.get("input")])
        most = self._workers.entries[name].max_inputs
        if type(inputs) is not list or not 1 <= len(inputs) <= most:
            raise RefusedError(400, "invalid_inputs", f"inputs: expected a list of 1 to {most} inputs.")
        for k, given in enumerate(inputs):
            try:
                self._workers.checked(name, given, "input" if "input" in asked else f"inputs[{k}]")
            except UsageError as error:
                raise RefusedError(400, "invalid_input", str(error)) from None

    def _view(self, name: str) -> dict[str, Any]:
        entry, chain = self._workers.entries[name], self._workers.chains[name]
        return {
            "id": name,
            "object": "chain",
            "description": entry.description,
            "inputs": _inputs(chain),
            "stages": [step.name for step in chain.steps],
            "max_inputs": entry.max_inputs,
        }


def _inputs(chain: Chain) -> dict[str, Any]:
    return {
        name: {"type": getattr(kind, "__name__", str(kind)), "required": name not in chain.defaults}
        for name, kind in chain.inputs.items()
    }


def _allows(tenant: Tenant, name: str) -> bool:
    return tenant.rules is None or bool(tenant.rules.allows(name))


def _object(body: bytes) -> dict[str, Any]:
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        asked = None
    if type(asked) is not dict:
        raise RefusedError(400, "invalid_json", "The body is not a JSON object.")
    return asked


def _wait_s(prefer: bytes) -> float:
    """Seconds that a client waits, of a Prefer header (RFC 7240, section 4.3)."""
    found = _WAIT.search(prefer)
    return min(float(found[1]), MOST_WAIT_S) if found else 0.0
