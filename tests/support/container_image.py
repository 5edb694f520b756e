"""The image of deploy/Containerfile, built as it stands, and containers of it. Where no registry of images is
reached, Debian's Python stands for `python:3.13-slim`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROGRAMS = ("buildah", "podman", "runc", "netavark", "aardvark-dns", "mmdebstrap")
PLACES = ("/usr/lib/podman", "/usr/libexec/podman")  # of what podman starts itself
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab-test-clusters"
BASE, IMAGE = "localhost/trimtab-test-python", "localhost/trimtab-test"
BASE_FILE = """
FROM scratch
ADD python.tar /
RUN ln -s python3 /usr/bin/python && rm /usr/lib/python3*/EXTERNALLY-MANAGED
"""
SLIM = ("doc", "man", "locale")  # which slim images lack
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
LIMITS = ("--ulimit", "nofile=8192:8192", "--ulimit", "nproc=8192:8192")  # podman's own need more rights


def missing() -> str:
    """Why there can be no image here; "" = there can."""
    path = os.pathsep.join((os.environ["PATH"], "/usr/sbin", *PLACES))
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"{', '.join(absent)} not installed"
    return "" if os.geteuid() == 0 else "containers with a limit of memory need root here"


def run(*command: str | Path, fails: bool = False, timeout_s: float = 60.0) -> str:
    """What a program prints; with what it says if it must not fail and does."""
    environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}  # no other goes with two versions of cgroups
    CACHE.mkdir(parents=True, exist_ok=True)  # podman leaves a file `oom` where it was started
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout_s, cwd=CACHE)
    assert fails or done.returncode == 0, (
        f"{command}: {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}"
    )
    return done.stdout.strip()


def podman(*arguments: str, **more: Any) -> str:
    """Run podman."""
    return run("podman", "--runtime", "runc", *arguments, **more)


def build() -> str:
    """Build the image, and the base if there is none; returns its name. Minutes: kernels are compiled."""
    context = f"--build-context=python:3.13-slim=container-image://{_base()}:latest"
    mounts = [
        f"--volume={path}:{path}:ro" for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()
    ]
    file = ROOT / "deploy" / "Containerfile"
    command = ("bud", "--layers", "--format", "docker", context, *mounts, "-t", IMAGE, "-f", file, ROOT)
    run("buildah", *command, timeout_s=1700.0)
    return IMAGE


def _base() -> str:
    """Debian 13 with its Python, made once a machine."""
    if not run("podman", "images", "--quiet", BASE):
        archive = CACHE / "python.tar"
        if not archive.exists():
            _bootstrap(archive)
        (CACHE / "Base").write_text(BASE_FILE)
        run("buildah", "bud", "--format", "docker", "-t", BASE, "-f", CACHE / "Base", CACHE, timeout_s=300.0)
    return BASE


def _bootstrap(archive: Path) -> None:
    sites = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
    mirror = next(site for site in sites if site.rstrip("/").endswith("/debian"))
    without = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in SLIM]
    packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
    part = archive.with_suffix(".part.tar")
    source = f"deb [signed-by={KEYS}] {mirror} trixie main"
    run("mmdebstrap", "--variant=minbase", *without, packages, "trixie", part, source, timeout_s=600.0)
    part.replace(archive)


@dataclass(frozen=True)
class Container:
    """A running container."""

    name: str

    def exec(self, *command: str, fails: bool = False) -> str:
        """What a command in it prints."""
        return podman("exec", self.name, *command, fails=fails)

    def said(self) -> str:
        """Its log."""
        both = subprocess.run(["podman", "logs", self.name], capture_output=True, text=True, check=True)
        return both.stdout + both.stderr

    def inspect(self) -> dict[str, Any]:
        """What podman knows of it."""
        return dict(json.loads(podman("inspect", self.name))[0])


@contextmanager
def running(name: str, image: str, *command: str, options: tuple[str, ...] = ()) -> Iterator[Container]:
    """A container in the background as long as the block lasts."""
    podman("run", "--detach", "--name", name, *LIMITS, *options, image, *command)
    try:
        yield Container(name)
    finally:
        podman("rm", "--force", "--time", "5", "--volumes", name)


@contextmanager
def network(name: str) -> Iterator[str]:
    """A network in which containers find each other by name."""
    podman("network", "create", name)
    try:
        yield name
    finally:
        podman("network", "rm", "--force", name)
