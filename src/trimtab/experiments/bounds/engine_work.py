"""Least seconds of requests at engines: of each alone, and of its share of a full node.

A language model's iteration with n decoding rows, p prompt tokens of m rows, c tokens of context and `pairs`
pairs takes, by `domain.engines`, T = D[n] + context_s[n] · c without prompts, where D[n] = dense_s[n] +
sequence_s[n] + attention_s[n], and with them T = dense_s[n + p] + sequence_s[n + m] + mixed_s + mixed_row_s ·
n + mixed_context_s · c + mixed_token_s · p + pair_s · pairs. A slowed node takes longer. A request of P
prompt and O output tokens is read in iterations; the last makes its first token, and each further token needs
an iteration of its own: one in which it decodes, or, after a preemption, one in which all it has is read
again.

*Alone.* Reading: prompt tokens z_i of its own in k ≥ ⌈P / budget⌉ iterations sum to P, and pairs to P² / 2.
Let E[x] = min of dense_s[y], y ≥ x, and S likewise of sequence_s. Then ΣT ≥ max(P · u, k · (E[1] + S[1] +
mixed_s)) + mixed_token_s · P + pair_s · P² / 2, with u the least (E[z] + S[1] + mixed_s) / z. A further
token, with c of context, takes at least the least of three lines in c: an iteration without prompts, one with
prompts of others, and one that reads this request's again, at least one token of which, whose pairs are then
c - ½ or more. The least of lines is concave, so over equally spaced c its mean is at least that of its two
ends. The iterations differ and lie between the request's arrival at the node and its end, so their sum bounds
that.

*Share.* Choose α, β, γ ≥ 0 with T ≥ α n + β p + γ c + pair_s · pairs for all n, p and c. Then an iteration
lasts at least as long as the sum over its rows of α + γ · (own context) for each that decodes, and of β ·
(own prompt tokens) + pair_s · (own pairs) for each that is read. So the work of a request, summed over what
it needs, is done at no more than one node-second a second, on any schedule. A token made by reading again has
the price of that: β for each of P + 1 tokens or more, of one token where prompts are kept. What failures and
preemptions repeat only adds. γ is the least price of context, α up to the most for which some β ≥ 0 is left,
and β the most that is left. Several α are tried: each gives a bound.

Where prompts are kept in KV memory, one token of each is read at least. Loading of models is left out.

*Shared* nodes serve n requests at once, each in the seconds it takes among n: alone it takes the least of
these over n, and its share of the node is the least of these over n, each divided by n.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.engines import LANGUAGE_MODEL, SHARED, Engines
from trimtab.domain.requests import Requests, true_service_s
from trimtab.experiments.bounds.instance import FloatArray

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the largest α
MOST_CELLS = 1 << 22  # of batches × prompt tokens; only α = 0 is tried for larger engines


class EngineSeconds(NamedTuple):
    """Least seconds of each request; inf where a type cannot serve it."""

    alone_s: FloatArray  # [requests, types]
    work_s: list[FloatArray]  # [requests, types] each, of `places`: any of these is a bound
    places: FloatArray  # [types] places of all nodes of a type: slots, or one for each engine


class _Tokens(NamedTuple):
    """Of each request, [requests]."""

    read: FloatArray  # prompt tokens, at least
    pairs: FloatArray
    first: FloatArray  # context of its first further token
    last: FloatArray
    further: FloatArray  # tokens after the first


def engine_seconds(cluster: Cluster, requests: Requests) -> EngineSeconds:
    """The least seconds of requests without stages on the types of a cluster with engines."""
    engines = cluster.engines
    assert engines is not None
    alone_s = true_service_s(cluster, requests)
    shares = [alone_s.copy() for _ in SHARES]
    tokens, are_kept = _tokens(requests), requests.prefixes is not None
    held = requests.work["input_tokens"] + requests.truth["output_tokens"]
    places = np.bincount(cluster.type_idx, cluster.slots, cluster.n_types).astype(np.float64)
    nodes = np.bincount(cluster.type_idx, minlength=cluster.n_types)
    for g, kind in enumerate(engines.types):
        is_served = np.isfinite(alone_s[:, g]) & engines.holds(g, requests.truth["units"], held)
        if kind["service"] == LANGUAGE_MODEL:
            model = _Model(engines, g)
            alone_s[:, g] = np.where(is_served, model.alone_s(tokens), np.inf)
            for share, work_s in zip(SHARES, shares, strict=True):
                work_s[:, g] = np.where(is_served, model.work_s(tokens, share, are_kept=are_kept), np.inf)
        elif kind["service"] == SHARED:
            least_s, share_s = _shared_s(engines, g, requests, alone_s[:, g])
            alone_s[:, g] = np.where(is_served, least_s, np.inf)
            for work_s in shares:
                work_s[:, g] = np.where(is_served, share_s, np.inf)
        else:
            continue
        places[g] = nodes[g]
    return EngineSeconds(alone_s, shares, places)


def _shared_s(
    engines: Engines, g: int, requests: Requests, alone_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Least seconds of each request on shared type g, and of its share of a node, [requests] each."""
    rows = np.arange(1, int(engines.types["batch_max"][g]) + 1)
    if engines.types["sizes"][g] == 0:
        slowdown = engines.slowdown[g, rows]
        return alone_s * slowdown.min(), alone_s * (slowdown / rows).min()
    least_s, share_s = np.full(len(alone_s), np.inf), np.full(len(alone_s), np.inf)
    for n in rows.tolist():
        among_s = engines.among_s(g, n, requests.truth["units"]) * requests.truth["factor"]
        least_s, share_s = np.minimum(least_s, among_s), np.minimum(share_s, among_s / n)
    return least_s, share_s


