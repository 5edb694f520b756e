"""Chains of a running gateway: run, waited for, listed, cancelled, limited, and resumed after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.gateway.served_gateway import OPEN, ServedGateway, serving, until
from support.served import WAIT_S, configure
from trimtab.errors import ConfigError
from trimtab.gateway.config import digest_of, parse_config
from trimtab.gateway.job_api import chain_workers

STAGES = """
import time
from pathlib import Path
from trimtab.chains import chain, stage

HERE = Path(__file__).parent

@stage
def words(text: str) -> list[str]:
    with open(HERE / "log", "a") as log:
        log.write(f"words {text}\\n")
    return text.split()

@stage
def upper(word: str) -> str:
    while word.startswith("wait") and not (HERE / "gate").exists():
        time.sleep(0.01)
    return word.upper()

@stage(retries=0)
def picture(word: str) -> bytes:
    return {"a": b"PNG a"}[word]

@chain
def shout(text: str):
    return upper.map(words(text))

@chain
def draw(word: str = "a"):
    return picture(word)
"""

LINES = """
name: lines
inputs: {text: str}
stages: {words: {run: some.words, args: {text: input.text}}}
output: words
"""


def config(folder: Path, **more: Any) -> dict[str, Any]:
    (folder / "some.py").write_text(STAGES)
    return {
        "store": {"url": f"sqlite:///{folder / 'store.db'}", "results_folder": str(folder / "results")},
        "insecure_no_auth": False,
        "keys": [
            {"name": "a", "sha256": digest_of(b"tt-a")},
            {"name": "b", "sha256": digest_of(b"tt-b")},
            {"name": "d", "sha256": digest_of(b"tt-d"), "limits": {"requests_per_minute": 2, "max_jobs": 1}},
        ],
        "admin": {"listen": "127.0.0.1:0", "keys": [{"sha256": digest_of(b"admin")}]},
        "chains": {
            "loud": {"file": "some.py:shout", "description": "louder", "max_inputs": 3},
            "draw": {"file": "some.py:draw", "content_type": "image/png"},
        },
        "chain_workers": {"count": "1..1"},
        **more,
    }


class Client:
    def __init__(self, gateway: ServedGateway, tenant: str = "a") -> None:
        self._gateway, self._headers = gateway, {"authorization": f"Bearer tt-{tenant}"}

    async def ask(self, method: str, path: str, wait_s: int = 0, **options: Any) -> tuple[int, Any, Any]:
        """Status, body and headers."""
        headers = self._headers | ({"prefer": f"wait={wait_s}"} if wait_s else {})
        url = f"{self._gateway.url}/v1/{path}"
        async with self._gateway.session.request(method, url, headers=headers, **options) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if is_json else answer.read()), answer.headers

    async def run(self, name: str, wait_s: int = 0, **asked: Any) -> tuple[int, Any, Any]:
        return await self.ask("POST", f"chains/{name}", wait_s, json=asked)

    async def ended(self, job_id: str) -> Any:
        async def is_over() -> Any:
            _, job, _ = await self.ask("GET", f"jobs/{job_id}")
            return job if job.get("status") not in ("queued", "dispatched") else None

        return await until(is_over, "the job ends")


@contextlib.asynccontextmanager
async def opened(folder: Path, **more: Any) -> AsyncIterator[tuple[ServedGateway, Client]]:
    async with serving(folder, config(folder, **more)) as gateway:
        yield gateway, Client(gateway)


async def runs_as_jobs_and_lists(gateway: ServedGateway, client: Client) -> None:
    status, listed, _ = await client.ask("GET", "chains")
    assert status == 200
    loud = next(one for one in listed["data"] if one["id"] == "loud")
    assert loud == {
        "id": "loud",
        "object": "chain",
        "description": "louder",
        "inputs": {"text": {"type": "str", "required": True}},
        "stages": ["words", "upper"],
        "max_inputs": 3,
    }
    status, job, headers = await client.run("loud", inputs=["a b", {"text": "c"}, ""])
    assert (status, job["kind"], job["model"]) == (202, "chain", "loud")
    assert headers["location"] == f"/v1/jobs/{job['id']}"
    assert (await client.ended(job["id"]))["status"] == "done"
    _, told, _ = await client.ask("GET", f"jobs/{job['id']}/result")
    assert [row["output"] for row in told["data"]] == [["A", "B"], ["C"], []]
    assert {row["status"] for row in told["data"]} == {"done"}

    status, picture, headers = await client.run("draw", 30, input={"word": "a"})
    assert (status, picture, headers["content-type"]) == (200, b"PNG a", "image/png")
    status, told, _ = await client.run("draw", 30, input="b")
    assert status == 502
    assert "KeyError" in told["error"]["message"]
    status, told, _ = await client.run("draw", 30, inputs=["a", "b"])
    assert status == 200
    assert told["data"][0]["output"] == {"base64": "UE5HIGE="}
    assert "picture[0] after 1 attempt: KeyError" in told["data"][1]["error"]

    admin = {"headers": {"authorization": "Bearer admin", "x-trimtab-admin": "1"}}
    async with gateway.session.get(f"{gateway.admin}/metrics", **admin) as answer:
        text = await answer.text()
    assert 'trimtab_stage_done_total{chain="loud",stage="upper"} 3.0' in text
    async with gateway.session.get(f"{gateway.admin}/admin/status", **admin) as answer:
        shown = await answer.json()
    assert shown["chains"]["loud"]["stages"]["words"]["done"] == 3

    async def is_counted() -> Any:
        async with gateway.session.get(f"{gateway.admin}/admin/usage", **admin) as answer:
            used = {row["model"]: row for row in (await answer.json())["usage"]}
        return used if "loud" in used and "draw" in used else None

    used = await until(is_counted, "usage is counted")
    assert used["loud"]["requests"] == 1
    assert used["loud"]["service_s"] > 0


async def refuses_wrong_requests_and_keeps_tenants_apart(gateway: ServedGateway, client: Client) -> None:
    for asked, told in (
        ({"input": {"txt": "a"}}, "input: not the chain's inputs"),
        ({"inputs": ["a", "b", {"word": 2}]}, "inputs[2]: not the chain's inputs"),
        ({"inputs": ["a", 1]}, "inputs[1]: a value of another type (got 1); expected str"),
        ({"inputs": []}, "a list of 1 to 3 inputs"),
        ({"inputs": ["a"] * 4}, "a list of 1 to 3 inputs"),
        ({"input": "a", "inputs": ["b"]}, "found both or none"),
        ({"input": "a", "priority": 3}, "found priority"),
        ({"input": "a", "deadline_s": 0}, "deadline_s: expected seconds above 0"),
    ):
        status, answer, _ = await client.run("loud", **asked)
        assert status == 400, answer
        assert told in answer["error"]["message"]
    assert (await client.run("none", input=1))[0] == 404
    assert (await client.ask("POST", "chains/loud", data=b"no json"))[0] == 400
    admin = {"headers": {"authorization": "Bearer admin", "x-trimtab-admin": "1"}}
    made = {"json": {"name": "c", "models": ["draw"]}}
    async with gateway.session.post(f"{gateway.admin}/admin/keys", **admin, **made) as answer:
        key = (await answer.json())["key"]
    restricted = Client(gateway, key.removeprefix("tt-"))
    _, listed, _ = await restricted.ask("GET", "chains")
    assert [one["id"] for one in listed["data"]] == ["draw"]
    assert (await restricted.run("loud", input="a"))[0] == 404
    limited = Client(gateway, "d")
    assert (await limited.run("loud", input="wait"))[0] == 202
    status, told, _ = await limited.run("loud", input="wait")
    assert (status, told["error"]["code"]) == (429, "too_many_jobs")
    status, told, headers = await limited.run("loud", input="wait")
    assert (status, "retry-after" in headers) == (429, True)
    assert told["error"]["code"] != "too_many_jobs"
    other = Client(gateway, "b")
    _, job, _ = await client.run("draw", input="a")
    assert (await other.ask("GET", f"jobs/{job['id']}"))[0] == 404


async def shows_progress_and_cancels(gateway: ServedGateway, client: Client) -> None:
    status, job, _ = await client.run("loud", 1, inputs=["a wait", "b"])
    assert status == 202  # the second waited for is over, the run is not

    async def runs() -> Any:
        _, now, _ = await client.ask("GET", f"jobs/{job['id']}")
        stages = now.get("progress", {}).get("stages", {})
        return now["progress"] if stages.get("upper", {}).get("running") == 1 else None

    progress = await until(runs, "it runs")
    assert progress["inputs"]["total"] == 2
    assert progress["stages"]["words"]["done"] >= 1  # of the input that runs; the policy goes depth first
    status, now, _ = await client.ask("POST", f"jobs/{job['id']}/cancel")
    assert (status, now["status"]) == (200, "cancelled")
    assert (await client.run("draw", 30, input="a"))[0] == 200  # the worker is free again


async def takes_over_chains_at_a_reload(gateway: ServedGateway, client: Client, folder: Path) -> None:
    status, job, _ = await client.run("loud", input="wait")
    assert status == 202

    async def has_begun() -> Any:
        return (await client.ask("GET", f"jobs/{job['id']}"))[1]["status"] == "dispatched"

    await until(has_begun, "it begins")
    text = STAGES.replace("return word.upper()", "return word.upper() + '!'")
    offered = {"quiet": {"file": "some.py:shout"}, "lines": {"file": "lines.yaml"}}
    (folder / "lines.yaml").write_text(LINES)

    async def reload(chains: dict[str, Any], code: str) -> tuple[int, Any]:
        configure(folder, OPEN | config(folder, chains=chains))
        (folder / "some.py").write_text(code)
        admin = {"headers": {"authorization": "Bearer admin", "x-trimtab-admin": "1"}}
        async with gateway.session.post(f"{gateway.admin}/admin/reload", **admin) as answer:
            return answer.status, await answer.json()

    status, told = await reload(offered, text + "\n1 / 0\n")
    assert status == 400
    assert "lines.yaml: stages.words.run: cannot be imported: ZeroDivisionError" in str(told)
    assert {one["id"] for one in (await client.ask("GET", "chains"))[1]["data"]} == {"loud", "draw"}
    status, told = await reload(offered, text)
    assert (status, told["needs_restart"]) == (200, [])
    assert "chains" in told["changed"]
    assert (await client.run("loud", input="a"))[0] == 404
    status, told, _ = await client.run("quiet", WAIT_S, input="a b")
    assert (status, told["data"][0]["output"]) == (200, ["A!", "B!"])
    status, told, _ = await client.run("lines", WAIT_S, input="a b")
    assert (status, told["data"][0]["output"]) == (200, ["a", "b"])
    assert await has_begun()  # it runs on, of a chain that is gone
    (folder / "gate").touch()
    assert (await client.ended(job["id"]))["status"] == "done"
    _, told, _ = await client.ask("GET", f"jobs/{job['id']}/result")
    assert told["data"][0]["output"] == ["WAIT"]
    (folder / "lines.yaml").write_text(LINES + "# another content\n")
    assert (await reload(offered, text))[1]["changed"] == ["chains"]


async def test_a_gateway_offers_chains(tmp_path: Path) -> None:
    """One gateway for all of it: each start costs seconds."""
    async with opened(tmp_path) as (gateway, client):
        await runs_as_jobs_and_lists(gateway, client)
        await shows_progress_and_cancels(gateway, client)
        await refuses_wrong_requests_and_keeps_tenants_apart(gateway, client)  # leaves a run that waits
        await takes_over_chains_at_a_reload(gateway, client, tmp_path)


@pytest.mark.faults
async def test_a_run_goes_on_after_the_gateway_was_killed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (gateway, client):
        _, job, _ = await client.run("loud", inputs=["a wait"])

        async def runs() -> Any:
            _, now, _ = await client.ask("GET", f"jobs/{job['id']}")
            return now.get("progress", {}).get("stages", {}).get("upper", {}).get("running")

        await until(runs, "it runs")
        await asyncio.sleep(0.3)  # until the result of `words` is in the journal
        gateway.signal(signal.SIGKILL)
        await gateway.ended()
    (tmp_path / "gate").touch()
    async with opened(tmp_path) as (_, client):
        assert (await client.ended(job["id"]))["status"] == "done"
        _, told, _ = await client.ask("GET", f"jobs/{job['id']}/result")
        assert told["data"][0]["output"] == ["A", "WAIT"]
    assert (tmp_path / "log").read_text() == "words a wait\n"


def test_short_stages_are_joined_as_the_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[dict[str, Any]] = []
    monkeypatch.setattr(chain_workers, "Session", lambda chains, **options: began.append(options))
    for text in ("{}", "{fuse_s: 0}"):
        store = f"store: {{results_folder: {tmp_path}}}"
        config = parse_config(f"insecure_no_auth: true\n{store}\nchain_workers: {text}")
        chain_workers.offered(config)
    assert [options["fuse_s"] for options in began] == [0.005, 0.0]


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"chains\.x\.file: .*a file that exists"):
        parse_config("insecure_no_auth: true\nchains: {x: {file: none.yaml}}")


def test_workers_are_a_number_or_a_range() -> None:
    for text, count in (("3", "3"), ("1..4", "1..4"), ("'2..2'", "2..2")):
        assert (
            parse_config(f"insecure_no_auth: true\nchain_workers: {{count: {text}}}").chain_workers.count
            == count
        )


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        ("count: 4..1", r"chain_workers\.count: .*a number, or LEAST\.\.MOST such as 1\.\.4"),
        ("count: -1", r"chain_workers\.count: .*a number, or LEAST\.\.MOST"),
        ("count: 2, season_s: 60", r"chain_workers: .*season_s needs a range of workers"),
        ("'on': in-process, count: 1..2, season_s: 60", r"season_s needs a range .*not in-process"),
        ("season_s: -1", r"chain_workers\.season_s"),
        ("fuse_s: -1", r"chain_workers\.fuse_s"),
    ],
)
def test_workers_that_cannot_be_are_refused(workers: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_config(f"insecure_no_auth: true\nchain_workers: {{{workers}}}")
