"""What must hold between any two events, recomputed from the requests alone."""

from __future__ import annotations

import numpy as np

from trimtab.domain.requests import Status
from trimtab.domain.view import NODE, UNLIMITED
from trimtab.engine.driver import Driver
from trimtab.engine.events import CANCELLATION, REPAIR, kind_of, serial_of
from trimtab.engine.layout import EMPTY, NO_OUTPUT, PART_SPEC
from trimtab.engine.loop import DONE
from trimtab.engine.state import State

AT_NODE = (Status.TRANSFER, Status.QUEUED, Status.RUNNING)
ENDS = {
    "finished": Status.FINISHED,
    "rejected": Status.REJECTED,
    "cancelled": Status.CANCELLED,
    "lost": Status.LOST,
}


def check_all(s: State) -> None:
    """Every invariant of a state that is at rest."""
    check_conservation(s)
    check_nodes(s)
    check_slots(s)
    check_queues(s)
    check_tree(s)
    check_memory(s)
    check_resources(s)
    check_links(s)
    check_events(s)


def is_run(s: State) -> np.ndarray:
    """Requests that stand for their stages or parts: they are in no queue and at no node."""
    rows = np.zeros(len(s.requests), bool)
    rows[: len(s.runs)] = s.runs["started"] == 1
    return rows


def requests_of(s: State, rows: np.ndarray) -> np.ndarray:
    """The requests that these rows belong to: themselves, or the runs of stages."""
    return np.where(s.stages["run"][rows] >= 0, s.stages["run"][rows], rows) if len(s.stages) else rows


def _at_nodes(s: State, *statuses: Status) -> np.ndarray:
    return np.isin(s.requests["status"], statuses) & ~is_run(s)


def _in_slots(s: State) -> np.ndarray:
    return _at_nodes(s, Status.RUNNING) & (s.requests["slot"] >= 0)


def check_conservation(s: State) -> None:
    counts, status = s.counts[0], s.requests["status"][: s.counts["work"][0]]
    for name, value in ENDS.items():
        assert counts[name] == (status == value).sum(), name
    in_flight = ((status > Status.PENDING) & (status < Status.FINISHED)).sum()
    assert counts["arrived"] == in_flight + sum(counts[name] for name in ENDS)
    assert (status[counts["arrived"] :] == Status.PENDING).all()
    check_places(s)
    status = s.requests["status"]
    assert (np.isnan(s.requests["finish_s"]) | (status == Status.FINISHED) | (status < Status.FINISHED)).all()
    np.testing.assert_array_equal(np.isnan(s.requests["ended_s"]), status <= Status.FINISHED)


def check_places(s: State) -> None:
    """Rows that are somewhere: requests without stages, stages, and runs whose stages are over or failed."""
    status, run = s.requests["status"], is_run(s)
    somewhere = (status > Status.PENDING) & (status < Status.FINISHED)
    left = np.zeros(len(status))
    left[: len(s.runs)] = s.runs["left"]
    back = somewhere & run & (left <= 0)
    assert s.counts["in_system"][0] == (somewhere & ~run).sum() + back.sum()
    assert s.counts["in_nodes"][0] == _at_nodes(s, *AT_NODE).sum() + (back & (left == 0)).sum()
    for r in np.flatnonzero(run & somewhere & ~back):
        check_run(s, int(r))
    if len(s.stages):
        ready = np.bincount(s.work["class_idx"][somewhere & ~run], minlength=len(s.class_in_flight))
        np.testing.assert_array_equal(s.class_in_flight, ready)
        held = np.sort(s.held_rows[: s.counts["n_held"][0]])
        np.testing.assert_array_equal(held, np.flatnonzero(status == Status.HELD))


def check_run(s: State, r: int) -> None:
    """The counts of a run that is under way."""
    run, status = s.runs[r], s.requests["status"]
    groups = s.groups[run["group"] : run["group"] + run["n_groups"]]
    assert run["left"] == (groups["left"] > 0).sum()
    for group in groups:
        rows = np.arange(group["row"], group["row"] + group["count"])
        over = s.stages["output"][rows] != NO_OUTPUT
        assert group["left"] == (~over).sum()
        assert group["present"] == (s.stages["output"][rows] >= EMPTY).sum()
        assert (status[rows[over]] >= Status.FINISHED).all()
    if groups["spec"][0] == PART_SPEC:
        parts = slice(groups["row"][0], groups["row"][0] + groups["count"][0])
        np.testing.assert_allclose(s.truth["units"][parts].sum(), s.truth["units"][r])


