"""The gateway's dispatcher: exchanges in, nodes out. One desk per policy; nodes are shared by all of them.

Whatever the data plane tells becomes an event of the pool's state, then the desk takes its turn. Work that
one pool sends to a node is load from elsewhere to the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final
from zlib import crc32

from trimtab.domain.cluster import Cluster
from trimtab.domain.decision import Reason, Status
from trimtab.domain.options import Cancel, Options
from trimtab.domain.view import BACKGROUND
from trimtab.mechanics.live import Asked, Ended
from trimtab.runtime.gateway.api.prefix import PrefixIndex
from trimtab.runtime.gateway.api.units import BLOCK_TOKENS, estimate, used
from trimtab.runtime.gateway.decide.classes import Classes, RequestClass
from trimtab.runtime.gateway.decide.estimates import ClassKey, Estimates
from trimtab.runtime.gateway.decide.loads import Change, Loads
from trimtab.runtime.gateway.decide.places import Homes, OwnedHomes
from trimtab.runtime.gateway.decide.pool import Chosen, Entry, Pool
from trimtab.runtime.gateway.decide.shape import (
    NOBODY,
    SPARE_CLASSES,
    Shape,
    cluster_of,
    member_of,
    shape_of,
    write_estimates,
)
from trimtab.runtime.gateway.front import stated_tokens
from trimtab.runtime.gateway.model import Cause, Exchange, Facts, Health, Kind, Node, Refusal, Usage
from trimtab.runtime.gateway.nodes.fleet import Fleet
from trimtab.runtime.gateway.observe.receipts import Receipt
from trimtab.runtime.gateway.record.shadow import ShadowTally

logger = logging.getLogger(__name__)

LOOKAHEAD: Final = 4  # requests of one class that one pass over the queue offers in vain
MAX_RETRIES: Final = 1 << 20  # the data plane counts them
SHOWN_CANDIDATES: Final = 4  # in receipts
SPARE_TENANTS: Final = 64
UNKNOWN: Final = "?"  # stands for models that no node is known to serve yet
SPARE_ROWS: Final = 1024
MOST_RETRY_AFTER_S: Final = 60.0
TIMED_MASK: Final = 63  # one turn in 64 is timed
LOOK_S: Final = 0.002  # how often a queue looks for room that other processes have left


@dataclass(frozen=True, slots=True)
class Rules:
    """How the dispatcher treats requests."""

    default: Chosen
    by_model: Mapping[str, Chosen] = field(default_factory=dict)
    by_route: Mapping[str, Chosen] = field(default_factory=dict)  # goes before the model's
    held_max: int = 1000
    max_wait_s: float = 60.0
    hold_s: float = 10.0  # of a model without a ready node
    reserve_frac: float = 0.1  # of a node, kept free of background work
    prompt_weight: float = 1.0
    output_weight: float = 2.0
    prefix_blocks: int = 0  # of the prefix index; 0 = none
    seed: int = 0

    def all_chosen(self) -> tuple[Chosen, ...]:
        """Every policy that may decide; the default comes first."""
        return (self.default, *self.by_model.values(), *self.by_route.values())

    def of(self, route: str, model: str) -> Chosen:
        """The policy for requests of a route and a model."""
        return self.by_route.get(route) or self.by_model.get(model, self.default)


@dataclass(slots=True)
class _Extra:
    """Places that a hedged exchange holds besides its row's, to be given back at its end."""

    loads: list[tuple[int, int, float]] = field(default_factory=list)  # node, requests, tokens


