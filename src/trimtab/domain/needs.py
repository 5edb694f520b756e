"""Needs of policies, and their provision by hosts.

A policy declares its needs as one set. A host provides some of them always, and others where they are
configured. A policy with an unmet need is refused, unless it says what it does without.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Need(StrEnum):
    """Something that a policy reads, or that its host does for it.

    Each has its name in tables, its meaning, and the fields of View, Plan and the work that belong to it.
    """

    meaning: str
    fields: tuple[str, ...]

    def __new__(cls, title: str, meaning: str, *fields: str) -> Self:
        """A member."""
        need = str.__new__(cls, title)
        need._value_, need.meaning, need.fields = title, meaning, fields
        return need

    RESOURCES = (
        "resources",
        "what nodes have of each resource, and what a request of each class takes of it",
        "demand",
        "capacity",
        "used",
    )
    REPORTED_LOAD = (
        "reported load",
        "how much of its resources each node reports as used, by work of others too",
        "capacity",
        "used",
        "use_reported_s",
    )
    STALE_REPORTS = (
        "stale reports",
        "several dispatchers, each of which sees what the others sent by old reports only",
        "reported_s",
        "n_dispatchers",
    )
    ZONES = "zones", "round trips between the zones of clients and nodes", "rtt_s"
    LINKS = (
        "links",
        "bandwidth of the links into zones and nodes or of the network, its routes, and transfers under way",
        "link_gib_per_s",
        "link_active",
        "link_target",
        "out_first",
        "way_s",
        "way_links",
        "next_link",
        "store_vertex",
        "input_gib",
    )
    RESIDENCY = (
        "residency",
        "models and adapters that each node holds, and how long it takes to load one",
        "resident",
        "load_s",
        "item_gib",
        "memory_gib",
    )
    PLACEMENT = "placement", "nodes load what a plan places on them before a request comes", "placement"
    LOADING_AHEAD = (
        "loading ahead",
        "nodes load models that are asked for into free memory before a request comes there",
    )
    PRICES = "prices", "price of each node", "usd_per_s"
    PREFIX = (
        "prefix",
        "how much of the request's prompt each node has in its cache",
        "prefix_tokens",
        "prompt_tokens",
    )
    TOKENS = (
        "token counts",
        "the length of each request's prompt, and how many tokens its answer is expected to have",
        "input_tokens",
        "output_tokens",
    )
    ENGINE_LOAD = (
        "load of engines",
        "what nodes that serve language models report: KV memory in use, unread prompts, batch, iteration",
        "step_s",
        "row_s",
        "kv_used",
        "kv_per_s",
        "kv_tokens",
        "waiting_tokens",
        "decoding",
    )
    DEADLINES = "deadlines", "requests with deadlines", "deadline_s"
    PRIORITIES = "priorities", "requests of several priorities", "priority"
    VIRTUAL_COUNTERS = (
        "virtual counters",
        "service that each of several tenants has received",
        "virtual_counter",
        "queued_cost",
    )
    DOMINANT_SHARES = (
        "dominant shares",
        "virtual counters that count dominant shares of resources",
    )
    SHARES_HELD = (
        "shares held",
        "the dominant share that the requests of each of several tenants hold at nodes now",
        "virtual_counter",
    )
    QUEUES = "queues", "a tree of hierarchical queues that tenants belong to", "virtual_counter"
    FULL_SPEED = (
        "full speed",
        "a node serves each request at full speed, however many of its slots are taken",
    )
    HOLDING = "holding", "requests without a candidate are held, and offered again"
    CENTRAL_QUEUE = "central queue", "requests wait at the host, not in queues of the nodes"
    HELD_COMPARISON = (
        "held comparison",
        "held requests compete for a free slot by the scores of candidates",
    )
    ROLLOUT = "rollout", "simulation of candidates from the present state"
    SPLITTING = (
        "splitting",
        "requests are served in parts on several nodes",
        "split_max",
        "part_weight",
        "job",
        "tasks",
    )
    BATCHING = "batching", "requests that wait at a node are served together", "batch_max", "batch_window_s"
    CHAINS = (
        "chains",
        "the run that a stage belongs to, and what of it follows the stage",
        "run_arrival_s",
        "rank_s",
        "run_left_s",
        "run_path_s",
        "run_rest_s",
        "output_gib",
        "n_runs",
        "next_class_idx",
        "class_in_flight",
    )
    RESULT_CACHE = "result cache", "a request equal to an earlier one gets its result, without a node"


@dataclass(frozen=True, slots=True)
class Host:
    """A program that runs policies, and what it provides."""

    name: str
    provides: Mapping[Need, str]  # how to configure it; "" = always provided

    def remedy(self, need: Need) -> str:
        """The remedy for an unmet need."""
        if need not in self.provides:
            return f"another host: a {self.name} never provides it"
        return self.provides[need]

    def always(self) -> frozenset[Need]:
        """The needs that are met without configuration."""
        return frozenset(need for need, how in self.provides.items() if not how)


@dataclass(frozen=True, slots=True)
class Degraded:
    """A need that is not met, and what the policy does without it."""

    policy: str
    need: Need
    effect: str

    def __str__(self) -> str:
        """One sentence for logs and notes."""
        return f"policy {self.policy!r} runs without {self.need}: {self.effect}"


def names_of(needs: Set[Need]) -> str:
    """Needs in the order of their declaration, for tables and messages."""
    return ", ".join(need for need in Need if need in needs)
