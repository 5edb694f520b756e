"""Every configuration and program that a guide shows is run, and shows its effect.

An example is known by its page and its first line, or its second. `EXAMPLES` has a check for each, or names
the test that runs it elsewhere. What an example leaves out is added here: traces, backends, bodies of stages.
"""

from __future__ import annotations

import asyncio
import functools
import re
import sys
import textwrap
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

import trimtab as tt
from support.gateway.guide_gateway import Backend, Served, served
from support.train_runs import WORKER, last_state
from support.waiting import until
from trimtab.chains import Session, StageNode, run
from trimtab.chains.chain_files import load_chain
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.slot_sources import slot_source
from trimtab.errors import TrimtabError
from trimtab.gateway.config import config_warnings, digest_of, parse_config
from trimtab.gateway.nodes.planned_outages import Maintenance
from trimtab.training.runner.job_list import job_list_of
from trimtab.training.runner.train_jobs import RunChoice, train_jobs

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for at in ("guides", "concepts", "start") for page in (ROOT / "docs" / at).glob("*.md")),
]
KEY = "tt-key-of-this-test-0123456789"
Check = Callable[[str, Path], Any]  # the example, and an empty folder that is the current one


@functools.cache
def found() -> dict[str, str]:
    """The examples in YAML and Python: page and first line → text."""
    examples = {}
    for page in PAGES:
        for text in re.findall(r"^ *```(?:yaml|python)\n(.*?)^ *```", page.read_text(), re.M | re.S):
            lines = [line.partition("  #")[0].strip()[:58] for line in text.splitlines()]
            name = f"{page.stem}: {lines[0]}"
            examples[f"{page.stem}: {lines[1]}" if name in examples else name] = textwrap.dedent(text)
    return examples


def on_gateway(
    *backends: Callable[[], Backend],
) -> Callable[[Callable[[Served, list[Backend]], Awaitable[None]]], Check]:
    """A check of an example of gateway.yaml on so many backends."""

    def of(check: Callable[[Served, list[Backend]], Awaitable[None]]) -> Check:
        def run_it(example: str, folder: Path) -> None:
            async def main() -> None:
                made = [backend() for backend in backends]
                async with served(example, *made, folder=folder) as gateway:
                    await check(gateway, made)

            asyncio.run(main())

        return run_it

    return of


def chat(*models: str) -> Callable[[], Backend]:
    return lambda: Backend(*(models or ("m",)))


def without_key(example: str, folder: Path) -> None:
    """Clients need the key; the second node takes 16 at a time, what the first takes is found out."""
    own = re.sub(r"sha256: \w+", f"sha256: {digest_of(KEY.encode())}", example)

    async def check(gateway: Served, _: list[Backend]) -> None:
        assert [(await gateway.chat("m", key))[0] for key in ("", KEY)] == [401, 200]
        found_out, declared = (gateway.gateway.fleet.known(name).max_requests for name in ("gpu-1", "gpu-2"))
        assert (declared, found_out > 0) == (16, True)

    on_gateway(chat(), chat())(check)(own, folder)


@on_gateway(chat("small-chat", "large-chat"))
async def policies_by_model(gateway: Served, _: list[Backend]) -> None:
    policies = []
    for model in ("small-chat", "large-chat"):
        _, headers, _ = await gateway.chat(model)
        record = gateway.gateway.decision_records.find(headers["x-request-id"])
        policies.append(record["decision"]["policy"] if record else None)
    assert policies == ["late-binding", "least-expected-completion"]


@on_gateway(chat("small-chat"), chat("large-chat"))
async def routes(gateway: Served, backends: list[Backend]) -> None:
    """An alias, 5 of 100 to the canary (no one of 150: once in 2,000 runs), and a fallback."""
    assert (await gateway.chat("chat"))[2]["model"] == "small-chat"
    served_by = [(await gateway.chat("chat-canary"))[2]["model"] for _ in range(150)]
    assert 1 <= served_by.count("large-chat") <= 30
    gateway.gateway.fleet.drain("gpu-2")
    assert (await gateway.chat("large-chat"))[2]["model"] == "small-chat"


