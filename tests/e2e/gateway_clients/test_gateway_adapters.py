"""A served gateway with adapters: a policy that loads them seldom, and a recording that names them."""

from __future__ import annotations

from pathlib import Path

from support.backends import Options, launched
from support.served import chat, config_of, node_of, served
from support.waiting import wait_until
from trimtab.traces.gateway_recording import open_recording, read_requests


def test_requests_for_an_adapter_go_where_it_was_loaded(tmp_path: Path) -> None:
    backends = (Options(name=name, models="base,law", output_s=0.001) for name in ("a", "b"))
    with launched(*backends) as running:
        config = config_of(
            nodes=[node_of(one, models=["base"], adapters=["law"], capacity=4) for one in running],
            policy="least-expected-completion",  # of equal nodes the first
            record={"folder": "recordings"},
        )
        with served(tmp_path, config) as gateway:

            def node_for(model: str) -> str:
                answer = gateway.call("/v1/chat/completions", chat(model))
                assert answer.status == 200
                return answer.headers["x-trimtab-node"]

            wait_until(lambda: gateway.call("/v1/chat/completions", chat("base")).status, lambda s: s == 200)
            assert gateway.admin("/admin/nodes/a/drain", method="POST").status == 202
            assert node_for("law") == "b"
            assert gateway.admin("/admin/nodes/a/undrain", method="POST").status == 202
            assert [node_for("law") for _ in range(3)] == ["b"] * 3
            parents = {row["id"]: row.get("parent") for row in gateway.call("/v1/models").json()["data"]}
            assert parents == {"base": None, "law": "base"}
    table, _ = read_requests(open_recording(tmp_path / "recordings"))
    assert table.filter(table["adapter"] == "law").height == 4
    assert table.filter(table["adapter"].is_null())["model"].unique().to_list() == ["base"]