def _per_node(s: State, *statuses: Status) -> np.ndarray:
    here = _at_nodes(s, *statuses)
    return np.bincount(s.requests["node_idx"][here], minlength=len(s.nodes))


def check_nodes(s: State) -> None:
    in_flight = _per_node(s, *AT_NODE)
    running = np.bincount(s.requests["node_idx"][_in_slots(s)], minlength=len(s.nodes))
    np.testing.assert_array_equal(s.nodes["in_flight"], in_flight)
    np.testing.assert_array_equal(s.nodes["running"], running)
    assert (running <= s.nodes["slots"]).all()
    takes = np.minimum(s.nodes["slots"] + s.hidden["queue_max"].astype(np.int64), UNLIMITED)
    np.testing.assert_array_equal(s.nodes["room"], takes - in_flight)
    assert (s.nodes["room"] >= 0).all()
    here = _at_nodes(s, *AT_NODE)
    expected_s = np.bincount(s.requests["node_idx"][here], s.requests["estimate_s"][here], len(s.nodes))
    np.testing.assert_allclose(s.nodes["outstanding_s"], expected_s, atol=1e-9)
    assert (s.nodes["outstanding_s"][in_flight == 0] == 0.0).all()
    np.testing.assert_array_equal(s.nodes["up"], s.hidden["down"] == 0)


def check_tree(s: State) -> None:
    """What hierarchical queues have at nodes and wait for, and their limits."""
    if len(s.tree) == 0:
        return
    leaf, at_nodes = s.leaf_of[s.work["tenant_idx"]], _at_nodes(s, *AT_NODE)
    held = (s.requests["status"] == Status.HELD) & ~is_run(s)
    takes = np.column_stack([s.demand[s.work["class_idx"]], np.ones(len(s.work))])
    for q, queue in enumerate(s.tree):
        mine = (leaf >= q) & (leaf < queue["end"])
        assert queue["held"] == (mine & held).sum()
        assert queue["running"] == (mine & at_nodes).sum() <= queue["max_running"]
        np.testing.assert_array_equal(s.tree_held[q], takes[mine & at_nodes].sum(axis=0))
        if queue["running"] > 1:
            assert (s.tree_held[q] <= s.tree_limit[q] * (1 + 1e-9)).all()
        assert queue["share"] == (s.tree_held[q] / s.pooled).max()
        part, most = queue["user_limit"], np.minimum(s.tree_limit[q], s.pooled)
        for tenant in np.unique(s.work["tenant_idx"][mine & at_nodes]) if part < 1.0 else ():
            own = mine & at_nodes & (s.work["tenant_idx"] == tenant)
            assert own.sum() == 1 or (takes[own].sum(axis=0) <= part * most * (1 + 1e-9)).all()


def check_slots(s: State) -> None:
    """The first `running` slots of a node hold exactly its running requests, and these know where."""
    for j in range(len(s.nodes)):
        first = s.hidden["first_slot"][j]
        held = s.slots["request"][first : first + s.nodes["running"][j]]
        expected = np.flatnonzero(_in_slots(s) & (s.requests["node_idx"] == j))
        assert sorted(held) == expected.tolist()
        np.testing.assert_array_equal(s.requests["slot"][held], np.arange(len(held)))


def _central_parts(s: State) -> int:
    """Central queues of each dispatcher."""
    return int(s.config["lanes"][0] * s.config["sublanes"][0])


def check_queues(s: State) -> None:
    n, d = len(s.nodes), len(s.contexts)
    np.testing.assert_array_equal(s.queues["length"][:n], _per_node(s, Status.QUEUED))
    held = np.flatnonzero(s.requests["status"] == Status.HELD)
    expected = np.bincount(requests_of(s, held) % d, minlength=d)
    parts = _central_parts(s)
    central = s.queues["length"][n : n + d * parts].reshape(d, parts)
    np.testing.assert_array_equal(central.sum(axis=1), expected)
    np.testing.assert_array_equal(s.contexts["n_held"], expected)
    check_held_items(s, held)
    tenants, charges = s.work["tenant_idx"][held], s.work["cost"][held]
    np.testing.assert_array_equal(s.held_of, np.bincount(tenants, minlength=len(s.held_of)))
    expected_charge = np.bincount(tenants, weights=charges, minlength=len(s.held_of))
    np.testing.assert_allclose(s.held_cost, expected_charge, atol=1e-9)
    assert (expected <= s.config["held_max"][0]).all()
    check_batches(s)


