"""Downloads against a small HTTP server on the loopback interface, which can be told to misbehave."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trimtab.errors import TraceError
from trimtab.traces.download import download, fetch
from trimtab.traces.public_traces import CATALOGUE, PublicTrace, public_trace
from trimtab.traces.read import FORMAT_NAMES

OLD, NEW = (bytes([k]) * 700_000 for k in (1, 2))


@dataclass
class Behaviour:
    """What the server does, and what it was asked."""

    body: bytes = OLD
    etag: str | None = '"1"'
    knows_ranges: bool = True
    cut_after_bytes: int | None = None  # closes the connection there
    status: int | None = None
    content_range: str | None = None  # a false answer
    ranges_asked: list[str | None] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.behaviour.ranges_asked.append(asked)
        assert self.headers["Accept-Encoding"] == "identity"
        if self.behaviour.status:
            self.send_error(self.behaviour.status)
        elif asked and self.behaviour.knows_ranges and self.headers["If-Range"] == self.behaviour.etag:
            self._rest(int(re.fullmatch(r"bytes=(\d+)-", asked)[1]))  # type: ignore[index]
        else:
            self._send(200, self.behaviour.body)

    def _rest(self, start: int) -> None:
        total = len(self.behaviour.body)
        if start >= total:
            self.send_error(416)
        else:
            given = self.behaviour.content_range or f"bytes {start}-{total - 1}/{total}"
            self._send(206, self.behaviour.body[start:], given)

    def _send(self, status: int, body: bytes, content_range: str | None = None) -> None:
        self.send_response(status)
        headers = {
            "Content-Length": str(len(body)),
            "ETag": self.behaviour.etag,
            "Content-Range": content_range,
        }
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: self.behaviour.cut_after_bytes])

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Site:
    behaviour: Behaviour
    url: str
    folder: Path

    def trace(self, sha256: str | None = None) -> PublicTrace:
        return PublicTrace("t", f"{self.url}/t.csv", sha256, "mooncake", "none", "nobody")

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def interrupt(self, after_bytes: int = 300_000) -> None:
        """One attempt that is cut off."""
        self.behaviour.cut_after_bytes = after_bytes
        with pytest.raises(TraceError, match="run it again to resume"):
            fetch(self.trace(), self.folder)
        self.behaviour.cut_after_bytes = None


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    behaviour = Behaviour()
    handler = type("BoundHandler", (Handler,), {"behaviour": behaviour})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Site(behaviour, f"http://127.0.0.1:{server.server_port}", tmp_path / "traces")
        server.shutdown()
        thread.join()


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def test_a_file_of_known_checksum(site: Site) -> None:
    calls: list[tuple[int, int]] = []
    done = fetch(site.trace(sha256(OLD)), site.folder, lambda *call: calls.append(call))
    assert (done.path.read_bytes(), done.sha256, done.is_verified) == (OLD, sha256(OLD), True)
    assert calls[-1] == (len(OLD), len(OLD))
    assert site.files() == {"t.csv"}


def test_what_is_there_is_not_fetched_again_unless_it_is_damaged(site: Site) -> None:
    for _ in range(2):
        path = fetch(site.trace(sha256(OLD)), site.folder).path
    assert len(site.behaviour.ranges_asked) == 1
    path.write_bytes(b"damaged")
    assert fetch(site.trace(sha256(OLD)), site.folder).path.read_bytes() == OLD


def test_an_unknown_checksum_is_recorded_on_first_use_and_holds_from_then_on(site: Site) -> None:
    first = fetch(site.trace(), site.folder)
    assert (first.sha256, first.is_verified) == (sha256(OLD), False)
    assert site.files() == {"t.csv", "t.csv.sha256"}
    assert fetch(site.trace(), site.folder).is_verified
    first.path.unlink()
    site.behaviour.body = NEW
    with pytest.raises(TraceError, match="another checksum"):
        fetch(site.trace(), site.folder)


def test_interrupted_then_resumed(site: Site) -> None:
    site.interrupt()
    begun_bytes = (site.folder / "t.csv.part").stat().st_size
    assert 0 < begun_bytes <= 300_000
    assert site.files() == {"t.csv.part", "t.csv.part.version"}
    assert fetch(site.trace(sha256(OLD)), site.folder).path.read_bytes() == OLD
    assert site.behaviour.ranges_asked == [None, f"bytes={begun_bytes}-"]
    assert site.files() == {"t.csv"}


def test_interrupted_twice(site: Site) -> None:
    site.interrupt()
    site.interrupt()
    assert fetch(site.trace(sha256(OLD)), site.folder).path.read_bytes() == OLD


def test_a_server_without_ranges_sends_all_of_it(site: Site) -> None:
    site.behaviour.knows_ranges = False
    site.interrupt()
    assert fetch(site.trace(sha256(OLD)), site.folder).path.read_bytes() == OLD


def test_a_file_that_changed_meanwhile_is_begun_anew(site: Site) -> None:
    site.interrupt()
    site.behaviour.body, site.behaviour.etag = NEW, '"2"'
    assert fetch(site.trace(sha256(NEW)), site.folder).path.read_bytes() == NEW


@pytest.mark.parametrize("etag", [None, 'W/"1"'])
def test_without_a_strong_tag_nothing_is_resumed(site: Site, etag: str | None) -> None:
    site.behaviour.etag = etag
    site.interrupt()
    assert fetch(site.trace(sha256(OLD)), site.folder).path.read_bytes() == OLD
    assert site.behaviour.ranges_asked == [None, None]


@pytest.mark.parametrize("wrong", ["bytes 0-699999/700000", "nonsense", None])
def test_a_part_that_was_not_asked_for_is_thrown_away(site: Site, wrong: str | None) -> None:
    site.interrupt()
    if wrong is None:
        site.behaviour.body = OLD[:1000]  # shorter than what had come: 416
    else:
        site.behaviour.content_range = wrong
    with pytest.raises(TraceError, match="run it again"):
        fetch(site.trace(), site.folder)
    site.behaviour.content_range, site.behaviour.body = None, OLD
    assert fetch(site.trace(sha256(OLD)), site.folder).path.read_bytes() == OLD


def test_a_wrong_checksum_leaves_nothing(site: Site) -> None:
    with pytest.raises(TraceError, match="another checksum"):
        fetch(site.trace(sha256(NEW)), site.folder)
    assert site.files() == set()


def test_a_host_that_is_out_of_reach_is_named(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/t.csv"
        with pytest.raises(TraceError, match=r"can't reach 127\.0\.0\.1; expected"):
            fetch(PublicTrace("t", url, None, "mooncake", "none", "nobody"), tmp_path)


def test_the_file_is_as_readable_as_any_other(site: Site, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    path = fetch(site.trace(), site.folder).path
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("status", [404, 403, 500])
def test_a_refusal_names_address_and_status(site: Site, status: int) -> None:
    site.behaviour.status = status
    with pytest.raises(TraceError, match=rf"/t\.csv: the server refused \(got {status}\)"):
        fetch(site.trace(), site.folder)
    assert site.files() == set()


def test_no_server(tmp_path: Path) -> None:
    nobody = PublicTrace("t", "http://127.0.0.1:9/t.csv", None, "mooncake", "none", "nobody")
    with pytest.raises(TraceError, match=r"127\.0\.0\.1:9"):
        fetch(nobody, tmp_path)


def test_a_folder_that_cannot_be(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot be written"):
        fetch(site.trace(), tmp_path / "file")


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(TraceError, match="azure-llm-2023-conv"):
        download("azure-llm-conv")


def test_the_catalogue_is_whole() -> None:
    assert len({trace.name for trace in CATALOGUE}) == len(CATALOGUE) == 5
    for trace in CATALOGUE:
        assert public_trace(trace.name) is trace
        assert trace.format in FORMAT_NAMES
        assert re.fullmatch(
            r"https://raw\.githubusercontent\.com/[\w./-]+/[0-9a-f]{12,40}/[\w./-]+", trace.url
        )
        assert trace.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", trace.sha256)
