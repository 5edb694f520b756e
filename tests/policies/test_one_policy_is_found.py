"""A policy is found by the file of its name, without an import of all others."""

from __future__ import annotations

import subprocess
import sys

from trimtab.policies import names
from trimtab.policies.catalogue import policy_class

PROGRAM = """
import sys
from trimtab.policies import find
print(type(find(sys.argv[1]).dispatch).__name__)
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("trimtab.policies.")))
"""


def test_other_policies_are_not_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "round-robin+edf"], capture_output=True, text=True, check=True
    )
    found, modules = done.stdout.splitlines()
    assert found == "RoundRobin"
    assert {"round_robin", "edf"} <= {*modules.split()}
    assert not {"hungarian", "auto", "least_expected_wait", "vtc"} & {*modules.split()}


def test_every_name_of_the_catalogue_finds_the_class_of_that_name() -> None:
    for name in names():
        assert policy_class(name).name == name
