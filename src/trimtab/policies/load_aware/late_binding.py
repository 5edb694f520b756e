"""Late binding: requests wait centrally for a suitable idle node; a free slot takes the best request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel, plain
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Natural, NonNegative, Tunable
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    can_take,
    estimate_s,
    memory,
    missing_load_s,
    needs_of,
    own_s,
    service_s,
)
from trimtab.policies.shared.delivery import round_trip_s
from trimtab.policies.shared.node_words import n_groups, refresh_nodes, type_of_group
from trimtab.policies.shared.room import last_if_full, starts_now
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import LOADED_ON_DEMAND, NO_LOADS, NO_ROUND_TRIPS, SLOTS_ONLY
from trimtab.policies.shared.wait_index import (
    first_sooner,
    has_free,
    is_indexable,
    is_near,
    load_of_kind_s,
    may_be_free,
    n_kinds,
    own_of_kind_s,
    rank_free,
    score_free,
    wait_index,
)
from trimtab.policies.shared.waits import expected_wait_s, idle_at, n_idle, n_listed, room_for_idle

SLOTS, INDEXED = 4, 5  # in `memory.params`: after the weights


@helper(inline=True)
def _is_sooner(view: View, work: Any, j: int, idle_s: float, rivals: float) -> bool:
    """Whether node j is busy and expected to complete the work sooner than an idle one, in `idle_s`.

    All held requests may be waiting for that node, so its wait counts once for each of them.
    """
    nodes = view.nodes
    gained_s = idle_s - own_s(view, work, j) - round_trip_s(view, work, j)
    is_busy, is_able = nodes.in_flight[j] >= nodes.slots[j], can_take(view, work, j)
    return bool(is_busy & is_able & (gained_s > 0.0) & (rivals * expected_wait_s(view, j) < gained_s))


@helper
def _is_worth_waiting(view: View, work: Any, idle_s: float) -> bool:
    """Whether a busy node is expected to complete the work sooner than an idle one."""
    for j in range(view.context.n_nodes):
        if _is_sooner(view, work, j, idle_s, 1.0 + view.context.n_held):
            return True  # the only branch: further ones would be mispredicted
    return False


@helper
def _is_indexable_wait(view: View, memory: Memory, work: Any, idle_s: float) -> bool:
    """As `_is_worth_waiting`, by the index. The node of the last such answer is asked first."""
    rivals, last = 1.0 + view.context.n_held, len(memory.ints) - 1
    j = memory.ints[last]
    if j >= 0 and _is_sooner(view, work, plain(j), idle_s, rivals):
        return True
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(work)):
            gained_s = idle_s - own_of_kind_s(view, memory, work, g, kind)
            if gained_s > 0.0:
                j = first_sooner(view, memory, work, g, kind, rivals, gained_s)
                if j >= 0:
                    memory.ints[last] = j
                    return True
    return False


@helper
def score_groups(view: View, memory: Memory, weights: Any, work: Any, aged_s: float) -> float:
    """Score the idle nodes by the index, equal in a group and kind. Returns the least own seconds."""
    refresh_nodes(view, memory)
    crowding, idle_s = view.context.n_held / memory.params[SLOTS], np.inf
    for g in range(n_groups(memory)):
        t = type_of_group(memory, g)
        service_s = estimate_s(view, work, t)
        for kind in range(n_kinds(work)):
            if service_s == np.inf or not may_be_free(memory, work, g, kind):
                score_free(memory, g, kind, np.inf)
                continue
            load_s = load_of_kind_s(view, work, t, kind)
            taken_s = load_s + service_s
            wasted_s = weights[1] * load_s + weights[2] * (service_s - work.estimate_s)
            score_free(memory, g, kind, taken_s + crowding * wasted_s - aged_s)
            if taken_s < idle_s and has_free(memory, work, g, kind):
                idle_s = taken_s
    return idle_s


@helper
def rank_groups(view: View, memory: Memory, weights: Any, work: Any, ranking: Any, idle_s: float) -> int:
    """Rank the idle nodes by the scores of their group and kind, unless a busy one is worth waiting for."""
    count = rank_free(view, memory, work, ranking)
    is_patient = view.context.n_held < weights[3] and idle_s > work.estimate_s
    if count > 0 and is_patient and _is_indexable_wait(view, memory, work, idle_s):
        return 0
    return int(count)


@helper
def note_idle(view: View, memory: Memory, weights: Any, work: Any, aged_s: float) -> float:
    """Note the scores of the idle nodes, in the order of `idle_at`. Returns the least own seconds."""
    crowding, floats = view.context.n_held / memory.params[SLOTS], memory.floats
    idle_s, idle = np.inf, n_idle(view, memory.ints)
    for i in range(idle):
        j = idle_at(memory.ints, i)
        there_s = service_s(view, work, j)
        load_s = missing_load_s(view, work, j)
        taken_s = round_trip_s(view, work, j) + load_s + there_s
        wasted_s = weights[1] * load_s + weights[2] * (there_s - work.estimate_s)
        score_s = np.inf
        if starts_now(view, work, j):
            idle_s = min(idle_s, taken_s)
            score_s = taken_s + crowding * wasted_s - aged_s + last_if_full(view, work, j)
        floats[NOTES + i] = score_s
    return idle_s


@helper
def rank_idle(view: View, memory: Memory, weights: Any, work: Any, ranking: Any, idle_s: float) -> int:
    """Rank the idle nodes by their notes, unless a busy one is worth waiting for."""
    count = rank_noted(memory.floats, ranking, n_listed(memory.ints))
    for i in range(count):
        ranking.node_idx[i] = idle_at(memory.ints, ranking.node_idx[i])
    is_patient = view.context.n_held < weights[3] and idle_s > work.estimate_s
    if count > 0 and is_patient and _is_worth_waiting(view, work, idle_s):
        return 0
    return int(count)


@helper
def rank_held(view: View, memory: Memory, weights: Any, work: Any, ranking: Any) -> int:
    """Rank idle nodes by score under these weights, unless a busy one is worth waiting for."""
    needs, aged_s = needs_of(work), weights[0] * (view.context.now_s - work.arrival_s)
    if memory.params[INDEXED] == 1.0:
        idle_s = score_groups(view, memory, weights, needs, aged_s)
        return int(rank_groups(view, memory, weights, needs, ranking, idle_s))
    idle_s = note_idle(view, memory, weights, needs, aged_s)
    return int(rank_idle(view, memory, weights, needs, ranking, idle_s))


@dataclass(frozen=True)
class LateBinding(Policy):
    """Hold requests until a slot is free, then start the one that wastes least of it and has waited longest.

    Idea
        A request goes only to a node that can start it at once: a free slot, and enough of every modelled
        resource. When a slot becomes free, the host compares held requests: score(request, node) = own + q ·
        (w_load · load + w_waste · (service − best service)) − ageing · time waited, where own = transfer +
        load + service, all estimated, and q = held requests per slot, the number of requests that wait for
        each second used now. The lowest score starts first. While fewer than `patient` requests are held, a
        request leaves an idle node free if a busy node is expected to complete it sooner. Nodes load models
        that are asked for into free memory ahead, so that this choice does not keep them on few nodes.
    Source
        Muthucumaru Maheswaran, Shoukat Ali, Howard Jay Siegel, Debra Hensgen, Richard Freund: "Dynamic
        mapping of a class of independent tasks onto heterogeneous computing systems", Journal of Parallel and
        Distributed Computing 59(2), 1999 (batch mode, Min-min: of all tasks that wait, the one that completes
        soonest is mapped first); late binding: Kay Ousterhout, Patrick Wendell, Matei Zaharia, Ion Stoica:
        "Sparrow: distributed, low latency scheduling", SOSP 2013.
    Reads
        In-flight and running requests, slots, backlog and its time, resident models of each node, capacity
        and use of its resources; the class's demand; load times, round trips; the estimated service time of
        this request per node type; its arrival; how many are held; which nodes are up, have room and serve
        the class.
    Cost
        O(idle nodes) a decision, O(nodes) while few are held, in small clusters, with several zones and with
        resources; else as `least-expected-completion`, by an index. 128 decisions and more when a
        slot comes free while many are held.
    When it wins / loses
        Wins on mean completion while its view is fresh: no request is bound to a node by an estimate that
        turns out wrong, and a loaded model serves many requests. Where nodes load a model only with the first
        request for it, it loses on bursts: the first burst finds most nodes empty. The tail is longer,
        because a request that needs a load waits for others until age outweighs the price of all of it, even
        if many wait for the same model: at full load (`aigc-images`, load 1.0) its p99 is above that of
        `cost-index`, its mean below. Loses with old reports, where it does not see free slots, and with long
        round trips, during which slots stay idle.
    Deviations from the source
        Of Sparrow only the late binding: no batch sampling, probes, reservations at nodes or cancellation,
        but one central queue per dispatcher, which sees all nodes (`sparrow` is the published algorithm). It
        is a priced Min-min over the first 128 held requests that a free node suits. It fills slots that are
        free now instead of planning all machines ahead. It weighs completion by the time it wastes and by the
        time waited, so that no request starves. Min-min does not know model loads, nor does it load ahead.
    """

    name: ClassVar[str] = "late-binding"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.RESIDENCY, Need.LOADING_AHEAD, Need.ZONES, Need.RESOURCES, Need.HOLDING}
    )
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.LOADING_AHEAD: LOADED_ON_DEMAND,
        Need.RESIDENCY: NO_LOADS,
        Need.ZONES: NO_ROUND_TRIPS,
        Need.RESOURCES: SLOTS_ONLY,
    }
    compares: ClassVar[int] = 128
    ageing: Annotated[NonNegative, Tunable(0.1, 4.0, "log")] = 0.7  # seconds of completion for one of waiting
    w_load: Annotated[NonNegative, Tunable(0.3, 30.0, "log")] = 3.0  # a load displaces another model besides
    w_waste: Annotated[NonNegative, Tunable(0.1, 10.0, "log")] = 1.0
    patient: Annotated[Natural, Tunable(1, 256, "log")] = 16  # held requests

    @property
    def weights(self) -> tuple[float, float, float, float]:
        """The parameters, in the order in which the kernel reads them."""
        return self.ageing, self.w_load, self.w_waste, float(self.patient)

    def init(self, cluster: Cluster) -> Memory:
        """The parameters, the number of slots, whether there is an index of waits.

        Then the index; or which nodes are idle, and notes of the idle nodes.
        """
        return self.memory_for(cluster)

    def memory_for(self, cluster: Cluster, *, may_index: bool = True) -> Memory:
        """The memory; without an index where it may have none."""
        is_indexed = may_index and is_indexable(cluster) and is_near(cluster) and not cluster.resource_names
        slots, indexed = float(cluster.slots.sum()), float(is_indexed)
        params = [*self.weights, slots, indexed]
        if is_indexed:
            index = wait_index(cluster)
            return index._replace(params=np.array(params), ints=np.append(index.ints, -1))
        return memory(params=params, ints=room_for_idle(cluster), floats=notes_room(cluster.n_nodes))

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank idle nodes by score, unless a busy one is worth waiting for."""
        return int(rank_held(view, memory, memory.params, work, ranking))
