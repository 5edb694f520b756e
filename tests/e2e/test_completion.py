"""What the shell offers on Tab, and that neither it nor --help loads anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trimtab.cli import completion
from trimtab.experiments.kinds import SCENARIO_FILES
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
    names = sorted(name for files in SCENARIO_FILES for name in files.builtins())
    assert completion.builtin_scenarios("") == names
    assert completion.scenarios("") == [*names, "mine.yaml"]
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


SCRIPTS = {"bash": "complete -o", "zsh": "compdef", "fish": "complete --command trimtab"}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_of_a_shell_that_is_named(shell):
    result = trimtab(_TRIMTAB_COMPLETE=f"source_{shell}")
    assert result.returncode == 0
    assert SCRIPTS[shell] in result.stdout


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_completion_of_the_shell_that_runs_it(option, tmp_path):
    code = "import sys; sys.argv[0] = 'trimtab'; from trimtab.cli import main; main()"
    command = f'"{sys.executable}" -c "{code}" {option} && exit'  # with `exit` bash stays, as the parent
    home = os.environ | {"HOME": str(tmp_path)}
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=home)
    assert result.returncode == 0, result.stderr
    installed = tmp_path / ".bash_completions" / "trimtab.sh"
    assert SCRIPTS["bash"] in (result.stdout if "show" in option else installed.read_text())


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


def test_importing_trimtab_and_its_commands_loads_nothing_heavy():
    code = f"import sys, trimtab, trimtab.cli.app; print(' '.join({HEAVY | {'rich'}!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
