"""Networks that make plans: pairs of waiting request and slot in, an assignment out; compiled, without torch.

Each reads the arrays of an artifact by the names in its `shapes`. `learn/methods` has the same networks in
torch. Activations are softsign, x / (1 + |x|), which needs no function of a library, but for the attention
of the transformer, which takes `math.exp`. Matrices have their inputs in the first axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.artifact import Artifact, Floats
from trimtab.domain.cluster import Ints
from trimtab.errors import UsageError
from trimtab.policies.shared.plan_features import (
    N_PLAN_FEATURES,
    PLAN_FEATURES_VERSION,
    Window,
    note_pairs,
    take,
)

PLAN_VERSION_KEY: Final = "plan_features_version"  # of an artifact's metadata
HEADS: Final = 2  # of the transformer's attention
LEAST_SQUARE: Final = 1e-6  # added to the mean square of a token, so that none is divided by 0
_LOWEST: Final = -1e300
_MOST_LEFT: Final = 0.5  # the chance of being left out of a request that is not

Shapes = Mapping[str, tuple[int, ...]]


class SetNetwork(NamedTuple):
    """Two exchangeable layers over requests × slots, then a score for each pair and for being left out."""

    first: Floats  # [4, features, width] of the pair, its request's mean, its slot's mean, the mean of all
    first_bias: Floats  # [width]
    second: Floats  # [4, width, width]
    second_bias: Floats
    score: Floats  # [width] of a pair
    left_out: Floats  # [width] of a request's mean over its pairs
    left_out_bias: Floats  # [1]


class PointerNetwork(NamedTuple):
    """A recurrent encoder of the queue, a recurrent decoder, and a pointer to a pair."""

    read_input: Floats  # [features, 3 width] of the encoder: reset, update, candidate
    read_state: Floats  # [width, 3 width]
    read_bias: Floats  # [3 width]
    write_input: Floats  # of the decoder
    write_state: Floats
    write_bias: Floats
    request: Floats  # [width, width] of the pointer
    slot: Floats  # [features, width]
    pair: Floats  # [features, width]
    step: Floats  # [width, width]
    bias: Floats  # [width]
    score: Floats  # [width]


class TransformerNetwork(NamedTuple):
    """An encoder of requests and slots by self-attention, a causal decoder, and a pointer to a pair."""

    request_in: Floats  # [features, width]
    slot_in: Floats  # [features, width]
    kind: Floats  # [2, width] of requests, of slots
    gain: Floats  # [layers, 2, width] before attention, before the wide layer
    attend: Floats  # [layers, width, 3 width] query, key, value
    attended: Floats  # [layers, width, width]
    wide: Floats  # [layers, width, 2 width]
    wide_bias: Floats  # [layers, 2 width]
    narrow: Floats  # [layers, 2 width, width]
    start: Floats  # [width] in place of a choice before the first
    step_attend: Floats  # [width, 3 width] of the decoder
    step_attended: Floats  # [width, width]
    request: Floats  # [width, width] of the pointer
    slot: Floats  # [width, width]
    pair: Floats  # [features, width]
    step: Floats  # [width, width]
    bias: Floats  # [width]
    score: Floats  # [width]


LAYERS: Final = 2  # of the transformer's encoder


def set_shapes(width: int) -> Shapes:
    """Shapes of `SetNetwork`."""
    f, d = N_PLAN_FEATURES, width
    return dict(zip(SetNetwork._fields, ((4, f, d), (d,), (4, d, d), (d,), (d,), (d,), (1,)), strict=True))


def pointer_shapes(width: int) -> Shapes:
    """Shapes of `PointerNetwork`."""
    f, d = N_PLAN_FEATURES, width
    unit = ((f, 3 * d), (d, 3 * d), (3 * d,))
    return dict(
        zip(PointerNetwork._fields, (*unit, *unit, (d, d), (f, d), (f, d), (d, d), (d,), (d,)), strict=True)
    )


def transformer_shapes(width: int) -> Shapes:
    """Shapes of `TransformerNetwork`."""
    f, d, n = N_PLAN_FEATURES, width, LAYERS
    into = ((f, d), (f, d), (2, d))
    layers = ((n, 2, d), (n, d, 3 * d), (n, d, d), (n, d, 2 * d), (n, 2 * d), (n, 2 * d, d))
    decoder = ((d,), (d, 3 * d), (d, d))
    pointer = ((d, d), (d, d), (f, d), (d, d), (d,), (d,))
    return dict(zip(TransformerNetwork._fields, (*into, *layers, *decoder, *pointer), strict=True))


Network = TypeVar("Network", SetNetwork, PointerNetwork, TransformerNetwork)


def network_of(
    artifact: Artifact, kind: Callable[..., Network], shapes: Callable[[int], Shapes], name: str
) -> Network:
    """The network of an artifact; `name` of the policy. Raises UsageError for weights that it can't take."""
    file = artifact.path or artifact.name
    found = artifact.meta.get(PLAN_VERSION_KEY, "none")
    if found != str(PLAN_FEATURES_VERSION):
        expected = f"version {PLAN_FEATURES_VERSION}: train it anew with `trimtab learn train`"
        problem = f"was trained on version {found} of the plan's features"
        raise UsageError(problem, file=file, field=f"{name}.artifact", expected=expected)
    if (told := artifact.meta.get("policy", name)) != name:
        problem, expected = f"was trained for {told!r}", f"weights of {name}"
        raise UsageError(problem, file=file, field=f"{name}.artifact", expected=expected)
    width = len(artifact.arrays.get("score", ()))
    return kind(*(artifact.floats(key, shape) for key, shape in shapes(width).items()))


