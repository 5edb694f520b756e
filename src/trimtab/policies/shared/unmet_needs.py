"""Effects of unmet needs, in the sentences that several policies share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from trimtab.domain.needs import Need
from trimtab.domain.policy import Policy

NO_LOADS = "Loads of models and adapters count as no time."
LOADED_ON_DEMAND = "A node loads a model with the first request for it."
NO_ROUND_TRIPS = "All nodes are equally near."
NO_LINKS = "Transfers count as no time."
SLOTS_ONLY = "Slots are the only resource."
NO_MODEL_MEMORY = "Memory of models counts where their sizes are declared."
NEVER_HELD = "Requests wait at nodes, where each keeps the key that it came with."
ONE_TENANT = "With one tenant it is first come, first served."
NO_QUEUES = "Tenants compete directly, as under `drf`."
PLAIN_REQUESTS = "Every request counts as a run of one stage."


class LoadsPolicy(Policy):
    """Base of policies that read what nodes hold, for the seconds of loading what they lack."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.RESIDENCY})
    degrades: ClassVar[Mapping[Need, str]] = {Need.RESIDENCY: NO_LOADS}


class TenantOrder(Policy):
    """Base of orders by the virtual counters of tenants."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.VIRTUAL_COUNTERS, Need.CENTRAL_QUEUE})
    degrades: ClassVar[Mapping[Need, str]] = {
        Need.VIRTUAL_COUNTERS: ONE_TENANT,
        Need.CENTRAL_QUEUE: NEVER_HELD,
    }
