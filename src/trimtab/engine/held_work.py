"""Work that its dispatcher holds: asking the policy, carrying out its answer, and offers to free nodes.

Each dispatcher has a central queue of lanes. When a node has room again, held requests are offered one after
the other, or compared by score, until as many offers as the policy looks ahead have failed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import MAX_REASON, Reason, Status
from trimtab.domain.view import BACKGROUND, MAX_RANKED, Plan
from trimtab.engine.bindings import next_bound
from trimtab.engine.decision_trace import note_shadow
from trimtab.engine.draws import stream, uniform
from trimtab.engine.events import CANCELLATION, push_event
from trimtab.engine.faults import end
from trimtab.engine.nodes import accepts, queue_key, send
from trimtab.engine.prefix_cache import has_prefixes, show_prefixes
from trimtab.engine.queues import (
    central_queue,
    comes_before,
    drop_first_of,
    enqueue,
    first_of,
    lane_of,
    put_back,
    take_out,
)
from trimtab.engine.runs import show_job
from trimtab.engine.shares import (
    compare,
    goes_by_priority,
    has_tree,
    is_earlier,
    is_owed,
    is_within_limits,
    look_at_held,
    update_shares,
)
from trimtab.engine.stage_inputs import show_inputs
from trimtab.engine.state import AVOIDED, TREE_SHARES, State
from trimtab.engine.telemetry import clear_changes, dispatcher_of, has_free_slot, note_change
from trimtab.engine.virtual_counters import note_tenant_held, note_tenant_unheld

CALL_RAISED = -(1 << 62)  # the bridge of a plain Python policy returns this when the policy raised
HOST_ASKED = -(1 << 61)  # in place of an answer: the host decides, and then calls again
ASKED_ABOUT_ONE, ASKED_ABOUT_HELD = 1, 2  # `counts.awaited`
LATER = 1e12  # added to the keys of background work, so that it comes last

_HELD, _REJECTED = int(Status.HELD), int(Status.REJECTED)
_REFUSED, _QUEUE_FULL = int(Reason.REFUSED), int(Reason.QUEUE_FULL)


@helper
def reject(s: State, r: int, reason: int, now_s: float) -> None:
    """End request r, refused for a Reason."""
    end(s, r, _REJECTED, reason, now_s)


@helper
def unlink(s: State, r: int) -> None:
    """Held request r is over. Its queue forgets it once it comes to its turn."""
    s.queues.length[central_queue(s, r)] -= 1
    s.requests.stale_link[r] = 1
    note_unheld(s, r)


@helper
def await_deadline(s: State, r: int, now_s: float) -> None:
    """Cancel request r at its deadline, if deadlines cancel."""
    if s.config.cancel[0] != 0 and s.work.deadline_s[r] < np.inf:
        push_event(s, max(now_s, s.work.deadline_s[r]), CANCELLATION, r, 0)
        s.counts.pending_wakeups[0] += 1


@helper(inline=True)
def _draw(s: State, r: int) -> None:
    if len(s.draws) > 0:
        state = stream(s.config.seed[0], s.work.serial[r], s.requests.attempt[r])
        for i in range(len(s.draws)):
            s.draws[i] = uniform(state, i)


@helper(inline=True)
def _ask(s: State, plan: Plan, dispatch: Any, r: int, now_s: float) -> int:
    """Call the policy for request r; returns its answer. `ranking` then holds the candidates.

    Where the host decides, it only shows it the request, and returns HOST_ASKED.
    """
    d = dispatcher_of(s, r)
    s.contexts.now_s[d] = now_s
    s.contexts.attempt[d], s.contexts.retries[d] = s.requests.attempt[r], s.requests.retries[r]
    s.counts.deciding[0] = r
    _draw(s, r)
    if has_prefixes(s):
        show_prefixes(s, r, d)
    if s.config.runs[0] == 1:
        show_job(s, r, d)
        show_inputs(s, r)
    if s.config.external[0] == 1:
        return HOST_ASKED
    count = dispatch(s.views[d], plan, s.work[r], s.memories[d], s.draws, s.ranking)
    clear_changes(s, d)
    return int(count)


@helper(inline=True)
def decide(s: State, plan: Plan, dispatch: Any, r: int, now_s: float) -> int:
    """Call the policy for request r and count the attempt. `ranking` then holds the candidates."""
    count = _ask(s, plan, dispatch, r, now_s)
    s.requests.attempt[r] += 1
    return count


@helper
def hold(s: State, plan: Plan, order: Any, r: int, now_s: float) -> None:
    """Put request r into its dispatcher's central queue, or reject it if that queue is full."""
    d = dispatcher_of(s, r)
    if s.counts.offers_due[0] == 1 and s.requests.status[r] == _HELD:
        _skip(s, r)
        # If no node takes the best of the compared requests, no node takes another.
        s.failed_offers[lane_of(s, r)] += max(1, s.config.compares[0])
    elif s.contexts.n_held[d] >= s.config.held_max[0]:
        reject(s, r, _QUEUE_FULL, now_s)
    else:
        s.requests.queued_cost[r] = s.held_cost[s.work.tenant_idx[r]]
        s.requests.key[r] = central_key(s, plan, order, r, now_s)
        s.requests.status[r] = _HELD
        s.contexts.n_held[d] += 1
        if len(s.item_gib) > 0:
            _count_items(s, r, d, 1)
        note_tenant_held(s, r)
        _note_held_row(s, r)
        enqueue(s, central_queue(s, r), r)
        if s.config.deadlines_while_held[0] == 1:
            await_deadline(s, r, now_s)


