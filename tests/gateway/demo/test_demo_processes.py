"""Demo backends as processes: how they start and, above all, that they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from support.waiting import wait_until
from trimtab.gateway.demo import Options, launch, launch_all, launch_demo
from trimtab.gateway.demo.options import from_arguments, to_arguments

PARENT = """
import sys, time
from trimtab.gateway.demo import Options, launch
print(launch(Options()).process.pid, flush=True)
time.sleep(60)
"""


def test_options_survive_the_command_line() -> None:
    options = Options(kind="video", name="a b", models="x,y", speed=0.5, seed=7, faults='[{"fault":"delay"}]')
    assert from_arguments(to_arguments(options)) == options


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        from_arguments(["--speed", "0"])
    assert "--speed must be above 0" in capsys.readouterr().err


def test_the_four_of_the_demonstration() -> None:
    backends = launch_demo()
    for backend in backends:
        backend.stop()
        backend.stop()
    assert [backend.models for backend in backends] == [
        ("demo-chat",),
        ("demo-chat",),
        ("demo-image",),
        ("demo-speech",),
    ]
    assert all(backend.process.returncode == 0 for backend in backends)


def test_frozen_backend_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.gateway.demo.children.STOP_TIMEOUT_S", 0.1)
    backend = launch(Options())
    backend.process.send_signal(signal.SIGSTOP)
    backend.stop()
    assert backend.process.returncode == -signal.SIGKILL


def test_one_that_can_not_start_takes_the_others_with_it() -> None:
    before = {child.pid for child in psutil.Process().children()}
    with launch(Options()) as taken, pytest.raises(RuntimeError, match="did not start"):
        launch_all([Options(), Options(port=taken.port)])
    assert {child.pid for child in psutil.Process().children()} <= before


@pytest.mark.skipif(not hasattr(os, "getppid"), reason="needs to know its parent")
def test_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        backend = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until(lambda: not backend.is_running() or backend.status() == psutil.STATUS_ZOMBIE)
