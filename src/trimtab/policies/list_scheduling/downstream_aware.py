"""Downstream-aware: finish runs, do not flood their next stages, place with what follows in view.

A plan of all held work, made anew at each comparison, so that work waits for the node that suits it.

Held requests are compared in the order of their queue. Each in turn claims the node where it is expected to
finish first behind the claims before it, whether that node is free or busy. Work that claims a slot that is
free now starts; other work waits. So a slow node gets work only if the faster ones are claimed for longer.

Memory: `memory.floats` from `first` on: seconds claimed of each node, the number of claims on each, and the
answer of the comparison: serial, node, time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.parameters import Natural, NonNegative, Positive
from trimtab.domain.policy import Policy
from trimtab.domain.view import (
    Memory,
    Plan,
    View,
    estimate_s,
    memory,
    needs_of,
    own_s,
    service_s,
    type_of_node,
)
from trimtab.policies.shared.delivery import DeliveryPolicy, delivered_completion_s, transfer_s
from trimtab.policies.shared.later_stages import Outlook, least_after_s, notes_and_types, outlook
from trimtab.policies.shared.room import last_if_full, starts_now
from trimtab.policies.shared.selection import NOTES, rank_noted
from trimtab.policies.shared.unmet_needs import PLAIN_REQUESTS, SLOTS_ONLY
from trimtab.policies.shared.waits import OVERDUE_FRAC, idle_at, n_idle, room_for_idle

_OLDEST = 1e-9  # of seconds: decides between stages of one run only
_AGEING, _PATIENT, _FULL, _RANK, _PRIORITY, _URGENT, _SLOTS = range(7)  # in `memory.params`
_WITHOUT_URGENCY = {
    Need.PRIORITIES: "No run has a head start over others.",
    Need.DEADLINES: "No run is urgent.",
}
_SERIAL, _NODE, _AT = range(3)
_NOBODY = -1.0  # a serial


def room_for_claims(cluster: Cluster) -> int:
    """Numbers of `memory.floats` that this takes."""
    return 2 * cluster.n_nodes + 3


@helper(inline=True)
def _answer(view: View, first: int) -> int:
    return int(first + 2 * view.context.n_nodes)


@helper(inline=True)
def forget_claims(view: View, floats: Any, first: int) -> None:
    """Begin a comparison."""
    for i in range(_answer(view, first) - first):
        floats[first + i] = 0.0
    floats[_answer(view, first) + _SERIAL] = _NOBODY


@helper(inline=True)
def claim(view: View, floats: Any, first: int, j: int, seconds: float) -> None:
    """Work that takes a slot of node j for so long is expected to run there."""
    floats[first + j] += seconds
    floats[first + view.context.n_nodes + j] += 1.0


@helper(inline=True)
def is_unclaimed(view: View, floats: Any, first: int, j: int) -> bool:
    """Whether node j has a slot that is neither taken nor claimed."""
    taken = view.nodes.in_flight[j] + floats[first + view.context.n_nodes + j]
    return bool(taken < view.nodes.slots[j])


@helper(inline=True)
def wait_behind_s(view: View, floats: Any, first: int, j: int) -> float:
    """Expected seconds until node j has a slot for one more request behind all claims."""
    if is_unclaimed(view, floats, first, j):
        return 0.0
    nodes = view.nodes
    left_s = nodes.backlog_s[j] - nodes.running[j] * (view.context.now_s - nodes.anchor_s[j])
    if left_s <= 0.0:
        left_s = OVERDUE_FRAC * nodes.outstanding_s[j]
    return float((left_s + floats[first + j]) / nodes.slots[j])


@helper(inline=True)
def note_answer(view: View, work: Any, floats: Any, first: int, j: int) -> None:
    """The work starts on node j; the host asks again about the first one that does, and no other."""
    at = _answer(view, first)
    if floats[at + _SERIAL] == _NOBODY:
        floats[at + _SERIAL], floats[at + _NODE], floats[at + _AT] = work.serial, j, view.context.now_s


@helper(inline=True)
def noted_answer(view: View, work: Any, floats: Any, first: int) -> int:
    """The node of the work that won the comparison which has just ended; -1 for other work."""
    at = _answer(view, first)
    is_winner = floats[at + _SERIAL] == work.serial and floats[at + _AT] == view.context.now_s
    return int(floats[at + _NODE]) if is_winner and view.context.n_changed == 0 else -1


@helper(inline=True)
def _head_start_s(view: View, work: Any, priority_s: float, urgent_s: float) -> float:
    """Seconds of work left that the priority and the nearness of the deadline are worth."""
    head_start_s = priority_s * work.priority if priority_s > 0.0 else 0.0
    if urgent_s > 0.0 and work.deadline_s < np.inf:
        slack_s = max(0.0, work.deadline_s - work.rank_s - view.context.now_s)
        head_start_s += urgent_s * math.exp(-slack_s / urgent_s)
    return float(head_start_s)


@helper(inline=True)
def _fullness(view: View, work: Any, slots: Any) -> float:
    """Ready work of the successor's class per slot that serves it; 0 where none follows."""
    c = work.next_class_idx
    if c < 0 or c >= len(view.class_in_flight) or slots[c] <= 0.0:
        return 0.0
    return float(view.class_in_flight[c] / slots[c])


