"""The processes of the states that stages share: started before the workers, replaced when one ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trimtab.chains.graph import StageCall
from trimtab.chains.stage_codes import sent_code
from trimtab.clusters.processes.state_process import StateSetup
from trimtab.errors import UsageError
from trimtab.live.shared_state import Shared, StateAddress
from trimtab.live.stage_backend import RemoteBackend, StageBackend, StageCode

logger = logging.getLogger(__name__)

_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trimtab.clusters.processes.state_process import main; main()"
)
_LONGEST_WAIT_S: Final = 5.0


class SharedStates:
    """The states of some stages."""

    def __init__(self, steps: Sequence[StageCall]) -> None:
        declared = {s.state_name: s for step in steps for s in step.stage.stage_options.state}
        self._declared: Mapping[str, Shared] = declared
        self._of = {step.code_name: [s.state_name for s in step.stage.stage_options.state] for step in steps}
        self._at: dict[str, StateAddress] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._folder = Path()

    async def open(self, backend: StageBackend) -> None:
        """Start a process for each. Raises UsageError if one does not start, or workers cannot reach it."""
        if not self._declared:
            return
        host = await asyncio.to_thread(backend.host_address) if isinstance(backend, RemoteBackend) else ""
        self._folder = Path(tempfile.mkdtemp(prefix="trimtab-states-"))
        for k, name in enumerate(self._declared):
            place: str | tuple[str, int] = (host, 0) if host else str(self._folder / f"{k}.socket")
            self._at[name] = StateAddress(name, place, secrets.token_bytes(32))
            await self._start(name)
            self._tasks.append(asyncio.get_running_loop().create_task(self._keep(name)))

    def with_addresses(self, codes: Sequence[StageCode]) -> list[StageCode]:
        """The codes, each with where its states answer."""
        return [
            replace(code, states=tuple(self._at[n] for n in self._of.get(code.name, ()))) for code in codes
        ]

    async def _start(self, name: str) -> None:
        shared, at = self._declared[name], self._at[name]
        saved = self._folder / f"{list(self._at).index(name)}.saved"
        setup = StateSetup(
            sent_code(shared.state_code, name), at.address, at.key, str(Path.cwd()),
            str(saved) if shared.restart == "restored" else "", shared.save_every,
        )  # fmt: skip
        if isinstance(at.address, str):
            Path(at.address).unlink(missing_ok=True)  # of the process before
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._processes[name] = process
        is_up, told = await asyncio.to_thread(_begun, process, setup)
        if not is_up:
            raise UsageError(
                f"does not start: {told}", field=f"state {name}", expected="a class to be constructed"
            )
        self._at[name] = at._replace(address=told)

    async def _keep(self, name: str) -> None:
        """Replace the process of a state whenever it ends."""
        delay_s = 0.1
        while True:
            code = await asyncio.to_thread(self._processes[name].wait)
            logger.warning("state %s: its process ended (%s); %s", name, code, self._declared[name].restart)
            while True:
                try:
                    await self._start(name)
                except UsageError as error:
                    logger.error("%s", error)
                    await asyncio.sleep(delay_s)
                    delay_s = min(_LONGEST_WAIT_S, 2.0 * delay_s)
                else:
                    break

    async def close(self) -> None:
        """End all processes."""
        for task in self._tasks:
            task.cancel()
        for process in self._processes.values():
            process.kill()
            await asyncio.to_thread(process.wait)
        if self._declared:
            shutil.rmtree(self._folder, ignore_errors=True)


def _begun(process: subprocess.Popen[bytes], setup: StateSetup) -> tuple[bool, Any]:
    """Whether the process serves, and its address or what went wrong."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as to, process.stdout as answers:
            to.write(pickle.dumps(setup))
            to.flush()
            told: tuple[bool, Any] = pickle.load(answers)
    except (OSError, EOFError):
        return False, f"its process ended with code {process.wait()}"
    return told
