"""A policy of one's own, compiled: the same function without @tt.kernel runs as plain Python.

trimtab run tiny --policy examples/own_policy.py:NearestIdle
trimtab compare tiny --policy examples/own_policy.py:NearestIdle --policy least-expected-wait
"""

import trimtab as tt


class NearestIdle(tt.Policy):
    """Send each request to the node that would serve it soonest, by what is outstanding there."""

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


class PlainNearestIdle(tt.Policy):
    """The same as plain Python: slower, and easier to step through."""

    dispatch = staticmethod(NearestIdle.dispatch.py_func)


if __name__ == "__main__":
    for policy in (NearestIdle(), PlainNearestIdle()):
        run = tt.simulate("tiny", policy, seed=0)
        print(f"{type(policy).__name__:17} {run.metrics['completion_mean_s']!r} s")