@helper
def _set_prices(view: View, needs: Any, floats: Any, slots: Any, after_s: float, rest_s: float) -> float:
    """Note the price of a second of a slot of each type; returns the least priced end of the run.

    Price = ready work per slot above one, each class spread evenly over the slots that serve it.
    """
    first, types = view.context.n_nodes, view.unit_s.shape[1]
    ideal_s = np.inf
    for g in range(types):
        per_slot = 0.0
        for c in range(len(view.class_in_flight)):
            if view.fixed_s[c, g] < np.inf and slots[c] > 0.0:
                per_slot += view.class_in_flight[c] / slots[c]
        price = max(0.0, per_slot - 1.0)
        floats[first + types + g] = price
        if floats[first + g] > 0.0:
            service_s = estimate_s(view, needs, g)
            if service_s < np.inf:
                ideal_s = min(ideal_s, max(rest_s, service_s + after_s) + price * service_s)
    return ideal_s


@helper(inline=True)
def _priced_s(view: View, needs: Any, floats: Any, j: int, after_s: float, rest_s: float) -> float:
    """Expected end of the run by way of node j, and the price of its slot for the time of service.

    The run does not end before the longest of its other paths, which takes `rest_s`.
    """
    g = type_of_node(view, j)
    price = floats[view.context.n_nodes + view.unit_s.shape[1] + g]
    end_s = max(rest_s, delivered_completion_s(view, needs, j) + after_s)
    return end_s + price * service_s(view, needs, j) if end_s < np.inf else np.inf


@helper
def _is_worth_waiting(
    view: View, work: Any, ahead: Outlook, rest_s: float, idle_s: float, floats: Any
) -> bool:
    """Whether busy nodes can complete all held work sooner than an idle one, which takes `idle_s`."""
    nodes, rivals = view.nodes, 1.0 + view.context.n_held
    could_start = 0.0
    for j in range(view.context.n_nodes):
        service_s = own_s(view, work, j)
        if nodes.up[j] == 1 and nodes.in_flight[j] >= nodes.slots[j] and service_s < np.inf:
            after_s = least_after_s(view, work, ahead, j)
            left_s = idle_s - _priced_s(view, work, floats, j, after_s, rest_s)
            if left_s > 0.0:
                could_start += 1.0 + 0.5 * left_s * nodes.slots[j] / max(service_s, 1e-9)
    return could_start >= rivals


@helper
def _planned(view: View, work: Any, needs: Any, floats: Any, ranking: Any) -> int:
    """Offer the node where work of a lone run ends first behind the claims, if it is free."""
    claims = view.context.n_nodes + 2 * view.unit_s.shape[1]
    if view.context.n_offered == 0:
        j = noted_answer(view, work, floats, claims)
        if j >= 0:
            ranking.node_idx[0] = j
            return 1
        forget_claims(view, floats, claims)
    nodes, ahead = view.nodes, outlook(view, work, floats)
    best, best_s = -1, np.inf
    for j in range(view.context.n_nodes):
        if nodes.up[j] != 1 or own_s(view, needs, j) == np.inf:
            continue
        is_busy = nodes.in_flight[j] >= nodes.slots[j]
        if is_busy or starts_now(view, needs, j):
            start_s = max(transfer_s(view, needs, j), wait_behind_s(view, floats, claims, j))
            end_s = start_s + own_s(view, needs, j) + least_after_s(view, work, ahead, j)
            if end_s < best_s:
                best, best_s = j, end_s
    if best < 0:
        return 0
    is_free = is_unclaimed(view, floats, claims, best)
    claim(view, floats, claims, best, own_s(view, needs, best))
    if not is_free:
        return 0
    note_answer(view, work, floats, claims, best)
    ranking.node_idx[0] = best
    ranking.score[0] = float(view.context.n_offered)
    return 1


