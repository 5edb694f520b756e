"""What a container allows, read from control files made for the test."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from trimtab.experiments import machine

MACHINE_BYTES = 8 << 30


def contained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str]) -> None:
    """As if this process were in the groups `own`, whose control files are `files`."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(own + "\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    present = psutil.virtual_memory()._replace(available=MACHINE_BYTES)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: present)


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory_bytes"),
    [
        ("0::/", {}, 16, MACHINE_BYTES),
        ("0::/", {"cpu.max": "250000 100000", "memory.max": "1000"}, 3, 1000),
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, 16, MACHINE_BYTES),
        ("0::/a/b", {"a/cpu.max": "100000 100000", "a/b/memory.max": "2000", "memory.max": "900"}, 1, 900),
        (
            "4:memory:/host/x\n1:cpu,cpuacct:/host/x",  # the container sees its own groups as the root
            {
                "memory/memory.limit_in_bytes": "3000",
                "cpu/cpu.cfs_quota_us": "400000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            4,
            3000,
        ),
        (
            "4:memory:/\n1:cpu:/",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            16,
            MACHINE_BYTES,
        ),
    ],
)
def test_the_tightest_limit_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    files: dict[str, str],
    cores: int,
    memory_bytes: int,
) -> None:
    contained(tmp_path, monkeypatch, own, files)
    assert (machine.cores(), machine.memory_bytes()) == (cores, memory_bytes)