def check_held_items(s: State, held: np.ndarray) -> None:
    """Each dispatcher's count of held requests by model and adapter, and what its policy and shadow see."""
    expected = np.zeros_like(s.held_of_item)
    dispatcher = requests_of(s, held) % len(expected)
    for name in ("model_idx", "adapter_idx"):
        needed = s.work[name][held]
        np.add.at(expected, (dispatcher[needed >= 0], needed[needed >= 0]), 1)
    np.testing.assert_array_equal(s.held_of_item, expected)
    for i, view in enumerate(s.views):
        np.testing.assert_array_equal(view.held_of_item, expected[i % len(expected)])


def check_batches(s: State) -> None:
    """What waits at a node is in its groups' queues; what hangs on another request shares its slot."""
    if len(s.batch) == 0:
        return
    groups, here = s.config["groups"][0], _at_nodes(s, Status.QUEUED)
    at = s.requests["node_idx"][here] * groups + s.batch["group"][here]
    expected = np.bincount(at, minlength=groups * len(s.nodes))
    np.testing.assert_array_equal(s.queues["length"][-len(expected) :], expected)
    followers = np.flatnonzero(s.batch["leader"] >= 0)
    shared = _at_nodes(s, Status.RUNNING) & (s.requests["slot"] < 0)
    np.testing.assert_array_equal(followers, np.flatnonzero(shared))
    leaders = s.batch["leader"][followers]
    assert _in_slots(s)[leaders].all()
    np.testing.assert_array_equal(s.requests["node_idx"][followers], s.requests["node_idx"][leaders])
    for leader in leaders:
        chain = []
        r = s.batch["next"][leader]
        while r >= 0:
            chain.append(r)
            r = s.batch["next"][r]
        assert sorted(chain) == followers[leaders == leader].tolist()


def check_memory(s: State) -> None:
    used_gib = s.resident @ s.item_gib
    np.testing.assert_allclose(s.hidden["memory_used_gib"], used_gib, atol=1e-9)
    assert (used_gib <= s.hidden["memory_gib"] + 1e-9).all()
    assert (s.resident[s.nodes["up"] == 0] == 0).all()
    in_use = np.zeros(s.resident.shape, np.int64)
    serving = _at_nodes(s, Status.RUNNING) & (s.nodes["up"][s.requests["node_idx"]] == 1)
    for name in ("model_idx", "adapter_idx"):
        rows = serving & (s.work[name] >= 0)
        np.add.at(in_use, (s.requests["node_idx"][rows], s.work[name][rows]), 1)
    np.testing.assert_array_equal(s.items["in_use"], in_use)
    assert (s.resident[in_use > 0] == 1).all()


def check_resources(s: State) -> None:
    """What is used is exactly what running requests take, and never more than there is."""
    running = np.flatnonzero(_in_slots(s))  # what shares a batch shares its leader's
    used = np.zeros(s.used.shape)
    np.add.at(used, s.requests["node_idx"][running], s.demand[s.work["class_idx"][running]])
    np.testing.assert_array_equal(s.used, used)
    assert (s.used >= 0.0).all()
    assert (s.used <= s.capacity).all()


def check_links(s: State) -> None:
    """Transfers beyond their round trip are on exactly one modelled link."""
    n_zones = s.config["n_zones"][0]
    on_link = np.zeros(len(s.links), np.int64)
    for r in np.flatnonzero((s.requests["status"] == Status.TRANSFER) & (s.requests["hop"] > 0)):
        j = s.requests["node_idx"][r]
        on_link[s.nodes["zone_idx"][j] if s.requests["hop"][r] == 1 else n_zones + j] += 1
    np.testing.assert_array_equal(s.link_active, on_link)
    first = len(s.nodes) + len(s.contexts) * _central_parts(s)
    np.testing.assert_array_equal(s.queues["length"][first:][: len(on_link)], on_link)
    np.testing.assert_array_equal(s.links["due"] >= 0, on_link > 0)