@dataclass(frozen=True)
class DownstreamAware(Policy):
    """Finish the run with the least work left first, and place each stage with its successor in view.

    Idea
        Stages wait centrally for a free slot. Of all pairs of a waiting stage and a free node the one with
        the least score starts first:
        score = left + regret − ageing · age − priority_s · priority − urgency − w_rank · rank / max(1,
        fullness / full).
        left = estimated service of all stages of the run that are not over, so a run that is nearly done is
        finished before another is begun; age = time since the run arrived; rank = remaining critical path,
        which decides within a run. fullness = ready work of the successor's class per slot that serves it: a
        stage does not run ahead of a successor that is full. urgency = urgent_s · exp(−slack / urgent_s),
        where slack = time to the deadline beyond the remaining path: a near deadline goes before all else,
        the sooner the earlier, and one that is several `urgent_s` away does not count yet.
        regret = cost on this node − least cost on any type, where cost = end + price · service.
        end = transfer of missing inputs + load + service + least time of what follows from there, as in
        `peft`, but no less than the longest remaining path of the run: a stage that the join behind it waits
        for no longer than for others may take a slower node. price of a type = ready work per slot above one,
        each class spread evenly over the slots that serve it: a second of a slot that others wait for costs
        more. While fewer than `patient` stages are held, one leaves a free node alone if busy nodes are
        expected to serve all of the held ones at less cost. A run that is alone has no one to save slots for,
        and only its end counts. Its stages are planned in the order of their ranks, each on the node of
        earliest end behind the stages before it (`claims`). One whose node is busy waits for it.
    Source
        Own. From Linus Schrage: "A proof of the optimality of the shortest remaining processing time
        discipline", Operations Research 16(3), 1968 (least work left first); Hamid Arabnejad, Jorge Barbosa,
        IEEE Transactions on Parallel and Distributed Systems 25(3), 2014 (what follows counts for the node);
        urgency by the exponential of the slack: Ari Vepsalainen, Thomas Morton: "Priority rules for job shops
        with weighted tardiness costs", Management Science 33(8), 1987 (apparent tardiness cost, from memory);
        back-pressure after Leandros Tassiulas, Anthony Ephremides, IEEE Transactions on Automatic Control
        37(12), 1992.
    Reads
        What is left of the run, its arrival, how many runs there are, the remaining critical path, the
        successor's class and how much of it is ready, the declared size of the output; the priority and the
        deadline, if `priority_s` and `urgent_s` are above 0; in-flight and running requests, slots, backlog
        and its time, resident models; demand and use of resources; what nodes hold of the inputs, links,
        round trips; estimated service per type; how many requests are held.
    Cost
        O(idle nodes + classes · types) a decision, O(nodes) while few are held or a run is alone; 128
        decisions and more when a slot comes free while many are held.
    When it wins / loses
        Wins on mean run completion where several runs share the nodes, and on the makespan of a single run
        where nodes are unequal; on equal nodes it is then as `heft`. Large runs wait for small ones, so their
        tail grows with the load. Needs fresh views, as it sends work to free slots only.
    Deviations from the source
        Own, so none. Of SRPT: no preemption, estimates, several stages of a run at once. Of back-pressure:
        fullness scales the rank, instead of a difference of queues times a rate.
    """

    name: ClassVar[str] = "downstream-aware"
    needs: ClassVar[frozenset[Need]] = frozenset(
        {Need.RESIDENCY, Need.ZONES, Need.LINKS, Need.RESOURCES, Need.CHAINS, Need.HOLDING}
    )
    degrades: ClassVar[Mapping[Need, str]] = {
        **DeliveryPolicy.degrades,
        Need.RESOURCES: SLOTS_ONLY,
        Need.CHAINS: PLAIN_REQUESTS,
    }
    compares: ClassVar[int] = 128
    ageing: NonNegative = 0.2  # seconds of work left that a second since the run's arrival is worth
    w_rank: NonNegative = 0.7  # seconds of work left that a second of remaining critical path is worth
    patient: Natural = 16  # held requests up to which a stage may wait for a busy node
    priority_s: NonNegative = 0.0  # seconds of work left that a level of priority is worth
    urgent_s: NonNegative = 0.0  # seconds of work left that a deadline is worth at its last moment; 0 = none
    full: Positive = 2.0  # ready work per slot from which a successor counts as full

    @property
    def all_needs(self) -> frozenset[Need]:
        """Its needs; priorities and deadlines only where they are worth something."""
        worth = {Need.PRIORITIES: self.priority_s, Need.DEADLINES: self.urgent_s}
        return super().all_needs | {need for need, seconds in worth.items() if seconds > 0.0}

    def without(self, need: Need) -> str | None:
        """The effect of an unmet need; None = it can't do without."""
        return _WITHOUT_URGENCY.get(need) or super().without(need)

    def init(self, cluster: Cluster) -> Memory:
        """Parameters and the slots that serve each class; idle nodes; notes, node types, their prices."""
        serves = np.isfinite(cluster.fixed_s)[:, cluster.type_idx]  # [classes, nodes]
        slots = (serves * cluster.slots.astype(np.float64)).sum(axis=1)
        urges = [self.priority_s, self.urgent_s]
        weights = [self.ageing, float(self.patient), self.full, self.w_rank, *urges]
        params = np.append(weights, slots)
        return memory(
            params=params,
            ints=room_for_idle(cluster),
            floats=np.append(notes_and_types(cluster), np.zeros(cluster.n_types + room_for_claims(cluster))),
        )

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank idle nodes by score."""
        params, needs, floats = memory.params, needs_of(work), memory.floats
        if view.context.n_runs == 1:
            n_idle(view, memory.ints)
            return int(_planned(view, work, needs, floats, ranking))
        slots, ahead = params[_SLOTS:], outlook(view, work, floats)
        left_s = view.context.run_left_s if view.context.run_left_s > 0.0 else needs.estimate_s
        fullness = max(1.0, _fullness(view, work, slots) / params[_FULL])
        age_s = view.context.now_s - work.run_arrival_s
        base = left_s - params[_AGEING] * age_s - params[_RANK] * work.rank_s / fullness
        is_longest = work.rank_s >= view.context.run_rest_s
        rest_s = 0.0 if is_longest else view.context.run_rest_s
        base -= _head_start_s(view, work, params[_PRIORITY], params[_URGENT])
        base -= _set_prices(view, needs, floats, slots, ahead.after_s, rest_s)
        idle, soonest_s = n_idle(view, memory.ints), np.inf
        for i in range(idle):
            j = idle_at(memory.ints, i)
            note_s = np.inf
            if starts_now(view, needs, j):
                after_s = least_after_s(view, work, ahead, j)
                cost_s = _priced_s(view, needs, floats, j, after_s, rest_s)
                soonest_s = min(soonest_s, cost_s)
                note_s = base + cost_s + last_if_full(view, needs, j)
            floats[NOTES + i] = note_s
        count = rank_noted(floats, ranking, idle)
        if count == 0:
            return 0
        is_patient = view.context.n_held < params[_PATIENT]
        if is_patient and _is_worth_waiting(view, work, ahead, rest_s, soonest_s, floats):
            return 0
        for i in range(count):
            ranking.node_idx[i] = idle_at(memory.ints, ranking.node_idx[i])
        return int(count)

    @staticmethod
    @kernel
    def order(view: View, plan: Plan, work: Any, memory: Memory) -> float:
        """Absolute seconds: arrival of the run, head start off. It decides which held stages are compared."""
        head_start_s = _head_start_s(view, work, memory.params[_PRIORITY], memory.params[_URGENT])
        return float(work.run_arrival_s - _OLDEST * work.rank_s - head_start_s)
