"""Certificates that tests sign themselves. They need openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NAME = "gpu.test"
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def self_signed(folder: Path, names: str = f"DNS:{NAME}") -> Path:
    """A key and a certificate for names, in one file; the certificate alone is `cert.pem` beside it."""
    path = folder / "both.pem"
    command = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={NAME} -addext subjectAltName={names}"
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", *command.split(), *files], check=True, capture_output=True)
    path.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return path
