"""What is in deploy/ fits the gateway and the tools that read it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from trimtab.gateway.config import config_warnings, load_config

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = ("trimtab-gateway.service", "trimtab-gateway@.service")


def test_the_configuration_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_KEY", "x")
    monkeypatch.setenv("TRIMTAB_ADMIN_KEY", "y")
    config = load_config(DEPLOY / "gateway.yaml")
    assert len(config_warnings(config)) == 1  # it listens to others, and there is no TLS
    for service in SERVICES:
        assert f"TimeoutStopSec={config.drain_s + 15:g}" in (DEPLOY / service).read_text()


def test_the_container_is_not_root_and_uses_files_that_exist() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert "USER 10001:10001" in lines
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert all((DEPLOY.parent / name).exists() for names in copied for name in names)


@pytest.fixture(params=SERVICES)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit with programs that exist here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (DEPLOY / request.param).read_text().replace("/opt/trimtab/bin/trimtab", "/bin/true")
    path = tmp_path / str(request.param)
    path.write_text(text)
    return path


def analyzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def test_systemd_understands_the_unit(unit: Path) -> None:
    done = analyzed("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_is_locked_down(unit: Path) -> None:
    done = analyzed("security", "--offline=true", "--threshold=25", str(unit))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze is too old")
    assert done.returncode == 0, done.stdout
