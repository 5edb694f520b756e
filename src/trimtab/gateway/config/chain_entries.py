"""Chains that the gateway offers, in gateway.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from trimtab.chains.run_defaults import DEFAULT_POLICY, FUSED_S
from trimtab.clusters.backends import worker_counts
from trimtab.gateway.config.types import PolicySpec, in_folder
from trimtab.validation.base import Spec

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_IN_FILES = (".py", ".yaml", ".yml")


def _source(text: str, info: ValidationInfo) -> str:
    place, colon, name = text.partition(":")
    if Path(place).suffix not in _IN_FILES:
        return text  # a module
    path = in_folder(Path(place), info)
    if not path.is_file():
        raise ValueError("a file that exists: FILE.yaml or FILE.py:CHAIN, or MODULE:CHAIN")
    return f"{path}{colon}{name}"


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("a name of letters, digits, _, . and -")
    return text


ChainName = Annotated[str, AfterValidator(_name)]


def _count(given: int | str) -> str:
    worker_counts(str(given))
    return str(given)


class ChainEntry(Spec):
    """A chain that clients run with `POST /v1/chains/NAME`."""

    file: Annotated[str, AfterValidator(_source)] = Field(
        description="FILE.yaml, FILE.py:CHAIN or MODULE:CHAIN"
    )
    description: str = Field("", description="shown in the list of chains")
    content_type: str = Field(
        "application/octet-stream", description="type of an output that is bytes, such as video/mp4"
    )
    max_inputs: int = Field(1000, ge=1, description="inputs of one run")


class ChainWorkersSpec(Spec):
    """The workers that run stages of all chains."""

    on: str = Field("processes", description="backend: processes, ray, ray://HOST:PORT, in-process")
    count: Annotated[int | str, AfterValidator(_count)] = Field(
        0, description="worker processes, or LEAST..MOST such as 1..4; 0 = one for each core"
    )
    season_s: float = Field(
        0.0, ge=0.0, description="after which requests repeat: pools grow before they come; 0 = by the queue"
    )
    fuse_s: float = Field(
        FUSED_S,
        ge=0.0,
        description="stages that take less run in one attempt with those after them; 0 = none",
    )
    policy: PolicySpec = Field(DEFAULT_POLICY, description="decides which stage starts where")

    def may_become(self, wanted: ChainWorkersSpec) -> bool:
        """Whether a reload may start those workers beside these: on a cluster there is no room for both."""
        return all(spec.on in ("processes", "in-process") for spec in (self, wanted))

    @model_validator(mode="after")
    def _check_season(self) -> ChainWorkersSpec:
        if self.season_s and (".." not in str(self.count) or self.on == "in-process"):
            raise ValueError("season_s needs a range of workers that are not in-process, such as count: 1..4")
        return self


Chains = Mapping[ChainName, ChainEntry]