@helper(inline=True)
def _skip(s: State, r: int) -> None:
    """Held request r was offered without success."""
    s.passed_over[s.counts.n_passed_over[0]] = r
    s.counts.n_passed_over[0] += 1


@helper(inline=True)
def _compare(s: State, plan: Plan, dispatch: Any, r: int, now_s: float) -> bool:
    """Score held request r for a comparison with other held requests. The loop then decides about the best.

    Returns False if the request needs its decision now: the answer is no ranking, or its affinity node
    accepts the request. Where the host decides, it only keeps the request for it.
    """
    if takes_affinity(s, r):
        return False
    if s.config.external[0] == 1:
        _skip(s, r)
        if _any_accepts(s, r, True):
            s.failed_offers[lane_of(s, r)] += 1
            if s.counts.best[0] == 0:
                s.counts.best[0], s.counts.best_key[0] = r + 1, s.counts.offer_key[0]
        return True
    if s.config.placement_terms[0] == 1:
        set_avoided(s, r, -1)
    for i in range(MAX_RANKED):
        s.ranking.score[i] = np.nan  # of a policy that writes none: then the first request is the best
    n_offered = s.contexts.n_offered
    n_offered[dispatcher_of(s, r)] = s.counts.n_passed_over[0]
    count = _ask(s, plan, dispatch, r, now_s)
    n_offered[dispatcher_of(s, r)] = 0
    is_compared = count >= 0 and count <= MAX_RANKED
    if is_compared:
        _skip(s, r)
        if count > 0:  # else no free node suits the request, so it does not count as compared
            s.failed_offers[lane_of(s, r)] += 1
        _note_if_best(s, r, count)
    if s.config.placement_terms[0] == 1:
        set_avoided(s, r, 1)
    return is_compared


@helper(inline=True)
def _note_if_best(s: State, r: int, count: int) -> None:
    """Keep the request with the lowest score of its first accepting candidate. Candidates come best first."""
    scores = s.ranking.score
    for i in range(count):
        is_best = s.counts.best[0] == 0 or scores[i] < s.counts.best_score[0]
        if not is_best:
            return
        j = s.ranking.node_idx[i]
        if j >= 0 and j < len(s.nodes.up) and accepts(s, r, j):
            s.counts.best[0] = r + 1
            s.counts.best_score[0] = scores[i]
            s.counts.best_key[0] = s.counts.offer_key[0]
            return


@helper
def central_key(s: State, plan: Plan, order: Any, r: int, now_s: float) -> float:
    """Key of request r in a central queue. Background work comes last.

    The lane of a class or tenant is served first come first served; that of a tenant whose queue goes by
    priority, by priority first.
    """
    if s.config.lane_by[0] == 0:
        key = queue_key(s, plan, order, r, now_s)
    else:
        key = -float(s.work.priority[r]) if goes_by_priority(s, r) else 0.0
    return _behind(s, r, key)


@helper(inline=True)
def _behind(s: State, r: int, key: float) -> float:
    """The key of request r, behind all other work if it is background work."""
    return key + LATER if s.work.priority[r] <= BACKGROUND else key