def batches(example: str, folder: Path) -> None:
    """Eight clients on one slot: what waits goes as one."""

    async def check(gateway: Served, backends: list[Backend]) -> None:
        gateway.gateway.fleet.set_capacity(gateway.gateway.fleet.known("gpu-1"), 1)

        async def batched() -> bool:
            answers = await asyncio.gather(*(gateway.embed("embed") for _ in range(8)))
            assert {status for status, _, _ in answers} == {200}
            return max(int(headers.get("x-trimtab-batch", 1)) for _, headers, _ in answers) >= 4

        await until(batched, "what waits is batched")
        assert max(count for _, count in backends[0].calls) >= 4

    sooner = example.replace("split-merge ", "split-merge(plan_period_s=1) ", 1)
    on_gateway(lambda: Backend("embed", service_s=0.1))(check)(sooner, folder)


@on_gateway(chat("chat"))
async def loads(gateway: Served, backends: list[Backend]) -> None:
    """A request for the adapter wakes the model, then loads the adapter by the call of the example."""
    status, _, answer = await gateway.chat("legal")
    assert (status, answer["model"]) == (200, "legal")
    assert ("load", {"name": "legal", "base": "chat"}) in backends[0].calls
    assert not backends[0].is_asleep


def maintenance(example: str, folder: Path) -> None:
    """gpu-1 gets nothing from 2 to 4 on that day, gpu-2 every Sunday from 2 to 3."""

    async def check(gateway: Served, _: list[Backend]) -> None:
        dispatcher, fleet = gateway.gateway.dispatcher, gateway.gateway.fleet
        await gateway.gateway.maintenance.close()  # which goes by the clock
        for at, nodes in (
            ("2026-12-24T03:00:00Z", {"gpu-2"}),
            ("2026-12-24T05:00:00Z", {"gpu-1", "gpu-2"}),
            ("2026-12-27T02:30:00Z", {"gpu-1"}),
        ):
            utc_s = datetime.fromisoformat(at).timestamp()
            windows = dispatcher.rules.declared.windows
            Maintenance(fleet, windows, dispatcher.write_outages, lambda utc_s=utc_s: utc_s).look()
            answers = [await gateway.chat("m") for _ in range(8)]
            assert {headers["x-trimtab-node"] for _, headers, _ in answers} <= nodes

    on_gateway(chat(), chat())(check)(example, folder)


def replica(example: str, folder: Path) -> None:
    config = parse_config(example, "gateway.yaml")
    warnings = config_warnings(config)
    assert any("TRIMTAB_STORE_URL is not set" in warning for warning in warnings)
    assert not any("no nodes" in warning for warning in warnings)
    assert (config.listen_address.port, config.drain_s, config.nodes[0].spec().max_requests) == (8080, 60, 32)


@on_gateway(chat(), chat())
async def shadow(gateway: Served, _: list[Backend]) -> None:
    for _ in range(10):
        assert (await gateway.chat("m"))[0] == 200
    assert gateway.gateway.dispatcher.rules.default.spec == "least-expected-wait"
    assert gateway.gateway.dispatcher.log.shadow.counts[0] == 10


def recording(example: str, folder: Path) -> None:
    async def check(gateway: Served, _: list[Backend]) -> None:
        for _ in range(3):
            await gateway.chat("m")

    on_gateway(chat())(check)(example, folder)
    (file,) = (folder / "recordings").iterdir()
    assert tt.read_trace(file).table.height == 3


# --- simulations


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


