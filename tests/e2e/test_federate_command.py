"""`trimtab federate`: real servers and sites on loopback, with TLS; a kill in mid-round; refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

from conftest import Cli, process
from support.certificates import needs_openssl, self_signed
from trimtab.domain.artifact import Artifact
from trimtab.domain.learned_estimates import LearnedEstimates
from trimtab.gateway.config import digest_of
from trimtab.learn.federated.aggregation import Update
from trimtab.learn.federated.estimates import EstimatesProblem, EstimatesSite
from trimtab.learn.federated.learning_problem import PROTOCOL
from trimtab.learn.federated.rounds import Federation, Terms, learned_together, update_content
from trimtab.learn.federated.site_data import site_rows
from trimtab.traces import read_trace

SITES = ("bank", "clinic", "studio")
PROBLEM = EstimatesProblem(n_rounds=3)
FEDERATION = {
    "listen": "127.0.0.1:0",
    "sites": [{"name": name, "sha256": digest_of(name.encode())} for name in SITES],
    "learn": {"estimates": {"rounds": 3}},
}


def write_site(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    prompt = 16 + rng.lognormal(6, 1, 500).astype(np.int64)
    output = np.maximum(1, rng.gamma(2.0, 0.5, 500) * (1 + seed) * (30 + prompt / 10)).astype(np.int64)
    table = {"arrival_s": np.arange(500) * 1.0, "prompt_tokens": prompt, "output_tokens": output}
    pl.DataFrame(table).write_csv(path)
    return path


def site_of(path: Path) -> EstimatesSite:
    return EstimatesSite(PROBLEM, site_rows(read_trace(path), PROBLEM.layout).moments)


class Server:
    """A server's process and its URL."""

    def __init__(self, running: subprocess.Popen[str], url: str, ca: Path | None) -> None:
        self.running, self.url = running, url
        self.tls = None if ca is None else ssl.create_default_context(cafile=ca)

    def call(
        self, key: str, path: str, body: bytes | None = None, version: str = PROTOCOL
    ) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {key}", "x-trimtab-federation": version}
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def answer(self, name: str, site: EstimatesSite) -> int:
        """Let a site answer the round under way; returns the number of the round."""
        while (asked := self.call(name, "/v1/ask"))[0] == 204:
            pass  # others have not answered yet
        status, content = asked
        assert status == 200, content
        ask = Artifact.parsed(content, "ask")
        body = update_content(site.answer(ask), ask.meta["identity"])
        assert self.call(name, f"/v1/answers/{ask.meta['round']}", body)[0] == 202
        return int(ask.meta["round"])


@contextmanager
def serving(folder: Path, ca: Path | None = None) -> Iterator[Server]:
    command = [sys.executable, "-m", "trimtab", "federate", "server", "federation.yaml", "--out", "out"]
    running = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        line = running.stderr.readline()
        found = re.search(r"https?://\S+:\d+", line)
        assert found is not None, line + running.stderr.read()
        yield Server(running, found[0], ca)
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


