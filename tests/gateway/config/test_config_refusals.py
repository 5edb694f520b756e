"""gateway.yaml that is wrong: each message names the file, the field, the value and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.errors import ConfigError
from trimtab.gateway.config import load_config, node_specs, parse_config

NODE = "nodes: [{name: a, url: 'http://x:1', models: [m]}]\n"
DIGEST = "a" * 64


def error_of(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "g.yaml")
    assert caught.value.exit_code == 2
    return caught.value


def node(fields: str) -> str:
    return f"nodes: [{{name: a, url: 'http://x:1', {fields}}}]"


@pytest.mark.parametrize(
    ("text", "field", "value", "expected"),
    [
        ("listn: 1", "listn", None, "'listen'"),
        ("listen: 8080", "listen", 8080, "a valid string"),
        ("listen: here:99999", "listen", "here:99999", "65535"),
        ("admin: {listen: '127.0.0.1:8080'}", "admin.listen", "127.0.0.1:8080", "another port"),
        ("nodes: 3", "nodes", 3, "a list"),
        (node("cpacity: 3"), "nodes[0].cpacity", None, "'capacity'"),
        (node("capacity: 0"), "nodes[0].capacity.requests", 0, "or equal to 1"),
        (node("capacity: auot"), "nodes[0].capacity.requests", "auot", "'auto'"),
        (node("capacity: {tokens: -1}"), "nodes[0].capacity.tokens", -1, "or equal to 0"),
        (node("capacity: {ram_gib: 0}"), "nodes[0].capacity.ram_gib", 0, "greater than 0"),
        (node("capacity: {gpu_gib: 2.0e+9}"), "nodes[0].capacity.gpu_gib", 2e9, "less than or equal to"),
        (node("capacity: {gpus: 1}"), "nodes[0].capacity.gpus", None, "'gpu_milli'"),
        (node("nic_gib_per_s: 0"), "nodes[0].nic_gib_per_s", 0, "greater than 0"),
        (node("usd_per_hour: -1"), "nodes[0].usd_per_hour", -1, "or equal to 0"),
        ("models: {m: {memory_gib: -1}}", "models.m.memory_gib", -1, "or equal to 0"),
        ("models: {m: {demand: {gpus: 1}}}", "models.m.demand.gpus", "gpus", "'gpu_milli'"),
        ("models: {m: {demand: {gpu_gib: -1}}}", "models.m.demand.gpu_gib", -1, "or equal to 0"),
        (NODE + "models: {n: {}}", "models.n", "n", "a known model: one of 'm'"),
        (
            node("models: [m], capacity: {ram_gib: 8}") + "\nmodels: {m: {demand: {ram_gib: 9}}}",
            "models.m.demand.ram_gib",
            9,
            "at most 8, the capacity of the largest of its nodes",
        ),
        ("zone: 3", "zone", 3, "a valid string"),
        ("keys: [{name: a, zone: 3}]", "keys[0].zone", 3, "a valid string"),
        ("zones: {eu: {ingress_gib_per_s: 0}}", "zones.eu.ingress_gib_per_s", 0, "greater than 0"),
        ("zones: {eu: {rtt_s: {eu: -1}}}", "zones.eu.rtt_s.eu", -1, "or equal to 0"),
        ("zones: {eu: {rtt_s: {us: 1}}}", "zones.eu.rtt_s.us", "us", "a known zone"),
        (
            "zones: {eu: {rtt_s: {us: 0.1}}, us: {rtt_s: {eu: 0.2}}}",
            "zones.eu.rtt_s.us",
            0.1,
            "the same as zones.us.rtt_s.eu, which is 0.2",
        ),
        ("cors: {allowed_origins: ['*']}", "cors.allowed_origins[0]", "*", "an origin: https://HOST"),
        ("cors: {allowed_origins: [a.org]}", "cors.allowed_origins[0]", "a.org", "an origin: https://HOST"),
        (
            "cors: {allowed_origins: ['https://a.org/']}",
            "cors.allowed_origins[0]",
            "https://a.org/",
            "without a path",
        ),
        ("batches: {max_lines: 0}", "batches.max_lines", 0, "or equal to 1"),
        ("batches: {concurrency: 0}", "batches.concurrency", 0, "or equal to 1"),
        ("batches: {max_file_mib: 0}", "batches.max_file_mib", 0, "greater than 0"),
        ("batches: {file_ttl_s: 0}", "batches.file_ttl_s", 0, "greater than 0"),
        ("limits: {shared: 3}", "limits.shared", 3, "a valid boolean"),
        (
            "models: {m: {usd_per_million_output_tokens: -1}}",
            "models.m.usd_per_million_output_tokens",
            -1,
            "or equal to 0",
        ),
        ("cors: {max_age_s: -1}", "cors.max_age_s", -1, "or equal to 0"),
        (node("weight: 0"), "nodes[0].weight", 0, "greater than 0"),
        (node("ca_file: none.pem"), "nodes[0].ca_file", None, "a file that exists"),
        (node("job_api: sora"), "nodes[0].job_api", "sora", "'videos'"),
        (node("api_key_env: sk-123"), "nodes[0].api_key_env", None, "not the secret itself"),
        (node("metrics_url: 'x:1'"), "nodes[0].metrics_url", "x:1", "http"),
        ("nodes: [{name: a b, url: 'http://x:1'}]", "nodes[0].name", "a b", "letters"),
        ("nodes: [{name: a, url: 'ftp://x:1'}]", "nodes[0].url", "ftp://x:1", "http"),
        ("nodes: [{name: a, url: 'http://x:99999'}]", "nodes[0].url", None, "http"),
        ("nodes: [{name: a, url: 'http://x:1?q=1'}]", "nodes[0].url", None, "http"),
        ("nodes: [{name: a}]", "nodes[0].url", None, "a value"),
        ("discovery: {dns: [{name: 'a:1', port: 1}]}", "discovery.dns[0].name", "a:1", "host name"),
        ("discovery: {dns: [{name: a, port: 0}]}", "discovery.dns[0].port", 0, "or equal to 1"),
        ("discovery: {dns: [{name: a, port: 1}, {name: a, port: 2}]}", "discovery", None, "every name once"),
        (
            "registration: {allowed_cidrs: [10.0.0.1/8]}",
            "registration.allowed_cidrs[0]",
            "10.0.0.1/8",
            "10.0.0.0/8",
        ),
        ("policy: least-expected-weight", "policy.default", "least-expected-weight", "'least-expected-wait'"),
        ("policy: random+edff", "policy.default", "random+edff", "edf"),
        ("policy: {default: edf}", "policy.default", "edf", "least-expected-wait+edf"),
        ("policy: {models: {m: 'no.py:X'}}", "policy.models.m", "no.py:X", "No such file"),
        ("shadow: rendom", "shadow.policy", "rendom", "'random'"),
        (NODE + "routes: {x: {targets: mm}}", "routes.x.targets[0].model", "mm", "'m'"),
        (NODE + "routes: {x: {targets: m, fallback: q}}", "routes.x.fallback", "q", "'m'"),
        (NODE + "routes: {x: {fallback: m}}", "routes.x", "x", "'m'"),
        (NODE + "routes: {m: {fallback: m}}", "routes.m.fallback", "m", "another model"),
        (
            NODE + "routes: {x: {targets: [{model: m, weight: -1}]}}",
            "routes.x.targets[0].weight",
            -1,
            "or equal to 0",
        ),
        (NODE + "routes: {x: {targets: [{model: m, weight: 0}]}}", "routes.x", None, "above 0"),
        (NODE + "routes: {x: {targets: [m, m]}}", "routes.x", None, "once"),
        (NODE + "policy: {models: {mm: random}}", "policy.models.mm", "mm", "'m'"),
        (NODE + "timeouts: {models: {mm: {total_s: 1}}}", "timeouts.models.mm", "mm", "'m'"),
        (NODE + "fairness: {holding_cost: {mm: 2}}", "fairness.holding_cost.mm", "mm", "'m'"),
        ("fairness: {holding_cost: {m: 0}}", "fairness.holding_cost.m", 0, "greater than 0"),
        ("timeouts: {total_s: 3}", "timeouts.total_s", None, "'default'"),
        ("relay_paths: [{path: /a/../b}]", "relay_paths[0].path", "/a/../b", "without //"),
        ("relay_paths: [{path: 'a'}]", "relay_paths[0].path", "a", "/v1/score"),
        ("relay_paths: [{path: /a, methods: [BREW]}]", "relay_paths[0].methods[0]", "BREW", "'POST'"),
        ("queue: {background_reserve_frac: 1.5}", "queue.background_reserve_frac", 1.5, "or equal to 1"),
        ("limits: {concurrency: 0}", "limits.concurrency", 0, "or equal to 1"),
        ("limits: {requests_per_minute: .inf}", "limits.requests_per_minute", None, "finite"),
        ("retries: {max_per_request: 3}", "retries.max_per_request", 3, "or equal to 2"),
        ("hedge: {max_frac: 0.2}", "hedge.max_frac", 0.2, "0.05"),
        ("record: {rotate_mib: 1}", "record.folder", None, "a value"),
        ("record: {folder: r, redact: all}", "record.redact", "all", "'coarse'"),
        ("record: {folder: r, keep_days: 0}", "record.keep_days", 0, "greater than 0"),
        ("record: {folder: r, keep_gib: 0}", "record.keep_gib", 0, "greater than 0"),
        ("record: {folder: r, keep_gib: .nan}", "record.keep_gib", None, "finite"),
        ("record: {folder: r, keep_gib: 0.1}", "record.keep_gib", 0.1, "two files of rotate_mib"),
        ("drain_s: -1", "drain_s", -1, "or equal to 0"),
        ("keys: [{name: a}]", "keys[0]", None, "sha256 or env"),
        ("keys: [{sha256: x, name: a}]", "keys[0].sha256", None, "64 hexadecimal digits"),
    ],
)  # fmt: skip
def test_one_wrong_field_is_named_with_its_value(text: str, field: str, value: object, expected: str) -> None:
    error = error_of(text)
    assert (error.file, error.field) == ("g.yaml", field)
    assert value is None or error.value == value
    assert expected in str(error.expected)


def test_two_nodes_of_one_name() -> None:
    error = error_of("nodes: [{name: a, url: 'http://x:1'}, {name: a, url: 'http://x:2'}]")
    assert (error.field, error.value) == ("nodes[1].name", "a")


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("{x: {targets: y}, y: {targets: x}}", "x → y → x"),
        ("{x: {targets: [m, y]}, y: {targets: [m, z]}, z: {targets: [x]}}", "x → y → z → x"),
    ],
)
def test_loops_of_aliases(text: str, loop: str) -> None:
    assert loop in str(error_of(f"routes: {text}"))


def test_all_problems_are_listed_at_once() -> None:
    message = str(error_of("listn: 1\nworkers: 0\nretries: {max_per_request: 9}"))
    assert message.startswith("g.yaml: 3 problems")


def test_names_twice_and_loops_are_listed_beside_all_else() -> None:
    message = str(
        error_of(f"""
          workers: 0
          nodes: [{{name: a, url: 'http://x:1'}}, {{name: b, url: here}}, {{name: a, url: 'http://x:2'}}, 7]
          keys: [{{name: t, sha256: {DIGEST}}}, {{name: t, sha256: {"b" * 64}, more: 1}}]
          routes: {{x: {{targets: [y, m]}}, y: {{targets: x}}, z: {{two: x}}, m: {{targets: m}}}}
        """)
    )
    lines = message.splitlines()
    assert len(lines) == len(set(lines))
    for part in (
        *("workers", "nodes[1].url", "nodes[2].name", "nodes[3]", "keys[1].more", "keys[1].name"),
        *("'x → y → x'", "'y → x → y'", "routes.z.two"),
    ):
        assert sum(part in line for line in lines) == 1, part
    assert message.startswith("g.yaml: 9 problems")


def test_what_does_not_fit_is_listed_once() -> None:
    nodes = "nodes: [{name: a, url: 'http://x:1'}, {name: a, url: 'http://x:2'}]"
    message = str(error_of(f"{nodes}\nroutes: {{x: {{targets: y}}, y: {{targets: x}}}}"))
    assert message.startswith("g.yaml: 3 problems")
    assert len(message.splitlines()) == 4


@pytest.mark.parametrize(
    "text",
    [
        "keys: [{name: a, sha256: sk-hush}]",
        "keys: [{name: a, key: sk-hush}]",
        "keys: [sk-hush]",
        "keys: {a: sk-hush}",
        "keys: sk-hush",
        "keys: [{name: a, env: sk-hush}]",
        "admin: {keys: [sk-hush]}",
        "admin: {key_env: sk-hush}",
        "store: {url: 'mysql://u:sk-hush@h/d'}",
        "nodes: [{name: a, url: 'http://u:sk-hush@x:1'}]",
        "telemetry: {otlp_endpoint: 'http://u:sk-hush@x:1'}",
    ],
)
def test_secrets_in_the_wrong_place_are_not_repeated(text: str) -> None:
    assert "hush" not in str(error_of(text))


def test_one_key_for_two_tenants() -> None:
    error = error_of(f"keys: [{{name: a, sha256: {DIGEST}}}, {{name: b, sha256: [{'b' * 64}, {DIGEST}]}}]")
    assert error.field == "keys[1].sha256"
    assert "'a'" in str(error.expected)
    assert DIGEST not in str(error)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "g.yaml").write_text("keys_file: none.yaml")
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        load_config(tmp_path / "g.yaml")


def test_nodes_of_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"n\.yaml: nodes\[0\]\.url"):
        node_specs([{"name": "a", "url": "x"}], "n.yaml")
    with pytest.raises(ConfigError, match="two nodes of one name"):
        node_specs([{"name": "a", "url": "http://x"}, {"name": "a", "url": "http://y"}], "n.yaml")