def training_run(example: str, folder: Path) -> None:
    """Its jobs with little work run on its slots; none has more than its share of them allows."""
    about = yaml.safe_load(example.replace("slot_s=30", "slot_s=1"))
    about.setdefault("nodes", {"here": 2})
    for job in about["jobs"]:
        job |= {"command": WORKER, "samples": 640, "submit_s": job.get("submit_s", 0) / 100}
    listed = job_list_of(yaml.safe_dump(about), "jobs.yaml", folder)
    choice = RunChoice(listed, "jobs", "jobs.yaml", "fifo")
    run = train_jobs(choice, folder, sources=slot_source, say=lambda _: None, show=lambda rows, now_s: None)
    assert run.state == "done"
    for job in about["jobs"]:
        counts = np.array(last_state(folder, run.run_id, job["id"])["counts"])
        assert counts.sum() == 640, "each sample is trained on once"


# --- programs


def ran(example: str, **names: Any) -> dict[str, Any]:
    """The names that an example defines, with these defined before."""
    names = {"__name__": "example", **names}
    exec(compile(example, "example", "exec"), names)
    return names


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


def sizing(example: str, folder: Path) -> None:
    requests_csv(folder, 120).write_parquet("log.parquet")
    (folder / "types.yaml").write_text(found()["size-a-fleet: types:"])
    sized = ran(example.split("\n\n")[0], tt=tt)["sized"]
    assert sized.best is not None


ONE_SLOT = StageNode("one", slots=1)
BODIES = {  # of stages whose body is left out
    "def scenes(prompt: str) -> list[str]: ": "return [prompt, prompt + '!']",
    "def draw(scene: str) -> bytes: ": "return scene.encode()",
    "def film(pictures: list[bytes]) -> bytes: ": "return b'+'.join(pictures)",
}


def story() -> Any:
    text = found()["run-chains: from trimtab.chains import chain, run, stage"].replace("gpu=0.5, ", "")
    for head, body in BODIES.items():
        assert head + "..." in text
        text = text.replace(head + "...", head + body)
    return ran(text.partition("for result in")[0])["story"]


def stages_as_functions(example: str, folder: Path) -> None:
    results = run(story(), ["a fox", "an owl"], on=InProcess()).wait()
    assert [result.value for result in results] == [b"a fox+a fox!", b"an owl+an owl!"]


def batched_stage(example: str, folder: Path) -> None:
    """Each text is answered with the size of its batch, of one worker."""
    body = example.replace("...   #", "return [[float(len(texts))] for _ in texts]   #")
    names = ran("from trimtab.chains import chain, stage\n" + body)
    whole = ran("@chain\ndef all_of(texts: list[str]):\n    return embed.map(texts)\n", **names)["all_of"]
    (result,) = run(whole, [[f"{k}" for k in range(32)]], on=InProcess([ONE_SLOT])).wait()
    assert result.value == [[16.0]] * 32


def handle(example: str, folder: Path) -> None:
    with Session(story(), on=InProcess(), journal="runs") as session:
        names = ran(
            example,
            run=lambda chain, inputs, journal, **how: session.run(chain, inputs, **how),
            session=session,
            story=story(),
            prompts=["a fox"],
        )
    assert names["results"][0].value == b"a fox+a fox!"
    assert names["part"].value


def virtual_run(example: str, folder: Path) -> None:
    """A single film: 4 s, then 5 s of loading and 13 s at most at speed 1 of drawing, then 8 s."""
    results = ran(example, story=story(), prompts=["a fox"])["results"]
    assert 4.0 + 13.0 + 8.0 <= results[0].elapsed_s <= (4.0 + 5.0 + 14.0 + 8.0) / 0.4


def chain_file(example: str, folder: Path) -> None:
    (folder / "news.yaml").write_text(example)
    (folder / "news.py").write_text(
        "def sentences(text: str) -> list[str]:\n    return text.split('. ')\n"
        "def words(sentence: str) -> int:\n    return len(sentence.split())\n"
        "def report(lines: list[int]) -> str:\n    return '+'.join(map(str, lines))\n"
    )
    path = list(sys.path)
    try:
        (result,) = run(load_chain("news.yaml"), ["one two. three"], on=InProcess()).wait()
    finally:
        sys.path[:] = path
        sys.modules.pop("news", None)
    assert result.value == "2+1"


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


