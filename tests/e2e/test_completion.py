"""What the shell offers on Tab, and that neither it nor --help loads anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trimtab.cli import completion
from trimtab.experiments.colocation.shared_scenario import SHARED_NODES
from trimtab.experiments.scenario import builtin_names
from trimtab.experiments.training.training_scenario import TRAINING_JOBS
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
    names = sorted((*builtin_names(), *SHARED_NODES.builtins(), *TRAINING_JOBS.builtins()))
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
@pytest.mark.parametrize("own", ["/bin/sh", "/usr/bin/fish"])
def test_completion_script_is_that_of_the_shell_named(shell, own):
    result = trimtab("--show-completion", shell, SHELL=own)
    assert result.returncode == 0
    assert "_TRIMTAB_COMPLETE" in result.stdout
    assert SCRIPTS[shell] in result.stdout


def test_completion_script_without_a_name_is_that_of_the_login_shell():
    assert SCRIPTS["zsh"] in trimtab("--show-completion", SHELL="/usr/bin/zsh").stdout
    assert SCRIPTS["bash"] in trimtab("--show-completion", SHELL="").stdout


def test_an_unknown_shell_is_bad_input():
    result = trimtab("--show-completion", "tcsh")
    assert result.returncode == 2
    assert "tcsh" in result.stderr


@pytest.mark.parametrize("arguments", [["--install-completion", "fish"], ["--install-completion"]])
def test_install_completion_writes_the_script_of_a_shell(arguments, tmp_path):
    result = trimtab(*arguments, HOME=str(tmp_path), SHELL="/usr/bin/fish")
    assert result.returncode == 0, result.stderr
    (script,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert script.name == "trimtab.fish"
    assert SCRIPTS["fish"] in script.read_text()


def test_completion_works_under_sh_with_an_empty_environment():
    code = "import sys; sys.argv[0] = 'trimtab'; from trimtab.cli import main; main()"
    command = f'exec "{sys.executable}" -c "{code}" --show-completion zsh'
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, env=path)
    assert SCRIPTS["zsh"] in result.stdout, result.stderr


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
