"""State that stages share: one object for all workers, what its restarts keep, and what is refused."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import pytest

from trimtab.chains import Session, StageNode, chain, shared, stage
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.processes import Processes
from trimtab.errors import ChainError, UsageError
from trimtab.live.shared_state import StateAddress, StateLost, states_at
from trimtab.live.value_codec import decode, encode


@shared(restart="restored")
class Kept:
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def add(self, n: int) -> int:
        self.seen[n] = self.seen.get(n, 0) + 1
        return len(self.seen)

    def pid(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise LookupError("no such thing")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@shared(restart="anew")
class Forgotten:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@stage(state=[Kept, Forgotten], retries=0)
def told(what: str, n: int) -> Any:
    if what == "add":
        return Kept.add(n), Forgotten.add(), Kept.pid(), os.getpid()
    try:
        return getattr(Kept if n else Forgotten, what)()
    except StateLost:
        return "lost"


@chain
def calls(what: str, n: int) -> Any:
    return told(what, n)


def add(n: int) -> dict[str, Any]:
    return {"what": "add", "n": n}


@pytest.mark.parametrize("make", [InProcess, Processes])
def test_workers_share_one_object_that_outlives_its_process_as_declared(make: Any) -> None:
    with Session(calls, on=make([StageNode("one", slots=2)])) as session:
        values = session.run(calls, [add(n % 4) for n in range(12)]).values()
        assert max(kept for kept, *_ in values) == 4  # of four different numbers
        assert sorted(count for _, count, *_ in values) == list(range(1, 13))  # one call at a time
        (pid,) = {pid for _, _, pid, _ in values}
        assert pid not in {own for *_, own in values}
        lost = session.run(calls, [{"what": "die", "n": 1}, {"what": "die", "n": 0}]).values()
        assert lost == ["lost", "lost"]
        (value,) = session.run(calls, [add(9)]).values()
        assert value[:2] == (5, 1)  # restored, and anew
        assert value[2] != pid
        (failed,) = session.run(calls, [{"what": "fail", "n": 1}]).wait()
        assert "LookupError: no such thing" in str(failed.failure)
        last = value[2]
    assert not os.path.exists(f"/proc/{last}")  # it ends with its session


def test_a_call_that_an_ending_process_has_not_read_is_made_again_and_one_that_it_has_read_is_not(
    tmp_path: Path,
) -> None:
    calls_read = list[Any]()

    def serve(listener: Listener) -> None:
        with listener.accept() as first:
            first.poll(None)  # the call is there
        with listener.accept() as second:
            calls_read.append(decode(second.recv_bytes()))
            second.send_bytes(encode((True, 7)))
            second.recv_bytes()
        listener.close()

    listener = Listener(str(tmp_path / "socket"), authkey=b"key")
    at = StateAddress(Kept.state_name, str(tmp_path / "socket"), b"key")
    server = threading.Thread(target=serve, args=(listener,))
    server.start()
    with states_at([at]):
        assert Kept.add(3) == 7
        with pytest.raises(StateLost, match="Kept: its process ended during a call"):
            Kept.add(4)
    server.join()
    assert calls_read == [("add", (3,), {})]


@pytest.mark.xdist_group("ray")
@pytest.mark.usefixtures("shared_ray")
def test_actors_of_ray_share_it_too() -> None:
    from trimtab.clusters.ray.ray_backend import Ray

    with Session(calls, on=Ray([StageNode("one", slots=2)])) as session:
        values = session.run(calls, [add(n % 4) for n in range(8)]).values()
    assert sorted(count for _, count, *_ in values) == list(range(1, 9))


def test_outside_of_a_session_the_object_is_here() -> None:
    @shared(restart="anew")
    class Own:
        def pid(self) -> int:
            return os.getpid()

    assert Own.pid() == os.getpid()
    with pytest.raises(AttributeError, match="Own has no method add"):
        Own.add()


def test_what_does_not_go_is_refused() -> None:
    with pytest.raises(ChainError, match=r"dict: does not say what a restart is.*restart=\"anew\""):
        shared(dict)
    with pytest.raises(ChainError, match=r"dict: no such restart \(got 'never'\); .*anew, restored"):
        shared(restart="never")(dict)
    with pytest.raises(ChainError, match=r"state: out of range.*@shared"):
        stage(state=[dict])(told.stage_code)


@shared(restart="anew")
class Broken:
    def __init__(self) -> None:
        raise OSError("no disk")

    def add(self) -> None: ...


@stage(state=[Broken])
def of_broken(n: int) -> None:
    Broken.add()


@chain
def broken(n: int) -> Any:
    return of_broken(n)


def test_a_state_that_cannot_be_made_is_named() -> None:
    with pytest.raises(UsageError, match=r"state .*:Broken: does not start: OSError: no disk"):
        Session(broken, on=InProcess())
