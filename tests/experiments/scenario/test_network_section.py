"""The section cluster.network: the graph that a file describes, and files that are wrong."""

from __future__ import annotations

import numpy as np
import pytest

from trimtab.domain.network import Network
from trimtab.errors import ScenarioError
from trimtab.experiments.scenario import builtin_text, parse_scenario
from trimtab.experiments.scenario.build import RunInputs, build
from trimtab.experiments.serving.run import simulate

HEAD = """
cluster:
  types: {gpu: {memory_gib: 24}}
  nodes: [{type: gpu, count: 5, zone: east}, {type: gpu, name: far, zone: west}]
"""
TAIL = """
classes: {c: {unit_s: 1}}
workload:
  generate: {requests: 40, arrival: {process: poisson, rate_per_s: 2}, mix: {c: {share: 1}}, size: 1}
  payload_gib: 0.5
  result_gib: 0.25
  origin: {east: 1}
policies: [round-robin]
seeds: 1
"""
TREE = "tree: {nodes_per_rack: 3, nic_gib_per_s: 2, spines: 2, oversubscription: 2, delay_s: 0.001}"
WIDE = "wide_area: {gib_per_s: 1, delay_s: 0.01}"


def inputs(network: str, more: str = "", head: str = HEAD) -> RunInputs:
    return build(parse_scenario(f"{head}  network: {{{network}}}\n{TAIL}{more}", "mine.yaml"), 0)


def graph(network: str) -> Network:
    found = inputs(network).cluster.network
    assert found is not None
    return found


def test_a_tree_in_two_lines() -> None:
    """Racks of 3 and 2 nodes in east, of 1 in west; each level halves the capacity, over two spines."""
    n = graph(f"{TREE}, {WIDE}")
    of_link = dict(zip(n.link_names, n.gib_per_s.tolist(), strict=True))
    assert len(n.vertex_names) == 6 + 2 + 3 + 4
    assert of_link["gpu-4>east/rack-2"] == of_link["east/rack-2>gpu-4"] == 2.0
    assert of_link["east/rack-1>east/spine-2"] == 3 * 2 / 2 / 2
    assert of_link["east/rack-2>east/spine-1"] == 2 * 2 / 2 / 2
    assert of_link["east/spine-1>east"] == (1.5 + 1.0) / 2
    assert of_link["east>west"] == 1.0
    assert n.n_links == 2 * (6 + 2 * 3 + 2 * 2 + 1)
    at = {name: k for k, name in enumerate(n.vertex_names)}
    assert n.ways.delay_s[at["gpu-1"], at["far"]] == pytest.approx(0.001 * 6 + 0.01)
    assert n.ways.links[at["gpu-1"], at["gpu-2"]] == 2


def test_links_have_a_capacity_and_a_delay_in_each_direction() -> None:
    names = "gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, far, west"
    each = ", ".join(f"{{between: [{name}, hub], gib_per_s: 1}}" for name in names.split(", "))
    back = "{between: [east, hub], gib_per_s: 1, delay_s: 0.1, back_gib_per_s: 4, back_delay_s: 0.3}"
    n = graph(f"switches: [hub], links: [{each}, {back}]")
    there, home = (n.link_names.index(name) for name in ("east>hub", "hub>east"))
    assert (n.gib_per_s[there], n.delay_s[there]) == (1.0, 0.1)
    assert (n.gib_per_s[home], n.delay_s[home]) == (4.0, 0.3)
    assert n.round_trips_s().tolist() == [[0.0, 0.4], [0.4, 0.0]]


def test_the_wide_area_takes_the_round_trips_of_the_file() -> None:
    made = inputs(f"{TREE}, wide_area: {{gib_per_s: 1}}", head=f"{HEAD}  rtt_s: 0.5\n")
    assert made.cluster.rtt_s[0, 1] == 0.5


