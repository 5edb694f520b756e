"""What nodes that serve language models report of their engines, and how long iterations take there.

An iteration makes one token of each request in the batch, so it takes as long as passes between the tokens
of an answer: the server's own figure, or the gaps of the streams from here where a page has none. Its seconds
are a line over the requests in the batch, learned by type of node. A figure is a mean since the report
before, so it holds for the mean of the batches at both; the line leads from there to the present batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trimtab.engine.node_reports import NO_REPORT, EngineReport
from trimtab.gateway.decide.learning import LEAST_S, Fit
from trimtab.gateway.model import Node

_SAYS: Final = frozenset(("running", "kv_used_frac"))  # names of `metric_mappings`, of an engine


class EngineReports:
    """The latest report of each node, by index. A node whose report is too old has NO_REPORT."""

    def __init__(self) -> None:
        self.told: dict[int, EngineReport] = {}
        self._lines: dict[str, Fit] = {}  # by type of nodes: seconds over requests in the batch
        self._gaps: dict[int, tuple[float, int]] = {}  # of a node's streams, at the report before

    def take(self, node: Node, values: Mapping[str, float], now_s: float) -> None:
        """A page about the node says these values, now."""
        reported = node.reported
        if not _SAYS & reported.keys():
            if node.idx in self.told:
                self.told[node.idx] = NO_REPORT
            return
        if not _SAYS & values.keys():
            return
        token_s = values.get("token_s", 0.0) or self._mean_gap_s(node)
        self._gaps[node.idx] = node.gap_s, node.gaps
        before, decoding = self.told.get(node.idx, NO_REPORT), int(reported.get("running", 0.0))
        rows, mean_rows = max(1, decoding), float(max(1, before.decoding))
        line = self._lines.setdefault(node.type_name or node.name, Fit(0.0, 0.0))
        if token_s > 0.0:
            mean_rows = rows if before is NO_REPORT else (rows + mean_rows) / 2
            line.add(mean_rows, token_s)
        else:
            token_s = before.step_s
        row_s = line.slope_s
        step_s = max(LEAST_S, token_s + row_s * (rows - mean_rows)) if token_s > 0.0 else 0.0
        capacity = reported.get("kv_tokens", 0.0) or node.max_tokens
        used = reported.get("kv_used_frac", 0.0) * capacity
        if "kv_used_frac" not in reported:
            capacity = 0.0
        usual_s = line.mean_s if line.n else 0.0
        self.told[node.idx] = EngineReport(now_s, used, capacity, decoding, step_s, row_s, usual_s)

    def forget(self, node_idx: int) -> None:
        """The node is gone; another may have its index later."""
        self.told.pop(node_idx, None)
        self._gaps.pop(node_idx, None)

    def _mean_gap_s(self, node: Node) -> float:
        """Mean gap of the node's streams since the report before; 0 = none."""
        seconds, many = self._gaps.get(node.idx, (0.0, 0))
        return (node.gap_s - seconds) / (node.gaps - many) if node.gaps > many else 0.0
