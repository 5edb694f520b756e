"""Placing pods on nodes with single accelerators, one after the other, none leaving: kernels of the bench.

What fits is the same for all rules: cores and memory, the type of accelerator, and on `many` devices of one
node `ask` thousandths each. A rule scores every node where a pod fits, and the least score wins, the first
node of equals. Scores depend on the node's state and the kind of pod only, so they are kept until the node
changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.view import Memory
from trimtab.policies.resource_aware.fragmentation_gradient import (
    FragmentationGradient,
    fragment_memory,
    fragments,
    steepness,
)

MILLI = 1000.0  # of one device
CPU, RAM, GPU = 0, 1, 2  # resources


class Rule(IntEnum):
    """How a node is chosen, and which of its devices for a pod that shares one."""

    RANDOM = 0  # any node, any device
    FIRST_FIT = 1  # the first node, its first device
    BEST_FIT = 2  # least cores and accelerators left, in parts of the largest node's; the fullest device
    DOT_PRODUCT = 3  # least product of what is asked for and what is free, in hundredths; the fullest device
    FRAGMENTATION_GRADIENT = 4  # least growth of fragments, over nodes and their devices


_RANDOM, _FIRST_FIT, _BEST_FIT, _DOT_PRODUCT, _GRADIENT = map(int, Rule)  # in this order below


@dataclass(frozen=True)
class Machines:
    """Nodes with accelerators."""

    capacity: np.ndarray  # f8 [nodes, 2], cores and GiB
    n_devices: np.ndarray  # i8 [nodes]
    type_idx: np.ndarray  # i8 [nodes], of their accelerators


@dataclass(frozen=True)
class Kinds:
    """The requests of pods."""

    demand: np.ndarray  # f8 [kinds, 3], cores, GiB, thousandths of each single device
    many: np.ndarray  # i8 [kinds], devices
    fixed_s: np.ndarray  # f8 [kinds, types], inf = not on this type of accelerator, else 0
    popularity: np.ndarray  # f8 [kinds]


class _Site(NamedTuple):
    """The arrays of the kernels."""

    free: Any  # f8 [nodes, 2], cores and GiB
    gpus: Any  # f8 [nodes, devices], thousandths that are free; 0 beyond a node's own
    n_devices: Any  # i8 [nodes]
    type_idx: Any  # i8 [nodes]
    demand: Any  # f8 [kinds, 3]
    fixed_s: Any  # f8 [kinds, types]
    most: Any  # f8 [3], of the largest node
    memory: Memory  # as `fragments` reads it; params: the step


@helper
def _fits(s: _Site, j: int, m: int) -> bool:
    if s.fixed_s[m, s.type_idx[j]] == np.inf:
        return False
    if s.free[j, CPU] < s.demand[m, CPU] or s.free[j, RAM] < s.demand[m, RAM]:
        return False
    able = 0
    for g in range(s.n_devices[j]):
        able += 1 if s.gpus[j, g] >= s.demand[m, GPU] else 0
    return able >= s.memory.ints[1 + m]


@helper
def _take(left: Any, start: int, n_devices: int, ask: float, many: int) -> None:
    """Take `ask` of the first `many` devices that have it."""
    for g in range(start, start + n_devices):
        if many > 0 and left[g] >= ask:
            left[g] -= ask
            many -= 1


@helper
def _least_growth(s: _Site, j: int, m: int) -> tuple[float, int]:
    """Least growth of fragments on node j with a pod of kind m, and the device that it comes from."""
    n, g, left = s.n_devices[j], s.type_idx[j], s.memory.floats
    rest = len(s.demand)
    first, ask, many = rest + len(s.most), s.demand[m, GPU], s.memory.ints[1 + m]
    left[rest + CPU], left[rest + RAM] = s.free[j, CPU], s.free[j, RAM]
    for d in range(n):
        left[first + d] = s.gpus[j, d]
    before = fragments(s.demand, s.fixed_s, g, n, s.memory)
    left[rest + CPU] -= s.demand[m, CPU]
    left[rest + RAM] -= s.demand[m, RAM]
    if many != 1:  # whole devices are all alike
        _take(left, first, n, ask, many)
        return fragments(s.demand, s.fixed_s, g, n, s.memory) - before, 0
    least, device = np.inf, -1
    for d in range(n):
        if left[first + d] >= ask:
            left[first + d] -= ask
            growth = fragments(s.demand, s.fixed_s, g, n, s.memory) - before
            left[first + d] += ask
            if growth < least:
                least, device = growth, d
    return least, device


@helper
def _fullest(s: _Site, j: int, m: int) -> int:
    best = -1
    for d in range(s.n_devices[j]):
        if s.gpus[j, d] >= s.demand[m, GPU] and (best < 0 or s.gpus[j, d] < s.gpus[j, best]):
            best = d
    return best


@helper
def _nth_able(s: _Site, j: int, m: int, u: float) -> int:
    """The device at the share u of those that have room."""
    able = 0
    for d in range(s.n_devices[j]):
        able += 1 if s.gpus[j, d] >= s.demand[m, GPU] else 0
    before = int(u * able)
    for d in range(s.n_devices[j]):
        if s.gpus[j, d] >= s.demand[m, GPU]:
            if before == 0:
                return d
            before -= 1
    return -1


@helper
def _score(s: _Site, rule: int, j: int, m: int) -> float:
    """By how much node j is a bad choice for a pod of kind m; inf where it does not fit."""
    if not _fits(s, j, m):
        return np.inf
    if rule == _RANDOM:
        return 0.0
    if rule == _FIRST_FIT:
        return float(j)
    free_gpu = 0.0
    for d in range(s.n_devices[j]):
        free_gpu += s.gpus[j, d] / s.most[GPU]
    cpu, gpu = s.demand[m, CPU] / s.most[CPU], s.memory.ints[1 + m] * s.demand[m, GPU] / s.most[GPU]
    free_cpu = s.free[j, CPU] / s.most[CPU]
    if rule == _DOT_PRODUCT:
        return np.ceil(50.0 * (cpu * free_cpu + gpu * free_gpu))
    left_over = free_cpu - cpu + free_gpu - gpu
    if rule == _BEST_FIT:
        return left_over
    return steepness(_least_growth(s, j, m)[0], s.memory.params[0], left_over)


@helper
def _chosen(scores: Any, m: int, rule: int, u: float) -> int:
    """The node with the least score, or any with a finite one; -1 if there is none."""
    best, able = -1, 0
    for j in range(scores.shape[1]):
        if scores[m, j] < np.inf:
            able += 1
            if best < 0 or scores[m, j] < scores[m, best]:
                best = j
    if rule != _RANDOM or best < 0:
        return best
    before = int(u * able)
    for j in range(scores.shape[1]):
        if scores[m, j] < np.inf:
            if before == 0:
                return j
            before -= 1
    return best


@helper
def _device(s: _Site, rule: int, j: int, m: int, u: float) -> int:
    if s.memory.ints[1 + m] != 1:
        return 0
    if rule == _GRADIENT:
        return _least_growth(s, j, m)[1]
    if rule <= _FIRST_FIT:
        return _nth_able(s, j, m, u if rule == _RANDOM else 0.0)
    return _fullest(s, j, m)


@kernel
def _place_all(s: _Site, rule: int, pods: Any, draws: Any, scores: Any, placed: Any) -> None:
    scores[:] = np.nan
    for i in range(len(pods)):
        m = pods[i]
        for j in range(len(s.free)):
            if np.isnan(scores[m, j]):
                scores[m, j] = _score(s, rule, j, m)
        j = _chosen(scores, m, rule, draws[i, 0])
        placed[i, 0] = j
        if j >= 0:
            device = _device(s, rule, j, m, draws[i, 1])
            placed[i, 1] = device
            s.free[j, CPU] -= s.demand[m, CPU]
            s.free[j, RAM] -= s.demand[m, RAM]
            _take(s.gpus[j], device, s.n_devices[j] - device, s.demand[m, GPU], s.memory.ints[1 + m])
            scores[:, j] = np.nan


def place(
    rule: Rule,
    pods: np.ndarray,
    draws: np.ndarray,
    machines: Machines,
    kinds: Kinds,
    *,
    step_frac: float = FragmentationGradient.step_frac,
) -> np.ndarray:
    """Node (-1 = fits nowhere) of each pod, and the device of one that shares it, i8 [pods, 2].

    `pods` [pods] are kinds in order of arrival; `draws` [pods, 2] uniform numbers, which only RANDOM uses;
    `step_frac` is that of the policy.
    """
    most_devices = int(machines.n_devices.max())
    most = np.array([*machines.capacity.max(axis=0), MILLI * most_devices])
    site = _Site(
        free=machines.capacity.copy(),
        gpus=np.where(np.arange(most_devices) < machines.n_devices[:, None], MILLI, 0.0),
        n_devices=machines.n_devices,
        type_idx=machines.type_idx,
        demand=kinds.demand,
        fixed_s=kinds.fixed_s,
        most=most,
        memory=fragment_memory(
            GPU, kinds.many, kinds.popularity, len(most), most_devices, params=[step_frac * most[GPU]]
        ),
    )
    scores, placed = np.empty((len(kinds.many), len(site.free))), np.zeros((len(pods), 2), np.int64)
    _place_all(site, int(rule), pods, draws, scores, placed)
    return placed
