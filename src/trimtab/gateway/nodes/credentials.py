"""A node's API key and the certificates to trust. No message contains either."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from trimtab.errors import ConfigError


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