class Decider:
    """Implements `model.Dispatcher` and `nodes.fleet.Listener`. All calls come from the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        rules: Rules,
        *,
        estimates: Estimates | None = None,
        tenants: int = 1,
        inline_plans: bool = False,
        mode: str = "compiled",
        loads: Loads | None = None,
    ) -> None:
        self.fleet, self.rules = fleet, rules
        self.estimates = estimates or Estimates()
        self.decisions = 0
        self.decision_s = 0.0  # of a turn, a running mean over the timed ones; 0 = none yet
        self.tally = ShadowTally()
        self.on_shadow: Callable[[bool], None] = lambda agrees: None
        self.on_failure: Callable[[str], None] = lambda policy: None
        self.pools: dict[str, Pool] = {}
        self._loop, self._origin_s = loop, loop.time()
        self._classes = Classes()
        self._tenants, self._inline, self._mode = tenants + SPARE_TENANTS, inline_plans, mode
        self._sessions, self._responses = Homes(), OwnedHomes()
        self._extra: dict[Exchange, _Extra] = {}
        self._prefixes = PrefixIndex(rules.prefix_blocks) if rules.prefix_blocks else None
        self._known: set[str] | None = None  # models; None = to be found out again
        self._ready: set[str] | None = None
        self._granted: list[int] = []  # places of each node that the pools know as its room
        self._loads = loads  # of other processes; None = there are none
        self._folding = False
        self._look_timer: asyncio.TimerHandle | None = None
        self._shape = self._new_shape()
        self._rows = SPARE_CLASSES
        for choice in rules.all_chosen():
            self._pool(choice)
        if loads is not None:
            for node in fleet.nodes:
                loads.know(node)
        fleet.listeners.append(self)

    # --- time

    def now_s(self) -> float:
        """Time of the pools: seconds since the dispatcher was made."""
        return self._loop.time() - self._origin_s

    async def open(self) -> None:
        """Wait until every pool can plan; plans are made from now on."""
        for pool in tuple(self.pools.values()):
            await pool.open()
            self._set_timer(pool)

    def close(self) -> None:
        """No timer and no planner is left."""
        if self in self.fleet.listeners:
            self.fleet.listeners.remove(self)
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        for pool in self.pools.values():
            pool.close()

    # --- what the front asks

    def known(self, model: str) -> bool:
        """Whether a node serves this model, ready or not; or may, as long as it was not asked yet."""
        if self._known is None:
            self._known = set(self.models())
        return model in self._known or self._any_unasked()

    def _any_unasked(self) -> bool:
        """Whether some node has not said yet what it serves."""
        fleet = self.fleet
        return any(not node.models and not fleet.condition(node).was_up for node in fleet.present())

    def ready(self, model: str) -> bool:
        """Whether a node that gets work serves this model."""
        if self._ready is None:
            members, nodes = self._shape.members, filter(self.fleet.gets_work, self.fleet.nodes)
            self._ready = {name for node in nodes for name in members[node.idx].serves}
        return model in self._ready

    def models(self) -> list[str]:
        """Models and adapters of all nodes that are here."""
        return sorted({name for n in self.fleet.present() for name in self._shape.members[n.idx].serves})

    @property
    def classes(self) -> dict[ClassKey, int]:
        """Class → its row in every pool's tables."""
        return {known.key: known.idx for known in self._classes.rows}

    def types_of(self, model: str) -> list[str]:
        """Types of the nodes that serve a model."""
        shape = self._shape
        return list(dict.fromkeys(name for g, (name, _) in enumerate(shape.types) if shape.serves(g, model)))

    def served_by(self, model: str) -> tuple[int, ...]:
        """Positions of the nodes that serve a model."""
        return tuple(j for j, g in enumerate(self._shape.type_idx) if self._shape.serves(g, model))

    def tokens(self, facts: Facts) -> float:
        """Tokens that a request is expected to use, for its tenant's limit."""
        if not facts.max_tokens:
            return facts.prompt_tokens
        output = self._classes.output_of(facts)
        return stated_tokens(facts) if output is None else estimate(facts, Kind.CHAT, output)[1]

    # --- Dispatcher

    def submit(self, exchange: Exchange) -> None:
        """A whole request asks for a node."""
        response_id = "" if exchange.facts is None else exchange.facts.previous_response_id
        if response_id and self._responses.is_foreign(_owner(exchange), response_id):
            exchange.refuse(_no_response(response_id))
            return
        now_s = self.now_s()
        if self._loads is not None:
            self._fold(now_s)
        pool = self._pool_of(exchange)
        if not pool.live.has_row:
            exchange.refuse(self._full(pool))
            return
        asked = self._asked(exchange, pool, now_s)
        matched = self._show_prefix(exchange, pool) if pool.reads_prefix else None
        entry = pool.enter(exchange, asked, now_s)
        if matched:
            entry.matched = matched
        row = exchange.row
        if self.decisions & TIMED_MASK:
            started, ended = pool.turn(now_s)
        else:
            started, ended = self._timed_turn(pool, now_s)
        if pool.choice.shadow is not None:
            self._note_shadow(pool, exchange, row)
        self._settle(pool, started, ended, now_s)

    def _timed_turn(
        self, pool: Pool, now_s: float
    ) -> tuple[list[tuple[Entry, int]], list[tuple[Entry, Ended]]]:
        """One turn in many is timed, for those who look on."""
        begun_s = perf_counter()
        turned = pool.turn(now_s)
        took_s = perf_counter() - begun_s
        self.decision_s = took_s if not self.decision_s else 0.9 * self.decision_s + 0.1 * took_s
        return turned

    def progress(self, exchange: Exchange, chunks: int) -> None:
        """Count output as it comes: a chunk is about a token."""
        pool = self._pool_of(exchange)
        if pool.choice.order.reads_accounts and exchange.tenant is not None:
            tenant = exchange.tenant
            pool.live.charge(tenant.idx, self.rules.output_weight * chunks / tenant.weight)

    def done(self, exchange: Exchange) -> None:
        """Its attempt has ended with a whole response."""
        now_s = self.now_s()
        pool = self._pool_of(exchange)
        entry = self._leave(pool, exchange, now_s)
        if entry is None:
            return
        node = exchange.attempts[-1].node
        node.served += 1
        if exchange.response_status < 400:
            self._learn(pool, entry, node)
        if pool.live.n_held:
            self._turn(pool, now_s)  # else the next turn sees it: nothing waits for this place

    def lost(self, exchange: Exchange, cause: Cause) -> None:
        """Its attempt was lost and another is allowed."""
        now_s = self.now_s()
        pool = self._pool_of(exchange)
        entry = pool.entries.get(exchange.row)
        if entry is None or entry.node_idx < 0:
            return
        self._count_failure(exchange, cause)
        self._free(pool, entry, now_s)
        if self._loads is not None:
            self._fold(now_s)
        pool.live.lose(exchange.row, now_s)
        self._turn(pool, now_s)

    def failed(self, exchange: Exchange, cause: Cause) -> None:
        """Its attempt was lost for good."""
        now_s = self.now_s()
        pool = self._pool_of(exchange)
        if self._leave(pool, exchange, now_s) is not None:
            self._count_failure(exchange, cause)
            self._turn(pool, now_s)

    def abort(self, exchange: Exchange) -> None:
        """Nobody waits for it any more, wherever it is."""
        now_s = self.now_s()
        pool = self._pool_of(exchange)
        entry = pool.entries.pop(exchange.row, None)
        if entry is None:
            return
        self._free(pool, entry, now_s)
        pool.live.abort(exchange.row, now_s)
        self._turn(pool, now_s)

    def catch_up(self) -> None:
        """Take the turns that were put off as nothing waited for them: what pools show is of now."""
        for pool in tuple(self.pools.values()):
            self._turn(pool, self.now_s())

    def hedge(self, exchange: Exchange) -> Node | None:
        """The other ready node with the smallest share of its places taken, with one more taken.

        What holds for the first attempt holds for the second: its home, tokens in flight, the reserve.
        """
        if self._loads is not None:
            self._fold(self.now_s())
        self.catch_up()
        pool = self._pool_of(exchange)
        tried = {attempt.node.idx for attempt in exchange.attempts}
        nodes, best = pool.live.nodes, -1
        for j in range(len(self._shape.members)):
            if (
                j not in tried
                and pool.live.takes(exchange.row, j)
                and (
                    best < 0
                    or nodes.in_flight[j] * nodes.slots[best] < nodes.in_flight[best] * nodes.slots[j]
                )
            ):
                best = j
        if best < 0:
            return None
        self._load(exchange, best, 1)
        return self.fleet.nodes[best]

    def release(self, node: Node, exchange: Exchange) -> None:
        """One of the two attempts of a hedged exchange is over: its place is free."""
        self._load(exchange, node.idx, -1)

    # --- several processes

    def _fold(self, now_s: float) -> None:
        """Take in what other processes have sent to nodes, or taken back.

        Each start follows such a look at once, and a look lets at most one request start on a node. So all
        processes together send a node at most as many requests too many as there are other processes.
        """
        loads = self._loads
        if loads is None or self._folding:
            return
        self._folding = True
        try:
            while changes := loads.changes():
                given_back = [c for c in changes if c.requests < 0 and self._waits]
                for change in changes:
                    if change not in given_back:
                        self._take_in(change, now_s)
                if given_back:
                    loads.look_again()
                    if self._starts_now(now_s):  # in room of its own, of which the others knew nothing
                        continue
                    first = given_back[0]
                    self._take_in(Change(first.node_idx, -1, first.seconds / -first.requests), now_s)
                    self._starts_now(now_s)
        finally:
            self._folding = False

    def _starts_now(self, now_s: float) -> bool:
        """Give every pool its turn; whether one of them starts a request."""
        before = self.decisions
        for pool in tuple(self.pools.values()):
            self._turn_now(pool, now_s)
        return self.decisions > before

    @property
    def _waits(self) -> bool:
        return any(pool.live.n_held for pool in self.pools.values())

    def _take_in(self, change: Change, now_s: float) -> None:
        assert self._loads is not None
        self._loads.take(change)
        for pool in self.pools.values():
            pool.live.add_load(*change, now_s)

    def _look_later(self) -> None:
        """Nobody tells a queue that another process has left room: it looks."""
        if self._look_timer is None and self._waits:
            self._look_timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._look_timer = None
        self._fold(self.now_s())
        self._look_later()

    def _turn_by_one(self, pool: Pool, now_s: float) -> None:
        """Offer room that is new, a place of each node at a time where other processes look for it too."""
        waiting = self._loads is not None and any(e.node_idx < 0 for e in pool.entries.values())
        kept: list[int] = []
        if waiting:
            room = pool.live.nodes.room
            for j in range(len(self._shape.members)):
                kept.append(max(0, room[j] - 1))
                room[j] -= kept[j]
        self._turn(pool, now_s)
        for j, places in enumerate(kept):
            for left in range(places, 0, -1):
                offered = 1 if pool.live.n_held else left
                pool.live.change_room(j, offered, now_s)
                self._turn(pool, now_s)
                if offered == left:
                    break

    # --- Listener

    def on_added(self, node: Node) -> None:
        """A node more: the state is made anew."""
        if self._loads is not None:
            self._loads.know(node)
        self._remake()

    def on_removed(self, node: Node) -> None:
        """It gets nothing any more."""
        self.on_switch(node)
        if self._loads is not None:
            self._loads.forget(node)
        if self._prefixes is not None:
            self._prefixes.forget(node.idx)

    def on_switch(self, node: Node) -> None:
        """It gets work from now on, or gets none."""
        if node.idx >= len(self._shape.members):
            return
        self._known = self._ready = None
        now_s, up = self.now_s(), self.fleet.gets_work(node)
        for pool in self.pools.values():
            if (pool.live.nodes.up[node.idx] == 1) != up:
                pool.live.switch(node.idx, up, now_s)
                self._turn_by_one(pool, now_s)

    def on_models(self, node: Node) -> None:
        """It serves other models."""
        self._remake()

    def on_capacity(self, node: Node) -> None:
        """It takes more requests at a time, or fewer."""
        if node.idx >= len(self._shape.members):
            return
        most = self._shape.members[node.idx].slots
        if node.max_requests > most:
            self._remake()
            return
        self._grant(node)

    # --- changes of policy

    def use(self, rules: Rules) -> None:
        """Other rules from now on; policies that stay keep their state."""
        before = self.pools
        self.rules, self.pools = rules, {}
        for choice in rules.all_chosen():
            if choice.spec in before and choice.spec not in self.pools:
                pool = self.pools[choice.spec] = before[choice.spec]
                if pool.choice.spec == choice.spec:  # else another one has its turn there
                    pool.choice = choice  # with another shadow, perhaps
        for choice in rules.all_chosen():
            self._pool(choice)
        for spec, pool in before.items():
            self._move_strangers(pool)
            if spec not in self.pools:
                pool.close()
        self._remake()

    def choice_of(self, spec: str) -> Chosen:
        """The policy that the rules put in charge of a pool, by the pool's name."""
        return next(choice for choice in self.rules.all_chosen() if choice.spec == spec)

    def switch_policy(self, pool: Pool, choice: Chosen) -> None:
        """Let another policy decide in a pool, under the pool's name."""
        now_s = self.now_s()
        pool.remake(self._shape, self._cluster(), choice, now_s, self._ask_again)
        self._burden(pool, now_s)
        self._turn_by_one(pool, now_s)

    def make_room_for_tenants(self, count: int) -> None:
        """There are so many tenants now."""
        if count > self._tenants:
            self._tenants = 2 * count
            self._remake()

    # --- inside: pools

    def _options(self) -> Options:
        return Options(
            held_max=self.rules.held_max,
            lookahead=LOOKAHEAD,
            lane_per_class=True,
            cancel=Cancel.WAITING,
            max_retries=MAX_RETRIES,
        )

    def _new_shape(self) -> Shape:
        fleet = self.fleet
        members = []
        for node in fleet.nodes:
            condition = fleet.condition(node)
            most = max(condition.spec.max_requests, node.max_requests, node.in_flight)
            members.append(member_of(node, condition.adapters, condition.spec.weight, most))
        return shape_of(members or [NOBODY])

    def _pool(self, choice: Chosen) -> Pool:
        pool = self.pools.get(choice.spec)
        if pool is None:
            pool = self.pools[choice.spec] = Pool(
                choice,
                self._shape,
                self._cluster(),
                self._options(),
                rows=self._room(),
                tenants=self._tenants,
                seed=self.rules.seed,
                now=self.now_s,
                wake=self._woken,
                later=self._loop.call_later,
                inline_plans=self._inline,
                mode=self._mode,
            )
            self._switch_all(pool, self.now_s())
        return pool

    def _room(self) -> int:
        """Requests that a pool has room for: waiting and running ones."""
        return 2 * self.rules.held_max + sum(m.slots for m in self._shape.members) + SPARE_ROWS

    def _cluster(self) -> Cluster:
        return cluster_of(self._shape, list(self._classes.by_key), self._rows, self.estimates)

    def _pool_of(self, exchange: Exchange) -> Pool:
        rules = self.rules
        if (rules.by_model or rules.by_route) and exchange.facts is not None:
            return self.pools[rules.of(exchange.route, exchange.facts.model).spec]
        return self.pools[rules.default.spec]

    def _remake(self) -> None:
        """Nodes, models or classes have changed: all pools go on with another cluster."""
        self._shape = self._new_shape()
        self._known = self._ready = None
        for known in self._classes.rows:
            known.forget_types()
        now_s = self.now_s()
        pools = self.pools.values()
        for exchange in [e.exchange for pool in pools for e in pool.waiting()]:
            self._class(self._model(exchange), exchange, remaking=True)
        for pool in pools:
            pool.resize(self._options(), self._room(), self._tenants)
            pool.remake(self._shape, self._cluster(), pool.choice, now_s, self._ask_again)
        for pool in pools:  # once all hold what they inherit
            self._burden(pool, now_s)
        for pool in tuple(pools):
            self._turn_by_one(pool, now_s)

    def _burden(self, pool: Pool, now_s: float) -> None:
        """Tell a fresh state what its nodes have of others, and who gets work."""
        for other in self.pools.values():
            if other is not pool:
                for entry in other.entries.values():
                    if entry.node_idx >= 0:
                        pool.live.add_load(entry.node_idx, 1, entry.exchange.estimate_s, now_s)
        for extra in self._extra.values():
            for node_idx, requests, tokens in extra.loads:
                pool.live.add_load(node_idx, requests, 0.0, now_s, tokens)
        if self._loads is not None:
            for change in self._loads.taken():
                pool.live.add_load(*change, now_s)
        self._switch_all(pool, now_s)

    def _move_strangers(self, pool: Pool) -> None:
        """Exchanges that another policy is in charge of now go there; the caller makes all pools anew."""
        strangers = [row for row, e in pool.entries.items() if self._pool_of(e.exchange) is not pool]
        for entry in pool.give(strangers):
            self._pool_of(entry.exchange).inherit([entry])

    def _switch_all(self, pool: Pool, now_s: float) -> None:
        """Tell a fresh state who gets work, and how much."""
        self._granted = [m.slots for m in self._shape.members]
        if not self.fleet.nodes:
            pool.live.switch(0, False, now_s)  # NOBODY
        taken: dict[int, float] = {}
        for entry in pool.entries.values():
            taken[entry.node_idx] = taken.get(entry.node_idx, 0.0) + entry.asked.tokens
        for node, member in zip(self.fleet.nodes, self._shape.members, strict=False):
            j = node.idx
            if not self.fleet.gets_work(node):
                pool.live.switch(j, False, now_s)
            if node.max_tokens:
                pool.live.limit_tokens(j, node.max_tokens - taken.get(j, 0.0))
            pool.live.reserve(j, int(self.rules.reserve_frac * member.slots))
            allowed = self._allowed(node)
            if allowed != member.slots:
                pool.live.change_room(j, allowed - member.slots, now_s)
            self._granted[j] = allowed

    def _allowed(self, node: Node) -> int:
        return min(node.max_requests, self.fleet.allowed_requests(node, self._loop.time()))

    def _grant(self, node: Node) -> None:
        now_s, j, allowed = self.now_s(), node.idx, self._allowed(node)
        change = allowed - self._granted[j]
        if change:
            self._granted[j] = allowed
            for pool in self.pools.values():
                pool.live.change_room(j, change, now_s)
                self._turn_by_one(pool, now_s)

    # --- inside: a request

    def _asked(self, exchange: Exchange, pool: Pool, now_s: float) -> Asked:
        facts, tenant = exchange.facts, exchange.tenant
        model = facts.model if facts is not None else ""
        of = self._class(self._model(exchange), exchange)
        c = exchange.class_idx = of.idx
        units, tokens = (1.0, 0.0) if facts is None else estimate(facts, of.kind, of.output)
        exchange.units = units
        home, stays = self._home(exchange, pool)
        rules = self.rules
        wait_s = rules.max_wait_s if not model or self.ready(model) else rules.hold_s
        deadline_s = now_s + wait_s
        if exchange.deadline_s - self._origin_s < deadline_s:
            deadline_s = exchange.deadline_s - self._origin_s
        charge = 0.0
        if facts is not None and tenant is not None:
            charge = rules.prompt_weight * facts.prompt_tokens / tenant.weight
        return Asked(
            class_idx=c,
            units=units,
            estimate_s=pool.best_estimate_s(c, units),
            model_idx=pool.items.get(model, -1),
            tenant_idx=tenant.idx if tenant is not None else 0,
            priority=BACKGROUND if exchange.background else exchange.priority,
            deadline_s=deadline_s,
            tokens=tokens,
            charge=charge,
            key=self._key(exchange, c),
            home_idx=home,
            stays_home=stays,
        )

    def _model(self, exchange: Exchange) -> str:
        """Whose class a request is of: its model's, once a node serves it. Clients cannot invent classes."""
        facts = exchange.facts
        if facts is None or not facts.model:
            return ""
        if self._known is None:
            self._known = set(self.models())
        return facts.model if facts.model in self._known else UNKNOWN

    def _ask_again(self, entry: Entry, pool: Pool) -> Asked:
        """What a waiting request asks for in a state that was made anew; its turn and its deadline stay."""
        before, arrived_s = entry.asked, entry.asked.arrival_s
        asked = self._asked(entry.exchange, pool, self.now_s())
        if arrived_s is None:
            arrived_s = entry.exchange.arrived_s - self._origin_s
        return asked._replace(arrival_s=arrived_s, deadline_s=before.deadline_s)

    def _class(self, model: str, exchange: Exchange, remaking: bool = False) -> RequestClass:
        known = self._classes.find(model, exchange.endpoint)
        if known is not None:
            return known
        n_before = len(self._classes.rows)
        known = self._classes.add(model, exchange.endpoint)
        if known.idx >= self._rows:
            self._rows *= 2
            if not remaking:
                self._remake()
        if len(self._classes.rows) > n_before and not remaking:
            for pool in self.pools.values():
                tables = pool.live.fixed_s, pool.live.unit_s
                write_estimates(*tables, known.idx, known.key, self._shape, self.estimates)
        return known

    def _key(self, exchange: Exchange, c: int) -> int:
        """What affinity policies hash: the session, else the beginning of the prompt, else the class."""
        if exchange.session:
            return crc32(exchange.session.encode())
        facts = exchange.facts
        if facts is not None and facts.prefix_blocks:
            return facts.prefix_blocks[0]
        return c

    def _home(self, exchange: Exchange, pool: Pool) -> tuple[int, bool]:
        facts, owner = exchange.facts, _owner(exchange)
        if facts is not None and facts.previous_response_id:
            node = self._responses.get(owner, facts.previous_response_id)
            found = None if node is None else self.fleet.find(node)
            if found is not None and found.health is not Health.DRAINING:
                return found.idx, True
        if exchange.session:
            node = self._sessions.get(owner, exchange.session)
            found = None if node is None else self.fleet.find(node)
            if found is not None:
                return found.idx, False
        return -1, False

    def _show_prefix(self, exchange: Exchange, pool: Pool) -> dict[int, int]:
        """Let the policy see how much of its prompt each node seems to have; returns node → blocks."""
        tokens = pool.live.prefix_tokens
        tokens[:] = 0.0
        facts = exchange.facts
        if self._prefixes is None or facts is None or not facts.prefix_blocks:
            return {}
        matched = dict(self._prefixes.match(facts.prefix_blocks, len(tokens)))
        for j, blocks in matched.items():
            tokens[j] = blocks * BLOCK_TOKENS
        return matched

    # --- inside: what a turn gives

    def _woken(self, pool: Pool) -> None:
        self._turn(pool, self.now_s())

    def _turn(self, pool: Pool, now_s: float) -> None:
        if self._loads is not None and pool.live.n_held:
            self._fold(now_s)
        self._turn_now(pool, now_s)

    def _turn_now(self, pool: Pool, now_s: float) -> None:
        started, ended = pool.turn(now_s)
        self._settle(pool, started, ended, now_s)

    def _settle(
        self,
        pool: Pool,
        started: Iterable[tuple[Entry, int]],
        ended: Iterable[tuple[Entry, Ended]],
        now_s: float,
    ) -> None:
        if pool.failed:
            self._note_failures(pool)
        self._set_timer(pool)
        if self._loads is not None:
            self._look_later()
        for entry, node_idx in started:
            self._place(pool, entry, node_idx, now_s)
        for entry, _ in started:
            if entry.node_idx >= 0:
                entry.exchange.start(self.fleet.nodes[entry.node_idx])
        for entry, end in ended:
            entry.exchange.refuse(self._refusal(pool, entry.exchange, end))

    def _set_timer(self, pool: Pool) -> None:
        at_s = pool.live.next_event_s()
        if at_s == pool.timer_s:
            return
        if pool.timer is not None:
            pool.timer.cancel()
            pool.timer = None
        pool.timer_s = at_s
        if at_s < float("inf"):
            pool.timer = self._loop.call_at(self._origin_s + at_s, self._on_timer, pool)

    def _on_timer(self, pool: Pool) -> None:
        due_s, pool.timer, pool.timer_s = pool.timer_s, None, float("inf")
        self._turn(pool, max(due_s, self.now_s()))

    def _place(self, pool: Pool, entry: Entry, node_idx: int, now_s: float) -> None:
        exchange = entry.exchange
        estimate_s = exchange.estimate_s = pool.live.estimate_s(exchange.row)
        exchange.decision = self._receipt(pool, exchange)
        self.decisions += 1
        self.fleet.nodes[node_idx].in_flight += 1
        if self._loads is not None:
            self._loads.add(node_idx, 1, estimate_s)
        if len(self.pools) > 1:
            self._tell_others(pool, node_idx, 1, estimate_s, now_s)
        facts = exchange.facts
        if self._prefixes is not None and pool.reads_prefix and facts is not None:
            self._prefixes.add(node_idx, facts.prefix_blocks)

    def _tell_others(self, pool: Pool, node_idx: int, requests: int, estimate_s: float, now_s: float) -> None:
        for other in self.pools.values():
            if other is not pool:
                other.live.add_load(node_idx, requests, estimate_s, now_s)
                if requests < 0:
                    self._turn(other, now_s)

    def _free(self, pool: Pool, entry: Entry, now_s: float) -> None:
        """A place is given back: in the counts, at the other pools, and what a hedge has left."""
        exchange = entry.exchange
        if entry.node_idx >= 0:
            node_idx, entry.node_idx = entry.node_idx, -1
            self.fleet.nodes[node_idx].in_flight -= 1
            if self._loads is not None:
                self._loads.add(node_idx, -1, -exchange.estimate_s)
            if len(self.pools) > 1:
                self._tell_others(pool, node_idx, -1, -exchange.estimate_s, now_s)
        extra = self._extra.pop(exchange, None)
        if extra is not None:
            for node_idx, requests, tokens in extra.loads:
                self._change_load(node_idx, -requests, -tokens, now_s)

    def _load(self, exchange: Exchange, node_idx: int, requests: int) -> None:
        entry = self._pool_of(exchange).entries[exchange.row]
        tokens = requests * entry.asked.tokens
        self._extra.setdefault(exchange, _Extra()).loads.append((node_idx, requests, tokens))
        self._change_load(node_idx, requests, tokens, self.now_s())

    def _change_load(self, node_idx: int, requests: int, tokens: float, now_s: float) -> None:
        self.fleet.nodes[node_idx].in_flight += requests
        if self._loads is not None:
            self._loads.add(node_idx, requests, 0.0)
        for pool in self.pools.values():
            pool.live.add_load(node_idx, requests, 0.0, now_s, tokens)
            if requests < 0:
                self._turn(pool, now_s)

    def _leave(self, pool: Pool, exchange: Exchange, now_s: float) -> Entry | None:
        """A running exchange ends."""
        entry = pool.entries.pop(exchange.row, None)
        if entry is None or entry.node_idx < 0:
            return None
        pool.live.complete(exchange.row, now_s)
        self._free(pool, entry, now_s)
        return entry

    def _learn(self, pool: Pool, entry: Entry, node: Node) -> None:
        """What a served request teaches: its duration, its output, its account, its session's home."""
        exchange = entry.exchange
        facts, usage = exchange.facts, exchange.usage
        if facts is None:
            return
        attempt, of, units = exchange.attempts[-1], self._classes.rows[exchange.class_idx], exchange.units
        if usage is not None:
            units = used(facts, of.kind, usage)[0]
            if usage.completion_tokens:
                of.output.observe(facts.max_tokens, usage.completion_tokens / facts.answers)
            self._correct_account(pool, exchange, usage)
            if self._prefixes is not None and pool.reads_prefix and facts.prefix_blocks:
                matched = entry.matched.get(node.idx, 0)
                self._prefixes.correct(node.idx, facts.prefix_blocks, usage.cached_tokens, matched)
        seconds = attempt.ended_s - attempt.begun_s
        if seconds > 0.0:
            self._estimated(of, node, units, seconds)
        if exchange.session:
            self._sessions.set(_owner(exchange), exchange.session, node.name)
        response_id = getattr(exchange, "response_id", "")
        if response_id:
            self._responses.set(_owner(exchange), response_id, node.name)

    def _estimated(self, of: RequestClass, node: Node, units: float, seconds: float) -> None:
        type_name = node.type_name or node.name
        fixed_s, unit_s = self.estimates.observe(of.key, type_name, units, seconds)
        for g in of.types(self._shape, type_name):
            for pool in self.pools.values():
                pool.live.set_estimate(of.idx, g, fixed_s, unit_s)

    def _correct_account(self, pool: Pool, exchange: Exchange, usage: Usage) -> None:
        """Book what was really used instead of what was counted on the way."""
        tenant = exchange.tenant
        if not pool.choice.order.reads_accounts or tenant is None or exchange.facts is None:
            return
        rules = self.rules
        prompt = rules.prompt_weight * (usage.prompt_tokens - exchange.facts.prompt_tokens)
        output = rules.output_weight * (usage.completion_tokens - exchange.streamed_chunks)
        pool.live.charge(tenant.idx, (prompt + output) / tenant.weight)

    def _count_failure(self, exchange: Exchange, cause: Cause) -> None:
        if cause is not Cause.BUSY and exchange.attempts:
            exchange.attempts[-1].node.failed += 1

    def _note_failures(self, pool: Pool) -> None:
        count = pool.policy_failures
        if count.bit_length() != (count - pool.failed).bit_length():  # the 1st, the 2nd, the 4th …
            logger.error("%s; least connections decides instead (%d so far)", pool.live.last_failure, count)
        for _ in range(pool.failed):
            self.on_failure(pool.choice.spec)

    def _note_shadow(self, pool: Pool, exchange: Exchange, row: int) -> None:
        """One decision that both policies made."""
        entry = pool.entries.get(row)
        live_idx = entry.node_idx if entry is not None else -1
        shadow_idx = pool.live.shadow_choice(row)
        if entry is not None and live_idx >= 0 and live_idx == entry.asked.home_idx:
            shadow_idx = live_idx  # its session lives there, whatever policies think
        agrees = live_idx == shadow_idx
        live_s = shadow_s = self._predicted_s(pool, exchange, live_idx)
        if not agrees:
            shadow_s = self._predicted_s(pool, exchange, shadow_idx)
        self.tally.note(live_idx, shadow_idx, live_s, shadow_s)
        self.on_shadow(agrees)

    def _predicted_s(self, pool: Pool, exchange: Exchange, node_idx: int) -> float:
        """Predicted service seconds on a node; 0 where it has none."""
        if node_idx < 0:
            return 0.0
        c, g = exchange.class_idx, self._shape.type_idx[node_idx]
        return pool.live.estimate_of(c, g, exchange.units)

    def _receipt(self, pool: Pool, exchange: Exchange) -> Receipt:
        candidates = pool.live.candidates(exchange.row, SHOWN_CANDIDATES)
        members, types, choice = self._shape.members, self._shape.type_idx, pool.choice
        c, units, (fixed_s, unit_s) = exchange.class_idx, exchange.units, pool.live.tables
        shadow = ""
        if choice.shadow is not None and (j := pool.live.shadow_choice(exchange.row)) >= 0:
            shadow = members[j].name
        return Receipt(
            policy=choice.spec,
            candidates=tuple([members[j].name for j in candidates]),
            estimates_s=tuple([fixed_s[c, types[j]] + unit_s[c, types[j]] * units for j in candidates]),
            queue_length=pool.live.n_held,
            fallback=pool.failed > 0,
            shadow=shadow,
        )

    # --- inside: refusals

    def _refusal(self, pool: Pool, exchange: Exchange, end: Ended) -> Refusal:
        if end.reason == Reason.DEADLINE:
            if self._loop.time() >= exchange.deadline_s:
                return Refusal(504, "deadline", "The deadline passed before a node was free.")
            return Refusal(503, "no_capacity", "No node was free in time.", self._retry_after_s(pool))
        if end.reason == Reason.QUEUE_FULL:
            return self._full(pool)
        if end.status == Status.REJECTED and end.reason >= Reason.POLICY:
            return Refusal(
                503, "rejected_by_policy", "The scheduling policy rejected it.", self._retry_after_s(pool)
            )
        return Refusal(503, "no_node", "No node can serve it.", self._retry_after_s(pool))

    def _full(self, pool: Pool) -> Refusal:
        return Refusal(503, "queue_full", "Too many requests are waiting.", self._retry_after_s(pool))

    def _retry_after_s(self, pool: Pool) -> float:
        """About how long the queue takes to empty, from a second to a minute."""
        nodes = pool.live.nodes
        backlog_s = slots = 0.0
        for j in range(len(self._shape.members)):
            if nodes.up[j] == 1:
                backlog_s += nodes.outstanding_s[j]
                slots += nodes.slots[j]
        wait_s = backlog_s / slots if slots else MOST_RETRY_AFTER_S
        return min(MOST_RETRY_AFTER_S, max(1.0, wait_s))


def _owner(exchange: Exchange) -> str:
    """Whose sessions and responses a request may name."""
    return "" if exchange.tenant is None else exchange.tenant.name


def _no_response(response_id: str) -> Refusal:
    """As if there were none: that another tenant has it is nobody's business."""
    return Refusal(
        404, "response_not_found", f"Response with id '{response_id[:200]}' not found.", param="response_id"
    )
