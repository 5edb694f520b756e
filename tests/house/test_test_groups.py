"""Tests that share a costly fixture run in one process of pytest's, so that it is made once.

pytest 9.2 has node ids that pytest-xdist 3.8 cannot change: it then spreads the tests of a group without a
word (https://github.com/pytest-dev/pytest-xdist/issues/1386).
"""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("kept-together")
def test_a_group_is_kept_together(request: pytest.FixtureRequest) -> None:
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("the tests are not spread over processes by groups")
    assert request.node.nodeid.endswith("@kept-together")
