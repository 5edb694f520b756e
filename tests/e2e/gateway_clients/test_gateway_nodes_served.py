"""Nodes that come and go while the gateway serves; TLS, backends' own keys, jobs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.backends import BackendProcess, Options, launched
from support.served import Answer, Served, chat, config_of, node_of, served
from support.waiting import wait_until

BACKENDS_KEY = "a-key-of-the-backend"


@dataclass(frozen=True)
class Stage:
    gateway: Served
    folder: Path
    spare: BackendProcess
    found: BackendProcess


def make_certificate(folder: Path) -> tuple[str, str]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    asked = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1")
    files = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert))
    subprocess.run(["openssl", "req", *asked, *files], check=True, capture_output=True)
    return str(cert), str(key)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("nodes")
    cert, tls_key = make_certificate(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKENDS_KEY", BACKENDS_KEY)
        wanted = (
            Options(name="plain", models="plain", output_s=0.001),
            Options(name="safe", models="safe", api_key_env="BACKENDS_KEY", tls_cert=cert, tls_key=tls_key),
            Options(name="strange", models="strange", tls_cert=cert, tls_key=tls_key),
            Options(name="spare", models="plain,spare", output_s=0.001),
            Options(name="found", models="found", output_s=0.001),
        )
        with launched(*wanted) as running:
            plain, safe, strange, spare, found = running
            (folder / "nodes.json").write_text("[]")
            config = config_of(
                nodes=[
                    node_of(plain, capacity="auto"),
                    node_of(safe, ca_file=cert, api_key_env="BACKENDS_KEY"),
                    node_of(strange),
                ],
                discovery={"file": "nodes.json", "period_s": 0.1},
                registration={"allowed_cidrs": ["127.0.0.0/8"]},
                routes={"by-alias": {"targets": "plain"}},
                policy="round-robin",
                queue={"max_wait_no_ready_node_s": 0.2},
            )
            with served(folder, config) as gateway:
                yield Stage(gateway, folder, spare, found)


def say(stage: Stage, model: str, **headers: str) -> Answer:
    return stage.gateway.call("/v1/chat/completions", chat(model), **headers)


def nodes(stage: Stage) -> dict[str, dict[str, object]]:
    return {node["name"]: node for node in stage.gateway.admin("/admin/nodes").json()["nodes"]}


def test_auto_capacity(stage: Stage) -> None:
    assert say(stage, "plain").status == 200
    assert 1 <= stage.gateway.metric("trimtab_node_capacity", node="plain") <= 256


def test_tls_and_a_backends_own_key(stage: Stage) -> None:
    answer = say(stage, "safe")
    assert (answer.status, answer.headers["x-trimtab-node"]) == (200, "safe")


def test_a_certificate_that_nobody_vouches_for(stage: Stage) -> None:
    assert say(stage, "strange").status == 503
    assert nodes(stage)["strange"]["health"] != "up"


def test_a_node_is_added_drained_and_removed(stage: Stage) -> None:
    gateway = stage.gateway
    assert say(stage, "spare").status == 404
    added = gateway.admin("/admin/nodes", {"name": "more", "url": stage.spare.url, "capacity": 4})
    assert (added.status, added.json()["name"]) == (201, "more")
    wait_until(lambda: say(stage, "spare").status, lambda status: status == 200)
    assert {say(stage, "plain").headers["x-trimtab-node"] for _ in range(4)} == {"plain", "more"}
    assert "spare" in {model["id"] for model in gateway.call("/v1/models").json()["data"]}
    assert gateway.admin("/admin/nodes/more/drain", method="POST").status == 202
    assert {say(stage, "plain").headers["x-trimtab-node"] for _ in range(4)} == {"plain"}
    assert gateway.admin("/admin/nodes/more/undrain", method="POST").status == 202
    assert {say(stage, "plain").headers["x-trimtab-node"] for _ in range(4)} == {"plain", "more"}
    assert gateway.admin("/admin/nodes/more", method="DELETE").status == 202
    wait_until(lambda: "more" in nodes(stage), lambda there: not there)
    assert gateway.admin("/admin/nodes/more", method="DELETE").status == 404


def test_usage_is_told_by_tenant_and_model(stage: Stage) -> None:
    def told(tenant: str) -> dict[str, dict[str, object]]:
        rows = stage.gateway.admin(f"/admin/usage?tenant={tenant}").json()["usage"]
        return {row["model"]: row for row in rows}

    before = told("tests").get("plain", {"requests": 0, "completion_tokens": 0})
    assert [say(stage, model).status for model in ("plain", "by-alias", "nothing-of-the-kind")] == [
        200,
        200,
        404,
    ]
    after = told("tests")
    assert after["plain"]["requests"] == before["requests"] + 2
    assert after["plain"]["completion_tokens"] == before["completion_tokens"] + 2 * 4
    assert "nothing-of-the-kind" not in after
    assert told("nobody") == {}


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "far", "url": "http://192.0.2.1:8000"},
        {"name": "meta", "url": "http://169.254.169.254"},
        {"name": "plain", "url": "http://127.0.0.1:1"},
        {"name": "odd", "url": "file:///etc/passwd"},
        {"name": "env", "url": "http://127.0.0.1:1", "api_key_env": "HOME"},
    ],
)
def test_what_may_not_be_registered(stage: Stage, spec: dict[str, object]) -> None:
    before = set(nodes(stage))
    refused = stage.gateway.admin("/admin/nodes", spec)
    assert refused.status in (400, 403, 409)
    assert set(nodes(stage)) == before


def test_a_watched_file(stage: Stage) -> None:
    entry = {"name": "found", "url": stage.found.url, "models": ["found"]}
    fresh = stage.folder / "nodes.new"
    fresh.write_text(json.dumps([entry]))
    fresh.replace(stage.folder / "nodes.json")
    wait_until(lambda: say(stage, "found").status, lambda status: status == 200)
    (stage.folder / "nodes.json").write_text("[{")  # broken: the old nodes stay
    assert say(stage, "found").status == 200
    (stage.folder / "nodes.json").write_text("[]")
    wait_until(lambda: say(stage, "found").status, lambda status: status == 404)


@pytest.mark.parametrize("model", ["plain", "by-alias"])
def test_a_job_of_any_path(stage: Stage, model: str) -> None:
    gateway = stage.gateway
    made = say(stage, model, prefer="respond-async")
    assert (made.status, made.headers["preference-applied"]) == (202, "respond-async")
    place = made.headers["location"]
    job = wait_until(
        lambda: gateway.call(place).json(), lambda job: job["status"] not in ("queued", "dispatched")
    )
    assert job["status"] == "done"
    assert gateway.call(place + "/result").json()["model"] == "plain"
    assert made.json()["id"] in {job["id"] for job in gateway.call("/v1/jobs").json()["data"]}


def test_a_job_is_cancelled(stage: Stage) -> None:
    body = chat("safe", max_tokens=3000, ignore_eos=True)
    made = stage.gateway.call("/v1/chat/completions", body, prefer="respond-async")
    place = made.headers["location"]
    wait_until(lambda: stage.gateway.call(place).json()["status"], lambda status: status == "dispatched")
    assert stage.gateway.call(place + "/result").status == 409
    assert stage.gateway.call(place + "/cancel", method="POST").status in (200, 202)
    wait_until(lambda: stage.gateway.call(place).json()["status"], lambda status: status == "cancelled")
    assert stage.gateway.call("/v1/jobs/none").status == 404


def test_a_job_for_an_unknown_model_is_refused(stage: Stage) -> None:
    assert say(stage, "none", prefer="respond-async").status == 404
