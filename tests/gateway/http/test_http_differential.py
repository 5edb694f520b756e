"""The data plane against a slow one written with aiohttp: the same answers to the same exchanges."""

from __future__ import annotations

import asyncio
import random

import aiohttp
from aiohttp import web

from support.gateway.plane import answers, gateway, one_of

MATTERS = ("content-type", "x-custom", "retry-after", "location", "set-cookie")


def response(rng: random.Random) -> bytes:
    """Some response of a backend."""
    status = rng.choice([200, 200, 200, 201, 204, 304, 302, 400, 404, 422])
    body = rng.randbytes(rng.choice([0, 1, 17, 1_000, 70_000]))
    lines = [b"HTTP/1.1 %d Some Reason" % status, b"content-type: application/octet-stream"]
    if rng.random() < 0.3:
        lines.append(b"X-Custom: %d" % rng.randrange(99))
    if rng.random() < 0.2:
        lines += [b"set-cookie: a=1", b"set-cookie: b=2"]
    if status == 302:
        lines.append(b"location: /elsewhere")
    if status in (204, 304):
        return b"\r\n".join(lines) + b"\r\n\r\n"
    if rng.random() < 0.5:
        return b"\r\n".join([*lines, b"content-length: %d" % len(body)]) + b"\r\n\r\n" + body
    cuts = [*sorted(rng.randrange(len(body) + 1) for _ in range(3)), len(body)]
    pieces = [body[a:b] for a, b in zip([0, *cuts], cuts, strict=False) if b > a]
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    return b"\r\n".join([*lines, b"transfer-encoding: chunked"]) + b"\r\n\r\n" + chunked


def slow_plane(upstream: str, session: aiohttp.ClientSession) -> web.Application:
    """The reference: reads everything, sends everything."""

    async def relay(request: web.Request) -> web.Response:
        body = await request.read()
        async with session.request(
            request.method, upstream + request.path_qs, data=body, allow_redirects=False
        ) as got:
            kept = [(name, value) for name, value in got.headers.items() if name.lower() in MATTERS]
            return web.Response(status=got.status, body=await got.read(), headers=kept)

    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", relay)
    return app


Seen = tuple[int, list[tuple[str, str]], bytes]


async def ask(session: aiohttp.ClientSession, url: str, method: str, body: bytes) -> Seen:
    headers = {"authorization": "Bearer k", "content-type": "application/json"}
    async with session.request(method, url, data=body, headers=headers, allow_redirects=False) as got:
        named = [(name.lower(), value) for name, value in got.headers.items() if name.lower() in MATTERS]
        return got.status, sorted(named), await got.read()


async def test_both_planes_answer_alike() -> None:
    rng = random.Random(4)

    async def one(session: aiohttp.ClientSession) -> None:
        said = response(rng)
        got: list[tuple[bytes, bytes]] = []
        backend = await asyncio.start_server(one_of(answers(said, got)), "127.0.0.1", 0)
        port = backend.sockets[0].getsockname()[1]
        runner = web.AppRunner(slow_plane(f"http://127.0.0.1:{port}", session))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        reference = runner.addresses[0][1]
        content = rng.choice([b"x", b"\xc3\xa9" * 500, b"y" * 90_000])
        body = b'{"model":"m","input":"' + content + b'"}'
        async with gateway(ports=(port,)) as g:
            seen = []
            for at in (reference, g.port):
                async with aiohttp.ClientSession() as client:
                    url = f"http://127.0.0.1:{at}/v1/embeddings?q=%20a"
                    seen.append(await ask(client, url, "POST", body))
            assert seen[0] == seen[1], said[:300]
        assert got[0][1] == got[1][1] == body
        assert got[0][0].split(b"\r\n")[0] == got[1][0].split(b"\r\n")[0]
        await runner.cleanup()
        backend.close()

    async with aiohttp.ClientSession() as session:
        for _ in range(25):
            await one(session)
    await asyncio.sleep(0.05)
