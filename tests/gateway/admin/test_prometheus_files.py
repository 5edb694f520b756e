"""The files in deploy/ name metrics that exist, promtool accepts them, a real Prometheus reads the port."""

from __future__ import annotations

import asyncio
import enum
import importlib
import json
import re
import shutil
import socket
import subprocess
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gateway.fake_control import FakeControl
from support.ports import reserved_port
from support.prometheus import PROMETHEUS, ask_until, prometheus
from trimtab.chains.run_metrics import STAGE_FAMILIES
from trimtab.gateway.admin.admin_app import AdminApp, serve_admin
from trimtab.gateway.admin.auth import AdminAuth, digest
from trimtab.gateway.observe.metric_store import FAMILIES
from trimtab.live.metric_family import Type

DEPLOY = Path(__file__).parents[3] / "deploy"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
KEY = "tt-admin-for-prometheus-0123456789"


def expressions() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for file in sorted((DEPLOY / "grafana").glob("*.json")):
        board = json.loads(file.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{file.name}: {panel['title']}", target["expr"]


def sample_names() -> dict[str, tuple[str, ...]]:
    names = {}
    for family in (*FAMILIES.values(), *STAGE_FAMILIES):
        if family.type is Type.HISTOGRAM:
            names[f"{family.name}_bucket"] = (*family.labels, "le")
            names[f"{family.name}_sum"] = names[f"{family.name}_count"] = family.labels
        else:
            names[family.name] = family.labels
    return names


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_names_and_labels_exist(where: str, expression: str) -> None:
    known = sample_names()
    used = set(re.findall(r"\btrimtab_\w+", expression))
    assert used <= set(known), where
    labels = {"instance", "job"}.union(*(known[name] for name in used))
    matched = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression)
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    asked = {*matched, *(name.strip() for group in grouped for name in group.split(","))}
    assert asked <= labels, where


def test_the_exposition_holds_every_family_that_the_files_name() -> None:
    text = asyncio.run(FakeControl(lived_s=3).metrics()).decode()
    used = {name for _, expression in expressions() for name in re.findall(r"\btrimtab_\w+", expression)}
    helped = set(re.findall(r"# HELP (\w+)", text))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} <= helped | {
        family.name for family in STAGE_FAMILIES
    }


def test_dashboards_have_ids_of_their_own_and_do_not_overlap() -> None:
    for file in (DEPLOY / "grafana").glob("*.json"):
        panels = json.loads(file.read_text(encoding="utf-8"))["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        places = [panel["gridPos"] for panel in panels]
        cells = [
            (x, y)
            for p in places
            for x in range(p["x"], p["x"] + p["w"])
            for y in range(p["y"], p["y"] + p["h"])
        ]
        assert len(set(cells)) == len(cells)


def misfits(given: Any, made: Any, hint: Any = Any, where: str = "") -> Iterator[str]:
    """Where JSON does not fit Grafana's own types: keys that they do not know, values of other types."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if hasattr(type(made), "from_json"):
        hints = typing.get_type_hints(type(made))
        names = {name.removesuffix("_val"): name for name in hints}
        for key, value in given.items():
            if snake(key) not in names:
                yield f"{where}.{key}: no such field"
            elif value is not None:
                name = names[snake(key)]
                yield from misfits(value, getattr(made, name), hints[name], f"{where}.{key}")
    elif isinstance(given, list):
        items = next((typing.get_args(kind)[0] for kind in kinds if typing.get_origin(kind) is list), Any)
        for k, (value, inner) in enumerate(zip(given, made, strict=True)):
            yield from misfits(value, inner, items, f"{where}[{k}]")
    elif not any(may_be(given, kind) for kind in kinds):
        yield f"{where}: {given!r} is no {hint}"


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def may_be(given: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return given in typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return given in [member.value for member in kind]
    if kind in (int, float):
        return isinstance(given, int if kind is int else int | float) and not isinstance(given, bool)
    plain = typing.get_origin(kind) or kind
    return plain is Any or not isinstance(plain, type) or isinstance(given, plain)


def in_grafanas_types(board: dict[str, Any]) -> list[str]:
    sdk = "grafana_foundation_sdk"
    pytest.importorskip(sdk, reason="Grafana's Foundation SDK is not installed")
    importlib.import_module(f"{sdk}.cog.plugins").register_default_plugins()
    kind = importlib.import_module(f"{sdk}.models.dashboard").Dashboard
    return list(misfits(board, kind.from_json(board)))


def test_dashboards_are_of_the_types_that_grafana_generates_from_its_schema() -> None:
    for file in (DEPLOY / "grafana").glob("*.json"):
        board = json.loads(file.read_text(encoding="utf-8"))
        assert in_grafanas_types(board) == [], file.name
        board["panels"][0]["gridPoss"] = {}
        board["panels"][0]["gridPos"]["w"] = "12"
        board["panels"][0]["fieldConfig"]["defaults"]["unitt"] = "s"
        assert [text.partition(":")[0] for text in sorted(in_grafanas_types(board))] == [
            ".panels[0].fieldConfig.defaults.unitt",
            ".panels[0].gridPos.w",
            ".panels[0].gridPoss",
        ]


@needs_promtool
def test_promtool_accepts_the_metrics() -> None:
    text = asyncio.run(FakeControl(lived_s=3).metrics())
    checked = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr.decode()
    assert checked.stderr == b""


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts_test.yml"],
        ["check", "config", "--syntax-only", "scrape.yml"],
    ],
)
def test_promtool_accepts_the_files(arguments: list[str]) -> None:
    folder = DEPLOY / "prometheus"
    checked = subprocess.run(
        [str(PROMTOOL), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def write_config(folder: Path, target: str) -> Path:
    """The example's own scrape configuration, with this test's key, port and pace."""
    config = yaml.safe_load((DEPLOY / "prometheus/scrape.yml").read_text())
    (folder / "key").write_text(KEY)
    job = config["scrape_configs"][0]
    job["authorization"]["credentials_file"] = str(folder / "key")
    job["static_configs"] = [{"targets": [target]}]
    job["scrape_interval"] = "1s"
    config["rule_files"] = [str(DEPLOY / "prometheus/alerts.yml")]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="needs prometheus")
def test_a_real_prometheus_scrapes_and_answers(tmp_path: Path) -> None:
    control = FakeControl(4, lived_s=5)

    async def main(port: int) -> tuple[list[Any], list[Any]]:
        listening = socket.create_server(("127.0.0.1", 0))
        server = await serve_admin(AdminApp(control, AdminAuth([digest(KEY)])), listening)
        config = write_config(tmp_path, f"127.0.0.1:{server.port}")
        try:
            with prometheus(config, port):
                up = await asyncio.to_thread(ask_until, port, 'up{job="trimtab"} == 1')
                total = "sum(trimtab_request_duration_seconds_count)"
                return up, await asyncio.to_thread(ask_until, port, total)
        finally:
            await server.close()

    with reserved_port() as port:
        up, requests = asyncio.run(main(port))
    assert len(up) == 1
    refused = control.metrics_.store().tables["trimtab_refusals_total"].get(("rate_limit",), [0.0])[0]
    assert float(requests[0]["value"][1]) == control.serial - refused