def _tokens(requests: Requests) -> _Tokens:
    prompt = np.maximum(requests.work["input_tokens"], 1).astype(np.float64)
    output = np.maximum(requests.truth["output_tokens"], 1).astype(np.float64)
    if requests.prefixes is None:
        read, pairs = prompt, 0.5 * np.square(prompt)
    else:
        read, pairs = np.ones(len(prompt)), prompt - 0.5
    return _Tokens(read, pairs, prompt + 1.0, prompt + output - 1.0, output - 1.0)


class _Line(NamedTuple):
    """Seconds by context."""

    base_s: float
    token_s: float

    def at(self, context: FloatArray) -> FloatArray:
        return self.base_s + self.token_s * context


class _Model:
    """The iterations of one type."""

    def __init__(self, engines: Engines, g: int) -> None:
        self.kind = kind = engines.types[g]
        self.batch, self.budget = int(kind["batch_max"]), int(kind["token_budget"])
        rows = np.arange(1, self.batch + 1)
        self.decode_s = engines.decode_s(g, rows, 0.0)  # by rows - 1
        self.dense_s = engines.dense_s[g, : max(self.batch, self.budget) + 1]
        self.least_dense_s = _least_from(self.dense_s)
        self.least_sequence_s = np.append(_least_from(engines.sequence_s[g, : self.batch + 1]), np.inf)
        self.context_s = min(float(engines.context_s[g, rows].min()), float(kind["mixed_context_s"]))
        self.decode_context_s = float(engines.context_s[g, rows].min())

    def _reading_s(self) -> FloatArray:
        """Least seconds of iterations that read 1, 2, … tokens of a request, but for those of each token."""
        seconds: FloatArray = (
            self.least_dense_s[1 : self.budget + 1] + self.least_sequence_s[1] + self.kind["mixed_s"]
        )
        return seconds

    def alone_s(self, tokens: _Tokens) -> FloatArray:
        """Least seconds of each request, [requests]."""
        kind, reading_s = self.kind, self._reading_s()
        each_s = float((reading_s / np.arange(1, self.budget + 1)).min())
        read_s = np.maximum(tokens.read * each_s, np.ceil(tokens.read / self.budget) * reading_s[0])
        read_s += kind["mixed_token_s"] * tokens.read + kind["pair_s"] * tokens.pairs
        token_s, pair_s = float(kind["mixed_token_s"]), float(kind["pair_s"])
        lines = [
            _Line(float(self.decode_s.min()), self.decode_context_s),
            _Line(float(reading_s[0]) + token_s - 0.5 * pair_s, pair_s),
        ]
        if self.budget > 1:  # else no prompt is read beside a row that decodes
            beside_s = self.least_dense_s[2] + self.least_sequence_s[min(2, self.batch + 1)] + kind["mixed_s"]
            beside_s += kind["mixed_row_s"] + token_s + 0.5 * pair_s
            lines.append(_Line(float(beside_s), float(kind["mixed_context_s"])))
        alone_s: FloatArray = read_s + _summed(tokens, lines)
        return alone_s

    def work_s(self, tokens: _Tokens, share: float, *, are_kept: bool) -> FloatArray:
        """Seconds of a full node that each request takes at least, [requests]."""
        alpha, beta = self._prices(share)
        read_again = 1.0 if are_kept else tokens.first
        pair_s = float(self.kind["pair_s"])
        again_s = beta * read_again - 0.5 * pair_s
        ends = [
            np.minimum(alpha + self.context_s * context, again_s + pair_s * context)
            for context in (tokens.first, tokens.last)
        ]
        further_s = tokens.further * 0.5 * (ends[0] + ends[1])
        work_s: FloatArray = beta * tokens.read + pair_s * tokens.pairs + np.maximum(further_s, 0.0)
        return work_s

    def _prices(self, share: float) -> tuple[float, float]:
        """(α, β): seconds of a row that decodes, and of a prompt token."""
        token_s, many = float(self.kind["mixed_token_s"]), np.arange(1, self.budget + 1)
        rows = np.arange(min(self.batch, self.budget))[:, None]  # beside at least one that is read
        if share == 0.0 or rows.size * self.budget > MOST_CELLS:
            return 0.0, token_s + float((self._reading_s() / many).min())
        is_able = rows + many <= self.budget
        mixed_s = self.dense_s[np.minimum(rows + many, self.budget)] + self.least_sequence_s[rows + 1]
        mixed_s = np.where(is_able, mixed_s + self.kind["mixed_s"] + self.kind["mixed_row_s"] * rows, np.inf)
        alpha = float((self.decode_s / np.arange(1, self.batch + 1)).min())
        if len(rows) > 1:
            alpha = min(alpha, float((mixed_s[1:] / rows[1:]).min()))
        alpha *= share
        return alpha, token_s + max(0.0, float(((mixed_s - alpha * rows) / many).min()))  # not by rounding


def _least_from(values: FloatArray) -> FloatArray:
    """The least of each value and those after it."""
    least: FloatArray = np.minimum.accumulate(values[::-1])[::-1]
    return least


def _summed(tokens: _Tokens, lines: list[_Line]) -> FloatArray:
    """The least of the lines, summed over the further tokens of each request, from below, [requests]."""
    first, last = (
        np.min([line.at(context) for line in lines], axis=0) for context in (tokens.first, tokens.last)
    )
    seconds: FloatArray = tokens.further * np.maximum(0.5 * (first + last), 0.0)
    return seconds