def network_artifact(name: str, arrays: Mapping[str, Floats], meta: Mapping[str, str]) -> Artifact:
    """An artifact of a network's arrays."""
    return Artifact(name, arrays, {**meta, PLAN_VERSION_KEY: str(PLAN_FEATURES_VERSION)})


# The set network


@helper
def _add_product(values: Any, matrix: Any, out: Any) -> None:
    """Add values [inputs] · matrix [inputs, outputs] to out [outputs]."""
    for k in range(len(values)):
        value = values[k]
        for o in range(len(out)):
            out[o] += value * matrix[k, o]


@helper
def _exchange(x: Any, matrices: Any, bias: Any, means: Any, sums: Any, y: Any) -> None:
    """One layer: x [requests, slots, inputs] to y [requests, slots, width].

    `means` [requests + slots + 1, inputs or more] and `sums` [the same, width] are room.
    """
    n, m, inputs = x.shape
    for row in range(n + m + 1):
        for k in range(inputs):
            means[row, k] = 0.0
        for o in range(len(bias)):
            sums[row, o] = 0.0
    for i in range(n):
        for j in range(m):
            for k in range(inputs):
                means[i, k] += x[i, j, k] / m
                means[n + j, k] += x[i, j, k] / n
    for i in range(n):
        for k in range(inputs):
            means[n + m, k] += means[i, k] / n
    for row in range(n + m + 1):
        kind = 1 if row < n else (2 if row < n + m else 3)
        _add_product(means[row, :inputs], matrices[kind], sums[row])
    for i in range(n):
        for j in range(m):
            for o in range(len(bias)):
                y[i, j, o] = bias[o] + sums[i, o] + sums[n + j, o] + sums[n + m, o]
            _add_product(x[i, j], matrices[0], y[i, j])
            for o in range(len(bias)):
                y[i, j, o] /= 1.0 + abs(y[i, j, o])


@kernel
def score_pairs(
    net: SetNetwork, w: Window, x: Any, hidden: Any, means: Any, sums: Any, scores: Any, left_out: Any
) -> None:
    """Scores of pairs [requests, slots], -inf where a slot can't serve; of being left out [requests]."""
    n, m = len(w.best_s), len(w.free_s)
    note_pairs(w, x)
    _exchange(x, net.first, net.first_bias, means, sums, hidden[0])
    _exchange(hidden[0], net.second, net.second_bias, means, sums, hidden[1])
    for i in range(n):
        left_out[i] = net.left_out_bias[0]
        for j in range(m):
            total = 0.0
            for o in range(len(net.score)):
                total += net.score[o] * hidden[1][i, j, o]
                left_out[i] += net.left_out[o] * hidden[1][i, j, o] / m
            scores[i, j] = total if w.service_s[i, j] < np.inf else -np.inf


