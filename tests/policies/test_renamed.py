"""A policy that uses a name of an earlier version is refused with the new name."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.errors import PolicyError
from trimtab.policies.catalogue import find

SOURCE = """
from trimtab import Policy

class Mine(Policy):
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = {expression}
        return 1

    def plan(self, view, history, waiting, {argument}):
        return None
"""


@pytest.mark.parametrize(
    ("expression", "argument", "new"),
    [
        ("view.host.attempt", "rollout", "view.context"),
        ("work.home_idx", "rollout", "work.affinity_node_idx"),
        ("0", "rehearse", "rollout"),
    ],
)
def test_an_old_name_is_refused_with_the_new_one(
    tmp_path: Path, expression: str, argument: str, new: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE.format(expression=expression, argument=argument))
    with pytest.raises(PolicyError, match=f"now '{new}'.*mine.py, line"):
        find(f"{file}:Mine")


def test_a_ranking_that_is_read_as_nodes_is_refused_with_the_column_to_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE.format(expression="0 if ranking[1] == 2 else 1", argument="rollout"))
    with pytest.raises(PolicyError, match=r"reads 'ranking\[1\]', now 'ranking\.node_idx\[1\]'.*line 6"):
        find(f"{file}:Mine")


def test_new_names_pass(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE.format(expression="view.context.attempt", argument="rollout"))
    assert find(f"{file}:Mine")[0].dispatches()
