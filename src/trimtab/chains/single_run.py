"""Runs with workers of their own. Modules of stages import this in workers: a call loads the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trimtab.chains.run_defaults import DEFAULT_POLICY, FUSED_S

if TYPE_CHECKING:
    from pathlib import Path

    from trimtab.chains.graph import Chain
    from trimtab.chains.session import RunHandle
    from trimtab.live.stage_backend import StageBackend


def run(
    chain: Chain,
    inputs: Iterable[Any],
    *,
    on: str | StageBackend = "processes",
    policy: str = DEFAULT_POLICY,
    in_flight: int = 1024,
    journal: str | Path | None = None,
    fuse_s: float = FUSED_S,
    **options: Any,
) -> RunHandle:
    """Run a chain over inputs, with workers of its own. Options: see `Session.run`."""
    from trimtab.chains.session import Session

    if hasattr(inputs, "iter_batches") and hasattr(inputs, "materialize"):  # of Ray Data
        inputs = inputs.materialize()  # before workers reserve what it would compute on
    session = Session(chain, on=on, policy=policy, in_flight=in_flight, journal=journal, fuse_s=fuse_s)
    return session.run(chain, inputs, **options).close_session_with_it()