def check_events(s: State) -> None:
    """A 4-ary heap by (time, key); nothing in it is overdue; what may yet help what is held is counted."""
    n = s.counts["events"][0]
    rows = list(zip(s.events["time_s"][:n].tolist(), s.events["key"][:n].tolist(), strict=True))
    assert all(rows[(k - 1) // 4] <= rows[k] for k in range(1, n))
    assert not rows or rows[0][0] >= s.counts["now_s"][0]
    assert s.counts["pending_wakeups"][0] == sum(_is_wakeup(s, key) for _, key in rows)


def _is_wakeup(s: State, key: int) -> bool:
    if kind_of(key) == REPAIR:
        return bool(s.faults["factor"][serial_of(key)] == 0.0)
    return kind_of(key) == CANCELLATION


class TelemetryShadow:
    """What each dispatcher must see of the nodes, kept the slow way: all samples, all own work by request."""

    def __init__(self, s: State) -> None:
        period_s = float(s.config["telemetry_period_s"][0])
        self._show_s = lambda k: k * period_s + float(s.config["telemetry_delay_s"][0])
        empty = np.zeros(len(s.nodes), NODE)
        empty["up"], empty["room"] = 1, s.nodes["room"]
        own = np.zeros((len(s.contexts), len(s.nodes)))
        tables = (np.zeros_like(s.resident), np.zeros_like(s.used), np.zeros_like(s.link_active))
        self._initial = (empty, own, own, *tables)
        self._samples: list[tuple[np.ndarray, ...]] = []
        self._before = self._picture(s)

    @staticmethod
    def _picture(s: State) -> tuple[np.ndarray, ...]:
        d, n = len(s.contexts), len(s.nodes)
        here = np.flatnonzero(_at_nodes(s, *AT_NODE))
        own, own_s = np.zeros((d, n)), np.zeros((d, n))
        mine = requests_of(s, here) % d
        np.add.at(own, (mine, s.requests["node_idx"][here]), 1)
        np.add.at(own_s, (mine, s.requests["node_idx"][here]), s.requests["estimate_s"][here])
        return s.nodes.copy(), own, own_s, s.resident.copy(), s.used.copy(), s.link_active.copy()

    def check(self, s: State) -> None:
        """Call after every single event."""
        if s.counts["sample"][0] > len(self._samples):  # a sample changes nothing but itself
            self._samples.append(self._before)
        self._before = self._picture(s)
        shown = int(s.counts["shown"][0])
        if shown > 0:
            assert self._show_s(shown - 1) <= s.counts["now_s"][0]
        report, own_then, own_then_s, *tables = self._samples[shown - 1] if shown else self._initial
        _, own_now, own_now_s, *_ = self._before
        for d in range(len(s.contexts)):
            mine, mine_s = own_now[d] - own_then[d], own_now_s[d] - own_then_s[d]
            seen = s.seen[d]
            np.testing.assert_array_equal(seen["in_flight"], np.maximum(0, report["in_flight"] + mine))
            np.testing.assert_array_equal(seen["room"], report["room"] - mine)
            expected_s = np.maximum(0.0, report["outstanding_s"] + mine_s)
            np.testing.assert_allclose(seen["outstanding_s"], expected_s, atol=1e-9)
            np.testing.assert_array_equal(seen["up"], report["up"])
            np.testing.assert_array_equal(seen["running"], report["running"])
        for seen, then in zip((s.seen_resident, s.seen_used, s.seen_link_active), tables, strict=True):
            np.testing.assert_array_equal(seen, then)


def check_every_moment(driver: Driver, telemetry_period_s: float, events_most: int) -> None:
    """Everything that holds between two events, after each of so many, or until the end of the run."""
    shadow = TelemetryShadow(driver.state)
    before_s = 0.0
    for _ in range(events_most):
        code = driver.advance(max_steps=1)
        check_all(driver.state)
        if telemetry_period_s > 0:
            shadow.check(driver.state)
        assert driver.now_s >= before_s
        before_s = driver.now_s
        if code == DONE:
            break