@helper
def _count_items(s: State, r: int, d: int, by: int) -> None:
    """Count the model and the adapter of request r, which dispatcher d holds now (1) or no longer (−1)."""
    model, adapter = s.work.model_idx[r], s.work.adapter_idx[r]
    if model >= 0:
        s.held_of_item[d, model] += by
    if adapter >= 0:
        s.held_of_item[d, adapter] += by


@helper(inline=True)
def note_unheld(s: State, r: int) -> None:
    """Held request r is held no longer."""
    d = dispatcher_of(s, r)
    s.contexts.n_held[d] -= 1
    if len(s.item_gib) > 0:
        _count_items(s, r, d, -1)
    note_tenant_unheld(s, r)
    if s.config.runs[0] == 1:
        s.counts.n_held[0] -= 1
        last = s.held_rows[s.counts.n_held[0]]
        s.held_rows[s.held_at[r]] = last
        s.held_at[last] = s.held_at[r]


@helper(inline=True)
def _note_held_row(s: State, r: int) -> None:
    """List held row r, so that a planner's host need not search all rows."""
    if s.config.runs[0] == 1:
        s.held_at[r] = s.counts.n_held[0]
        s.held_rows[s.counts.n_held[0]] = r
        s.counts.n_held[0] += 1


@helper(inline=True)
def _unhold(s: State, r: int) -> None:
    if s.requests.status[r] == _HELD:
        note_unheld(s, r)


@helper
def _any_accepts(s: State, r: int, in_free_slot: bool) -> bool:
    """Whether any node accepts request r, or does so in a free slot. If not, a policy cannot but hold it."""
    for j in range(len(s.nodes.up)):  # noqa: SIM110 - numba compiles no generator expressions
        if (not in_free_slot or has_free_slot(s, j)) and accepts(s, r, j):
            return True
    return False


@helper(inline=True)
def carry_out(s: State, plan: Plan, order: Any, r: int, count: int, now_s: float) -> bool:
    """Carry out a decision: the first candidate that accepts gets the request. False for an invalid one."""
    if count < 0:
        if count < -MAX_REASON:
            return False
        _unhold(s, r)
        reject(s, r, -count, now_s)
        return True
    if count > MAX_RANKED:
        return False
    for i in range(count):
        j = s.ranking.node_idx[i]
        if j < 0 or j >= len(s.nodes.up):
            return False
        if accepts(s, r, j):
            _unhold(s, r)
            s.counts.last_tenant[0] = s.work.tenant_idx[r]
            send(s, plan, order, r, j, now_s)
            return True
    if s.config.reject_refused[0] == 1 and (count > 0 or not _any_accepts(s, r, False)):
        _unhold(s, r)
        reject(s, r, _REFUSED, now_s)
    else:
        hold(s, plan, order, r, now_s)
    return True


@helper
def _end_pass(s: State) -> None:
    """Put passed-over requests back with their old keys: before all requests that were not offered."""
    for i in range(s.counts.n_passed_over[0] - 1, -1, -1):
        r = s.passed_over[i]
        s.failed_offers[lane_of(s, r)] = 0
        put_back(s, central_queue(s, r), r)
    s.counts.n_passed_over[0] = 0


@helper
def _is_slot_free(s: State) -> bool:
    """Whether any node has a free slot. Without one a comparison of requests has no use.

    Looks first where a slot was left or found; and nowhere if there was none, until one is left.
    """
    n, counts = len(s.nodes.up), s.counts
    if counts.no_slot_free[0] == 1:
        return False
    if has_free_slot(s, counts.left_node[0]):
        return True
    for i in range(n):
        j = counts.free_node[0] + i
        if has_free_slot(s, j if j < n else j - n):
            counts.free_node[0] = j if j < n else j - n
            return True
    counts.no_slot_free[0] = 1
    return False


@helper
def _take_best(s: State) -> int:
    """Take the best of the compared requests out of its queue; -1 if no node accepts any of them."""
    r = s.counts.best[0] - 1
    s.counts.best[0] = 0
    if r >= 0:
        take_out(s, central_queue(s, r), r)
    return int(r)


@helper(inline=True)
def _is_open(s: State, lane: int) -> bool:
    """Whether a lane is below its limit of failed offers in this pass."""
    most = max(s.config.lookahead[0], s.config.compares[0])
    return bool(s.failed_offers[lane] < most and s.counts.n_passed_over[0] < len(s.passed_over))


