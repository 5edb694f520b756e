"""The loop is compiled once on a machine: other processes load it, and any edit of a kernel is noticed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.mini_policies import TwoChoices
from trimtab.compiled import kernel as kernels
from trimtab.engine.calls import compile_all

TESTS = Path(__file__).resolve().parents[1]
LOAD = """
from support.mini_policies import TwoChoices
from trimtab.engine.calls import advance_bound, compile_all
from trimtab.engine.loop import advance, begin
compile_all([TwoChoices()])
assert not advance.signatures  # it is a part of the next
for k in (advance_bound, begin, TwoChoices.dispatch):
    assert sum(k.stats.cache_hits.values()) == 1, (k, k.stats)
    assert not k.stats.cache_misses, (k, k.stats)
print("loaded")
"""


def _machine_code(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.nb[ci]")}


def test_a_second_process_loads_the_loop_and_compiles_nothing() -> None:
    compile_all([TwoChoices()])
    before = _machine_code(kernels.cache_folder())
    path = os.pathsep.join([str(kernels.PACKAGE.parent), str(TESTS)])
    done = subprocess.run(
        [sys.executable, "-c", LOAD], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "loaded", done.stderr
    after = _machine_code(kernels.cache_folder())
    assert {name: after[name] for name in before} == before


SOURCES = sorted(
    path.relative_to(kernels.PACKAGE)
    for path in kernels.PACKAGE.rglob("*.py")
    if any(line.startswith(("@kernel", "@helper", "    @kernel")) for line in path.read_text().splitlines())
)


def test_all_of_the_loop_is_among_the_sources() -> None:
    names = {path.name for path in SOURCES if path.parent.name == "mechanics"}
    parts = {
        "loop",
        "nodes",
        "queues",
        "events",
        "links",
        "residency",
        "telemetry",
        "faults",
        "draws",
        "calls",
        "fallback",
    }
    assert names >= {f"{part}.py" for part in parts}


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_an_edit_changes_the_cache_folder(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "trimtab"
    for path in kernels.PACKAGE.rglob("*.py"):
        copy = package / path.relative_to(kernels.PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    monkeypatch.setattr(kernels, "PACKAGE", package)
    before = kernels._fingerprint()
    (package / source).write_text((package / source).read_text() + "# edited\n")
    assert kernels._fingerprint() != before


def test_a_temporary_cache_that_others_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(kernels.tempfile, "mkdtemp", lambda prefix: str(tmp_path / f"{prefix}new"))
    own = tmp_path / f"trimtab-{os.getuid()}"
    assert kernels._private_folder() == own
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    assert kernels._private_folder() == tmp_path / "trimtab-new"
