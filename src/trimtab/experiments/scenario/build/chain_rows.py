"""The stages of all runs of a workload as rows: drawn sizes, counts and outputs, and declared ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trimtab.domain.chains import Chains, Templates, new_stage_work, templates_of
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import TRUTH
from trimtab.domain.stage_graph import edges_of, in_reverse, longest_of_runs_s, rows_of_stages
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build.cluster_arrays import first_positions
from trimtab.experiments.scenario.build.generated import RequestColumns, Stream, drawn_members, generator
from trimtab.experiments.scenario.spec import chain_sections
from trimtab.experiments.scenario.spec.service_classes import Served
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray, choose, zipf_fractions
from trimtab.experiments.scenario.spec.workload import WorkloadSpec
from trimtab.traces.generators import sizes_lognormal

MEMBERS = 1000  # stages of one chain, at most, for the streams of their draws


@dataclass(frozen=True, slots=True)
class _Stage:
    """One stage of one chain: what a scenario says of it, and its runs."""

    section: chain_sections.StageSection
    name: str
    chain: chain_sections.ChainSection
    member: int  # for streams
    counted: int  # likewise, of the stage that decides its count
    position: int  # in the templates

    def counts(self, seed: int, n: int) -> IntArray:
        """Items in each run, [runs]."""
        deciding = self.chain.stages[self.chain.counted_like(self.name)]
        if deciding.count is None:
            return np.ones(n, np.int64)
        drawn = deciding.count.draw(generator(seed, Stream.STAGE_COUNT, self.counted), n)
        return np.maximum(np.rint(drawn), 0).astype(np.int64)

    @property
    def expected_count(self) -> float:
        """Instances of a run that policies expect."""
        return self.chain.stages[self.chain.counted_like(self.name)].mean_count

    def is_skipped(self, seed: int, n: int) -> npt.NDArray[np.bool_]:
        """Runs that skip it, [runs]."""
        drawn: FloatArray = generator(seed, Stream.STAGE_CONDITION, self.member).random(n)
        return drawn >= self.section.when_frac


def build_chains(
    sections: chain_sections.Chains,
    workload: WorkloadSpec,
    served: Served,
    columns: RequestColumns,
    cluster: Cluster,
    seed: int,
) -> Chains | None:
    """The stages of the requests whose class is a chain; None if there is no chain."""
    if not sections:
        return None
    templates = templates_of({name: chain.templates() for name, chain in sections.items()})
    chain_of_class = np.full(len(served.classes), -1, np.int32)
    for k, name in enumerate(sections):
        chain_of_class[list(served.classes).index(name)] = k
    template_idx = chain_of_class[columns.class_idx]
    stages = _stages(sections, templates)
    alike = {
        k: _alike(chain, seed, k, int((template_idx == k).sum())) for k, chain in enumerate(sections.values())
    }
    chains = _empty(templates, template_idx, stages, alike, seed)
    _fill(chains, stages, workload, served, columns, cluster, seed)
    return _with_ranks(_with_contents(chains, stages, alike), cluster, stages)


def _alike(chain: chain_sections.ChainSection, seed: int, k: int, n: int) -> IntArray:
    """The first run with the same inputs as each run of chain k, [runs of it]; itself if it is the first."""
    like, spec = np.arange(n), chain.contents
    if spec is None:
        return like
    content = choose(generator(seed, Stream.RUN_CONTENT, k), zipf_fractions(spec.count, spec.zipf), n)
    may_repeat = generator(seed, Stream.RUN_REPEATABLE, k).random(n) < spec.repeatable_frac
    rows = np.flatnonzero(may_repeat)
    _, first, which = np.unique(content[rows], return_index=True, return_inverse=True)
    like[rows] = rows[first[which]]
    return like


def _with_contents(chains: Chains, stages: dict[int, _Stage], alike: dict[int, IntArray]) -> Chains:
    """Runs of equal inputs get equal sizes and outputs, and their repeatable stages the same content."""
    if all(stage.chain.contents is None for stage in stages.values()):
        return chains
    source = np.arange(len(chains.work))
    content = np.full(len(chains.work), -1)
    for template, _, rows_of in rows_of_stages(chains):
        repeats = np.bincount(alike[template], minlength=len(alike[template])) > 1
        for position, here in rows_of.items():
            stage, counts = stages[position], np.bincount(here.run)
            starts = np.cumsum(counts) - counts
            like = alike[template][here.run]
            from_rows = here.rows[starts[like] + np.arange(len(here.rows)) - starts[here.run]]
            source[here.rows] = from_rows
            if stage.chain.contents is not None and stage.name in stage.chain.repeatable_stages():
                content[here.rows] = np.where(repeats[like], from_rows, -1)
    for name in ("units", "class_idx", "model_idx", "estimate_s"):
        chains.work[name] = chains.work[name][source]
    chains.truth["units"] = chains.truth["units"][source]
    numbers = np.full(len(content), -1, np.int32)
    may = content >= 0
    numbers[may] = np.unique(content[may], return_inverse=True)[1]
    return replace(chains, output_gib=chains.output_gib[source], content_idx=numbers)


def _stages(sections: chain_sections.Chains, templates: Templates) -> dict[int, _Stage]:
    """Stages by their position in the templates."""
    stages = {}
    for k, chain in enumerate(sections.values()):
        names = list(chain.stages)
        for i, (name, section) in enumerate(chain.stages.items()):
            counted = MEMBERS * k + names.index(chain.counted_like(name))
            position = int(templates.first[k]) + i
            stages[position] = _Stage(section, name, chain, MEMBERS * k + i, counted, position)
    return stages


def _empty(
    templates: Templates,
    template_idx: npt.NDArray[np.int32],
    stages: dict[int, _Stage],
    alike: dict[int, IntArray],
    seed: int,
) -> Chains:
    """The rows, before anything but their number is known; skipped instances are marked."""
    of_run = template_idx[template_idx >= 0]
    sizes = np.diff(templates.first)[of_run]
    first_group = np.cumsum(sizes) - sizes
    counts = np.zeros(int(sizes.sum()), np.int64)
    skipped, empty = np.zeros(len(counts), np.bool_), np.zeros(len(counts), np.bool_)
    for position, stage in stages.items():
        template = int(np.searchsorted(templates.first, position, side="right")) - 1
        runs = np.flatnonzero(of_run == template)
        groups = first_group[runs] + position - templates.first[template]
        drawn = stage.counts(seed, len(runs))[alike[template]]
        counts[groups] = np.maximum(drawn, 1)
        skipped[groups] = stage.is_skipped(seed, len(runs))[alike[template]]
        empty[groups] = (drawn == 0) & ~skipped[groups]
    n = int(counts.sum())
    return Chains(
        templates=templates,
        template_idx=template_idx,
        counts=counts.astype(np.int32),
        work=new_stage_work(n),
        truth=np.zeros(n, TRUTH),
        output_gib=np.zeros(n),
        is_skipped=np.repeat(skipped | empty, counts),
        empty_rows=np.flatnonzero(np.repeat(empty, counts)),
    )


def _fill(
    chains: Chains,
    stages: dict[int, _Stage],
    workload: WorkloadSpec,
    served: Served,
    columns: RequestColumns,
    cluster: Cluster,
    seed: int,
) -> None:
    """Draw sizes, outputs and models of all instances, each from its own stream."""
    work, truth, names = chains.work, chains.truth, list(served.classes)
    first_model = first_positions(columns.models, 0)
    truth["factor"] = 1.0
    for _, _, rows_of in rows_of_stages(chains):
        for position, here in rows_of.items():
            stage, rows, n = stages[position], here.rows, len(here.rows)
            member, section = stage.member, stage.section
            units = section.size.draw(generator(seed, Stream.STAGE_SIZE, member), n)
            truth["units"][rows] = units
            work["units"][rows] = units * stage_factor(
                workload.estimate_cv, seed, Stream.STAGE_ESTIMATE, member, n
            )
            truth["factor"][rows] = stage_factor(workload.service_cv, seed, Stream.STAGE_SERVICE, member, n)
            work["class_idx"][rows] = names.index(section.service_class)
            if section.output_gib is not None:
                drawn = section.output_gib.draw(generator(seed, Stream.STAGE_OUTPUT, member), n)
                chains.output_gib[rows] = drawn
            batch = served.classes[section.service_class].batch
            if batch is not None and batch.same:
                raise ScenarioError(
                    "is of stages of chains, whose sizes have no parts that are kept",
                    field=f"classes.{section.service_class}.batch.same",
                    value=list(batch.same),
                    expected="[], or a class of its own for requests without stages",
                )
            family = served.classes[section.service_class].model
            if family is not None:
                drawn_model = drawn_members(served.models[family], seed, Stream.STAGE_MODEL, member, n)
                work["model_idx"][rows] = first_model[family] + drawn_model
    chains.output_gib[chains.is_skipped] = 0.0
    work["estimate_s"] = cluster.best_estimate_s(work["class_idx"], work["units"])
    fits = cluster.fits_engines(work["class_idx"], truth["units"], np.zeros(len(work), np.int64))
    work["estimate_s"][~fits] = np.inf
    work["key"] = keys_of(len(work))


def keys_of(n: int) -> IntArray:
    """Affinity keys of rows that are near to nothing, [rows]."""
    return (np.arange(n) + 1) << 20


def stage_factor(cv: float, seed: int, stream: Stream, member: int, n: int) -> FloatArray | float:
    """Lognormal of mean 1, [n]."""
    return sizes_lognormal(generator(seed, stream, member), 1.0, cv, n) if cv else 1.0


def _with_ranks(chains: Chains, cluster: Cluster, stages: dict[int, _Stage]) -> Chains:
    """The chains with `rank_s` and `next_class_idx`: what follows a row is known by the mean of its stage.

    So are the service of stages that are not ready, `expected_s`, and outputs, `expected_gib`.
    """
    estimate_s = mean_estimates_s(cluster, chains.work)
    sizes = np.diff(chains.templates.first)[chains.template_idx[chains.template_idx >= 0]]
    first_group, expected_s = np.cumsum(sizes) - sizes, np.zeros(int(sizes.sum()))
    expected_gib = np.zeros_like(expected_s)
    for template, runs, rows_of in rows_of_stages(chains):
        after_s: dict[int, float] = {}
        for position in in_reverse(chains.templates, template):
            own_s, rows = estimate_s[rows_of[position].rows], rows_of[position].rows
            follows = [(after_s[k], k) for k, _ in edges_of(chains.templates, position)]
            longest_s, following = max(follows, default=(0.0, -1))
            chains.work["rank_s"][rows] = own_s + longest_s
            groups = first_group[runs] + position - chains.templates.first[template]
            declared_s = stages[position].expected_count * float(chains.work["estimate_s"][rows].mean())
            expected_s[groups] = stages[position].section.when_frac * declared_s
            served = rows[~chains.is_skipped[rows]]
            mean_gib = float(chains.output_gib[served].mean()) if len(served) else 0.0
            expected_gib[groups] = mean_gib * chains.counts[groups]
            mean_s = float(own_s.mean()) if len(own_s) else 0.0
            after_s[position] = longest_s + stages[position].section.when_frac * mean_s
            if following >= 0:
                chains.work["next_class_idx"][rows] = chains.work["class_idx"][rows_of[following].rows[0]]
    return replace(chains, expected_s=expected_s, expected_gib=expected_gib)


def mean_estimates_s(cluster: Cluster, work: npt.NDArray[np.void]) -> FloatArray:
    """Mean over the nodes that serve it of the estimated service of each row, [rows]; inf = no node does."""
    nodes = np.bincount(cluster.type_idx, minlength=cluster.n_types).astype(np.float64)
    total_s, count = np.zeros(len(work)), np.zeros(len(work))
    for g in range(cluster.n_types):
        own_s = cluster.fixed_s[work["class_idx"], g] + cluster.unit_s[work["class_idx"], g] * work["units"]
        serves = np.isfinite(own_s)
        total_s += np.where(serves, nodes[g] * own_s, 0.0)
        count += nodes[g] * serves
    return np.where(count > 0, total_s / np.maximum(count, 1.0), np.inf)


def path_estimates_s(chains: Chains) -> FloatArray:
    """Estimated seconds of each run on its critical path, on the best nodes, [runs]; inf = it fits none."""
    seconds = np.where(chains.is_skipped, 0.0, chains.work["estimate_s"])
    return longest_of_runs_s(chains, seconds)