@helper(inline=True)
def _first_held(s: State, d: int) -> int:
    """The first held request of a dispatcher's lanes below their limit of failed offers; or -1."""
    best = -1
    for lane in range(d * s.config.lanes[0], (d + 1) * s.config.lanes[0]):
        if _is_open(s, lane):
            r = first_of(s, len(s.nodes.up) + lane)
            if r >= 0 and (best < 0 or comes_before(s, r, best)):
                best = r
    if best >= 0:
        s.counts.offer_key[0] = s.requests.key[best]
    return best


@helper
def _first_by_present_key(s: State, plan: Plan, order: Any, d: int, now_s: float) -> int:
    """As `_first_held`, where classes or tenants have queues of their own: by the keys that they have now."""
    best, best_key, parts = -1, 0.0, s.config.sublanes[0]
    for lane in range(d * s.config.lanes[0], (d + 1) * s.config.lanes[0]):
        for part in range(parts if _is_open(s, lane) else 0):
            r = first_of(s, len(s.nodes.up) + lane * parts + part)
            if r >= 0:
                key = _behind(s, r, queue_key(s, plan, order, r, now_s))
                is_earlier = best >= 0 and s.work.serial[r] < s.work.serial[best]
                if best < 0 or key < best_key or (key == best_key and is_earlier):
                    best, best_key = r, key
    s.counts.offer_key[0] = best_key
    return best


@helper
def _is_first_in_tree(s: State, a: int, b: int) -> bool:
    """Whether held request a goes before b in the tree of queues. Background work comes last."""
    is_later = s.work.priority[a] <= BACKGROUND
    if is_later != (s.work.priority[b] <= BACKGROUND):
        return not is_later
    order = compare(s, a, b)
    return bool(order < 0 or (order == 0 and is_earlier(s, a, b)))


@helper
def _first_within_limits(s: State, plan: Plan, order: Any, d: int, now_s: float) -> int:
    """As `_first_held`, where tenants belong to hierarchical queues.

    Requests above a limit are passed over. Those that a guarantee would take come first, whatever the order.
    """
    best, best_key, best_is_owed, parts = -1, 0.0, False, s.config.sublanes[0]
    by_tree = s.config.virtual_counters[0] == TREE_SHARES
    if by_tree:
        look_at_held(s)
        update_shares(s)
    for lane in range(d * s.config.lanes[0], (d + 1) * s.config.lanes[0]):
        for part in range(parts if _is_open(s, lane) else 0):
            r = first_of(s, len(s.nodes.up) + lane * parts + part)
            if r < 0 or not is_within_limits(s, r):
                continue
            key, is_first = s.requests.key[r], best < 0
            if s.config.lane_by[0] != 0 and not by_tree:
                key = _behind(s, r, queue_key(s, plan, order, r, now_s))
            owed = not by_tree and is_owed(s, r)
            if best >= 0 and by_tree:
                is_first = _is_first_in_tree(s, r, best)
            elif best >= 0 and owed != best_is_owed:
                is_first = owed
            elif best >= 0:
                is_earlier_one = s.work.serial[r] < s.work.serial[best]
                is_first = key < best_key or (key == best_key and is_earlier_one)
            if is_first:
                best, best_key, best_is_owed = r, key, owed
    if by_tree:
        best_key = _rank_in_pass(s, best)
    s.counts.offer_key[0] = best_key
    return best


@helper
def _rank_in_pass(s: State, r: int) -> float:
    """How many times a request offered in this pass came strictly before the next, up to held request r."""
    count = s.counts.n_passed_over[0]
    if count == 0 or r < 0:
        return 0.0
    return s.counts.offer_key[0] + (1.0 if compare(s, s.passed_over[count - 1], r) < 0 else 0.0)


@helper(inline=True)
def _is_outranked(s: State) -> bool:
    """Whether the request on offer, and so all after it, comes behind the best of the compared ones.

    Where the order is another policy's, scores decide only among requests of equal keys.
    """
    counts = s.counts
    return bool(
        s.config.order_first[0] == 1 and counts.best[0] > 0 and counts.offer_key[0] > counts.best_key[0]
    )


@helper(inline=True)
def _may_grow(s: State) -> bool:
    """Whether keys of waiting work may grow, and are not computed anew at every offer anyway."""
    return bool(s.config.virtual_counters[0] != 0 and s.config.lane_by[0] == 0)


