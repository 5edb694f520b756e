"""`trimtab serve` as far as it does not serve: parts of a configuration, checks, refusals."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from conftest import Cli, process
from trimtab.gateway.config import digest_of


def test_the_example_passes_the_check(cli: Cli, tmp_path: Path) -> None:
    example = cli("serve", "--example")
    (tmp_path / "gateway.yaml").write_text(example.stdout)
    result = cli("serve", "gateway.yaml", "--check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "fine: 3 nodes, 2 tenants, policy least-expected-wait" in result.stdout


def test_the_schema_is_json(cli: Cli) -> None:
    assert json.loads(cli("serve", "--schema").stdout)["title"] == "trimtab gateway"


def test_a_new_key_and_its_digest(cli: Cli) -> None:
    result = cli("serve", "--new-key")
    found = yaml.safe_load(result.stdout)
    assert digest_of(found["key"].encode()) == found["sha256"]
    assert found["key"] not in result.stderr


def test_backends_are_checked_too_and_get_a_key(cli: Cli) -> None:
    result = cli("serve", "--backend", "http://127.0.0.1:1", "-b", "http://127.0.0.1:2", "--check")
    assert result.exit_code == 0
    assert "2 nodes, 1 tenant," in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text", "parts"),
    [
        (("gateway.yaml", "--check"), "nods: []", ("gateway.yaml", "nods", "'nodes'")),
        (("gateway.yaml", "--check"), "{}", ("keys", "--insecure-no-auth")),
        (("gateway.yaml",), "{}", ("keys", "--insecure-no-auth")),
        (("gateway.yaml", "--check", "--policy", "rendom"), "{}", ("command line", "'random'")),
        (("gateway.yaml", "--check", "-b", "http://x:1"), "{}", ("--backend", "either")),
        (("none.yaml", "--check"), "", ("none.yaml", "No such file")),
        (("--check",), "", ("--check", "nothing to check")),
        (("--check", "-b", "x:1"), "", ("--backend", "nodes[0].url")),
        (("--check", "-b", "http://x:1", "--listen", "80"), "", ("listen", "host:port")),
        (("--check", "-b", "http://x:1", "--admin-listen", "80"), "", ("admin.listen", "host:port")),
    ],
)
def test_refusals(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], text: str, parts: tuple[str, ...]
) -> None:
    (tmp_path / "gateway.yaml").write_text(text)
    result = cli("serve", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    for part in parts:
        assert part in result.stderr


def test_warnings_can_be_silenced(cli: Cli) -> None:
    arguments = ("serve", "-b", "http://x:1", "--check", "--insecure-no-auth")
    assert "warning: insecure_no_auth" in cli(*arguments).stderr
    assert cli(*arguments, "--quiet").stderr == ""


def test_without_the_extra_the_message_names_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "trimtab.cli.serve_command.find_spec", lambda name: None if name == "httptools" else there(name)
    )
    result = cli("serve", "-b", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "needs httptools; expected pip install 'trimtab[serve]'" in result.stderr


def test_help_needs_nothing_of_the_gateway(tmp_path: Path) -> None:
    script = (
        "import sys, trimtab.cli.app\n"
        "heavy = {'aiohttp', 'httptools', 'sqlalchemy', 'pydantic', 'numba', 'trimtab.live'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert _output(script, tmp_path) == "[]"


def test_a_configuration_is_read_without_the_gateways_libraries(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from trimtab.gateway.config import example_text, parse_config\n"
        "from trimtab.gateway.tenancy.tenants import Tenants\n"
        "Tenants(parse_config(example_text()), {})\n"
        "heavy = {'aiohttp', 'httptools', 'sqlalchemy', 'polars', 'scipy.linalg', 'plotly', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert _output(script, tmp_path) == "[]"


def _output(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(process("serve", "--example", cwd=tmp_path).stdout)
    assert process("serve", "g.yaml", "--check", cwd=tmp_path).returncode == 0
