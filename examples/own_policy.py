"""A policy of one's own: first in plain Python, then compiled, with the same decisions.

trimtab run tiny --policy examples/own_policy.py:PlainNearestIdle
trimtab compare tiny --policy examples/own_policy.py:NearestIdle --policy least-expected-wait
"""

import trimtab as tt


class PlainNearestIdle(tt.Policy):
    """Send each request to the node that would serve it soonest, by what is outstanding there."""

    def choose(self, cluster, request):
        finish_s = cluster.outstanding_s + cluster.estimate_s(request)
        return cluster.least(finish_s, request)  # tt.HOLD where no node can take the request


class NearestIdle(tt.Policy):
    """The same, compiled: for large clusters and millions of requests."""

    @staticmethod
    @tt.kernel
    def dispatch(view, plan, work, memory, draws, ranking):
        best, soonest_s = -1, 0.0
        for j in range(view.context.n_nodes):
            finish_s = view.nodes.outstanding_s[j] + tt.estimate_s(view, work, view.nodes.type_idx[j])
            if tt.can_take(view, work, j) and (best < 0 or finish_s < soonest_s):
                best, soonest_s = j, finish_s
        ranking[0] = best
        return 1 if best >= 0 else 0


if __name__ == "__main__":
    for policy in (PlainNearestIdle(), NearestIdle()):
        run = tt.simulate("tiny", policy, seed=0)
        print(f"{type(policy).__name__:17} {run.metrics['completion_mean_s']!r} s")
