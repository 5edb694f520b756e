"""No modules of the package import one another in a circle, `TYPE_CHECKING` imports included."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_there_is_no_circle() -> None:
    graph = grimp.build_graph("trimtab", exclude_type_checking_imports=False, cache_dir=None)
    TopologicalSorter({m: graph.find_modules_directly_imported_by(m) for m in graph.modules}).prepare()
