"""`trimtab serve` with the packages of the container image and no other, and their pinned versions."""

from __future__ import annotations

import re
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.backends import Options, launched
from support.environments import linked_environment
from support.served import config_of, served

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = PROJECT["dependency-groups"]
PLANNING = (  # load more with their first plan
    "dual-price",
    "hungarian",
    "hybrid-optimise",
    "integer-plan",
    "load-forecast",
    "predictive",
)
PLANNED_S = 1.0  # a few of their plans


@pytest.mark.slow
def test_a_gateway_needs_no_other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = linked_environment(tmp_path / "bare", GROUPS["image"])
    slow = Options(models=",".join(PLANNING), slots=1, base_s=PLANNED_S / 2)
    with launched(slow) as (backend,):
        config = config_of(backend, policy={"default": "random", "models": {name: name for name in PLANNING}})
        monkeypatch.setattr(sys, "executable", str(python))
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
        with served(tmp_path, config) as gateway, ThreadPoolExecutor() as clients:
            body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
            asked = [
                clients.submit(gateway.call, "/v1/chat/completions", {**body, "model": name})
                for name in (*PLANNING, *PLANNING)
            ]
            assert {answer.result().status for answer in asked} == {200}
            time.sleep(PLANNED_S)
            assert gateway.metric("trimtab_policy_failures_total") == 0
            assert not re.findall(r"^.*(?:ERROR|No module named).*$", gateway.said(), re.MULTILINE)


@pytest.mark.parametrize("group", GROUPS)
def test_the_lock_has_the_group_in_the_versions_that_the_project_allows(group: str) -> None:
    text = (ROOT / "deploy" / f"{group}.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", text, re.MULTILINE))
    extras = PROJECT["project"]["optional-dependencies"].values()
    allowed = map(Requirement, chain(GROUPS[group], PROJECT["project"]["dependencies"], *extras))
    assert {canonicalize_name(Requirement(line).name) for line in GROUPS[group]} <= set(pinned)
    for each in allowed:
        version = pinned.get(canonicalize_name(each.name))
        assert version is None or each.specifier.contains(version), each
