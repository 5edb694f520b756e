"""Effects of unmet needs, in the sentences that several policies share."""

from __future__ import annotations

NO_LOADS = "Loads of models and adapters count as no time."
LOADED_ON_DEMAND = "A node loads a model with the first request for it."
NO_ROUND_TRIPS = "All nodes are equally near."
NO_LINKS = "Transfers count as no time."
SLOTS_ONLY = "Slots are the only resource."
NO_MODEL_MEMORY = "Memory of models counts where their sizes are declared."
NEVER_HELD = "Requests wait at nodes, where each keeps the key that it came with."
PLAIN_REQUESTS = "Every request counts as a run of one stage."