def set_scores(net: SetNetwork, w: Window) -> tuple[Floats, Floats]:
    """Scores of pairs [requests, slots] and of being left out [requests]; each request's compete."""
    n, m, width = len(w.best_s), len(w.free_s), len(net.score)
    scores, left_out = np.zeros((n, m)), np.zeros(n)
    hidden, rows = np.zeros((2, n, m, width)), n + m + 1
    means, sums = np.zeros((rows, max(width, N_PLAN_FEATURES))), np.zeros((rows, width))
    score_pairs(net, w, np.zeros((n, m, N_PLAN_FEATURES)), hidden, means, sums, scores, left_out)
    return scores, left_out


@kernel
def _note_chances(scores: Any, left_out: Any, chances: Any, out_chances: Any) -> None:
    """The softmax of each request over its slots [requests, slots] and being left out [requests]."""
    n, m = scores.shape
    for i in range(n):
        most, mass = left_out[i], 0.0
        for j in range(m):
            most = max(most, scores[i, j])
        for j in range(m):
            chances[i, j] = math.exp(scores[i, j] - most)
            mass += chances[i, j]
        out_chances[i] = math.exp(left_out[i] - most)
        mass += out_chances[i]
        out_chances[i] /= mass
        for j in range(m):
            chances[i, j] /= mass


@kernel
def _take_pairs(chances: Any, order: Any, taken: Any, slot: Any) -> None:
    """Give each pair in `order` what both its request and its slot, `taken` if 1, still lack."""
    m = len(taken)
    for k in range(len(order)):
        i, j = order[k] // m, order[k] % m
        if chances[i, j] > 0.0 and slot[i] < 0 and taken[j] == 0:
            slot[i], taken[j] = j, 1


def matched(scores: Floats, left_out: Floats) -> Ints:
    """The slot of each request [requests], -1 = left out: pairs that are likelier choose first.

    A request's chances are the softmax over its slots and being left out; one that is likelier left out than
    not gets none.
    """
    n, m = scores.shape
    chances, out_chances = np.zeros((n, m)), np.zeros(n)
    _note_chances(scores, left_out, chances, out_chances)
    chances[out_chances > _MOST_LEFT] = 0.0
    slot, order = np.full(n, -1, np.int64), np.argsort(-chances, axis=None, kind="stable")
    _take_pairs(chances, order, np.zeros(m, np.int64), slot)
    return slot


# Sequences: a pointer chooses one pair after another


@helper
def _softsign(x: float) -> float:
    return x / (1.0 + abs(x))


@helper
def _gated(x: Any, weights: Any, state_weights: Any, bias: Any, state: Any, room: Any) -> None:
    """One step of a gated recurrent unit: state [width] becomes the next; room [2, 3 width]."""
    width = len(state)
    for o in range(3 * width):
        room[0, o], room[1, o] = bias[o], 0.0
    _add_product(x, weights, room[0])
    _add_product(state, state_weights, room[1])
    for o in range(width):
        reset = 0.5 + 0.5 * _softsign(room[0, o] + room[1, o])
        keep = 0.5 + 0.5 * _softsign(room[0, width + o] + room[1, width + o])
        new = _softsign(room[0, 2 * width + o] + reset * room[1, 2 * width + o])
        state[o] = (1.0 - keep) * new + keep * state[o]


@helper
def _mean_of_row(x: Any, i: int, out: Any) -> None:
    for k in range(len(out)):
        out[k] = 0.0
        for j in range(x.shape[1]):
            out[k] += x[i, j, k] / x.shape[1]


@helper
def _mean_of_column(x: Any, j: int, out: Any) -> None:
    for k in range(len(out)):
        out[k] = 0.0
        for i in range(x.shape[0]):
            out[k] += x[i, j, k] / x.shape[0]


@helper
def _read_pairs(w: Window, x: Any, pair: Any, terms: Any, z: Any, j: int, room: Any) -> None:
    """Compute z [width, requests, slots], what the pointer reads of slot j's pairs."""
    n, width = len(w.best_s), len(room)
    for i in range(n):
        for o in range(width):
            room[o] = terms[i, o] + terms[n + j, o]
        _add_product(x[i, j], pair, room)
        for o in range(width):
            z[o, i, j] = room[o]


