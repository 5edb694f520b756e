"""`make demo-private` works: five processes learn under encryption, and one of them shares a trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "private" / "sites.py"


@pytest.mark.slow
def test_the_demo_writes_its_page(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "round 10 of 10: 5 sites answered; the sum is encrypted" in done.stdout
    page = (tmp_path / "out" / "private.html").read_text()
    assert all(part in page for part in ("hospital", "learned by all", "Kendall"))
    assert (tmp_path / "out" / "shared.csv").exists()
