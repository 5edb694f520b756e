"""Downloads of public traces: resumable and checked. Only a complete, correct file gets its final name.

pooch checks the checksum and moves the finished file into place. What it cannot do, going on with an
interrupted download, is `ResumableDownloader`. Until file F is complete, `F.part` holds what has come so far
and `F.part.version` the server's entity tag of it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NoReturn
from urllib.parse import urlsplit

import pooch
import requests
from urllib3.exceptions import MaxRetryError

from trimtab.errors import TraceError
from trimtab.traces.public_traces import PublicTrace, public_trace
from trimtab.traces.source import Progress

CHUNK_BYTES: Final = 1 << 18
TIMEOUT_S: Final = (10.0, 60.0)  # to connect, between two packets

# pooch announces each download on stderr, across a progress bar.
pooch.get_logger().setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A file that is complete; `is_verified` tells whether its checksum was known beforehand."""

    path: Path
    sha256: str
    is_verified: bool


def download(name: str, folder: str | Path | None = None, progress: Progress | None = None) -> Downloaded:
    """Download a trace of the catalogue, unless it is there already; see `fetch`."""
    return fetch(public_trace(name), folder, progress)


def fetch(
    trace: PublicTrace, folder: str | Path | None = None, progress: Progress | None = None
) -> Downloaded:
    """Download a published file, going on where an earlier attempt was interrupted.

    Where the checksum is not known beforehand, that of the first download is recorded beside the file as
    `<file>.sha256` and checked from then on.

    Args:
        trace: what to fetch.
        folder: where to; by default the user's cache folder.
        progress: called with (bytes done, bytes in all); 0 in all where the server does not tell.

    Raises:
        TraceError: the server cannot be reached or has no such file, the download was interrupted (calling
            again resumes it), the checksum is wrong (nothing is kept), or the folder cannot be written to.
    """
    target = (Path(folder) if folder is not None else default_folder()) / trace.file_name
    record = target.with_name(f"{target.name}.sha256")
    try:
        known = trace.sha256 or _recorded(record)
        _retrieve(trace, target, known, progress)
        sha256 = pooch.file_hash(str(target))
        if known is None:
            record.write_text(f"{sha256}  {target.name}\n")
    except requests.RequestException as error:
        raise _not_fetched(trace.url, error) from error
    except OSError as error:
        raise TraceError(f"cannot be written: {error.strerror or error}", file=str(target)) from error
    return Downloaded(target, sha256, known is not None)


def default_folder() -> Path:
    """Where downloads go unless told otherwise: in the user's cache folder."""
    return Path(pooch.os_cache("trimtab")) / "traces"


def _retrieve(trace: PublicTrace, target: Path, known: str | None, progress: Progress | None) -> None:
    downloader = ResumableDownloader(target.with_name(f"{target.name}.part"), progress)
    try:
        pooch.retrieve(trace.url, known, fname=target.name, path=target.parent, downloader=downloader)
    except ValueError as error:  # pooch's sign of a checksum that differs
        raise TraceError(
            "the downloaded file has another checksum", file=trace.url, expected=f"SHA-256 {known}"
        ) from error


def _recorded(record: Path) -> str | None:
    return record.read_text().split()[0] if record.exists() else None


def _not_fetched(url: str, error: requests.RequestException) -> TraceError:
    # urllib3 wraps only what goes wrong before there is a connection.
    if isinstance(next(iter(error.args), None), MaxRetryError):
        expected = "a connection to it, or the file fetched by other means"
        return TraceError(f"can't reach {urlsplit(url).hostname}", file=url, expected=expected)
    return TraceError(f"download interrupted ({error}); run it again to resume", file=url)


class ResumableDownloader:
    """A downloader for pooch that keeps what has come in `part` and asks the server only for the rest.

    The rest is asked for under the condition that the file is still the one that was begun (RFC 9110 §13.1.5,
    `If-Range` with a strong entity tag). A server that knows no ranges, or has a new file, sends all of it.
    """

    def __init__(self, part: Path, progress: Progress | None = None) -> None:
        self.part, self.progress = part, progress or (lambda done, total: None)
        self.version = part.with_name(f"{part.name}.version")

    def __call__(self, url: str, output_file: str, _: object, check_only: bool = False) -> None:
        """Download `url` to `output_file`; signature of pooch's downloaders."""
        with requests.get(url, headers=self._headers(), stream=True, timeout=TIMEOUT_S) as response:
            self._refuse_status(url, response)
            total_bytes = self._receive(response)
        if total_bytes and self.part.stat().st_size != total_bytes:
            raise requests.ConnectionError(f"{self.part.stat().st_size} of {total_bytes} bytes came")
        self.part.replace(output_file)
        self.version.unlink(missing_ok=True)

    def _headers(self) -> dict[str, str]:
        # A compressed answer has other bytes, and other tags, than the file: ranges would not fit together.
        headers = {"Accept-Encoding": "identity"}
        if self.part.exists() and self.version.exists():
            headers |= {"Range": f"bytes={self.part.stat().st_size}-", "If-Range": self.version.read_text()}
        return headers

    def _refuse_status(self, url: str, response: requests.Response) -> None:
        if response.status_code in (requests.codes.ok, requests.codes.partial_content):
            return
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            self._begin_anew("the file is shorter than what had come")
        raise TraceError("the server refused", file=url, value=response.status_code, expected="status 200")

    def _receive(self, response: requests.Response) -> int:
        """Write what comes to the part file; the size of the whole file, 0 if the server does not tell."""
        begun_bytes = (
            self.part.stat().st_size if response.status_code == requests.codes.partial_content else 0
        )
        total_bytes = self._continued(response, begun_bytes) if begun_bytes else self._begun(response)
        with self.part.open("ab" if begun_bytes else "wb") as part:
            self._write(response, part, begun_bytes, total_bytes)
        return total_bytes

    def _write(self, response: requests.Response, part: IO[Any], done_bytes: int, total_bytes: int) -> None:
        for chunk in response.iter_content(CHUNK_BYTES):
            part.write(chunk)
            done_bytes += len(chunk)
            self.progress(done_bytes, total_bytes)

    def _begun(self, response: requests.Response) -> int:
        """Note the version of the file that begins to come; its size, 0 if the server does not tell."""
        tag = response.headers.get("ETag", "")
        if tag.startswith('"'):  # weak tags ("W/...") do not vouch for bytes
            self.version.write_text(tag)
        else:
            self.version.unlink(missing_ok=True)
        return int(response.headers.get("Content-Length", 0))

    def _continued(self, response: requests.Response, begun_bytes: int) -> int:
        """Size of the file that goes on after `begun_bytes`."""
        sent = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if sent is None or int(sent[1]) != begun_bytes:
            self._begin_anew("another part came than was asked for")
        return int(sent[2])

    def _begin_anew(self, reason: str) -> NoReturn:
        self.part.unlink(missing_ok=True)
        raise requests.ConnectionError(reason)
