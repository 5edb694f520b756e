"""Slots of nodes that come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trimtab.live.program_host import HostNode, Link, Program, ProgramEvents
from trimtab.live.this_machine import ThisMachine
from trimtab.training.runner.run_ledger import RunSettings
from trimtab.training.runner.slot_pool import SlotPool


class Told(ThisMachine):
    def follow(self, added: Any, changed: Any, removed: Any, troubled: Any) -> None:
        self.removed = removed

    async def start(self, node: HostNode, program: Program, events: ProgramEvents) -> Link:
        self.ended = events.ended
        return await super().start(node, program, events)


class Events:
    def __init__(self) -> None:
        self.changes: list[str] = []

    def node_changed(self, node_idx: int, up: bool, why: str) -> None:
        self.changes.append(why)


async def test_a_node_whose_program_ends_as_the_host_tells_that_it_is_gone_is_lost_once(
    tmp_path: Path,
) -> None:
    host, events = Told("", {"here": 1}), Events()
    settings = RunSettings("fifo", {"here": 1}, "jobs")
    pool = SlotPool(host, settings, [], tmp_path, 1.0, events)  # type: ignore[arg-type]
    await pool.open()
    host.removed(host.nodes()[0])
    host.ended("by SIGKILL")
    assert events.changes == ["node here is gone"]
    await pool.close()
