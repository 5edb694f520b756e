"""The live host: what it asks of a backend, on the wall clock, when interrupted, and what it refuses."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

import numpy as np
import pytest

from support.builders import NEVER_S, cluster, faults, requests
from support.planning_policies import Gate
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Status
from trimtab.engine.driver import Driver
from trimtab.engine.state import REPLAYED
from trimtab.errors import PolicyError, UsageError
from trimtab.live.clock import Clock, VirtualClock
from trimtab.live.planner import InlinePlanner
from trimtab.live.runner import Backend, LiveRunner, Workers, run_live
from trimtab.policies.catalogue import find

C = cluster(3, slots=2, queue_max=2)
LEAST = find("least-connections")


class Recorder(Workers):
    """Workers that keep a diary."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.served: list[tuple[int, int]] = []
        self.cancelled: list[tuple[int, int]] = []

    def serve(self, node_idx: int, serial: int, until_s: float) -> Awaitable[None]:
        self.served.append((node_idx, serial))
        return super().serve(node_idx, serial, until_s)

    def cancel(self, node_idx: int, serial: int) -> None:
        self.cancelled.append((node_idx, serial))
        super().cancel(node_idx, serial)


class Deaf(Recorder):
    """Goes on serving what has been cancelled."""

    def cancel(self, node_idx: int, serial: int) -> None:
        self.cancelled.append((node_idx, serial))


class Broken(Recorder):
    """Fails while it serves request 3."""

    def serve(self, node_idx: int, serial: int, until_s: float) -> Awaitable[None]:
        return self._fail() if serial == 3 else super().serve(node_idx, serial, until_s)

    async def _fail(self) -> None:
        raise ConnectionError("node is gone")


class Silent(Workers):
    """Never completes anything."""

    def serve(self, node_idx: int, serial: int, until_s: float) -> Awaitable[None]:
        return asyncio.get_running_loop().create_future()


def through(kind: type[Workers], options: Options, n: int = 60) -> tuple[Driver, Workers]:
    """Run some requests through a host with this backend, on a virtual clock."""
    clock = VirtualClock()
    backend = kind(clock)
    r = requests(C, n, load=1.2, deadline_s=2.0)
    driver = Driver(C, r, options, LEAST, host=REPLAYED, mode="interpreted")
    checked: Backend = backend

    async def main() -> None:
        await LiveRunner(driver, clock, checked, InlinePlanner(driver.policy, driver.planning)).run()

    clock.run(main())
    return driver, backend


@pytest.mark.parametrize("kind", [Recorder, Deaf])
def test_the_cancellation_of_running_work_reaches_the_backend(kind: type[Recorder]) -> None:
    driver, backend = through(kind, Options(cancel=Cancel.ALWAYS))
    assert isinstance(backend, Recorder)
    rows = driver.state.requests
    stopped = (rows["status"] == Status.CANCELLED) & np.isfinite(rows["start_s"])
    assert stopped.any()
    assert sorted(serial for _, serial in backend.cancelled) == np.flatnonzero(stopped).tolist()
    assert all(rows["node_idx"][serial] == node for node, serial in backend.served + backend.cancelled)
    assert (rows["status"] >= Status.FINISHED).all()
    assert (driver.state.nodes["running"] == 0).all()


def test_the_end_at_the_horizon_stops_what_runs() -> None:
    driver, backend = through(Recorder, Options(horizon_s=4.0))
    assert isinstance(backend, Recorder)
    running = np.flatnonzero(driver.state.requests["status"] == Status.RUNNING)
    assert sorted(serial for _, serial in backend.cancelled) == running.tolist()
    assert driver.now_s <= 4.0


def test_a_backend_that_raises_stops_the_host() -> None:
    with pytest.raises(ConnectionError, match="node is gone"):
        through(Broken, Options())


def test_a_backend_that_never_completes_is_a_deadlock() -> None:
    with pytest.raises(RuntimeError, match="deadlock"):
        through(Silent, Options(), n=3)


def test_on_the_wall_clock_a_run_ends_whole_and_nothing_happens_early() -> None:
    r = requests(C, 40, load=0.9, deadline_s=3.0, noise=True)
    r.work["deadline_s"][::2] = NEVER_S  # they end whatever the machine does meanwhile
    seen: list[int] = []
    began_s = time.monotonic()
    driver = run_live(
        C, r, Options(cancel=Cancel.ALWAYS, held_max=4), LEAST, speed=20.0, progress=seen.append
    )
    real_s = time.monotonic() - began_s
    rows, counts = driver.state.requests, driver.state.counts
    ended = counts["finished"][0] + counts["rejected"][0] + counts["cancelled"][0]
    assert ended == counts["arrived"][0] == len(r)
    assert seen == list(range(1, 41))
    assert (driver.state.work["arrival_s"] >= r.work["arrival_s"] - 1e-6).all()
    done = rows["status"] == Status.FINISHED
    assert done.any()  # how many others make it before their deadlines is a matter of the machine
    served_s = rows["finish_s"][done] - rows["service_start_s"][done]
    assert (served_s >= rows["left_s"][done] - 1e-6).all()
    assert real_s * 20.0 >= driver.now_s


def test_a_policy_that_raises_stops_the_live_host_with_request_and_time() -> None:
    class Raises(Policy):
        @staticmethod
        def dispatch(
            view: object, plan: object, work: object, memory: object, draws: object, ranking: object
        ) -> int:
            raise ZeroDivisionError("oh")

    with pytest.raises(PolicyError, match=r"Raises.*ZeroDivisionError.*request 0 at \d"):
        run_live(C, requests(C, 3), Options(), Decider.of(Raises()), speed=1000.0)


def test_an_interruption_ends_the_run_and_is_passed_on() -> None:
    def interrupt(arrived: int) -> None:
        if arrived == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_live(C, requests(C, 50), Options(), LEAST, clock=VirtualClock(), progress=interrupt)


INTERRUPTED = """
import multiprocessing
from support.builders import cluster, requests
from support.planning_policies import Gate
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.live.runner import run_live

if __name__ == "__main__":
    c = cluster(1)
    try:
        decider = Decider.of(Gate(answer="hang"))
        run_live(c, requests(c, 3), Options(), decider, progress=lambda n: print(n, flush=True))
    except KeyboardInterrupt:
        print("interrupted", multiprocessing.active_children(), flush=True)
"""


def test_ctrl_c_ends_the_planning_process_too(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{INTERRUPTED}")
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()  # else it is waited for without end
    assert out.splitlines()[-1] == "interrupted []"
    assert err == ""
    assert process.returncode == 0


def test_what_a_live_host_cannot_do_is_refused() -> None:
    r = requests(C, 3)
    with pytest.raises(UsageError, match="faults"):
        run_live(C, r, Options(faults=faults([0], [], mtbf_s=1.0, mttr_s=1.0)), LEAST)
    with pytest.raises(UsageError, match="speed"):
        run_live(C, r, Options(), LEAST, speed=2.0, clock=VirtualClock())
    with pytest.raises(UsageError, match="speed"):
        run_live(C, r, Options(), LEAST, speed=-1.0)


def test_a_live_plan_opens_the_gate_and_its_process_is_gone_afterwards() -> None:
    others = {child.pid for child in multiprocessing.active_children()}
    driver = run_live(cluster(1), requests(cluster(1), 5), Options(), Decider.of(Gate()), speed=20.0)
    assert driver.planning.made >= 1
    assert (driver.state.requests["status"] == Status.FINISHED).all()
    assert {child.pid for child in multiprocessing.active_children()} <= others