def ten_minutes(example: str, folder: Path) -> None:
    names = ran(example)
    assert names["run"].requests.height == 300
    assert {result.policy for result in names["comparison"].results} == {"random", "power-of-d(d=3)"}


WEIGHTS = "film: it needs the weights of the models"
TORCH = "training/runner/test_torch_jobs.py"
RAY = "clusters/test_ray.py: it needs a Ray cluster"
EXAMPLES: dict[str, Check | str] = {
    "README: # my_policy.py": decides_as("ShortestQueue", "least-connections"),
    "assign: from trimtab.solvers import assignment_problem, solve": assignment,
    "chains: chains:": chain_scenario,
    "choose-a-policy: cluster:": cluster,
    "demo-chain: from trimtab.chains import run": WEIGHTS,
    "demo-chain: from trimtab.chains import stage": WEIGHTS,
    "demo-chain: from trimtab_film.pages_chain import near_duplicate_pages": WEIGHTS,
    "deploy: # /etc/trimtab/gateway.yaml": replica,
    "forecast: from trimtab.forecast import Forecaster": forecaster,
    "forecast: from trimtab.forecast import queueing": waits,
    "own-columns: import trimtab as tt": own_trace,
    "own-columns: workload:": mapped_columns,
    "python: import polars as pl": python_page,
    'python: shown = comparison.plot("completion_p99_s")': "python_page, above",
    'python: sized = tt.size("log.parquet", "types.yaml", "completion_p': sizing,
    "record-and-replay: record: {folder: recordings}": recording,
    "run-chains: @stage(batch=16, batch_wait_s=0.05)": batched_stage,
    "run-chains: from trimtab.chains import Session, StageNode": RAY,
    "run-chains: from trimtab.chains import chain, run, stage": stages_as_functions,
    'run-chains: handle = run(story, prompts, journal="runs", priority=1, d': handle,
    "run-chains: from trimtab.clusters.simulated_workers import SimulatedWo": virtual_run,
    "run-chains: name: news": chain_file,
    "serve: from openai import OpenAI": "e2e/gateway_clients/test_openai_client.py",
    "serve: keys:": without_key,
    "serve: maintenance:": maintenance,
    "serve: nodes:": loads,
    "serve: policy:": policies_by_model,
    "serve: policy: split-merge": batches,
    "serve: routes:": routes,
    "shadow-and-switch: policy: least-expected-wait": shadow,
    "size-a-fleet: types:": node_types,
    "ten-minutes: import trimtab as tt": ten_minutes,
    "train-jobs: from trimtab.training.elastic import ElasticJob": "support/numpy_worker.py",
    "train-jobs: from trimtab.training.torch import ElasticTraining, device": TORCH,
    "train-jobs: jobs:": training_run,
    "train-jobs: nodes: {here: 4}": training_run,
    "training: # my_allocator.py": own_allocator,
    "training: faults:": training_faults,
    "training: jobs:": "experiments/shared/test_shared_cluster.py: it needs a published file",
    "training: types: {a100: {accelerators: 8, memory_gib: 640}}": training_cluster,
    "write-a-policy: # my_policy.py": decides_as("ShortestQueue", "least-connections"),
    "write-a-policy: class InTurn(tt.Policy):": in_turn,
    "write-a-policy: class Nearest(tt.Policy):": nearest,
    "write-a-policy: class Shortest(tt.Policy):": decides_as("Shortest", "least-connections"),
    "write-a-policy: class TwoChoices(tt.Policy):": two_choices,
}


def test_every_example_has_a_check() -> None:
    assert found().keys() == EXAMPLES.keys()
    elsewhere = {check.split(":")[0].split(" ")[0] for check in EXAMPLES.values() if isinstance(check, str)}
    missing = {path for path in elsewhere - {"python_page,"} if not (ROOT / "tests" / path).exists()}
    assert not missing


@pytest.mark.parametrize("name", [name for name, check in EXAMPLES.items() if not isinstance(check, str)])
def test_an_example_shows_its_effect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check = EXAMPLES[name]
    assert not isinstance(check, str)
    check(found()[name], tmp_path)
