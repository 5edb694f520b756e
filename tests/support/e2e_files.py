"""Small files that a user might bring."""

from __future__ import annotations

from pathlib import Path

CLUSTER = Path(__file__).parents[2] / "examples" / "clusters"

CLUSTER_TEXT = """
types:
  big: {memory_gib: 80, slots: 2}
  small: {memory_gib: 24, speed: 0.5}
nodes:
  - {type: big, count: 2}
  - {type: small, count: 1}
"""

OWN_POLICY = """
import trimtab as tt


class Mine(tt.Policy):
    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        for j in range(view.context.n_nodes):
            if tt.can_take(view, work, j):
                ranking[0] = j
                return 1
        return 0


class Raises(tt.Policy):
    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        if work.serial == 17:
            raise RuntimeError("no idea")
        ranking[0] = 0
        return 1


class Nonsense(tt.Policy):
    @staticmethod
    def dispatch(view, plan, work, memory, draws, ranking):
        ranking[0] = 999
        return 1


class NoDispatch(tt.Policy):
    pass


class NoPolicy:
    pass
"""


def write_trace(path: Path, rows: int = 50) -> Path:
    """One request a second, of sizes 1, 2, 3, 1, …"""
    path.write_text("arrival_s,size\n" + "".join(f"{i},{1 + i % 3}\n" for i in range(rows)))
    return path


def write_cluster(path: Path) -> Path:
    path.write_text(CLUSTER_TEXT)
    return path
