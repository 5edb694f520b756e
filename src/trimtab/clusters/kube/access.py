"""How an API server is reached: with the files of a pod's service account, or by a kubeconfig.

The first needs no package. For the other the package `kubernetes` reads files and renews credentials.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trimtab.errors import ConfigError, MissingExtra

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Access:
    """An API server, and how calls of it are made."""

    host: str  # https://HOST:PORT
    tls: ssl.SSLContext
    authorization: str  # header; "" = none
    renewed: Callable[[], Awaitable[str]]  # the header as it is now; raises ConfigError
    options: Mapping[str, Any] = field(default_factory=dict)  # of each request, in aiohttp's words


async def find_access(kubeconfig: str, context: str) -> Access:
    """By a kubeconfig, by $KUBECONFIG or ~/.kube/config, or by the pod's service account.

    Raises ConfigError where none of these can be read, MissingExtra where one needs a package.
    """
    default = os.path.expanduser(os.environ.get("KUBECONFIG") or "~/.kube/config")
    if kubeconfig or context or any(os.path.exists(path) for path in default.split(os.pathsep)):
        return await _of_kubeconfig(kubeconfig or default, context)
    return await _of_pod(default)


async def _of_pod(default: str) -> Access:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not port:
        raise _unreadable(default, "there is no such file, nor KUBERNETES_SERVICE_HOST and _PORT of a pod")
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    token, authority = SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"

    async def authorization() -> str:  # kubelet writes the file anew before its token expires
        with _reading(str(token)):
            return f"Bearer {token.read_text().strip()}"

    with _reading(str(authority)):
        tls = _tls(str(authority))
    return Access(f"https://{address}", tls, await authorization(), authorization)


async def _of_kubeconfig(path: str, context: str) -> Access:
    try:
        from kubernetes.aio import config
        from kubernetes.aio.client.configuration import Configuration
    except ImportError as error:
        expected = "pip install 'trimtab[kube]'; the service account of a pod needs no package"
        raise MissingExtra("needs the package kubernetes", file=path, expected=expected) from error
    found = Configuration()

    def authorization() -> str:
        if found.cert_file:
            tls.load_cert_chain(found.cert_file, found.key_file)
        return str(found.api_key.get("BearerToken", ""))

    async def renewed() -> str:
        with _reading(path, config.ConfigException):
            await loader.load_and_set(found)  # runs a plugin again once what it gave expires
            return authorization()

    with _reading(path, config.ConfigException):
        loader = await config.load_kube_config(path, context or None, found)
        tls = _tls(found.ssl_ca_cert)
        if not found.verify_ssl:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        options = {"server_hostname": found.tls_server_name, "proxy": found.proxy}
        return Access(found.host, tls, authorization(), renewed, options)


def _tls(authority: str | None) -> ssl.SSLContext:
    """Trusts an authority, None = those of the system.

    Not strict, which is the default from Python 3.13 on: the authorities that many clusters made lack
    extensions that only RFC 5280 asks for (https://github.com/kubernetes-client/python/issues/2394).
    """
    context = ssl.create_default_context(cafile=authority)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


@contextmanager
def _reading(file: str, also: type[Exception] = OSError) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, also) as error:
        raise _unreadable(file, next(iter(str(error).splitlines()), type(error).__name__)) from error


def _unreadable(file: str, problem: str) -> ConfigError:
    expected = "a kubeconfig (--kubeconfig, $KUBECONFIG), or a pod with a service account"
    return ConfigError(problem, file=file, expected=expected)
