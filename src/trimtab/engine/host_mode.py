"""Switches for the tasks that the host of a run does itself, so that the loop does not do them."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class HostMode:
    """Switches of the loop, each a column of CONFIG of the same name."""

    completions_from_outside: bool = False  # a node that is down continues its work
    rows_reused: bool = False  # requests arrive one by one without end
    placement_terms: bool = False  # requests may be pinned, avoid nodes and take tokens
    deadlines_while_held: bool = False  # the host itself ends work that runs too long
    loads_from_outside: bool = False  # nodes load the items that a plan places on them by themselves
    costs_from_outside: bool = False  # the host adds the true cost of a request
    transfers_from_outside: bool = False  # a request is at its node at once; the host sends its payload
    use_from_outside: bool = False  # the host writes what is in use; no request waits at a node for resources
    records_decision_trace: bool = False


SIMULATED = HostMode()
REPLAYED = HostMode(completions_from_outside=True)  # requests are known, backends serve them
OPEN = HostMode(
    completions_from_outside=True,
    rows_reused=True,
    placement_terms=True,
    deadlines_while_held=True,
    loads_from_outside=True,
    costs_from_outside=True,
    transfers_from_outside=True,
    use_from_outside=True,
    records_decision_trace=True,
)
STAGES = replace(OPEN, deadlines_while_held=False, use_from_outside=False)  # chains whose stages backends run