@needs_openssl
def test_a_killed_server_goes_on_and_learns_what_it_would_have_learned(tmp_path: Path) -> None:
    """With TLS. The oracle is the same federation in this process, byte for byte."""
    self_signed(tmp_path, "IP:127.0.0.1")
    config = {**FEDERATION, "tls": {"certificate": "cert.pem", "key": "key.pem"}}
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump(config))
    files = {name: write_site(tmp_path / f"{name}.csv", k) for k, name in enumerate(SITES)}
    sites = {name: site_of(path) for name, path in files.items()}
    with serving(tmp_path, tmp_path / "cert.pem") as server:
        for name in SITES:
            assert server.answer(name, sites[name]) == 1
        assert server.answer("bank", sites["bank"]) == 2
        server.running.send_signal(signal.SIGKILL)  # in the middle of round 2
        server.running.wait()
    status = json.loads((tmp_path / "out" / "status.json").read_text())
    assert status["round"]["answered"] == ["bank"]
    with serving(tmp_path, tmp_path / "cert.pem") as server:
        client = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "trimtab",
                    "federate",
                    "client",
                    "studio.csv",
                    "--server",
                    server.url,
                ),
                *("--ca", "cert.pem", "--key-env", "SITE_KEY", "--out", "studio", "--json"),
            ],
            cwd=tmp_path,
            env={**os.environ, "SITE_KEY": "studio"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.answer("clinic", sites["clinic"]) == 2
        for name in ("bank", "clinic"):
            assert server.answer(name, sites[name]) == 3
        told, _ = client.communicate(timeout=120)
        assert client.returncode == 0
        for name in ("bank", "clinic"):
            assert server.call(name, "/v1/result")[0] == 200
        out, _ = server.running.communicate(timeout=60)
    assert (server.running.returncode, "3 rounds from 3 sites" in out) == (0, True)
    expected = learned_together(Federation(PROBLEM, Terms(SITES)), sites).result()[1]
    assert (tmp_path / "out" / "learned.safetensors").read_bytes() == expected
    assert (tmp_path / "studio" / "learned.safetensors").read_bytes() == expected
    assert json.loads(told)["rows"]["lengths"] == {"*": 500}
    own = LearnedEstimates.read(str(tmp_path / "studio" / "own.safetensors"))
    assert own.provenance["sites"] == list(SITES)


def test_sites_that_do_not_fit_are_refused_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    config = {**FEDERATION, "rounds": {"sites_min": 1}, "learn": {"estimates": {"rounds": 1}}}
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump(config))
    with serving(tmp_path) as server:
        assert server.call("stranger", "/v1/ask")[0] == 401
        status, content = server.call("bank", "/v1/ask", version="0")
        assert (status, b"bank speaks version 0" in content) == (409, True)
        identity = json.dumps({"identity": "another"}).encode()
        status, content = server.call("clinic", "/v1/join", identity)
        assert (status, b"clinic has the schema another" in content) == (409, True)
        refused = json.loads(server.call("studio", "/v1/status")[1])["refused"]
        assert refused.keys() == {"bank", "clinic"}
        ask = Artifact.parsed(server.call("studio", "/v1/ask")[1], "ask")
        bad = update_content(Update(np.ones(2), np.ones(2)), ask.meta["identity"])
        assert server.call("studio", "/v1/answers/1", bad)[0] == 422
        assert server.call("studio", "/v1/answers/7", bad)[0] == 409
        width = len(ask.arrays["numbers"])
        good = update_content(Update(np.zeros(width), np.ones(width)), ask.meta["identity"])
        assert server.call("studio", "/v1/answers/1", good)[0] == 202
        assert server.call("studio", "/v1/result")[0] == 200
        out, _ = server.running.communicate(timeout=60)
    assert (server.running.returncode, "1 round from 1 site" in out) == (0, True)


