"""`trimtab learn lengths`: what it writes, charges and refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from conftest import Cli
from trimtab.domain.learned_estimates import LearnedEstimates


def write(path: Path, n: int) -> Path:
    draw = np.random.default_rng(n)
    prompt, output = draw.integers(64, 4096, n), draw.integers(10, 500, n)
    columns = {"arrival_s": np.arange(n) * 1.0, "prompt_tokens": prompt, "output_tokens": output}
    pl.DataFrame(columns).write_csv(path)
    return path


def test_command_charges_the_ledger_and_refuses_beyond_the_budget(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path / "trace.csv", 300)
    command = ("learn", "lengths", "trace.csv", "--ledger", "ledger.json", "--out", "l.safetensors")
    first = cli(*command, "--epsilon", "5")
    assert first.exit_code == 0, first.stderr
    estimates = LearnedEstimates.read(str(tmp_path / "l.safetensors"))
    assert (estimates.classes, estimates.provenance["epsilon"]) == (("*",), 5.0)
    (tmp_path / "l.safetensors").unlink()
    second = cli(*command, "--epsilon", "5")
    assert (second.exit_code, "would exceed its budget" in second.stderr) == (2, True)
    assert not (tmp_path / "l.safetensors").exists()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("--epsilon", "0"), "epsilon"),
        (("--epsilon", "nan"), "epsilon"),
        (("--epsilon", "1", "--delta", "0.5"), "delta"),
        (("--epsilon", "1", "--out", "l.csv"), "--out"),
        (("--epsilon", "1", "--limit", "10"), "--limit"),
        (("--epsilon", "1", "--budget", "nan"), "--budget"),
        (("--epsilon", "1", "--budget", "0"), "--budget"),
    ],
)
def test_what_promises_nothing_is_refused_before_it_costs(
    cli: Cli, tmp_path: Path, given: tuple[str, ...], field: str
) -> None:
    write(tmp_path / "trace.csv", 50)
    refused = cli("learn", "lengths", "trace.csv", "--ledger", "ledger.json", *given)
    assert (refused.exit_code, field in refused.stderr) == (2, True), refused.stderr
    assert not (tmp_path / "ledger.json").exists()