@helper
def _point(w: Window, z: Any, score: Any, step: Any, is_open: Any, totals: Any) -> int:
    """The open request and slot of the highest score, as request · slots + slot; -1 = none can be served."""
    n, m = totals.shape
    for i in range(n):
        for j in range(m):
            totals[i, j] = 0.0
    for o in range(len(score)):
        for i in range(n):
            for j in range(m):
                value = z[o, i, j] + step[o]
                totals[i, j] += score[o] * (value / (1.0 + abs(value)))
    best, found = _LOWEST, -1
    for i in range(n):
        if is_open[i] != 0:
            for j in range(m):
                if totals[i, j] > best and w.service_s[i, j] < np.inf:
                    best, found = totals[i, j], i * m + j
    return found


class Room(NamedTuple):
    """Working arrays of a sequence, which a kernel does not allocate."""

    x: Floats  # [requests, slots, features]
    z: Floats  # [width, requests, slots]
    totals: Floats  # [requests, slots]
    terms: Floats  # [requests + slots, width] of the pointer
    tokens: Floats  # [requests + slots, width] encoded
    keys: Floats  # [requests + slots + 1, 3 width]
    chosen: Floats  # [requests, 3 width] keys of the decoder's steps
    step: Floats  # [width]
    state: Floats  # [width]
    wide: Floats  # [3, 3 width]
    features: Floats  # [features]
    weights: Floats  # [requests + slots]
    is_open: Ints  # [requests]


def _room(w: Window, width: int) -> Room:
    n, m = len(w.best_s), len(w.free_s)
    shapes = (
        *((n, m, N_PLAN_FEATURES), (width, n, m), (n, m), (n + m, width), (n + m, width)),
        *((n + m + 1, 3 * width), (n, 3 * width), (width,), (width,), (3, 3 * width)),
        *((N_PLAN_FEATURES,), (n + m,)),
    )
    rooms: list[Any] = [*map(np.zeros, shapes), np.ones(n, np.int64)]
    return Room(*rooms)


@helper
def _begin_pointing(w: Window, room: Room, pair: Any) -> None:
    """Compute what the pointer reads of all pairs; the terms are there."""
    for j in range(len(w.free_s)):
        _read_pairs(w, room.x, pair, room.terms, room.z, j, room.step)


@helper
def _choose(w: Window, room: Room, pair: Any, best: int) -> int:
    """Take the pair `best` and read again what that changes. Returns its request."""
    m = len(w.free_s)
    i, j = best // m, best % m
    for k in range(len(room.features)):
        room.features[k] = room.x[i, j, k]
    take(w, i, j, room.x)
    room.is_open[i] = 0
    for other in range(m):
        if w.node[other] == w.node[j]:
            _read_pairs(w, room.x, pair, room.terms, room.z, other, room.step)
    return i


@kernel
def point_by_recurrence(net: PointerNetwork, w: Window, room: Room, requests: Any, slots: Any) -> int:
    """Write the sequence of choices, requests and slots [requests]; returns how many can be served."""
    n, m = len(w.best_s), len(w.free_s)
    note_pairs(w, room.x)
    for i in range(n):
        _mean_of_row(room.x, i, room.features)
        _gated(room.features, net.read_input, net.read_state, net.read_bias, room.state, room.wide)
        for o in range(len(net.bias)):
            room.terms[i, o] = net.bias[o]
        _add_product(room.state, net.request, room.terms[i])
    for j in range(m):
        _mean_of_column(room.x, j, room.features)
        _add_product(room.features, net.slot, room.terms[n + j])
    _begin_pointing(w, room, net.pair)
    for count in range(n):
        if count > 0:
            _gated(room.features, net.write_input, net.write_state, net.write_bias, room.state, room.wide)
        for o in range(len(net.bias)):
            room.step[o] = 0.0
        _add_product(room.state, net.step, room.step)
        best = _point(w, room.z, net.score, room.step, room.is_open, room.totals)
        if best < 0:
            return count
        requests[count], slots[count] = best // m, best % m
        _choose(w, room, net.pair, best)
    return n


@helper
def _attend(keys: Any, row: int, first: int, last: int, width: int, weights: Any, out: Any) -> None:
    """Attention of the query in keys[row] over the keys and values in rows first … last − 1, into out."""
    part = width // HEADS
    for head in range(HEADS):
        at, most, mass = head * part, _LOWEST, 0.0
        for t in range(first, last):
            total = 0.0
            for o in range(part):
                total += keys[row, at + o] * keys[t, width + at + o]
            weights[t] = total / math.sqrt(float(part))
            most = max(most, weights[t])
        for t in range(first, last):
            weights[t] = math.exp(weights[t] - most)
            mass += weights[t]
        for o in range(part):
            out[at + o] = 0.0
        for t in range(first, last):
            for o in range(part):
                out[at + o] += weights[t] / mass * keys[t, 2 * width + at + o]


