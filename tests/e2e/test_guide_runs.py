"""Every example of the guides to chains and jobs that run here does so, and shows its effect.

Bodies of stages that an example leaves out are added.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from support.guide_examples import (
    OF_RUNS,
    Check,
    found,
    missing_tests,
    of_pages,
    ran,
    run_here,
)
from support.train_runs import WORKER, last_state
from trimtab.chains import Session, StageNode, run
from trimtab.chains.chain_files import load_chain
from trimtab.chains.kubeflow.export import exported
from trimtab.clusters.backends import host
from trimtab.clusters.in_process import InProcess
from trimtab.training.runner.job_list import job_list_of
from trimtab.training.runner.train_jobs import RunChoice, train_jobs

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
    """Each text is answered with the size of its batch, of one worker, however slow the machine is."""
    body = example.replace("...   #", "return [[float(len(texts))] for _ in texts]   #")
    body = body.replace("batch_wait_s=0.05", "batch_wait_s=60")  # full ones go at once
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


def pipeline_of_a_chain(example: str, folder: Path) -> None:
    (folder / "guide_pictures.py").write_text(example)
    made = exported(load_chain(str(folder / "guide_pictures.py")), "registry.example/pictures:1")
    assert made.notes == ()
    assert list(made.pipeline["root"]["dag"]["tasks"]) == ["words", "picture"]
    assert made.pipeline["root"]["outputDefinitions"]["artifacts"].keys() == {"picture"}


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


def training_run(example: str, folder: Path) -> None:
    """Its jobs with little work run on its slots; none has more than its share of them allows."""
    about = yaml.safe_load(example.replace("slot_s=30", "slot_s=1"))
    about.setdefault("nodes", {"here": 2})
    for job in about["jobs"]:
        job |= {"command": WORKER, "samples": 640, "submit_s": job.get("submit_s", 0) / 100}
    listed = job_list_of(yaml.safe_dump(about), "jobs.yaml", folder)
    choice = RunChoice(listed, "jobs", "jobs.yaml", "fifo")
    run = train_jobs(choice, folder, hosts=host, say=lambda _: None, show=lambda rows, now_s: None)
    assert run.state == "done"
    for job in about["jobs"]:
        counts = np.array(last_state(folder, run.run_id, job["id"])["counts"])
        assert counts.sum() == 640, "each sample is trained on once"


WEIGHTS = "film: it needs the weights of the models"
TORCH = "training/runner/test_torch_jobs.py"
RAY = "clusters/test_ray.py: it needs a Ray cluster"
SPARK = "clusters_real/test_spark.py: it needs a Spark cluster"
CHECKS: dict[str, Check | str] = {
    "demo-chain: from trimtab.chains import run": WEIGHTS,
    "demo-chain: from trimtab.chains import stage": WEIGHTS,
    "demo-chain: from trimtab_film.pages_chain import near_duplicate_pages": WEIGHTS,
    "kubeflow: # pictures.py": pipeline_of_a_chain,
    "run-chains: @stage(batch=16, batch_wait_s=0.05)": batched_stage,
    "run-chains: from trimtab.chains import Session, StageNode": RAY,
    "run-chains: from trimtab.chains import optimised, stage": "chains/test_optimised_models.py",
    "run-chains: from trimtab.chains import shared, stage": "chains/test_shared_state.py",
    "run-chains: import ray": "chains/test_data_tables.py",
    "run-chains: from trimtab.chains import chain, run, stage": stages_as_functions,
    'run-chains: handle = run(story, prompts, journal="runs", priority=1, d': handle,
    "run-chains: from trimtab.clusters.simulated_workers import SimulatedWo": virtual_run,
    "run-chains: name: news": chain_file,
    "spark: from trimtab.chains import chain, stage": SPARK,
    "spark: from trimtab.clusters import spark": SPARK,
    "train-jobs: from trimtab.training.elastic import ElasticJob": "support/numpy_worker.py",
    "train-jobs: from trimtab.training.torch import ElasticTraining, device": TORCH,
    "train-jobs: jobs:": training_run,
    "train-jobs: nodes: {here: 4}": training_run,
}


def test_every_example_has_a_check() -> None:
    assert CHECKS.keys() == of_pages(OF_RUNS)
    assert not missing_tests(CHECKS)


@run_here(CHECKS)
def test_an_example_shows_its_effect(
    name: str, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(found()[name], tmp_path)
