"""Jobs without a gateway: a Python function is killed in the middle and resumed by the next process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.waiting import wait_until

_PROCESS = Path(__file__).parents[1] / "support" / "function_jobs.py"


def _start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(_PROCESS), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_function_goes_on_from_its_checkpoint(store_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with _start(store_url, tmp_path, log, 4, 6) as victim:
        wait_until(lambda: log.exists() and "waits" in log.read_text())
        victim.kill()
    with _start(store_url, tmp_path, log, 0) as heir:
        output, _ = heir.communicate(timeout=60)
    assert output.split() == ["done", "91"]
    steps = [line for line in log.read_text().splitlines() if line != "waits"]
    assert steps == [f"step {n}" for n in range(1, 7)]


def test_jobs_need_neither_the_gateway_nor_its_dependencies() -> None:
    program = "import sys, trimtab.jobs; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not {"aiohttp", "httptools", "numba", "prometheus_client"} & set(loaded.stdout.split())


def test_without_its_dependencies_the_package_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "sqlalchemy.py").write_text("raise ModuleNotFoundError('gone', name='sqlalchemy')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import trimtab.jobs"
    refused = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "durable jobs need sqlalchemy" in refused.stderr
    assert "pip install 'trimtab[jobs]'" in refused.stderr
