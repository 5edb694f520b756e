"""What nodes that serve language models report, and the latencies that follow from it.

A node that reports no KV memory serves otherwise: there each request in flight counts as many tokens as this
one, and expected waits and services stand for the times of tokens.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trimtab.compiled.kernel import helper, plain
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.engines import LANGUAGE_MODEL
from trimtab.domain.view import View, missing_load_s, service_s, type_of_node
from trimtab.policies.shared.waits import expected_wait_s

NO_ENGINES: Final = "Each request in flight counts as many tokens as this one."
NO_ENGINE_TIMES: Final = "Expected waits and services stand for the times of tokens."
NO_TOKENS: Final = "Every request counts as one token of each kind."
NO_PREFIXES: Final = "No prompt counts as cached."

_TOKEN_S, _CONTEXT_S, _ALONE_S, _BUDGET, N_TIMES = range(5)  # of `token_times`, for each type


@helper(inline=True)
def reports_memory(view: View, j: int) -> bool:
    """Whether node j serves a language model and reports what that takes of its KV memory."""
    return len(view.engines.kv_tokens) > 0 and view.engines.kv_tokens[j] > 0.0


@helper(inline=True)
def tells_iterations(view: View, j: int) -> bool:
    """Whether node j serves a language model and tells the seconds of its iterations."""
    return len(view.engines.step_s) > 0 and view.engines.step_s[j] > 0.0


@helper(inline=True)
def prompt_of(view: View, work: Any) -> float:
    """Tokens of the work's prompt, at least one."""
    return float(max(1.0, work.input_tokens, view.context.prompt_tokens))


@helper(inline=True)
def cached_of(view: View, work: Any, j: int) -> float:
    """Tokens of the work's prompt that node j need not read: a hit stops one token before the end."""
    return float(min(view.prefix_tokens[j], prompt_of(view, work) - 1.0))


@helper(inline=True)
def kv_in_use(view: View, j: int) -> float:
    """Tokens in the KV memory of node j now, by the growth since its last report."""
    aged_s = max(0.0, view.context.now_s - view.nodes.anchor_s[j])
    return float(view.engines.kv_used[j] + view.engines.kv_per_s[j] * aged_s)


@helper(inline=True)
def unread_tokens(view: View, j: int) -> float:
    """Tokens of prompts at node j that it has yet to read; 0 where it does not report them."""
    return float(view.engines.waiting_tokens[j]) if reports_memory(view, j) else 0.0


@helper(inline=True)
def held_tokens(view: View, work: Any, j: int) -> float:
    """Tokens that the requests at node j hold, or will hold when their prompts are read."""
    if reports_memory(view, j):
        return kv_in_use(view, j) + view.engines.waiting_tokens[j]
    return float(view.nodes.in_flight[j] * (prompt_of(view, work) + max(1, work.output_tokens)))


def token_times(cluster: Cluster) -> Floats:
    """Seconds of the tokens of each node type, [types × N_TIMES], then work units of a prompt token by class.

    Of a prompt token in a full iteration; by how much one more token of context lengthens an iteration
    without prompts; of an iteration of one row; and the token budget of an iteration. A type without a
    profile has zeros and no budget.
    """
    units, engines = cluster.prompt_token_units, cluster.engines
    found = np.zeros((cluster.n_types, N_TIMES))
    found[:, _BUDGET] = np.inf
    if engines is not None:
        for g in np.flatnonzero(engines.types["service"] == LANGUAGE_MODEL).tolist():
            rows, budget = int(engines.types["batch_max"][g]), int(engines.types["token_budget"][g])
            alone_s = float(engines.decode_s(g, 1, 0.0))
            token_s = float(engines.prompt_s(g, np.array([float(budget)]))[0]) / budget
            found[g] = token_s, engines.context_s[g, rows], alone_s, budget
    return np.concatenate([found.reshape(-1), np.zeros(len(cluster.class_names)) if units is None else units])


@helper(inline=True)
def _time_of(view: View, times: Any, j: int, which: int) -> float:
    return float(times[plain(type_of_node(view, j) * N_TIMES + which)])


@helper(inline=True)
def prompt_token_s(view: View, work: Any, times: Any, j: int) -> float:
    """Seconds of a prompt token on node j: by its profile, else by the estimates of the work's class."""
    profile_s, t = _time_of(view, times, j, _TOKEN_S), type_of_node(view, j)
    units = times[plain(view.fixed_s.shape[1] * N_TIMES + work.class_idx)]
    return profile_s if profile_s > 0.0 else float(view.unit_s[work.class_idx, t] * units)


@helper(inline=True)
def row_s(view: View, times: Any, j: int, context: float) -> float:
    """Seconds by which a row with so much context lengthens an iteration of node j."""
    return float(view.engines.row_s[j] + context * _time_of(view, times, j, _CONTEXT_S))


@helper
def first_token_s(view: View, work: Any, j: int, times: Any) -> float:
    """Expected seconds to the first token of this work on node j: its wait, and the reading of its prompt.

    The prompts that wait there are read first, beside what decodes meanwhile. Where the batch or the KV
    memory will be full, the work waits until that share of what is there has ended.
    """
    load_s = missing_load_s(view, work, j)
    if not tells_iterations(view, j):
        saved_s = cached_of(view, work, j) * prompt_token_s(view, work, times, j)
        return expected_wait_s(view, j) + load_s + max(0.0, token_s(view, work, j, times) - saved_s)
    loads, rows, output = view.engines, view.nodes.in_flight[j] + 1.0, max(1.0, float(work.output_tokens))
    new, step_s = prompt_of(view, work) - cached_of(view, work, j), loads.step_s[j]
    to_read = loads.waiting_tokens[j] + new
    beside_s = max(0.0, step_s - _time_of(view, times, j, _ALONE_S))
    iterations = to_read / max(1.0, _time_of(view, times, j, _BUDGET) - loads.decoding[j])
    read_s = to_read * prompt_token_s(view, work, times, j) + iterations * beside_s
    held = held_tokens(view, work, j) + new + 0.5 * output * rows  # what is there has half its answer to come
    lacking = max(0.0, rows / max(1, loads.batch_max[j]) - 1.0)
    if reports_memory(view, j):
        lacking = max(lacking, held / loads.kv_tokens[j] - 1.0)
    return float(0.5 * step_s + read_s + lacking * output * step_s + load_s)


@helper
def token_s(view: View, work: Any, j: int, times: Any) -> float:
    """Expected seconds between tokens of this work on node j, once all that is there decodes beside it."""
    if not tells_iterations(view, j):
        return service_s(view, work, j) / max(1.0, float(work.output_tokens))
    loads = view.engines
    more = min(view.nodes.in_flight[j] + 1, loads.batch_max[j]) - max(1, loads.decoding[j])
    context = held_tokens(view, work, j) - loads.kv_used[j] + prompt_of(view, work)
    seconds = max(loads.step_s[j], _time_of(view, times, j, _ALONE_S))
    seconds += max(0, more) * loads.row_s[j]
    return float(seconds + context * _time_of(view, times, j, _CONTEXT_S))
