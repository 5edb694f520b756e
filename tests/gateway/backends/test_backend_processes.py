"""Fake backends as processes: how they start and, above all, that they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from support.backends import Options, launch, launch_all
from support.backends.children import with_tests_on_path
from support.backends.options import from_arguments, to_arguments
from support.waiting import wait_until

PARENT = """
import sys, time
from support.backends import Options, launch
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


def test_frozen_backend_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.backends.children.STOP_TIMEOUT_S", 0.1)
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
    command, env = [sys.executable, "-c", PARENT], with_tests_on_path(os.environ)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        backend = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_until(lambda: not backend.is_running() or backend.status() == psutil.STATUS_ZOMBIE)
