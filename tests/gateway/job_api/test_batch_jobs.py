"""Files and batches by OpenAI's official client against a running gateway."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

openai = pytest.importorskip("openai")

from support.gateway.served_gateway import CountingBackend, ServedGateway, node, serving, until  # noqa: E402
from trimtab.gateway.config import digest_of  # noqa: E402

CHAT = "/v1/chat/completions"


def line(custom_id: str, model: str = "m", url: str = CHAT, **more: Any) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": custom_id}], **more}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def config(folder: Path, backend: CountingBackend, **more: Any) -> dict[str, Any]:
    return {
        "nodes": [node(backend)],
        "store": {"url": f"sqlite:///{folder / 'store.db'}", "results_folder": str(folder / "results")},
        "insecure_no_auth": False,
        "keys": [{"name": name, "sha256": digest_of(f"tt-{name}".encode())} for name in ("a", "b")],
        "admin": {"listen": "127.0.0.1:0", "keys": [{"sha256": digest_of(b"admin")}]},
        **more,
    }


def client_of(gateway: ServedGateway, tenant: str = "a") -> Any:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=f"tt-{tenant}", max_retries=0)


@contextlib.asynccontextmanager
async def opened(folder: Path, **more: Any) -> AsyncIterator[tuple[CountingBackend, ServedGateway, Any]]:
    """A backend, a gateway, and the client of tenant a."""
    async with (
        CountingBackend() as backend,
        serving(folder, config(folder, backend, **more)) as gateway,
        client_of(gateway) as client,
    ):
        yield backend, gateway, client


async def created(client: Any, lines: list[str], **more: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", **more)


async def ended(client: Any, batch: Any) -> Any:
    async def is_over() -> Any:
        now = await client.batches.retrieve(batch.id)
        return now if now.status in ("completed", "failed", "cancelled") else None

    return await until(is_over, "the batch ends")


async def records(client: Any, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(text) for text in (await client.files.content(file_id)).text.splitlines()]


async def test_good_lines_run_and_broken_ones_are_named(tmp_path: Path) -> None:
    lines = [
        line("one"),
        "not json",
        line("two"),
        line("one"),
        line("three", url="/v1/embeddings"),
        line("four", stream=True),
        line("five", model="unknown"),
        "",
        line("six"),
    ]
    async with opened(tmp_path) as (backend, _, client):
        batch = await created(client, lines, metadata={"night": "1"})
        assert (batch.object, batch.metadata) == ("batch", {"night": "1"})
        batch = await ended(client, batch)
        assert batch.status == "completed"
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (8, 3, 5)
        good = await records(client, batch.output_file_id)
        bad = await records(client, batch.error_file_id)
        assert {one["custom_id"] for one in good} == {"one", "two", "six"}
        assert all(one["response"]["body"]["usage"]["prompt_tokens"] == 3 for one in good)
        said = sorted((one["error"] or one["response"]["body"]["error"])["message"] for one in bad)
        assert [text[:7] for text in said] == [f"line {n}:" for n in (2, 4, 5, 6, 7)]
        assert backend.served == 3
        assert [one.id for one in (await client.batches.list()).data] == [batch.id]
        purposes = {one.purpose for one in (await client.files.list()).data}
        assert purposes == {"batch", "batch_output"}


async def test_tenants_see_their_own_files_and_batches_only(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, gateway, mine), client_of(gateway, "b") as other:
        batch = await ended(mine, await created(mine, [line("one")]))
        for asked in (
            other.batches.retrieve(batch.id),
            other.batches.cancel(batch.id),
            other.files.retrieve(batch.input_file_id),
            other.files.content(batch.output_file_id),
            other.files.delete(batch.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                await asked
        assert (await other.files.list()).data == (await other.batches.list()).data == []
        with pytest.raises(openai.BadRequestError, match="input_file_id"):
            await other.batches.create(
                input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
            )
        assert (await mine.files.delete(batch.input_file_id)).deleted
        with pytest.raises(openai.NotFoundError):
            await mine.files.retrieve(batch.input_file_id)


async def test_bad_requests_are_refused_by_field(tmp_path: Path) -> None:
    small = {"batches": {"max_file_mib": 2, "max_lines": 2}}
    async with opened(tmp_path, **small) as (_, _, client):
        with pytest.raises(openai.BadRequestError, match="purpose: expected batch"):
            await client.files.create(file=("x", b"{}"), purpose="assistants")
        with pytest.raises(openai.BadRequestError, match="file: expected"):
            await client.files.create(file=("x", b""), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="file: expected at most 2097152"):
            await client.files.create(file=("x", b"x" * (3 << 20)), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="it has 3 lines; expected 1 to 2"):
            await created(client, [line("1"), line("2"), line("3")])
        file = await client.files.create(file=("x", line("1").encode()), purpose="batch")
        for field, value in (
            ("endpoint", "/v1/nothing"),
            ("completion_window", "1h"),
            ("input_file_id", "file-none"),
            ("metadata", {"a": 1}),
        ):
            asked = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
            with pytest.raises(openai.BadRequestError, match=f"{field}: expected"):
                await client.batches.create(**(asked | {field: value}))


async def test_a_long_file_arrives_whole(tmp_path: Path) -> None:
    """Longer than what bodies may take of the memory, so it comes by way of a file."""
    content = b"".join(line(str(n)).encode() + b"\n" for n in range(30_000))
    assert len(content) > 2 << 20
    async with opened(tmp_path) as (_, _, client):
        file = await client.files.create(file=("in.jsonl", content), purpose="batch")
        assert (file.bytes, file.filename) == (len(content), "in.jsonl")
        assert (await client.files.content(file.id)).content == content


async def test_limits_hold_and_a_cancelled_batch_gives_what_it_has(tmp_path: Path) -> None:
    limits = {"limits": {"requests_per_minute": 3}}
    async with opened(tmp_path, **limits) as (backend, _, client):
        batch = await created(client, [line(str(n)) for n in range(10)])

        async def has_three() -> bool:
            return (await client.batches.retrieve(batch.id)).request_counts.completed == 3

        await until(has_three, "three lines have run")
        assert backend.served == 3
        await client.batches.cancel(batch.id)
        batch = await ended(client, batch)
        assert batch.status == "cancelled"
        assert len(await records(client, batch.output_file_id)) == 3
        assert backend.served == 3


async def test_a_batch_survives_a_killed_gateway(tmp_path: Path) -> None:
    async with CountingBackend() as backend:
        made = config(tmp_path, backend, batches={"concurrency": 2})
        lines = [line("a"), line("b"), *(line(f"slow-{n}", model="slow") for n in range(3))]
        async with serving(tmp_path, made) as gateway, client_of(gateway) as client:
            batch = await created(client, lines)

            async def is_half_done() -> bool:
                return backend.served == 2 and backend.running == 2

            await until(is_half_done, "two lines have run, two are at the node")
            gateway.process.kill()
            await gateway.ended()
        backend.let_go.set()
        async with serving(tmp_path, made) as gateway, client_of(gateway) as client:
            batch = await ended(client, batch)
            assert batch.status == "completed"
            got = [one["custom_id"] for one in await records(client, batch.output_file_id)]
            assert sorted(got) == ["a", "b", "slow-0", "slow-1", "slow-2"]
            assert batch.request_counts.completed == 5
