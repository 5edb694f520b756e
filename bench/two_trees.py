"""`python -m bench.two_trees OTHER POLICY…`: the loop of this tree beside the loop of another checkout.

Each tree has a process of its own. They run the same requests in turns, so that other work on the machine
meets both. A figure is this tree's processor seconds over the other's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from bench.figures import in_turns
from bench.startup import ROOT

WORKER = """
import sys
from bench.work import loop_s, slots
built = slots({nodes}, {requests})
for line in sys.stdin:
    print(loop_s(built, line.strip()), flush=True)
"""


class Tree:
    """A process that runs policies with the code of one checkout."""

    def __init__(self, root: Path, nodes: int, requests: int) -> None:
        code = WORKER.format(nodes=nodes, requests=requests)
        path = os.pathsep.join([str(root / "src"), str(root)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=root,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def loop_s(self, policy: str) -> float:
        """Processor seconds of the loop of one run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{policy}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def main() -> None:
    """Print the ratios of each policy."""
    parser = argparse.ArgumentParser("python -m bench.two_trees", description=__doc__)
    parser.add_argument("other", type=Path, help="root of the other checkout")
    parser.add_argument("policies", nargs="+")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--requests", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    this, other = (Tree(root.resolve(), given.nodes, given.requests) for root in (ROOT, given.other))
    for policy in given.policies:
        this.loop_s(policy), other.loop_s(policy)  # compiled, or loaded from the cache
        a_s, b_s = in_turns(given.rounds, lambda p=policy: this.loop_s(p), lambda p=policy: other.loop_s(p))
        paired = statistics.median(a / b for a, b in zip(a_s, b_s, strict=True))
        print(f"{policy}: {paired:.3f} median of pairs, {min(a_s) / min(b_s):.3f} of minima", flush=True)


if __name__ == "__main__":
    main()