@helper
def _scaled(token: Any, gain: Any, out: Any) -> None:
    """A token over the root of its mean square, times the gain."""
    square = 0.0
    for o in range(len(gain)):
        square += token[o] * token[o] / len(gain)
    for o in range(len(gain)):
        out[o] = token[o] / math.sqrt(square + LEAST_SQUARE) * gain[o]


@helper
def _encode(net: TransformerNetwork, room: Room) -> None:
    """Pass the tokens [requests + slots, width] through the encoder's layers."""
    many, width = room.tokens.shape
    inner = 2 * width
    for layer in range(len(net.gain)):
        for t in range(many):
            _scaled(room.tokens[t], net.gain[layer, 0], room.step)
            for o in range(3 * width):
                room.keys[t, o] = 0.0
            _add_product(room.step, net.attend[layer], room.keys[t])
        for t in range(many):
            _attend(room.keys, t, 0, many, width, room.weights, room.step)
            _add_product(room.step, net.attended[layer], room.tokens[t])
        for t in range(many):
            _scaled(room.tokens[t], net.gain[layer, 1], room.step)
            for o in range(inner):
                room.wide[0, o] = net.wide_bias[layer, o]
            _add_product(room.step, net.wide[layer], room.wide[0, :inner])
            for o in range(inner):
                room.wide[0, o] = _softsign(room.wide[0, o])
            _add_product(room.wide[0, :inner], net.narrow[layer], room.tokens[t])


@kernel
def point_by_attention(net: TransformerNetwork, w: Window, room: Room, requests: Any, slots: Any) -> int:
    """Write the sequence of choices, requests and slots [requests]; returns how many can be served."""
    n, m, width = len(w.best_s), len(w.free_s), len(net.bias)
    note_pairs(w, room.x)
    for t in range(n + m):
        for o in range(width):
            room.tokens[t, o] = net.kind[0 if t < n else 1, o]
        if t < n:
            _mean_of_row(room.x, t, room.features)
            _add_product(room.features, net.request_in, room.tokens[t])
        else:
            _mean_of_column(room.x, t - n, room.features)
            _add_product(room.features, net.slot_in, room.tokens[t])
    _encode(net, room)
    for t in range(n + m):
        for o in range(width):
            room.terms[t, o] = net.bias[o] if t < n else 0.0
        _add_product(room.tokens[t], net.request if t < n else net.slot, room.terms[t])
    _begin_pointing(w, room, net.pair)
    for o in range(width):
        room.state[o] = net.start[o]
    for count in range(n):
        for o in range(3 * width):
            room.chosen[count, o] = 0.0
        _add_product(room.state, net.step_attend, room.chosen[count])
        _attend(room.chosen, count, 0, count + 1, width, room.weights, room.wide[1])
        _add_product(room.wide[1, :width], net.step_attended, room.state)
        for o in range(width):
            room.step[o] = 0.0
        _add_product(room.state, net.step, room.step)
        best = _point(w, room.z, net.score, room.step, room.is_open, room.totals)
        if best < 0:
            return count
        requests[count], slots[count] = best // m, best % m
        i, j = _choose(w, room, net.pair, best), best % m
        for o in range(width):
            room.state[o] = room.tokens[i, o] + room.tokens[n + j, o]
    return n


def sequence(net: PointerNetwork | TransformerNetwork, w: Window) -> tuple[Ints, Ints]:
    """Requests and slots in the order of the choices, [requests that can be served]; changes the window."""
    n = len(w.best_s)
    requests, slots, room = np.zeros(n, np.int64), np.zeros(n, np.int64), _room(w, len(net.bias))
    if isinstance(net, PointerNetwork):
        count = point_by_recurrence(net, w, room, requests, slots)
    else:
        count = point_by_attention(net, w, room, requests, slots)
    return requests[:count], slots[:count]


def first_of_slots(requests: Ints, slots: Ints, n: int) -> Ints:
    """The slot of each of n requests that is the first of its slot in a sequence; -1 of the others."""
    slot = np.full(n, -1, np.int64)
    _, first = np.unique(slots, return_index=True)
    slot[requests[first]] = slots[first]
    return slot
