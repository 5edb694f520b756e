"""`trimtab epp`: what it says of a file, of what is missing, and of a port that is taken."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import pytest

from conftest import Cli
from trimtab.gateway.config import GatewayConfig, Overrides

HEAD = "insecure_no_auth: true\nadmin: {listen: 127.0.0.1:0}\n"


def written(folder: Path, text: str) -> str:
    file = folder / "gateway.yaml"
    file.write_text(HEAD + text)
    return str(file)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            'nodes: [{name: a, url: "http://backend:80"}]',
            ("nodes[0].url", "an IP address"),
        ),
        ('nodes: [{name: a, url: "http://10.0.0.1/base"}]', ("nodes[0].url", "no path")),
        ("picker: {listen: 9002}", ("picker.listen",)),
        ("picker: {max_endpoints: 0}", ("picker.max_endpoints", "got 0")),
        (
            "picker: {tls: {certificate: no.pem, key: no.key}}",
            ("picker.tls.certificate", "a file"),
        ),
        ("picker: {ports: 1}", ("picker.ports",)),
        ("policy: no-such", ("policy", "no-such")),
        ("insecure_no_auth: false", ("keys",)),
    ],
)
def test_a_bad_file(tmp_path: Path, cli: Cli, text: str, parts: tuple[str, ...]) -> None:
    file = written(tmp_path, text)
    if text.startswith("insecure"):
        Path(file).write_text("nodes: []\n")
    result = cli("epp", "--config", file)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    for part in parts:
        assert part in result.stderr


def test_no_file(tmp_path: Path, cli: Cli) -> None:
    result = cli("epp", "--config", str(tmp_path / "none.yaml"))
    assert result.exit_code == 2
    assert "none.yaml" in result.stderr
    assert cli("epp").exit_code == 2


def test_check_says_what_it_would_serve(tmp_path: Path, cli: Cli) -> None:
    file = written(tmp_path, 'nodes: [{name: a, url: "http://10.0.0.1:80"}]')
    result = cli("epp", "--config", file, "--check", "--policy", "random", "--listen", "127.0.0.1:1")
    assert result.exit_code == 0
    assert "1 node" in result.stdout
    assert "policy random" in result.stdout
    assert "there are no nodes" in cli("epp", "--config", written(tmp_path, ""), "--check").stderr


def test_a_pool_takes_the_place_of_the_nodes(tmp_path: Path, cli: Cli) -> None:
    file = written(tmp_path, 'nodes: [{name: a, url: "http://name:80"}]')  # which has no address
    result = cli("epp", "--config", file, "--check", "--pool", "serving/llama")
    assert result.exit_code == 0
    assert "0 nodes, and those that are found" in result.stdout
    assert "discovery.kubernetes" in cli("epp", "--config", file, "--check", "--pool", "a b").stderr


def test_a_pool_keeps_what_the_file_says_of_it() -> None:
    entry = {"name": "big", "pool": "llama", "namespace": "serving", "capacity": 7}
    others = [{"name": "other", "pool": "llama"}, {"name": "labels", "selector": "app=x"}]
    config = GatewayConfig.model_validate({"discovery": {"kubernetes": [*others, entry]}})
    for pool, name, capacity in (("serving/llama", "big", 7), ("llama", "other", 256), ("new/p", "p", 256)):
        (found,) = Overrides(pool=pool).over(config).discovery.kubernetes
        assert (found.name, found.capacity.most_requests) == (name, capacity)
        assert found.namespace == (pool.rpartition("/")[0] or "default")


def test_a_port_in_use(tmp_path: Path, cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = cli("epp", "--config", written(tmp_path, f"picker: {{listen: '{address}'}}"))
    assert result.exit_code == 2
    assert f"picker.listen: cannot listen: Address already in use (got '{address}')" in result.stderr


@pytest.mark.parametrize("module", ["grpc", "google.protobuf", "aiohttp"])
def test_without_the_extra_the_message_names_it(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "trimtab.cli.serve_command.find_spec", lambda name: None if name == module else there(name)
    )
    result = cli("epp", "--config", written(tmp_path, ""))
    assert result.exit_code == 2
    assert f"`trimtab epp` needs {module}; expected pip install 'trimtab[envoy]'" in result.stderr


def test_a_file_that_is_no_certificate(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "no.pem").write_text("nothing")
    tls = "picker: {listen: '127.0.0.1:0', tls: {certificate: no.pem, key: no.pem}}"
    result = cli("epp", "--config", written(tmp_path, tls))
    assert result.exit_code == 2
    assert "picker.tls: cannot be used" in result.stderr
    assert "a certificate and its key in PEM" in result.stderr
