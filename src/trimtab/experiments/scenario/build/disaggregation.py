"""Prefill and decode on pools of their own: a request is a run of two stages with its KV memory on the edge.

Yinmin Zhong et al., "DistServe: disaggregating prefill and decoding for goodput-optimized LLM serving", OSDI
2024, §3; Pratyush Patel et al., "Splitwise", ISCA 2024, §4. The prefill stage reads the prompt and makes the
first token. The decode stage gets the prompt's KV over the links, reads its last token once more, as vLLM's
connectors do, and makes the other tokens. A request of one token has no decode stage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trimtab.domain.chains import Chains, Flow, StageSpec, new_stage_work, templates_of
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import TRUTH
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build.chain_rows import keys_of
from trimtab.experiments.scenario.build.generated import RequestColumns
from trimtab.experiments.scenario.spec.node_services import ModelService
from trimtab.experiments.scenario.spec.scenario import Scenario
from trimtab.experiments.scenario.spec.service_classes import Served, ServiceClass

GIB = 2.0**30
ROLES = ("prefill", "decode")


def with_roles(scenario: Scenario, served: Served) -> Served:
    """The classes, each disaggregated one as runs, with a class for each of its two stages behind them.

    Raises ScenarioError where no node takes one of the roles, and beside chains.
    """
    chosen = {name: service for name, service in served.classes.items() if service.disaggregated}
    if not chosen:
        return served
    field = f"classes.{next(iter(chosen))}.disaggregated"
    if scenario.chains:
        raise ScenarioError("is a chain itself", field=field, value=True, expected="no chains beside it")
    pools = {
        kind.service.role
        for kind in scenario.cluster.types.values()
        if isinstance(kind.service, ModelService)
    }
    for role in ROLES:
        if not pools & {role, "both"}:
            expected = f"a node type with service: {{kind: llm, role: {role}, …}}"
            raise ScenarioError("has no nodes for a role", field=field, value=role, expected=expected)
    classes: dict[str, ServiceClass] = dict(served.classes)
    roles: dict[str, tuple[str, str]] = {}
    for name, service in chosen.items():
        classes[name] = service.model_copy(update={"fixed_s": {}, "unit_s": {}})
        for role in ROLES:
            part = f"{name}.{role}"
            roles[part] = name, role
            classes[part] = service.model_copy(
                update={"slo_s": None, "slo_ttft_s": None, "slo_tpot_s": None, "disaggregated": False}
            )
    return replace(served, classes=classes, roles=roles)


def disaggregated_chains(
    served: Served, columns: RequestColumns, cluster: Cluster, error: np.ndarray
) -> Chains:
    """Two stages for each request of a disaggregated class; `error` [requests] is that of estimated sizes.

    A token of the prompt moves as many bytes as it takes on the node type where it takes most.
    """
    assert cluster.engines is not None
    assert columns.prompt_tokens is not None
    assert columns.output_tokens is not None
    names = list(served.classes)
    parents = list(dict.fromkeys(parent for parent, _ in served.roles.values()))
    graph = {"prefill": StageSpec(), "decode": StageSpec(after={"prefill": Flow.ALL})}
    template_of = np.full(len(names), -1, np.int32)
    for k, parent in enumerate(parents):
        template_of[names.index(parent)] = k
    template_idx = template_of[columns.class_idx]
    runs = np.flatnonzero(template_idx >= 0)
    prompt, output = columns.prompt_tokens[runs], columns.output_tokens[runs]
    n = len(runs)
    work, truth = new_stage_work(2 * n), np.zeros(2 * n, TRUTH)
    read, made = slice(0, None, 2), slice(1, None, 2)  # prefill and decode of each run, one after the other
    first_class = np.array([names.index(f"{parent}.prefill") for parent in parents])
    work["class_idx"][read] = first_class[template_idx[runs]]
    work["class_idx"][made] = first_class[template_idx[runs]] + 1
    per_token = np.array([served.classes[parent].prompt_token_units for parent in parents])
    expected = np.maximum(1, np.rint(output * error[runs])).astype(np.int64)
    work["input_tokens"][read] = work["input_tokens"][made] = prompt
    work["output_tokens"][read], work["output_tokens"][made] = 1, np.maximum(expected - 1, 1)
    truth["output_tokens"][read], truth["output_tokens"][made] = 1, np.maximum(output - 1, 1)
    truth["given_tokens"][made], truth["factor"] = prompt, 1.0
    truth["units"][read] = np.maximum(per_token[template_idx[runs]] * prompt, 1e-9)
    truth["units"][made] = np.maximum(output - 1, 1)
    work["units"][read], work["units"][made] = truth["units"][read], work["output_tokens"][made]
    work["model_idx"] = np.repeat(columns.model[runs], 2)
    work["estimate_s"] = cluster.best_estimate_s(work["class_idx"], work["units"])
    work["rank_s"] = work["estimate_s"]
    work["rank_s"][read] += work["estimate_s"][made]
    work["next_class_idx"][read] = work["class_idx"][made]
    work["key"] = keys_of(2 * n)
    output_gib, skipped = np.zeros(2 * n), np.zeros(2 * n, np.bool_)
    output_gib[read] = prompt * cluster.engines.types["kv_bytes_per_token"].max() / GIB
    skipped[made] = output <= 1
    return Chains(
        templates=templates_of(dict.fromkeys(parents, graph)),
        template_idx=template_idx,
        counts=np.ones(2 * n, np.int32),
        work=work,
        truth=truth,
        output_gib=output_gib,
        is_skipped=skipped,
    )
