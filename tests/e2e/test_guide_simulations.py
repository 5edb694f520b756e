"""Every example of the guides to simulations, policies and solvers runs, and shows its effect.

Traces that an example leaves out are added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

import trimtab as tt
from support.guide_examples import (
    OF_GATEWAYS,
    OF_RUNS,
    PAGES,
    Check,
    found,
    missing_tests,
    of_pages,
    ran,
    run_here,
)
from trimtab.clusters import backends
from trimtab.clusters.yarn.read_queues import queues_of_files
from trimtab.errors import TrimtabError
from trimtab.experiments.kinds import load_any
from trimtab.experiments.training.training_kind import TRAINING_KIND
from trimtab.experiments.tuning.space import Space
from trimtab.gateway.app.config_mapping import rules_of
from trimtab.gateway.config import load_config
from trimtab.learn.federated.settings import read_federation
from trimtab.profiles import profile_text
from trimtab.profiles.sources import Described, fit_files


def requests_csv(folder: Path, n: int = 60) -> pl.DataFrame:
    """A request each half second, of 100 and 300 output tokens by turns."""
    table = pl.DataFrame({"arrival_s": np.arange(n) / 2.0, "output_tokens": [100, 300] * (n // 2)})
    table.write_csv(folder / "requests.csv")
    return table


def cluster(example: str, folder: Path) -> None:
    """A token takes .02 s on speed 1, 1/.55 of that on the l40s."""
    (folder / "cluster.yaml").write_text(example)
    requests_csv(folder)
    done = tt.simulate(trace="requests.csv", cluster="cluster.yaml", policy="round-robin")
    assert done.nodes.height == 12
    seconds = (done.requests["finish_s"] - done.requests["start_s"]).to_numpy()
    speed = np.where(done.requests["node_idx"].to_numpy() < 4, 1.0, 0.55)
    np.testing.assert_allclose(seconds * speed, 0.2 + 0.02 * np.tile([100.0, 300.0], 30))


def node_types(example: str, folder: Path) -> None:
    (folder / "types.yaml").write_text(example)
    requests_csv(folder)
    sized = tt.size("requests.csv", "types.yaml", "completion_p99<8s")
    assert sized.best is not None


def mapped_columns(example: str, folder: Path) -> None:
    values = {
        "ts_ms": [5000, 6500],
        "in_tok": [40, 0],
        "out_tok": [7, 8],
        "team": ["a", "b"],
        "body_mib": [512, 0],
    }
    pl.DataFrame(values).write_csv(folder / "gateway-log.csv")
    about = yaml.safe_load(example) | yaml.safe_load(found()["choose-a-policy: cluster:"])
    work = tt.simulate(about).inputs.requests
    assert np.diff(work.work["arrival_s"]).tolist() == [1.5]
    assert work.work["units"].tolist() == pytest.approx([7 + 0.05 * 40, 8])
    assert work.work["payload_gib"].tolist() == [0.5, 0.0]
    assert work.tenant_names == ("a", "b")


def own_trace(example: str, folder: Path) -> None:
    rows = "when,out_tok\n24/12/2026 10:00:00,5\nyesterday,6\n24/12/2026 10:00:30,7\n"
    (folder / "log.csv").write_text(rows)
    trace = ran(example)["trace"]
    assert trace.table["arrival_s"].to_list() == [0.0, 30.0]
    assert trace.rows_in_file == 3


def chain_scenario(example: str, folder: Path) -> None:
    """A run is a story, 2 or 4 pictures, as many captions, and the film: 6 or 10 stages."""
    about = yaml.safe_load(example)
    about["cluster"] = {"types": {"gpu": {"memory_gib": 24}}, "nodes": [{"type": "gpu", "count": 20}]}
    about["classes"] = {name: {"fixed_s": 0.1, "unit_s": 0.02} for name in ("write", "draw", "film")}
    about["workload"]["generate"] |= {
        "requests": 60,
        "arrival": {"process": "poisson", "rate_per_s": 1.0},
        "size": {"distribution": "constant", "value": 10},
    }
    done = tt.simulate(about, "downstream-aware", load=0.3)
    runs = done.requests.filter(pl.col("class") == "narrated-film")
    assert 5 <= runs.height <= 40
    least_s = 4 * 0.1 + 0.02 * (220 + 30 + 20 + 18)
    assert (runs["finish_s"] - runs["arrival_s"]).min() >= least_s - 1e-9


def training_cluster(example: str, folder: Path) -> None:
    """128 GPUs: a job that asks for 129 is refused."""
    (folder / "cluster.yaml").write_text(example)
    for gpus, fits in ((128, True), (129, False)):
        (folder / "jobs.csv").write_text(f"job_id,submit_s,gpus,duration_s\na,0,{gpus},600\nb,0,8,60\n")

        def compare() -> Any:
            return tt.compare(trace="jobs.csv", cluster="cluster.yaml", policies=["fifo"], seeds=1)

        if fits:
            assert compare().results[0].metrics["completion_mean_s"].mean >= 600.0
        else:
            with pytest.raises(TrimtabError, match="129"):
                compare()


def partitions(example: str, folder: Path) -> None:
    """The second group alone is in `iron`: 64 GPUs; a job that asks for 65 there is refused."""
    (folder / "cluster.yaml").write_text(example)
    for gpus, fits in ((64, True), (65, False)):
        rows = f"job_id,submit_s,gpus,duration_s,partition\na,0,{gpus},600,iron\nb,0,8,60,gold\n"
        (folder / "jobs.csv").write_text(rows)
        if fits:
            compared = tt.compare(trace="jobs.csv", cluster="cluster.yaml", policies=["fifo"], seeds=1)
            assert compared.results[0].metrics["finished_frac"].mean == 1.0
        else:
            with pytest.raises(TrimtabError, match="65"):
                tt.compare(trace="jobs.csv", cluster="cluster.yaml", policies=["fifo"], seeds=1)


def network(example: str, folder: Path) -> None:
    """All that moves from zone to zone takes the one link between them."""
    about = yaml.safe_load(example)
    about["workload"]["generate"]["requests"] = 200
    done = tt.simulate(about, "route-aware", mode="interpreted")
    assert done.links is not None
    of_link = dict(zip(done.links["link"], done.links["carried_gib"], strict=True))
    assert of_link["west>east"] > 0.0
    assert of_link["gpu-1>east/rack-1"] > 0.0
    assert done.metrics["fetched_gib"] % 7 == 0.0


def more_links(example: str, folder: Path) -> None:
    """Over core: 2 GiB/s to west and 4 back, .026 s there and back."""
    about = yaml.safe_load(found()["networks: cluster:"])
    del about["cluster"]["network"]["wide_area"], about["faults"], about["cluster"]["rtt_s"]
    about["cluster"]["network"] |= yaml.safe_load(example)["network"]
    about["workload"]["generate"]["requests"] = 20
    cluster = tt.simulate(about, mode="interpreted").inputs.cluster
    assert cluster.rtt_s[0, 1] == pytest.approx(0.026)
    assert cluster.network is not None
    of_link = dict(zip(cluster.network.link_names, cluster.network.gib_per_s, strict=True))
    assert (of_link["core>west"], of_link["west>core"]) == (2.0, 4.0)


BUILTIN = Path(tt.__file__).parent / "experiments/training/builtin/elastic-training.yaml"


def training_faults(example: str, folder: Path) -> None:
    """On the cluster that it names: work is lost since the last checkpoint, and nodes are drained."""
    about = yaml.safe_load(BUILTIN.read_text())
    about["rules"] |= yaml.safe_load(example)["rules"]
    found = {}
    for name, faults in (("without", []), ("with", yaml.safe_load(example)["faults"])):
        (folder / "jobs.yaml").write_text(yaml.safe_dump(about | {"faults": faults}))
        (result,) = tt.compare("jobs.yaml", policies=["fifo"], seeds=1, sweep=()).results
        found[name] = result.metrics
    assert found["without"]["lost_frac"].mean == 0.0 < found["with"]["lost_frac"].mean
    assert found["without"]["completion_mean_s"].mean < found["with"]["completion_mean_s"].mean


def decides_as(name: str, other: str) -> Check:
    """A policy of a guide gives the same run as one of the catalogue."""

    def check(example: str, folder: Path) -> None:
        policy = ran(example, tt=tt)[name]
        own, known = (tt.simulate("tiny", p, mode="interpreted") for p in (policy, other))
        assert own.requests["node_idx"].to_list() == known.requests["node_idx"].to_list()

    return check


def two_choices(example: str, folder: Path) -> None:
    """Shorter waits than one choice at random."""
    policy = ran(example, tt=tt)["TwoChoices"]
    two, one = (
        tt.simulate("tiny", p, mode="interpreted").metrics["queueing_mean_s"] for p in (policy, "random")
    )
    assert two < one


def in_turn(example: str, folder: Path) -> None:
    made = (
        tt.simulate("tiny", ran(example, tt=tt)["InTurn"], mode="interpreted").requests["node_idx"].to_list()
    )
    n_nodes = max(made) + 1
    assert made[:100] == [(k + 1) % n_nodes for k in range(100)], "later some are asked again"


def nearest(example: str, folder: Path) -> None:
    """Without zones it runs, with the note."""
    whole = example + "\n    def choose(self, cluster, request):\n        return 0\n"
    (note,) = tt.simulate("tiny", ran(whole, tt=tt)["Nearest"], mode="interpreted").notes()
    assert "All nodes are equally near." in note


def assignment(example: str, folder: Path) -> None:
    """Two nodes with room for one task each: the best of two pairings."""
    utility, demand = np.array([[5.0, 4.0], [4.0, 1.0]]), np.ones((2, 2))
    solution = ran(example, utility=utility, demand=demand, capacity=np.ones(2))["solution"]
    assert (solution.objective, list(solution.assignment)) == (8.0, [1, 0])


def forecaster(example: str, folder: Path) -> None:
    made = ran(example, counts=np.full(1000, 7.0))["forecaster"]
    for _ in range(47):
        made.update(np.full(1000, 7.0))
    quantiles = made.forecast().quantiles
    assert quantiles.shape[:2] == (1000, 6)
    assert quantiles[..., quantiles.shape[2] // 2] == pytest.approx(7.0)


def waits(example: str, folder: Path) -> None:
    """Allen and Cunneen: (cs² + ca²)/2 times the wait of M/M/16 at a load of .9, within a quarter."""
    names = ran(example)
    plain = names["queueing"].ggc(
        16, arrivals_per_s=14.4, mean_service_s=1.0, service_scv=1.0, arrival_scv=1.0
    )
    assert names["station"].wait_s == pytest.approx(3.0 * plain.wait_s, rel=0.25)


def python_page(example: str, folder: Path) -> None:
    """The three examples of the page, one after the other."""
    pytest.importorskip("matplotlib")
    n = 120
    when, tokens = np.cumsum(np.random.default_rng(1).exponential(0.5, n)), np.tile([100, 300], n // 2)
    pl.DataFrame({"when": when, "out_tok": tokens}).write_csv("log.csv")
    pl.DataFrame({"arrival_s": when, "output_tokens": tokens}).write_parquet("log.parquet")
    (folder / "cluster.yaml").write_text(found()["choose-a-policy: cluster:"])
    (folder / "types.yaml").write_text(found()["size-a-fleet: types:"])
    names = ran(example)
    assert (folder / "figure.pdf").stat().st_size > 1000
    assert {result.policy for result in names["comparison"].results} == {"random", "late-binding"}
    (folder / "figure.pdf").unlink()
    ran(found()['python: shown = comparison.plot("completion_p99_s")'], **names)
    assert (folder / "figure.pdf").stat().st_size > 1000


def replicas(example: str, folder: Path) -> None:
    """A token takes 16 ms or more on this GPU, whose memory is read for each."""
    Path("cluster.yaml").write_text(example)
    requests_csv(folder).with_columns(prompt_tokens=512).write_csv("requests.csv")
    done = tt.simulate(trace="requests.csv", cluster="cluster.yaml", policy="least-connections")
    assert done.nodes.height == 2
    seconds = (done.requests["finish_s"] - done.requests["start_s"]).to_numpy()
    tokens = np.tile([100.0, 300.0], 30)
    assert (seconds > 0.016 * tokens).all()
    assert (seconds < 0.030 * tokens).all()


def fitted_profile(example: str, folder: Path) -> None:
    """Iterations of 10 ms and more; two requests at once on each of four GPUs."""
    decode = [(n, n * c, 0, 0.01 + 0.001 * n) for n in (1, 4, 16, 64) for c in (100, 500, 900)]
    prompts = [(0, 0, z, 0.01 + 1e-4 * z) for z in (64, 128, 256, 512, 1024, 2048)]
    rows = pl.DataFrame(decode + prompts, ["batch", "context", "prompt_tokens", "seconds"], orient="row")
    rows.cast({"seconds": pl.Float64}).write_csv("iterations.csv")
    fitted = fit_files([Path("iterations.csv")], Described("A1", "meta-llama/Llama-3.1-8B", 24.0))
    Path("my-gpu.yaml").write_text(profile_text(fitted.profile))
    Path("cluster.yaml").write_text(example)
    requests_csv(folder).with_columns(prompt_tokens=512).write_csv("requests.csv")
    done = tt.simulate(trace="requests.csv", cluster="cluster.yaml", policy="round-robin")
    seconds = (done.requests["finish_s"] - done.requests["start_s"]).to_numpy()
    assert (seconds > 0.06 + 0.011 * 99).all()  # its prompt, and each further token alone
    assert (seconds < 0.06 * 3 + 0.013 * 299).all()


def gateway_file(example: str, folder: Path) -> None:
    """The gateway takes it, with a tenant where the example has none."""
    keys = "" if "keys:" in example else "insecure_no_auth: true\n"
    (folder / "gateway.yaml").write_text(keys + example)
    config = load_config(folder / "gateway.yaml")
    assert len(config.nodes) + len(config.discovery.kubernetes) in (2, 3)


def queues(example: str, folder: Path) -> None:
    """Under `hdrf` the queue with the larger guarantee waits less, and loses nothing; `nightly` runs 3."""
    (folder / "queues.yaml").write_text(example)
    done = tt.simulate("queues.yaml", "best-fit+hdrf", mode="interpreted")
    by_queue = {each.queue: each for each in done.queue_summaries}
    assert list(by_queue) == ["research", "product", "product.web", "product.nightly"]
    assert by_queue["product"].queueing_mean_s < by_queue["research"].queueing_mean_s
    assert (by_queue["product"].preempted, by_queue["research"].preempted > 0) == (0, True)
    rows = done.requests.filter(pl.col("tenant") == "cleo").select("start_s", "finish_s").to_numpy()
    assert max(((rows[:, 0] <= at_s) & (rows[:, 1] > at_s)).sum() for at_s in rows[:, 0]) == 3


def gateway_queues(example: str, folder: Path) -> None:
    keys = "\n".join(f"  - {{name: {name}, sha256: [{k * 64}]}}" for name, k in (("ana", "a"), ("ben", "b")))
    node = "nodes: [{name: n, url: 'http://x:1', models: [m]}]"
    (folder / "gateway.yaml").write_text(f"keys:\n{keys}\n{node}\n{example}")
    config = load_config(folder / "gateway.yaml")
    assert not any(note.startswith("queues") for note in config.policy_notes())
    section = rules_of(config).queues
    assert section is not None
    assert (section["research"].notice_s, section["default"].tenants) == (30.0, ())


GENERATED: dict[str, Any] = {"requests": 200, "arrival": {"process": "poisson", "rate_per_s": 1.0}}


def images(example: str, folder: Path) -> None:
    """An image takes 10 s and at least 0.2 s for each of 20 steps; loads of models come on top."""
    scenario = yaml.safe_load(example)
    scenario |= {"cluster": {"types": {"gpu": {"memory_gib": 24}}, "nodes": [{"type": "gpu", "count": 8}]}}
    scenario["workload"]["generate"] |= GENERATED
    done = tt.simulate(scenario | {"name": "images"}, "least-connections")
    seconds = (done.requests["finish_s"] - done.requests["start_s"]).to_numpy()
    assert seconds.min() >= 10 + 0.2 * 20
    assert seconds.max() > 10 + 0.2 * 30 * 2.25 * 8


def engine_scenario(types: dict[str, Any], count: int, **sections: Any) -> dict[str, Any]:
    generate = GENERATED | {"mix": {"chat": {"share": 1}}}
    generate["size"] = {
        "sum": {"prompt_tokens": 100, "output_tokens": 500},
        "weights": {"prompt_tokens": 0.05},
    }
    return {
        "name": "engines",
        "cluster": {"types": types, "nodes": [{"type": name, "count": count} for name in types]},
        "classes": {"chat": {"unit": "output token", "unit_s": 0.002, "prompt_token_units": 0.05}},
        "workload": {"generate": generate},
        **sections,
    }


def hosts(example: str, folder: Path) -> None:
    """One of its four hosts takes the whole first replica down, for 300 s from 600 s on."""
    about = yaml.safe_load(example)
    about["types"]["four-hosts"]["service"]["profile"] = "rtx4090-llama-3.1-8b"
    about["faults"][1] |= {"at_s": 60}
    faults = about["faults"][1:]
    done = tt.simulate(engine_scenario(about["types"], 2, faults=faults), "round-robin")
    first = done.requests.filter(pl.col("node_idx") == 0)
    down = (first["finish_s"] > 60.0) & (first["finish_s"] < 360.0)
    assert first.height > 20
    assert not down.any()


def measured_table(example: str, folder: Path) -> None:
    """500 tokens and 5 of the prompt take between 1.5 s alone and 3.6 s among eight."""
    (inline, of_file) = example.splitlines()
    (folder / "measured.csv").write_text("batch,size,seconds\n1,256,0.8\n1,1024,2.9\n8,256,1.1\n8,1024,6.5\n")
    finished = []
    for line in (inline, of_file):
        kind = {"memory_gib": 24, **yaml.safe_load(line)}
        (folder / "scenario.yaml").write_text(yaml.safe_dump(engine_scenario({"gpu": kind}, 4)))
        done = tt.simulate(str(folder / "scenario.yaml"), "least-connections")
        seconds = (done.requests["finish_s"] - done.requests["start_s"]).to_numpy()
        finished.append(seconds.tolist())
        assert seconds.min() == pytest.approx(0.8 + 2.1 * (505 - 256) / 768)
    assert finished[0] == finished[1]


def sizing(example: str, folder: Path) -> None:
    requests_csv(folder, 120).write_parquet("log.parquet")
    (folder / "types.yaml").write_text(found()["size-a-fleet: types:"])
    sized = ran(example.split("\n\n")[0], tt=tt)["sized"]
    assert sized.best is not None


def own_allocator(example: str, folder: Path) -> None:
    """Two jobs of all GPUs: the shorter one first, though it came as the second."""
    (folder / "my_allocator.py").write_text(example)
    (folder / "cluster.yaml").write_text(
        "types: {a: {accelerators: 8, memory_gib: 80}}\nnodes: [{type: a, count: 1}]\n"
    )
    (folder / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s\nlong,0,8,6000\nshort,0,8,600\n")
    specs = ["my_allocator.py:ShortestFirst", "fifo"]
    compared = tt.compare(trace="jobs.csv", cluster="cluster.yaml", policies=specs, seeds=1)
    own, fifo = (result.metrics["completion_mean_s"].mean for result in compared.results)
    assert own < 0.75 * fifo


def autoscaled(example: str, folder: Path) -> None:
    """All nodes cost most; a rule that follows the requests costs less."""
    compared = tt.compare(example, seeds=1, sweep=(), jobs=1, mode="interpreted")
    usd = {result.policy: result.metrics["usd"].mean for result in compared.results}
    assert list(usd) == ["hpa", "knative(target=0.8)", "slo-staffing", "fixed"]
    assert all(usd["fixed"] > 1.2 * price for name, price in usd.items() if name != "fixed")


def own_ranges(example: str, folder: Path) -> None:
    """Both numbers are searched, one by its range; without a price for loads it is least connections."""
    (folder / "my_policy.py").write_text(example)
    space = Space("my_policy.py:Priced")
    assert space.values(np.array([0.5, 1.0])) == {"w_load": pytest.approx(0.316), "spare": 4}
    free = space.spelled({"w_load": 0.0, "spare": 0})
    own, known = (tt.simulate("tiny", p, mode="interpreted") for p in (free, "least-connections"))
    assert own.requests["node_idx"].to_list() == known.requests["node_idx"].to_list()


def ten_minutes(example: str, folder: Path) -> None:
    names = ran(example)
    assert names["run"].requests.height == 300
    assert {result.policy for result in names["comparison"].results} == {"random", "power-of-d(d=3)"}


def federation_file(example: str, folder: Path) -> None:
    for name in ("federation.yaml", "server.pem", "server.key"):
        (folder / name).write_text(example)
    made = read_federation(folder / "federation.yaml")
    assert made.terms.sites == ("hospital", "bank")
    assert made.problem().rounds() == 20


def training_queues(example: str, folder: Path) -> None:
    """The section in a scenario of training jobs: limits hold, and the default queue takes strangers."""
    tenants = dict.fromkeys(("vision-team", "text-team", "search", "shop", "intern"), 1)
    generate = {"jobs": 20, "models": {"m": {}}, "gpus": {1: 1}, "tenants": tenants}
    node = {"accelerator": "gpu", "accelerators": 4, "memory_gib": 8}
    cluster = {"types": {"n": node}, "nodes": [{"type": "n", "count": 5}]}
    told = {"kind": "training", "cluster": cluster, "jobs": {"generate": generate}} | yaml.safe_load(example)
    inputs = TRAINING_KIND.build(load_any(told), 0, None)
    assert inputs.queues is not None
    tree = inputs.queues.tree
    assert tree.leaf_paths == ("research.vision", "research.text", "products", "default")
    assert inputs.queues.leaf_of.tolist() == [0, 1, 2, 2, 3]
    assert tree.amounts(np.array([20.0])).limit[:, 0].tolist() == [20, 16, 16, 16, 20, 10]
    assert TRAINING_KIND.run(inputs, "fifo", "auto").finished.all()


def yarn_queues(example: str, folder: Path) -> None:
    """The section is what the file above it on the page gives."""
    page = next(page for page in PAGES if page.stem == "yarn").read_text()
    (folder / "capacity-scheduler.xml").write_text(page.partition("```xml\n")[2].partition("```")[0])
    assert queues_of_files([folder / "capacity-scheduler.xml"]).section == yaml.safe_load(example)["queues"]


def job_settings(example: str, folder: Path) -> None:
    (folder / "slurm.yaml").write_text(example)
    host = backends.host(f"slurm://{folder / 'slurm.yaml'}")
    assert (host.settings.partition, host.settings.gpus, len(host.settings.options)) == ("gpu", 1, 2)


CHECKS: dict[str, Check | str] = {
    "README: # my_policy.py": decides_as("ShortestQueue", "least-connections"),
    "assign: from trimtab.solvers import assignment_problem, solve": assignment,
    "chains: chains:": chain_scenario,
    "choose-a-policy: cluster:": cluster,
    "envoy: # gateway.yaml": gateway_file,
    "forecast: from trimtab.forecast import Forecaster": forecaster,
    "forecast: from trimtab.forecast import queueing": waits,
    "images: models:": images,
    "learn-together: aggregation: {sum_key: server.key}": "e2e/test_federate_command.py: it cannot read",
    "learn-together: listen: 0.0.0.0:9443": federation_file,
    "learn: import gymnasium as gym": "learn/test_guide.py: paid the mean",
    "learn: from stable_baselines3 import PPO": "learn/test_guide.py: trains",
    "dask: from dask.distributed import Client, LocalCluster": "clusters_real/test_dask_processes.py",
    "kubernetes: apiVersion: kubescheduler.config.k8s.io/v1": "clusters_real/test_kube_extender.py: real",
    "kubernetes: apiVersion: trimtab.io/v1alpha1": "clusters_real/test_kube_training.py: an API server",
    "kubernetes: discovery:": gateway_file,
    "kubernetes: image: registry.example/film:7": "clusters_real/test_kube_host.py: an API server",
    "llm: four-hosts:": hosts,
    "llm: service: {kind: table, seconds: {1: {256: 0.8, 1024: 2.9},": measured_table,
    "llm: types:": replicas,
    "networks: cluster:": network,
    "networks: network: # under cluster": more_links,
    "own-columns: import trimtab as tt": own_trace,
    "own-columns: workload:": mapped_columns,
    "python: import polars as pl": python_page,
    "profiles: types:": fitted_profile,
    'python: shown = comparison.plot("completion_p99_s")': "e2e/test_guide_simulations.py: python_page",
    'python: sized = tt.size("log.parquet", "types.yaml", "completion_p': sizing,
    "queues: queues:": training_queues,
    "size-a-fleet: types:": node_types,
    "slurm: partition: gpu": job_settings,
    "ten-minutes: import trimtab as tt": ten_minutes,
    "queues: cluster:": queues,
    "queues: policy: least-expected-wait+hdrf": gateway_queues,
    "autoscale: kind: autoscaling": autoscaled,
    "tune: # my_policy.py": own_ranges,
    "tune: record: {folder: recordings, keep_days: 7}": "e2e/test_tune_nightly.py",
    "training: # my_allocator.py": own_allocator,
    "training: faults:": training_faults,
    "training: jobs:": "experiments/colocation/test_shared_cluster.py: it needs a published file",
    "training: types: {dgx: {accelerators: 8, memory_gib: 640, resources:": partitions,
    "training: types: {a100: {accelerators: 8, memory_gib: 640}}": training_cluster,
    "write-a-host: from trimtab.live.dialled import DialIn": "clusters/test_hosts.py: a whole one",
    "write-a-policy: # my_policy.py": decides_as("ShortestQueue", "least-connections"),
    "write-a-policy: class InTurn(tt.Policy):": in_turn,
    "write-a-policy: class Nearest(tt.Policy):": nearest,
    "write-a-policy: class Shortest(tt.Policy):": decides_as("Shortest", "least-connections"),
    "write-a-policy: class TwoChoices(tt.Policy):": two_choices,
    "yarn: queues:": yarn_queues,
}


def test_every_example_has_a_check() -> None:
    assert CHECKS.keys() == of_pages(frozenset(page.stem for page in PAGES) - OF_GATEWAYS - OF_RUNS)
    assert not missing_tests(CHECKS)


@run_here(CHECKS)
def test_an_example_shows_its_effect(
    name: str, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(found()[name], tmp_path)