@helper
def _has_grown(s: State, plan: Plan, order: Any, r: int, now_s: float) -> bool:
    """Whether the key of r, just taken out of its queue, has grown. If so, r waits again with the new key."""
    s.requests.queued_cost[r] = 0.0  # no held request of its tenant comes before it
    key = central_key(s, plan, order, r, now_s)
    if key <= s.requests.key[r]:
        return False
    s.requests.key[r] = key
    enqueue(s, central_queue(s, r), r)
    return True


@helper
def next_offer(s: State, plan: Plan, dispatch: Any, order: Any, now_s: float) -> int:
    """The next held request to decide about: bindings first, then dispatcher by dispatcher; -1 at the end.

    HOST_ASKED if the host is to choose it among the held requests that it compares.
    """
    counts, compares = s.counts, s.config.compares[0] > 0
    i = next_bound(s, plan, now_s) if counts.n_passed_over[0] == 0 else -1
    if i >= 0:
        r = plan.binding.row_idx[i]
        take_out(s, central_queue(s, r), r)
        counts.bound[0] = plan.binding.node_idx[i] + 1
        return int(r)
    if compares and counts.n_passed_over[0] == 0 and not _is_slot_free(s):
        counts.offering[0] = s.config.dispatchers[0]
    while counts.offering[0] < s.config.dispatchers[0]:
        if counts.awaited[0] == ASKED_ABOUT_HELD:
            r = -1  # the host has answered
        elif has_tree(s):
            r = _first_within_limits(s, plan, order, counts.offering[0], now_s)
        elif s.config.lane_by[0] == 0:
            r = _first_held(s, counts.offering[0])
        else:
            r = _first_by_present_key(s, plan, order, counts.offering[0], now_s)
        if r >= 0 and not _is_outranked(s):
            drop_first_of(s, central_queue(s, r), r)
            if _may_grow(s) and _has_grown(s, plan, order, r, now_s):
                continue
            if compares and _compare(s, plan, dispatch, r, now_s):
                continue
            return int(r)
        if counts.awaited[0] == ASKED_ABOUT_HELD:
            counts.awaited[0] = 0
        elif s.config.external[0] == 1 and counts.best[0] > 0:
            counts.awaited[0] = ASKED_ABOUT_HELD
            s.contexts.now_s[counts.offering[0]] = now_s
            return HOST_ASKED
        _end_pass(s)
        r = _take_best(s)
        if r >= 0:
            return r
        counts.offering[0] += 1
    counts.offering[0] = 0
    counts.offers_due[0] = 0
    return -1


@helper
def nothing_held(s: State) -> bool:
    """Whether no dispatcher holds a request."""
    return s.counts.in_system[0] == s.counts.in_nodes[0]


@helper
def set_avoided(s: State, r: int, by: int) -> None:
    """Hide the nodes that request r has lost (by = −1), or show them again (+1).

    `up` is a counter: a node that is down stays down.
    """
    for i in range(AVOIDED):
        j = s.avoid[r, i]
        if j >= 0:
            s.nodes.up[j] += 2 * by
            note_change(s, j)


@helper
def consult_shadow(s: State, plan: Plan, dispatch: Any, r: int, now_s: float) -> None:
    """Record the node that the shadow policy would choose for request r."""
    d = s.config.dispatchers[0]
    s.decision_trace.shadow_idx[r] = -1
    s.decision_trace.shadow_s[r] = 0.0
    s.counts.deciding[0] = r
    s.contexts.now_s[d] = now_s
    s.contexts.n_held[d] = s.contexts.n_held[0]
    _draw(s, r)
    s.counts.consulting[0] = 1
    count = dispatch(s.views[d], plan, s.work[r], s.memories[d], s.draws, s.ranking)
    s.counts.consulting[0] = 0
    clear_changes(s, d)
    if count == CALL_RAISED:
        s.counts.shadow_failures[0] += 1
    for i in range(min(count, MAX_RANKED)):
        j = s.ranking.node_idx[i]
        if j >= 0 and j < len(s.nodes.up) and accepts(s, r, j):
            note_shadow(s, r, j)
            return


@helper(inline=True)
def takes_affinity(s: State, r: int) -> bool:
    """Whether the affinity node of request r, the node of its session, accepts it."""
    j = s.work.affinity_node_idx[r]
    return s.config.placement_terms[0] == 1 and j >= 0 and accepts(s, r, j)
