"""Addresses of nodes: parts of a URL, and the networks that registered nodes may be in (no SSRF).

A vetted address is pinned: connections go to the address that was checked, under the name that was requested,
so that a second answer of the DNS cannot lead elsewhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urljoin, urlsplit

from trimtab.errors import ConfigError

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Awaitable[list[str]]]

_HOST = re.compile(r"[A-Za-z0-9._:%\-]+")
_PATH = re.compile(r"[\x21-\x7e]*")
_NEVER_IMPLIED = tuple(  # reached only where the allow-list names it, or a part of it, itself
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "169.254.0.0/16",  # link-local, with the metadata services of clouds
        "224.0.0.0/4",
        "::/128",
        "fd00:ec2::/32",
        "fe80::/10",
        "ff00::/8",
    )
)


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a URL."""

    host: str  # a name or an address, without brackets
    port: int
    tls: bool
    path: str  # "" or "/…", without a slash at its end
    server_name: str = ""  # the name where `host` is a pinned address

    @property
    def url(self) -> str:
        """The URL to connect to."""
        return f"{'https' if self.tls else 'http'}://{with_port(self.host, self.port)}{self.path}"

    @property
    def host_header(self) -> str:
        """The value of the Host header."""
        name = self.server_name or self.host
        name = f"[{name}]" if ":" in name else name
        return name if self.port == (443 if self.tls else 80) else f"{name}:{self.port}"

    def is_same_origin(self, other: Address) -> bool:
        """Whether both are one server: only then may they share credentials."""
        return (self.host, self.port, self.tls) == (other.host, other.port, other.tls)


def with_port(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_url(url: str, *, field: str = "url") -> Address:
    """The parts of an http(s) URL. Raises ConfigError, without the user name and password it may hold."""
    expected = "http(s)://host[:port][/path]"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError("is no URL", field=field, expected=expected) from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("holds a user name or password", field=field, expected="credentials by api_key_env")
    if parts.scheme not in ("http", "https") or not host or not _HOST.fullmatch(host):
        raise ConfigError("is no URL of a backend", field=field, value=url, expected=expected)
    if parts.query or parts.fragment or not _PATH.fullmatch(parts.path) or port == 0:
        raise ConfigError("has parts that do not belong there", field=field, value=url, expected=expected)
    tls = parts.scheme == "https"
    return Address(host, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def parse_base(url: str) -> Address:
    """A node's address: its path comes before /v1 in every request."""
    address = parse_url(url)
    return replace(address, path=address.path.removesuffix("/v1"))


def beside(base: Address, url: str, *, field: str) -> Address:
    """A URL that may be only a path at `base`."""
    if not url.startswith("/"):
        return parse_url(url, field=field)
    path = parse_url(urljoin(base.url, url), field=field).path
    return replace(base, path=path)


class AllowedNetworks:
    """The networks that registered nodes may be in; without networks, none."""

    def __init__(self, networks: Iterable[str], resolver: Resolver | None = None) -> None:
        self._networks = tuple(_network(text) for text in networks)
        self._resolve = resolver or resolve

    async def pin(self, address: Address) -> Address:
        """The address with its name resolved, vetted and fixed. Raises ConfigError."""
        found = await self._addresses(address)
        for ip in found:  # all, since any of them may be connected
            if not self.allows(ip):
                raise ConfigError("is not in the networks that may be registered", field="url", value=str(ip))
        return replace(address, host=str(found[0]), server_name=address.server_name or address.host)

    def allows(self, ip: IpAddress) -> bool:
        """Whether an address is inside the allow-list; link-local and such only where they are named."""
        within = [network for network in self._networks if ip.version == network.version and ip in network]
        for special in _NEVER_IMPLIED:
            if ip.version == special.version and ip in special:
                within = [network for network in within if _is_part(network, special)]
        return bool(within)

    async def _addresses(self, address: Address) -> list[IpAddress]:
        try:
            texts = await self._resolve(address.host, address.port)
            found = [_plain(ipaddress.ip_address(text)) for text in texts]
        except (OSError, UnicodeError, ValueError):
            found = []
        if not found:
            raise ConfigError(
                "has no address", field="url", value=address.host, expected="a name that resolves"
            )
        return found


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, sorted. Raises OSError where there are none."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return sorted({str(info[4][0]) for info in infos})


def _network(text: str) -> IpNetwork:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise ConfigError(
            "is no network", field="registration.allowed_cidrs", value=text, expected="a CIDR"
        ) from None


def _is_part(network: IpNetwork, of: IpNetwork) -> bool:
    return network.network_address in of and network.prefixlen >= of.prefixlen


def _plain(ip: IpAddress) -> IpAddress:
    """IPv4 mapped into IPv6 counts as IPv4."""
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip


def authorization(variable: str, environment: Mapping[str, str] | None = None) -> bytes:
    """The value of the Authorization header for the key in `variable`; b"" where none is named."""
    if not variable:
        return b""
    key = (os.environ if environment is None else environment).get(variable, "").strip()
    if not key:
        raise ConfigError("is not set", field="api_key_env", value=variable, expected="a key there")
    if not (key.isascii() and key.isprintable()):  # a line break would begin another header
        raise ConfigError("holds no key", field="api_key_env", value=variable, expected="printable ASCII")
    return b"Bearer " + key.encode()


def tls_context(is_tls: bool, ca_file: str) -> ssl.SSLContext | None:
    """How to connect with TLS, trusting `ca_file` alone where it is given; None without TLS."""
    if not is_tls:
        if ca_file:
            raise ConfigError(
                "is of no use with http", field="ca_file", value=ca_file, expected="an https URL"
            )
        return None
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ssl.SSLError):
        raise ConfigError(
            "cannot be read as certificates", field="ca_file", value=ca_file, expected="a PEM file"
        ) from None
