"""Discovery by a watched file and by the DNS."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.gateway.node_world import Heard, fleet_of, spec
from support.waiting import until
from trimtab.errors import ConfigError
from trimtab.gateway.model import Health
from trimtab.gateway.nodes.address import AllowedNetworks
from trimtab.gateway.nodes.discovery import DnsNodes, FileSource, FollowedNodes, Registrar, reconcile
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_state import NodeSpec


def parse(data: Any) -> Sequence[NodeSpec]:
    try:
        return [NodeSpec(**entry) for entry in data]
    except TypeError as error:
        raise ConfigError(str(error)) from None


def names(fleet: Fleet) -> list[str]:
    return [node.name for node in fleet.present()]


def write(path: Path, text: str) -> None:
    """As an editor should: another file takes its place."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


async def test_a_watched_file(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text("[{name: a, url: 'http://h1'}, {name: b, url: 'http://h2'}]")
    fleet = fleet_of(1)
    source = FileSource(fleet, path, parse)
    await source.look()
    assert names(fleet) == ["n0", "a", "b"]
    write(path, "[{name: b, url: 'http://h2', max_requests: 7}, {name: c, url: 'http://h3'}]")
    await source.look()
    assert names(fleet) == ["n0", "a", "b"]  # it must stand still first
    await source.look()
    assert names(fleet) == ["n0", "b", "c"]
    assert fleet.known("b").max_requests == 7
    assert fleet.known("b").idx == 2


async def test_bad_content_keeps_the_old_list_and_is_reported_until_it_is_right(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text('[{"name": "a", "url": "http://h1"}]')
    fleet = fleet_of(0)
    source = FileSource(fleet, path, parse)
    await source.look()
    for text in ("", "{}", "[", '[{"nam": "a"}]', "null", "[1]", "[" * 100000, "\xff"):
        write(path, text)
        await source.look()
        await source.look()
        assert names(fleet) == ["a"]
        assert "stay as they are" in fleet.problems["file:nodes.json"]
    path.unlink()
    await source.look()
    assert "cannot be read" in fleet.problems["file:nodes.json"]
    write(path, "[]")
    await source.look()
    await source.look()
    assert (names(fleet), fleet.problems) == ([], {})


async def test_one_bad_entry_does_not_stop_the_others(tmp_path: Path) -> None:
    fleet = fleet_of(1)
    bad = [spec("n0"), spec("x", url="ftp://h"), spec("y", api_key_env="NOT_SET_ANYWHERE"), spec("z")]
    problems = reconcile(fleet, "file:f", bad)
    assert names(fleet) == ["n0", "z"]
    assert [problem.split(":")[0] for problem in problems] == ["n0", "x", "y"]


async def test_what_a_registered_node_names_is_not_looked_at_unless_it_may(tmp_path: Path) -> None:
    known = tmp_path / "ca.pem"
    known.write_text("")
    registrar = Registrar(Fleet(asyncio.get_running_loop()), AllowedNetworks(["127.0.0.0/8"]), {str(known)})
    said = []
    for ca in (str(tmp_path), str(tmp_path / "missing"), [str(known)]):
        with pytest.raises(ConfigError) as refused:
            registrar.vet({"name": "n", "url": "http://127.0.0.1:1", "ca_file": ca})
        said.append(str(refused.value).replace(str(ca), ""))
    assert "may not be used" in said[0]
    assert said[0] == said[1], "a file that is there is refused in the same words"
    registrar.vet({"ca_file": str(known)})
    registrar.vet({"name": "n"})


async def test_a_node_with_another_url_works_at_once_while_the_old_one_drains() -> None:
    fleet = fleet_of(0)
    reconcile(fleet, "s", [spec("a", url="http://h1")])
    old = fleet.known("a")
    old.in_flight = 1
    heard = Heard(fleet)
    reconcile(fleet, "s", [spec("a", url="http://h2")])
    new = fleet.known("a")
    assert (new.host, new.idx, fleet.gets_work(new)) == ("h2", 1, True)
    assert old.health is Health.DRAINING
    reconcile(fleet, "s", [spec("a", url="http://h2")])
    assert fleet.known("a") is new
    old.in_flight = 0
    await asyncio.sleep(0.2)
    assert heard.events == [("switch", "a"), ("added", "a"), ("removed", "a")]


async def test_addresses_of_a_name_come_and_go() -> None:
    answers: list[list[str] | OSError] = [
        ["10.0.0.1", "10.0.0.2"],
        ["10.0.0.2", "fd00::3"],
        [],
        OSError("no such name"),
        ["10.0.0.1"],
    ]

    async def resolver(host: str, port: int) -> list[str]:
        assert (host, port) == ("llm.internal", 8000)
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    fleet = fleet_of(0)
    source = DnsNodes("llm.internal", 8000, 3600.0, resolver)
    followed = FollowedNodes(
        fleet, "dns:llm.internal", source, spec("llm", url="http://llm.internal:8000/v1")
    )
    followed.start()
    await until(lambda: names(fleet))
    assert names(fleet) == ["llm-10.0.0.1", "llm-10.0.0.2"]
    assert {node.type_name for node in fleet.nodes} == {"llm"}
    assert fleet.nodes[0].server_name == "llm.internal"
    await look(source)
    assert names(fleet) == ["llm-10.0.0.2", "llm-fd00::3"]
    for _ in range(2):
        await look(source)
        assert names(fleet) == ["llm-10.0.0.2", "llm-fd00::3"]
        assert "has no address" in fleet.problems["dns:llm.internal"]
    await look(source)
    assert names(fleet) == ["llm-10.0.0.1"]
    assert fleet.known("llm-10.0.0.1").idx == 0  # the one that was there before
    assert fleet.problems == {}
    await followed.close()


async def look(source: DnsNodes) -> None:
    """Resolve, and let what it found be taken over."""
    await source.look()
    await asyncio.sleep(0)


async def test_sources_start_and_close_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps([{"name": "a", "url": "http://h1"}]))
    fleet = fleet_of(0)
    file = FileSource(fleet, path, parse, period_s=0.01)
    source = DnsNodes("localhost", 1, 0.01)
    dns = FollowedNodes(fleet, "dns:localhost", source, spec("l", url="http://localhost:1"))
    for _ in range(2):
        file.start()
        dns.start()
        await until(lambda: len(names(fleet)) >= 2)
        await file.close()
        await dns.close()