def test_a_server_adds_what_it_cannot_read(cli: Cli, tmp_path: Path) -> None:
    """Three clients; the oracle is the same federation in the open. A client without the key is told so."""
    made = cli("federate", "keys", "--out", "keys")
    assert (made.exit_code, "keys/sites.key" in made.stdout) == (0, True)
    assert (tmp_path / "keys" / "sites.key").stat().st_mode & 0o077 == 0
    again = cli("federate", "keys", "--out", "keys")
    assert (again.exit_code, "has keys already" in again.stderr) == (2, True)
    sums = {"aggregation": {"sum_key": "keys/server.key"}, "rounds": {"sites_min": 3}}
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump({**FEDERATION, **sums}))
    files = {name: write_site(tmp_path / f"{name}.csv", k) for k, name in enumerate(SITES)}
    (tmp_path / "keys" / "sites.key").rename(tmp_path / "sites.key")
    with serving(tmp_path) as server:
        command = (sys.executable, "-m", "trimtab", "federate", "client")
        refused = subprocess.run(
            [*command, "bank.csv", "--server", server.url, "--key-env", "SITE_KEY"],
            cwd=tmp_path,
            env={**os.environ, "SITE_KEY": "bank"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (refused.returncode, "--sum-key: does not fit the server" in refused.stderr) == (2, True)
        clients = [
            subprocess.Popen(
                [
                    *(*command, f"{name}.csv", "--server", server.url, "--key-env", "SITE_KEY"),
                    *("--sum-key", "sites.key", "--out", name, "--quiet"),
                ],
                cwd=tmp_path,
                env={**os.environ, "SITE_KEY": name},
            )
            for name in SITES
        ]
        assert [each.wait(timeout=200) for each in clients] == [0, 0, 0]
        server.running.communicate(timeout=60)
    plain = learned_together(
        Federation(PROBLEM, Terms(SITES)), {name: site_of(path) for name, path in files.items()}
    )
    expected = LearnedEstimates.of(Artifact.parsed(plain.result()[1], "plain"))
    for name in SITES:
        found = LearnedEstimates.read(str(tmp_path / name / "learned.safetensors"))
        np.testing.assert_allclose(found.lengths, expected.lengths, rtol=1e-4)
        np.testing.assert_allclose(found.rows["lengths"], expected.rows["lengths"], atol=1e-5)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "federation.safetensors",
        "status.json",
        "sums.safetensors",
    ]


SUMS = {"sum_key": "federation.yaml"}


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"listen": "0.0.0.0:9443"}, ("listen", "tls beside it")),
        ({"sites": [{"name": "a"}]}, ("sites[0].sha256", "tls.client_ca")),
        ({"sites": [FEDERATION["sites"][0]] * 2}, ("sites[1].name", "no other site has")),  # type: ignore[index]
        ({"learn": {}}, ("learn", "either estimates or policy")),
        ({"learn": {"policy": {"policy": "random"}}}, ("learn", "no parameter to tune")),
        ({"rounds": {"sites_min": 4}}, ("rounds.sites_min", "at most 3")),
        ({"rounds": {"deadline_s": 0}}, ("rounds.deadline_s",)),
        ({"aggregation": {"rule": "mode"}}, ("aggregation.rule", "median")),
        ({"aggregation": SUMS}, ("rounds.sites_min", "3 or more")),
        (
            {"aggregation": {**SUMS, "rule": "median"}, "rounds": {"sites_min": 3}},
            ("aggregation.rule", "can only be added"),
        ),
        (
            {"aggregation": {**SUMS, "clip": 3.0}, "rounds": {"sites_min": 3}},
            ("aggregation.clip", "see how long"),
        ),
        (
            {"aggregation": SUMS, "rounds": {"sites_min": 3}, "learn": {"policy": {}}},
            ("learn.policy", "can't see"),
        ),
        ({"aggregation": SUMS, "rounds": {"sites_min": 3}}, ("federation.yaml", "is no key")),
        ({"aggregation": {"sum_key": "none.key"}}, ("aggregation.sum_key", "a file that exists")),
        ({"tls": {"certificate": "federation.yaml", "key": "federation.yaml"}}, ("tls", "PEM")),
    ],
)
def test_files_that_cannot_be_used(cli: Cli, tmp_path: Path, change: object, parts: tuple[str, ...]) -> None:
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump({**FEDERATION, **change}))  # type: ignore[dict-item]
    refused = cli("federate", "server", "federation.yaml", "--check")
    assert refused.exit_code == 2
    assert all(part in refused.stderr for part in ("federation.yaml", *parts) if part != "PEM"), (
        refused.stderr
    )


def test_the_example_passes_the_check(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").write_text(cli("federate", "server", "--example").stdout)
    result = cli("federate", "server", "federation.yaml", "--check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "2 sites" in result.stdout


def test_a_client_says_what_is_missing(tmp_path: Path) -> None:
    write_site(tmp_path / "a.csv", 0)
    client = ("federate", "client", "a.csv", "--server")
    gone = process(*client, "http://127.0.0.1:1", "--patience-s", 0, cwd=tmp_path)
    assert (gone.returncode, "cannot be reached" in gone.stderr) == (1, True)
    keyless = process(*client, "http://127.0.0.1:1", "--key-env", "NO_SUCH_KEY", cwd=tmp_path)
    assert (keyless.returncode, "NO_SUCH_KEY" in keyless.stderr) == (2, True)
    assert not (tmp_path / "trimtab-learned-together").exists()
