"""Types of single values in gateway.yaml: addresses, names, paths, policies."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from trimtab.domain.learned_estimates import LearnedEstimates
from trimtab.errors import ConfigError, PolicyNotFound, UsageError
from trimtab.gateway.nodes.address import parse_base, parse_url
from trimtab.validation.base import Spec
from trimtab.validation.names import nearest
from trimtab.validation.tuned_policy import is_tuned_file, placed, spelled

_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]\s/]+):(\d{1,5})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,99}")
_URL_PATH = re.compile(r"/[A-Za-z0-9._~/{}-]*")
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9][a-z0-9.-]{0,252})(:[0-9]{1,5})?")
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
FOLDER = "folder"  # key of the validation context: the base folder of relative paths


class HostPort(NamedTuple):
    """An address to listen on. Port 0 takes a free port."""

    host: str  # without brackets
    port: int


def host_port(text: str) -> HostPort:
    """Parse `127.0.0.1:8080` or `[::1]:8080`. Raises ValueError."""
    match = _LISTEN.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ValueError("host:port, such as 127.0.0.1:8080 or [::1]:8080, with a port up to 65535")
    return HostPort(match[1].strip("[]"), int(match[2]))


def _listen(text: str) -> str:
    host_port(text)
    return text


def _base_url(text: str) -> str:
    return _url(text, parse_base)


def _whole_url(text: str) -> str:
    return _url(text, parse_url)


def _url(text: str, parse: Any) -> str:
    try:
        parse(text)
    except ConfigError as error:
        raise ValueError(f"{error.expected}: this {error.problem}") from error
    return text


def _url_or_path(text: str) -> str:
    return text if text.startswith("/") else _whole_url(text)


def is_name(text: str) -> bool:
    """Whether a text is a valid name of a node or tenant."""
    return _NAME.fullmatch(text) is not None


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError("up to 100 letters, digits and . _ : @ / -, the first a letter or digit")
    return text


def _url_path(text: str) -> str:
    parts = text.split("/")
    if not _URL_PATH.fullmatch(text) or any(part in ("", ".", "..") for part in parts[1:-1]) or ".." in parts:
        raise ValueError("a path such as /v1/score, plain characters only, without //, . and ..")
    return text


def _host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise ValueError("a host name, without port and path")
    return text


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise ValueError("an origin: https://HOST or http://HOST, maybe :PORT, in lower case, without a path")
    return text


def _env_name(text: str) -> str:
    if not (text.isascii() and text.isidentifier()):
        raise ValueError("the name of an environment variable, not the secret itself")
    return text


def _cidr(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"a network such as 10.0.0.0/8: {error}") from error
    return text


def in_folder(path: Path, info: ValidationInfo) -> Path:
    """The path, relative to the folder of the configuration."""
    folder = _folder(info)
    return path if folder is None else folder / path


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ValueError("a file that exists")
    return path


def _learned(path: Path) -> Path:
    try:
        LearnedEstimates.read(str(path))
    except UsageError as error:
        raise ValueError(f"a file of `trimtab federate`: {error}") from error
    return path


def _folder(info: ValidationInfo) -> Path | None:
    context: Mapping[str, Any] = info.context or {}
    folder: Path | None = context.get(FOLDER)
    return folder


def _policy(spec: str, info: ValidationInfo) -> str:
    """Validate a policy. The path of its file is relative to the folder of the configuration."""
    from trimtab.policies import find, names

    folder = _folder(info)
    if folder is not None:
        spec = placed(spec, folder)
        spec = str(folder / spec.strip()) if is_tuned_file(spec) else spec
    try:
        spec = spelled(spec)
        find(spec)
    except PolicyNotFound as error:
        kind = "dispatch" if spec.lstrip().startswith(str(error.value)) else "order"
        expected = f"a policy: {nearest(error.value, names(kind))}, or file.py:Class"
        raise PydanticCustomError("policy", "{expected}", {"expected": expected}) from error
    except UsageError as error:
        raise PydanticCustomError("policy", "a policy that loads: {why}", {"why": str(error)}) from error
    return spec


Listen = Annotated[str, AfterValidator(_listen)]
"""host:port to listen on."""

Origin = Annotated[str, AfterValidator(_origin)]
"""Scheme, host and port of a page, as browsers send them."""

BackendUrl = Annotated[str, AfterValidator(_base_url)]
"""Base URL of a backend. Request paths are appended."""

Url = Annotated[str, AfterValidator(_whole_url)]
UrlOrPath = Annotated[str, AfterValidator(_url_or_path)]
"""A full URL, or a path on the node itself."""

UrlPath = Annotated[str, AfterValidator(_url_path)]
Cidr = Annotated[str, AfterValidator(_cidr)]
Name = Annotated[str, AfterValidator(_name)]
"""Name of a node or tenant, as used in headers, logs and metrics."""

HostName = Annotated[str, AfterValidator(_host_name)]
Model = Annotated[str, Field(min_length=1, max_length=300)]
EnvName = Annotated[str, AfterValidator(_env_name), Field(json_schema_extra={"writeOnly": True})]
"""Name of an environment variable with a secret. Messages hide it: it may be the secret by mistake."""

FilePath = Annotated[Path, AfterValidator(in_folder)]
"""A path. Relative paths are relative to the folder of the configuration."""

ExistingFile = Annotated[FilePath, AfterValidator(_existing)]


class TlsSpec(Spec):
    """TLS of a port."""

    certificate: ExistingFile = Field(description="PEM file with the port's certificate")
    key: ExistingFile = Field(description="PEM file with its key")
    client_ca: ExistingFile | None = Field(
        None, description="PEM file: clients must show a certificate that it has signed; default: any client"
    )

    def context(self, field: str) -> ssl.SSLContext:
        """For a server. Raises ConfigError for files that cannot be used; `field` names this section."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as error:
            problem, expected = f"cannot be used: {error}", "a certificate and its key in PEM"
            raise ConfigError(problem, field=field, value=self.certificate, expected=expected) from error
        return context


LearnedFile = Annotated[FilePath, AfterValidator(_learned)]
PolicySpec = Annotated[str, Field(min_length=1), AfterValidator(_policy)]
"""Name of a policy, NAME+ORDER or file.py:Class, as everywhere in trimtab."""

Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
