"""Queues from files: which scheduler they are of is told by their roots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trimtab.clusters.yarn.capacity_queues import PREFIX, capacity_queues
from trimtab.clusters.yarn.fair_queues import fair_queues
from trimtab.clusters.yarn.hadoop_xml import Element, Value, parsed, properties_of, read_bytes, resolved
from trimtab.clusters.yarn.imported_queues import ImportedQueues
from trimtab.clusters.yarn.rest_answers import answer_of
from trimtab.clusters.yarn.scheduler_answer import answered_queues
from trimtab.clusters.yarn.yarn_amounts import Amounts, absolute
from trimtab.errors import UsageError

_KNOWN = "<configuration>, <allocations>, or an answer of /ws/v1/cluster/scheduler"


def queues_of_files(files: Sequence[Path], total: str = "") -> ImportedQueues:
    """The queues of configuration files together, or of one answer. Raises UsageError.

    Args:
        files: of properties, later ones over earlier ones, and at most one of allocations.
        total: what the cluster has, as `memory=…,vcores=…`; empty = amounts stay amounts.
    """
    has = _total(total)
    properties: dict[str, Value] = {}
    allocations: list[tuple[Element, str]] = []
    for path in files:
        data, file = read_bytes(path), str(path)
        root = (
            parsed(data, file) if data.lstrip().startswith((b"<", b"\xef\xbb\xbf<")) else Element("scheduler")
        )
        if root.tag == "scheduler" and len(files) == 1:
            return answered_queues(answer_of(data, file, "scheduler"), file, has)
        if root.tag == "configuration":
            properties |= properties_of(root, file)
        elif root.tag == "allocations":
            allocations.append((root, file))
        else:
            raise UsageError("another file", file=file, value=f"<{root.tag}>", expected=_KNOWN)
    source = str(files[0])
    if len(allocations) > 1:
        raise UsageError("two files of allocations", file=allocations[1][1], expected=f"{source} alone")
    site = resolved(properties)
    own = [name for name in site if name.startswith(f"{PREFIX}root.")]
    if not allocations:
        return capacity_queues(site, next((site[name].file for name in own), source), has)
    if own:
        expected = "queues of one scheduler: leave capacity-scheduler.xml or fair-scheduler.xml out"
        raise UsageError("queues of both schedulers", file=site[own[0]].file, field=own[0], expected=expected)
    return fair_queues(allocations[0][0], site, allocations[0][1], has)


def _total(text: str) -> Amounts | None:
    if not text:
        return None
    value = Value(f"[{text.strip().strip('[]')}]", "the command line", "--total")
    named = absolute(value)
    if named.unknown or not named.amounts:
        raise value.refused("cannot be used", "resources of memory, vcores and yarn.io/gpu")
    return named.amounts
