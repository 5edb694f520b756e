"""The guide's nightly tuning: a recording is tuned on, and the gateway shadows and runs the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from conftest import process
from support.builders import cluster, requests
from support.recordings import simulated


@pytest.mark.slow
def test_a_recording_is_tuned_on_and_its_file_is_shadowed_and_run(tmp_path: Path) -> None:
    c = cluster(6, types=2, slots=2, classes=2, queue_max=0, fixed_s=0.5)
    (tmp_path / "recordings").mkdir()
    drawn = requests(c, 2_100, load=0.8, seed=3, noise=True)
    simulated(tmp_path / "recordings", c, drawn, "least-expected-wait")
    tuned = process(
        *("tune", "recordings/", "--policy", "late-binding", "--out", "nightly", "--no-resume"),
        *("--candidates", 6, "--quiet"),
        cwd=tmp_path,
    )
    assert tuned.returncode == 0, tuned.stderr
    verdict = yaml.safe_load((tmp_path / "nightly" / "tuned.yaml").read_text())["verdict"]
    assert verdict in ("gain", "nothing to gain")
    for policies in (
        {"policy": "least-expected-wait", "shadow": "nightly/tuned.yaml"},
        {"policy": "nightly/tuned.yaml"},
    ):
        config = {"nodes": [{"name": "a", "url": "http://127.0.0.1:9"}], **policies}
        (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
        checked = process("serve", "gateway.yaml", "--check", "--insecure-no-auth", cwd=tmp_path)
        assert checked.returncode == 0, checked.stderr
