"""Turns columns into the arrays of a run: WORK, visible to policies, and TRUTH, hidden from them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import TRUTH, Requests
from trimtab.domain.view import new_work
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build.cluster_arrays import first_positions
from trimtab.experiments.scenario.build.generated import Members, RequestColumns, Stream, generator
from trimtab.experiments.scenario.build.serving_options import parts_max
from trimtab.experiments.scenario.spec.service_classes import Served
from trimtab.experiments.scenario.spec.shared_types import (
    FloatArray,
    IntArray,
    choose,
    fractions,
    zipf_fractions,
)
from trimtab.experiments.scenario.spec.workload import DeadlineSpec, Popularity, WorkloadSpec
from trimtab.traces.generators import sizes_lognormal


def build_requests(
    spec: WorkloadSpec,
    served: Served,
    columns: RequestColumns,
    cluster: Cluster,
    seed: int,
    path_s: FloatArray | None = None,
) -> Requests:
    """Requests of one seed, not yet scaled to a load.

    `path_s` [requests] is the estimate of runs of chains; nan for other requests.
    """
    n, c = len(columns.arrival_s), columns.class_idx
    truth, work = np.zeros(n, TRUTH), new_work(n)
    truth["units"], truth["factor"] = columns.units, _factor(spec.service_cv, seed, Stream.SERVICE, n)
    names = tenant_names(spec, columns)
    work["serial"], work["arrival_s"], work["class_idx"] = np.arange(n), columns.arrival_s, c
    work["units"] = columns.units * _factor(spec.estimate_cv, seed, Stream.ESTIMATE, n)
    work["parts_max"] = parts_max(served, c, work["units"])
    best_s = cluster.best_estimate_s(c, work["units"])
    true_best_s = cluster.best_estimate_s(c, columns.units)
    if path_s is not None:
        is_run = ~np.isnan(path_s)
        best_s[is_run] = true_best_s[is_run] = path_s[is_run]
    work["estimate_s"] = work["rank_s"] = best_s
    work["deadline_s"] = columns.arrival_s + _deadline_after_s(spec, columns, true_best_s, seed)
    work["payload_gib"] = _payload_gib(spec, columns, seed)
    work["model_idx"], work["adapter_idx"] = _item_idx(served, columns)
    work["tenant_idx"] = _tenant_idx(spec, columns, len(names), seed)
    weight = _tenant_weight(spec, names)
    work["cost"] = work["units"] / weight[work["tenant_idx"]]
    work["priority"] = _priority(spec, columns, seed)
    work["zone_idx"] = _zone_idx(spec, cluster, seed, n)
    work["key"] = _keys(work, _session(spec, columns, seed))
    return Requests(work, truth, names, tenant_weight=weight)


def _factor(cv: float, seed: int, stream: Stream, n: int) -> FloatArray | float:
    """Lognormal of mean 1, [n]; its normal numbers do not depend on `cv`."""
    return sizes_lognormal(generator(seed, stream), 1.0, cv, n) if cv else 1.0


def tenant_names(spec: WorkloadSpec, columns: RequestColumns) -> tuple[str, ...]:
    """Names of the tenants: the trace's, else the scenario's."""
    if columns.tenant_idx is not None:
        return columns.tenant_names
    if isinstance(spec.tenants, Popularity):
        return tuple(f"tenant-{k}" for k in range(1, spec.tenants.count + 1))
    return tuple(spec.tenants)


def check_tenants(field: str, given: Iterable[str], names: tuple[str, ...]) -> None:
    """Raise ScenarioError for a tenant that there is not."""
    strangers = sorted(set(given) - set(names))
    if strangers:
        expected = f"one of {', '.join(names)}"
        raise ScenarioError("no such tenant", field=field, value=strangers[0], expected=expected)


def _tenant_weight(spec: WorkloadSpec, names: tuple[str, ...]) -> FloatArray:
    """Due share of each tenant [tenants], relative. Raises ScenarioError for a tenant that there is not."""
    check_tenants("workload.tenant_weights", spec.tenant_weights, names)
    return np.array([spec.tenant_weights.get(name, 1.0) for name in names])


def _tenant_idx(spec: WorkloadSpec, columns: RequestColumns, count: int, seed: int) -> IntArray | int:
    if columns.tenant_idx is not None:
        return columns.tenant_idx
    if count == 1:
        return 0
    if isinstance(spec.tenants, Popularity):
        frac = zipf_fractions(count, spec.tenants.zipf)
    else:
        frac = fractions(list(spec.tenants.values()))
    return choose(generator(seed, Stream.TENANT), frac, len(columns.arrival_s))


def _priority(spec: WorkloadSpec, columns: RequestColumns, seed: int) -> IntArray:
    if columns.priority is not None:
        return columns.priority
    values, frac = np.array(list(spec.priorities)), fractions(list(spec.priorities.values()))
    return values[choose(generator(seed, Stream.PRIORITY), frac, len(columns.arrival_s))]


def _deadline_after_s(
    spec: WorkloadSpec, columns: RequestColumns, best_s: FloatArray, seed: int
) -> FloatArray | float:
    if columns.deadline_after_s is not None:
        return columns.deadline_after_s
    return np.inf if spec.deadline is None else _drawn_deadline_s(spec.deadline, best_s, seed)


def _drawn_deadline_s(spec: DeadlineSpec, best_s: FloatArray, seed: int) -> FloatArray:
    """Seconds from arrival to the deadline; `best_s` is the service on the best type, [requests] both."""
    n = len(best_s)
    after_s = np.zeros(n)
    if spec.factor is not None:
        after_s += best_s * spec.factor.draw(generator(seed, Stream.DEADLINE_FACTOR), n)
    if spec.seconds is not None:
        after_s += spec.seconds.draw(generator(seed, Stream.DEADLINE_SECONDS), n)
    has_one = generator(seed, Stream.HAS_DEADLINE).random(n) < spec.share_frac
    return np.where(has_one, after_s, np.inf)


def _payload_gib(spec: WorkloadSpec, columns: RequestColumns, seed: int) -> FloatArray | float:
    if columns.payload_gib is not None:
        return columns.payload_gib
    if spec.payload_gib is None:
        return 0.0
    return spec.payload_gib.draw(generator(seed, Stream.PAYLOAD), len(columns.arrival_s))


def _zone_idx(spec: WorkloadSpec, cluster: Cluster, seed: int, n: int) -> IntArray | int:
    if spec.origin is None:
        return 0
    zones = np.array([cluster.zone_names.index(zone) for zone in spec.origin])
    return zones[choose(generator(seed, Stream.ORIGIN), fractions(list(spec.origin.values())), n)]


def _item_idx(served: Served, columns: RequestColumns) -> tuple[IntArray, IntArray]:
    """Positions of model and adapter among all items, [requests] each; -1 = none."""
    n_models = sum(map(len, columns.models.values()))
    classes = served.classes.values()
    model_families, adapter_families = [s.model for s in classes], [s.adapter for s in classes]
    first = _first_of_class(columns.models, 0, model_families)[columns.class_idx]
    first_adapter = _first_of_class(columns.adapters, n_models, adapter_families)[columns.class_idx]
    model = np.where(columns.model >= 0, first + columns.model, -1)
    return model, np.where(columns.adapter >= 0, first_adapter + columns.adapter, -1)


def _first_of_class(members: Members, start: int, families: list[str | None]) -> IntArray:
    """Position of the first item of each class's family, [classes]."""
    first = first_positions(members, start)
    return np.array([-1 if name is None else first[name] for name in families])


def _session(spec: WorkloadSpec, columns: RequestColumns, seed: int) -> IntArray | None:
    if columns.session is not None or spec.sessions is None:
        return columns.session
    frac = zipf_fractions(spec.sessions.count, spec.sessions.zipf)
    return choose(generator(seed, Stream.SESSION), frac, len(columns.arrival_s))


def _keys(work: npt.NDArray[np.void], session: IntArray | None) -> IntArray:
    """Affinity keys: the session, else model and adapter, else a key of the request's own."""
    pair = ((work["model_idx"].astype(np.int64) + 1) << 24) + work["adapter_idx"] + 1
    content = np.where(work["model_idx"] >= 0, _mixed(pair, 1), _mixed(work["serial"], 2))
    return content if session is None else np.where(session >= 0, _mixed(session, 3), content)


def _mixed(values: npt.NDArray[np.integer], kind: int) -> IntArray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as numbers of 63 bits."""
    z = values.astype(np.uint64) + np.uint64(kind << 56)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)
