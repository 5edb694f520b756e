"""What the shell offers on Tab, and that neither it nor --help loads anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trimtab.cli import completion
from trimtab.experiments.scenario import builtin_names
from trimtab.metrics import METRICS
from trimtab.policies import names
from trimtab.traces.public_traces import CATALOGUE

HEAVY = {"numba", "numpy", "polars", "plotly", "scipy", "trimtab.policies"}


def test_names_read_from_the_sources_are_those_of_the_catalogue():
    assert completion.policy_names() == names()
    for kind in ("dispatch", "order"):
        assert completion.policy_names(kind) == names(kind)


def test_policies():
    assert completion.policy_specs("least-e") == ["least-expected-completion", "least-expected-wait"]
    assert completion.policy_specs("random+e") == ["random+edf"]
    assert "edf" not in completion.policy_specs("")
    assert completion.policies("edf") == ["edf"]


def test_scenarios_are_the_built_in_ones_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    assert completion.builtin_scenarios("") == sorted(builtin_names())
    assert completion.scenarios("") == [*sorted(builtin_names()), "mine.yaml"]
    assert completion.scenarios("ti") == ["tiny"]


def test_metrics_and_traces():
    assert completion.metrics("") == sorted(METRICS)
    assert completion.public_traces("azure") == sorted(
        t.name for t in CATALOGUE if t.name.startswith("azure")
    )


def trimtab(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.argv[0] = 'trimtab'; from trimtab.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell):
    result = trimtab("--show-completion", shell)
    assert result.returncode == 0
    assert "_TRIMTAB_COMPLETE" in result.stdout


def test_the_shell_gets_policies():
    line = "trimtab run tiny --policy power"
    result = trimtab(
        _TRIMTAB_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(line.split()) - 1)
    )
    assert result.stdout.split() == ["power-of-d"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["compare", "--help"], ["trace", "make", "--help"], ["--version"]]
)
def test_help_loads_nothing_heavy(arguments):
    code = (
        "import sys\n"
        "from trimtab.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        f"sys.stderr.write(' '.join({HEAVY!r} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert result.stderr == ""
    assert result.stdout


def test_import_trimtab_loads_nothing_heavy():
    code = f"import sys, trimtab; print(' '.join({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
