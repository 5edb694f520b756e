"""URLs of backends, and which of them may be registered."""

import asyncio
from dataclasses import replace

import pytest

from support.gateway.node_world import fleet_of, spec
from trimtab.errors import ConfigError
from trimtab.gateway.nodes.address import AllowedNetworks, beside, parse_base, parse_url
from trimtab.gateway.nodes.discovery import Registrar


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "path"),
    [
        ("http://gpu-1:8000", "gpu-1", 8000, False, ""),
        ("http://gpu-1:8000/", "gpu-1", 8000, False, ""),
        ("https://gpu-1/v1", "gpu-1", 443, True, ""),
        ("http://gpu-1/base/v1/", "gpu-1", 80, False, "/base"),
        ("http://[::1]:8000", "::1", 8000, False, ""),
    ],
)
def test_a_base_url_is_taken_apart(url: str, host: str, port: int, tls: bool, path: str) -> None:
    address = parse_base(url)
    assert (address.host, address.port, address.tls, address.path) == (host, port, tls, path)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "gpu-1:8000",
        "http://",
        "http://host:0",
        "http://host:99999",
        "http://host/?x=1",
        "http://host/#x",
        "http://ho st/",
        "file:///etc/passwd",
        "http://[::1",
    ],
)
def test_what_is_no_url_of_a_backend_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_url(url)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_url("http://user:s3cret@host/")
    assert "s3cret" not in str(refused.value)


def test_the_host_header_has_the_name_and_the_url_the_pinned_address() -> None:
    address = replace(parse_url("http://gpu-1:8000/x"), host="fd00::1", server_name="gpu-1")
    assert (address.url, address.host_header) == ("http://[fd00::1]:8000/x", "gpu-1:8000")
    assert parse_url("https://gpu-1").host_header == "gpu-1"
    assert parse_url("http://[::1]:8000").host_header == "[::1]:8000"
    assert beside(address, "/metrics", field="metrics_url").url == "http://[fd00::1]:8000/metrics"


def pinned(networks: list[str], *found: str) -> str:
    async def resolver(host: str, port: int) -> list[str]:
        return list(found)

    return asyncio.run(AllowedNetworks(networks, resolver).pin(parse_url("http://backend:8000"))).host


def test_an_address_in_the_list_is_pinned() -> None:
    assert pinned(["10.0.0.0/8"], "10.1.2.3") == "10.1.2.3"
    assert pinned(["fd00:1::/32"], "fd00:1::5") == "fd00:1::5"
    assert pinned(["10.0.0.0/8"], "::ffff:10.1.2.3") == "10.1.2.3"
    assert pinned(["169.254.10.0/24"], "169.254.10.9") == "169.254.10.9"


@pytest.mark.parametrize(
    ("networks", "found"),
    [
        ([], ["10.1.2.3"]),
        (["10.0.0.0/8"], ["11.1.2.3"]),
        (["10.0.0.0/8"], ["10.1.2.3", "127.0.0.1"]),  # one of two is outside
        (["10.0.0.0/8"], ["::ffff:127.0.0.1"]),
        (["0.0.0.0/0", "::/0"], ["169.254.169.254"]),  # the clouds' metadata
        (["0.0.0.0/0", "::/0"], ["::ffff:169.254.169.254"]),
        (["0.0.0.0/0", "::/0"], ["fd00:ec2::254"]),
        (["0.0.0.0/0", "::/0"], ["fe80::1"]),
        (["0.0.0.0/0"], ["0.0.0.0"]),
        (["0.0.0.0/0"], ["224.0.0.1"]),
        (["10.0.0.0/8"], []),
        (["10.0.0.0/8"], ["no address"]),
    ],
)
def test_any_other_address_is_refused(networks: list[str], found: list[str]) -> None:
    with pytest.raises(ConfigError):
        pinned(networks, *found)


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no network"):
        AllowedNetworks(["10.0.0.0/33"])


async def test_registration_pins_all_urls_and_keeps_secrets_and_files_out_of_reach() -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return {"gpu": ["10.0.0.5"], "evil": ["127.0.0.1"]}.get(host, [])

    fleet = fleet_of(0)
    registrar = Registrar(fleet, AllowedNetworks(["10.0.0.0/8"], resolver))
    node = await registrar.add(spec("g", url="http://gpu:8000/v1", metrics_url="/metrics"))
    assert (node.host, node.server_name, node.url) == ("10.0.0.5", "gpu", "http://10.0.0.5:8000")
    for field, value in (
        ("exporter_url", "http://evil:9100/metrics"),
        ("api_key_env", "HOME"),
        ("ca_file", "/x"),
    ):
        with pytest.raises(ConfigError, match=field if field != "exporter_url" else "networks"):
            await registrar.add(spec("h", url="http://gpu:8000", **{field: value}))
    assert len(fleet.nodes) == 1