def test_faults_and_background_strike_links() -> None:
    network = f"{TREE}, {WIDE}"
    more = (
        "faults: [{link: [west, east], at_s: 1, duration_s: 2}]\n"
        "background: [{link: [east, west], level_frac: 0.75, on_s: 1, off_s: 3}]\n"
    )
    made = inputs(network, more)
    assert made.cluster.network is not None
    cable = 1 + made.cluster.network.cable[made.cluster.network.link_names.index("east>west")]
    assert made.options.faults is not None
    assert made.options.faults["cable"].tolist() == [cable, cable]
    assert made.options.faults["factor"].tolist() == [0.0, 0.25]


@pytest.mark.parametrize(
    ("network", "more", "field", "expected"),
    [
        ("switches: [hub]", "", "cluster.network", "a tree, a wide_area or links"),
        (TREE, "", "cluster.network", "links that join them to 'east'"),
        (f"{TREE}, {WIDE}, switches: [hub]", "", "cluster.network", "links that join them to 'east'"),
        (f"{TREE}, {WIDE}, links: [{{between: [east, west]}}]", "", "cluster.network.links[0].gib_per_s", ""),
        (f"{TREE}, {WIDE}, links: [{{between: [east, west], gib_per_s: 0}}]", "",
         "cluster.network.links[0].gib_per_s", "greater than 0"),
        (f"{TREE}, {WIDE}, links: [{{between: [west, east], gib_per_s: 1}}]", "",
         "cluster.network.links[0].between", "each link once"),
        (f"{TREE}, {WIDE}, links: [{{between: [west, west], gib_per_s: 1}}]", "",
         "cluster.network.links[0].between", "two different ends"),
        (f"{TREE}, {WIDE}, links: [{{between: [west, gpu-9], gib_per_s: 1}}]", "",
         "cluster.network.links[0].between", "'gpu-5'"),
        (f"{TREE}, {WIDE}, links: [{{between: [moon, gpu-1], gib_per_s: 1}}]", "",
         "cluster.network.links[0].between", "node, zone or switch"),
        (f"{TREE}, {WIDE}, switches: [east]", "", "cluster.network", "no other vertex"),
        (f"{TREE}, {WIDE}, store: gpu-1", "", "cluster.network.store", "zone or switch"),
        (f"{TREE}, {WIDE}, routing: hottest", "", "cluster.network.routing", "'ecmp'"),
        ("tree: {nodes_per_rack: 0, nic_gib_per_s: 1}", "", "cluster.network.tree.nodes_per_rack", "to 1"),
        (f"{TREE}, {WIDE}", "faults: [{link: [east, gpu-1], at_s: 1, duration_s: 1}]", "faults[0].link",
         "two ends of a link"),
        (f"{TREE}, {WIDE}", "faults: [{link: [east, west], zone: east, at_s: 1, duration_s: 1}]", "faults[0]",
         "link without node"),
        (f"{TREE}, {WIDE}", "background: [{link: [east, west], level_frac: 1}]", "background[0]", "below 1"),
        (f"{TREE}, {WIDE}", "background: [{level_frac: 0.5}]", "background[0]", "either resource or link"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(network: str, more: str, field: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        inputs(network, more)
    assert (caught.value.file, caught.value.field, caught.value.exit_code) == ("mine.yaml", field, 2)
    assert expected in str(caught.value.expected)


@pytest.mark.parametrize(
    ("head", "network", "field"),
    [
        (f"{HEAD}  zones: {{east: {{ingress_gib_per_s: 1}}, west: {{}}}}\n", f"{TREE}, {WIDE}",
         "cluster.zones.east.ingress_gib_per_s"),
        (f"{HEAD}  rtt_s: 0.5\n", f"{TREE}, {WIDE}", "cluster.rtt_s"),
        (HEAD.replace("name: far", "name: far, nic_gib_per_s: 1"), WIDE, "cluster.nodes[1].nic_gib_per_s"),
    ],
)  # fmt: skip
def test_bandwidths_of_the_other_model_are_refused(head: str, network: str, field: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        inputs(network, head=head)
    assert f"{field}: " in str(caught.value)


def test_a_link_of_a_fault_needs_a_network() -> None:
    text = HEAD + TAIL + "faults: [{link: [east, west], at_s: 1, duration_s: 1}]"
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "mine.yaml")
    assert caught.value.field == "faults[0].link"


ENGINES = """
cluster:
  types:
    a: {memory_gib: 80, service: {kind: llm, profile: h100-llama-3.1-8b, role: prefill}}
    b: {memory_gib: 80, service: {kind: llm, profile: h100-llama-3.1-8b, role: decode}}
  nodes: [{type: a, count: 2, zone: east}, {type: b, count: 2, zone: east}]
  network: {tree: {nodes_per_rack: 2, nic_gib_per_s: 3}, store: east}
models: {m: {memory_gib: 16, load_s: 1}}
classes: {c: {model: m, disaggregated: true, prompt_token_units: 0.05}}
workload:
  generate:
    requests: 30
    arrival: {process: poisson, rate_per_s: 4}
    mix: {c: {share: 1}}
    size: {sum: {output_tokens: 100, prompt_tokens: 1000}, weights: {prompt_tokens: 0.05}}
policies: [round-robin]
seeds: 1
"""


def test_kv_memory_moves_from_node_to_node_and_engines_wait_for_their_models() -> None:
    """16 GiB to each of four nodes, and 131,072 bytes of each of 1,000 tokens from one rack to the other."""
    done = simulate(ENGINES, mode="interpreted")
    assert done.metrics["finished_frac"] == 1.0
    assert done.metrics["fetched_gib"] == 4 * 16
    assert done.links is not None
    of_link = dict(zip(done.links["link"], done.links["carried_gib"], strict=True))
    kv_gib = 30 * 1000 * 131_072 / 2**30
    assert of_link["east/rack-1>east/spine-1"] == pytest.approx(kv_gib)
    assert of_link["east/spine-1>east/rack-2"] == pytest.approx(kv_gib + 32)
    assert of_link["east>east/spine-1"] == pytest.approx(64)
    ends_s = done.requests["finish_s"].to_numpy()
    assert ends_s.min() > 16 / 3 + 1.0


def test_engines_that_fetch_models_cannot_resume() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(ENGINES + "serving: {on_failure: resume}", "mine.yaml")
    assert (caught.value.field, caught.value.value) == ("serving.on_failure", "resume")


def test_a_planner_simulates_on_the_network() -> None:
    """Rollouts begin with the routes and capacities of now; here one of two spines is cut off."""
    more = "faults: [{link: [east/spine-1, east], at_s: 1, duration_s: 30}]\n"
    text = f"{HEAD}  network: {{{TREE}, {WIDE}}}\n{TAIL}{more}"
    assert simulate(text, "auto", mode="interpreted").metrics["finished_frac"] == 1.0


def test_a_run_tells_what_links_carried() -> None:
    done = simulate(f"{HEAD}  network: {{{TREE}, {WIDE}}}\n{TAIL}", mode="interpreted")
    links = done.links
    assert links is not None
    of_link = dict(zip(links["link"], links["carried_gib"], strict=True))
    assert sum(of_link[f"east>east/spine-{k}"] for k in (1, 2)) + of_link["east>west"] == pytest.approx(20.0)
    assert done.metrics["returned_gib"] == pytest.approx(10.0)
    assert done.to_dict()["links"][0].keys() == {"link", "gib_per_s", "carried_gib", "utilisation_frac"}
    frac = links["utilisation_frac"].to_numpy()
    assert done.metrics["utilisation_links_max_frac"] == frac.max()
    assert done.metrics["utilisation_links_var"] == pytest.approx(np.var(frac))
    assert done.bound is not None
    assert done.metrics["completion_mean_s"] > done.bound.mean_s


def test_the_built_in_scenario_moves_all_kinds_of_data() -> None:
    scenario = parse_scenario(builtin_text("network").replace("requests: 6000", "requests: 150"))
    done = simulate(scenario, "route-aware", mode="interpreted")
    assert min(done.metrics[name] for name in ("moved_gib", "fetched_gib", "returned_gib")) > 0.0
    assert done.metrics["finished_frac"] == 1.0
