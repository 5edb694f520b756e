"""gateway.yaml that is fine: what it means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.errors import ConfigError
from trimtab.gateway.config import (
    GatewayConfig,
    Overrides,
    config_for_backends,
    config_schema,
    config_warnings,
    digest_of,
    example_text,
    load_config,
    node_specs,
    parse_config,
    require_keys,
)
from trimtab.gateway.config.maintenance import StoreSpec, state_folder
from trimtab.gateway.config.routes import RouteSpec, resolved
from trimtab.gateway.config.types import host_port

DIGEST = digest_of(b"secret")
OWN_POLICY = """
from dataclasses import dataclass
from trimtab.domain.policy import Policy

@dataclass(frozen=True)
class Mine(Policy):
    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = 0
        return 1
"""


def test_an_empty_table_is_all_defaults() -> None:
    assert parse_config("{}") == GatewayConfig()
    assert parse_config("{}").policy.default == "least-expected-wait"


def test_the_example_is_fine_and_its_other_values_are_the_defaults() -> None:
    example = parse_config(example_text())
    assert [node.name for node in example.nodes] == ["gpu-1", "gpu-2", "video-1"]
    assert example.keys[0].sha256 == (digest_of(b"example"),)
    assert config_warnings(example) == []
    own = {"nodes", "keys", "fairness", "routes", "policy", "timeouts", "models"}
    changed = {name for name in GatewayConfig.model_fields if _differs(example, name)}
    assert changed == own
    assert example.timeouts.default == GatewayConfig().timeouts.default


def _differs(config: GatewayConfig, name: str) -> bool:
    return bool(getattr(config, name) != getattr(GatewayConfig(), name))


def test_the_example_mentions_every_key() -> None:
    words = set(re.findall(r"\w+", example_text()))
    assert {key for key in _keys(config_schema()) if key not in words} <= {"tls"}


def _keys(schema: dict[str, Any]) -> Iterator[str]:
    for part in (schema, *schema["$defs"].values()):
        yield from part.get("properties", {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("gateway.internal:80", ("gateway.internal", 80)),
    ],
)
def test_listen_addresses(text: str, expected: tuple[str, int]) -> None:
    assert host_port(text) == expected


@pytest.mark.parametrize(
    "text", ["8080", ":8080", "a:b", "a:65536", "::1:80", "http://a:80", "a:80/x", "a:-1"]
)
def test_what_is_no_listen_address(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        host_port(text)


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        ("8", (False, 8, 0)),
        ("auto", (True, 256, 0)),
        ("{requests: 4, tokens: 9000}", (False, 4, 9000)),
        ("{tokens: 9000, max_requests: 20}", (True, 20, 9000)),
    ],
)
def test_capacity(capacity: str, expected: tuple[bool, int, float]) -> None:
    node = parse_config(f"nodes: [{{name: a, url: 'http://x:1', capacity: {capacity}}}]").nodes[0].spec()
    assert (node.auto, node.max_requests, node.max_tokens) == expected


def test_a_node_as_the_fleet_takes_it() -> None:
    text = (
        "{name: a, url: 'https://x/base', models: [m], adapters: [l], type: big, weight: 2, "
        "api_key_env: KEY, health_path: /up, metrics_url: /metrics, exporter_url: 'http://x:9100/metrics'}"
    )
    spec = parse_config(f"nodes: [{text}]").nodes[0].spec()
    assert spec == node_specs([yaml.safe_load(text)], "nodes.yaml")[0]
    assert (spec.type_name, spec.weight, spec.api_key_env, spec.health_path) == ("big", 2, "KEY", "/up")
    assert (spec.models, spec.adapters, spec.metrics_url) == (("m",), ("l",), "/metrics")


def test_a_name_in_the_dns_as_a_template() -> None:
    entry = parse_config("discovery: {dns: [{name: chat.internal, port: 8000, models: [m]}]}").discovery
    assert entry.is_on
    spec = entry.dns[0].template()
    assert (spec.name, spec.url, spec.models) == ("chat.internal", "http://chat.internal:8000", ("m",))


def test_a_policy_by_name_or_by_model() -> None:
    assert parse_config("policy: random+edf").policy.default == "random+edf"
    choice = parse_config("policy: {default: random, models: {m: power-of-d(d=3)}}").policy
    assert (choice.default, dict(choice.models)) == ("random", {"m": "power-of-d(d=3)"})
    shadow = parse_config("shadow: random").shadow
    assert shadow is not None
    assert shadow.policy == "random"


def test_paths_count_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "mine.py").write_text(OWN_POLICY)
    (folder / "ca.pem").write_text("")
    (folder / "keys.yaml").write_text(f"- {{name: filed, sha256: {DIGEST}}}\n")
    (folder / "gateway.yaml").write_text(
        "policy: mine.py:Mine+edf\nshadow: mine.py:Mine\nkeys_file: keys.yaml\nrecord: {folder: rec}\n"
        "store: {results_folder: out}\ndiscovery: {file: nodes.yaml}\n"
        "nodes: [{name: a, url: 'https://x', ca_file: ca.pem}]\n"
    )
    monkeypatch.chdir(tmp_path)
    config = load_config("conf/gateway.yaml")
    assert config.policy.default == f"{folder}/mine.py:Mine+edf"
    assert config.nodes[0].ca_file == folder / "ca.pem"
    assert config.record is not None
    assert config.record.folder == folder / "rec"
    assert config.store.results_folder == folder / "out"
    assert config.discovery.file == folder / "nodes.yaml"
    assert [key.name for key in config.keys] == ["filed"]
    again = Overrides(listen="127.0.0.1:2").over(config)
    assert again == config.model_copy(update={"listen": "127.0.0.1:2"})


def test_keys_of_the_file_and_of_the_keys_file_come_together(tmp_path: Path) -> None:
    (tmp_path / "k.yaml").write_text(f"keys: [{{name: b, sha256: [{DIGEST}, {'a' * 64}]}}]")
    (tmp_path / "g.yaml").write_text(f"keys_file: k.yaml\nkeys: [{{name: a, sha256: {'b' * 64}}}]")
    assert [key.name for key in load_config(tmp_path / "g.yaml").keys] == ["a", "b"]
    (tmp_path / "g.yaml").write_text(f"keys_file: k.yaml\nkeys: [{{name: b, sha256: {'b' * 64}}}]")
    with pytest.raises(ConfigError, match=r"k\.yaml: keys\[1\]\.name"):
        load_config(tmp_path / "g.yaml")


def test_a_keys_file_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    keys = tmp_path / "k.yaml"
    keys.write_text(f"[{{name: b, sha256: {DIGEST}}}]")
    (tmp_path / "g.yaml").write_text("keys_file: k.yaml\nnodes: [{name: a, url: 'http://x:1'}]")
    keys.chmod(0o640)
    assert any("k.yaml" in warning for warning in config_warnings(load_config(tmp_path / "g.yaml")))
    keys.chmod(0o600)
    assert config_warnings(load_config(tmp_path / "g.yaml")) == []


def test_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    text = "listen: 0.0.0.0:80\ninsecure_no_auth: true\nadmin: {key_env: NOT_THERE}"
    warnings = "\n".join(config_warnings(parse_config(text)))
    for part in ("listen is no loopback", "insecure_no_auth", "NOT_THERE", "no nodes"):
        assert part in warnings


def routes(text: str) -> dict[str, RouteSpec]:
    return {name: RouteSpec.model_validate(route) for name, route in yaml.safe_load(text).items()}


def test_aliases_are_followed_to_their_ends() -> None:
    found = resolved(
        routes("""
          fast: {targets: chat}
          chat: {targets: [{model: chat, weight: 3}, {model: next, weight: 1}], fallback: fast-2}
          next: {targets: [a, b]}
          fast-2: {targets: c}
          gone: {targets: [{model: a, weight: 0}, {model: b}]}
        """)
    )
    assert dict(zip(found["fast"].models, found["fast"].fracs, strict=True)) == pytest.approx(
        {"chat": 0.75, "a": 0.125, "b": 0.125}
    )
    assert found["chat"].fallbacks == (("c",),) * 3
    assert found["fast"].fallbacks == found["chat"].fallbacks
    assert found["next"].fallbacks == ((), ())
    assert (found["gone"].models, found["gone"].fracs) == (("b",), (1.0,))


def test_what_nodes_serve_is_known_only_if_all_say_so() -> None:
    say, silent = "{name: a, url: 'http://x:1', models: [m], adapters: [l]}", "{name: b, url: 'http://x:2'}"
    assert parse_config(f"nodes: [{say}]").declared_models() == ("m", "l")
    assert parse_config(f"nodes: [{say}, {silent}]").declared_models() is None
    assert (
        parse_config(f"nodes: [{say}]\nregistration: {{allowed_cidrs: [10.0.0.0/8]}}").declared_models()
        is None
    )
    parse_config(f"nodes: [{say}, {silent}]\nroutes: {{x: {{targets: whatever}}}}")


def test_timeouts_of_a_model() -> None:
    spec = parse_config("timeouts: {default: {idle_s: 7}, models: {m: {total_s: 9}}}").timeouts
    assert (spec.of("m").total_s, spec.of("m").idle_s) == (9, 7)
    assert spec.of("other") == spec.default


def test_a_quick_start_needs_only_urls() -> None:
    config = config_for_backends(["http://h:1", "http://h:1/v1", "https://[::1]"])
    assert [node.name for node in config.nodes] == ["h:1", "h:1-2", "1:443"]
    with pytest.raises(ConfigError, match=r"--backend: nodes\[1\]\.url"):
        config_for_backends(["http://h:1", "h:2"])


def test_what_the_command_line_says_goes_over_the_file() -> None:
    over = Overrides("127.0.0.1:1", "127.0.0.1:2", "random", True)
    config = over.over(parse_config("admin: {key_env: ADMIN}\ndrain_s: 1"))
    assert (config.listen, config.admin.listen, config.policy.default) == (
        "127.0.0.1:1",
        "127.0.0.1:2",
        "random",
    )
    assert (config.insecure_no_auth, config.drain_s) == (True, 1)
    assert config.admin.key_env == "ADMIN"
    with pytest.raises(ConfigError, match="command line: listen"):
        Overrides(listen="nowhere").over(config)


def test_nobody_is_served_without_a_key_unless_someone_says_so() -> None:
    require_keys(parse_config("insecure_no_auth: true"))
    require_keys(parse_config(f"keys: [{{name: a, sha256: {DIGEST}}}]"))
    with pytest.raises(ConfigError, match="--insecure-no-auth"):
        require_keys(parse_config("{}"))


def test_keys_of_the_admin_port() -> None:
    admin = parse_config(f"admin: {{key_env: A, keys: [{{sha256: {DIGEST.upper()}}}, {{env: B}}]}}").admin
    assert admin.digests({"A": "x", "B": "y"}) == (DIGEST, digest_of(b"y"), digest_of(b"x"))
    with pytest.raises(ConfigError, match="environment variable B"):
        admin.digests({"A": "x"})


def test_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIMTAB_STATE_DIR", str(tmp_path))
    assert state_folder() == tmp_path
    assert StoreSpec().chosen_url() == f"sqlite:///{tmp_path}/gateway.db"
    assert StoreSpec().chosen_results_folder() == tmp_path / "results"
    monkeypatch.setenv("STORE", "postgresql:///there")
    assert StoreSpec(url_env="STORE").chosen_url() == "postgresql:///there"
    monkeypatch.delenv("TRIMTAB_STATE_DIR")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/x")
    assert state_folder() == Path("/var/lib/x")
    monkeypatch.delenv("STATE_DIRECTORY")
    assert state_folder().name == "trimtab"


def test_the_schema_is_one() -> None:
    schema = config_schema()
    assert schema["title"] == "trimtab gateway"
    assert {"listen", "nodes", "keys", "policy", "record", "store"} <= set(schema["properties"])
