"""Every command with the base dependencies only: it works, or names the extra that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import typer
import yaml

import trimtab
from support.e2e_files import write_cluster, write_trace
from support.environments import linked_environment
from support.kubeflow.documents import pipeline
from support.yarn_files import REST_PAGE, configuration, save_answers
from trimtab.chains.chain_files import load_chain
from trimtab.cli.app import app
from trimtab.training.runner.job_list import job_list_of

# Runs command lines in one process.
RUN = """
import contextlib, io, json, sys

from trimtab.cli.app import main

ends = []
for command in json.load(sys.stdin):
    sys.argv = ["trimtab", *command]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    ends.append((code, err.getvalue()))
json.dump(ends, sys.stdout)
"""
CHAIN = """
from trimtab.chains import chain, stage

@stage
def double(x: int) -> int:
    return 2 * x

@chain
def doubled(x: int) -> int:
    return double(x)
"""
JOBS = "nodes: {here: 1}\njobs: [{id: a, command: python job.py, samples: 10}]\n"
REFUSED = ("trace download no-such", "case --learned nothing")  # for what they are given
OUTCOMES = {  # command line → extra that it needs; "" = none
    "compare tiny -p random -n 1 --no-sweep -j 1 --out out": "",
    "rerun out": "",
    "advise trace.csv cluster.yaml -p random": "",
    "allocate --cluster cluster.yaml --jobs jobs.csv --policy fifo": "",
    "run tiny -p random": "",
    "size trace.csv --node-types types.yaml --slo completion_p99<1000s": "",
    "metrics": "",
    "fit log.csv --cluster cluster.yaml": "",
    "replay log.csv --cluster cluster.yaml --policy random": "",
    "profile list": "",
    "profile fit rows.csv --gpu A1 --model meta-llama/Llama-3.1-8B --memory-gib 24": "",
    "profile roofline --gpu A1 --model Qwen/Qwen3-32B --memory-gib 80 --tb-per-s 2 --tflops 300": "",
    "profile job json:Module": "learn",
    "forecast trace.csv --column size --horizon 3": "",
    "policies show random": "",
    "solve gap gap.txt --time-limit 0.1": "",
    "chain simulate multimodal": "",
    "chain size multimodal --slo completion_p99_s<1e9 --seeds 1": "",
    "scenario list": "",
    "scenario show tiny": "",
    "scenario check tiny": "",
    "scenario schema": "",
    "trace import trace.csv --out t.parquet": "",
    "trace show trace.csv": "",
    "trace audit trace.csv": "",
    "trace convert trace.csv t.csv": "",
    "trace make made.csv --rate 1 --mean 2 --size-cv 1": "",
    "trace share trace.csv --out s.csv --epsilon 1": "private",
    "trace list": "",
    "trace download no-such": "",
    "serve gateway.yaml": "serve",
    "serve": "serve",
    "serve --example": "serve",
    "compare tiny --on ray -n 2": "ray",
    "tune aigc-images --on ray": "ray",
    "case --learned nothing": "",
    "chain run chain.py:doubled --input in.jsonl": "chains",
    "chain run chain.py:doubled --input in.jsonl --on dask": "chains",
    "chain import kfp pipeline.yaml --out imported.py": "",
    "chain export kfp chain.py:doubled --image i --out exported.yaml": "",
    "chain list": "chains",
    "chain show r1": "chains",
    "chain report r1": "chains",
    "chain trace r1 --out t.json": "chains",
    "chain cancel r1": "chains",
    "chain backup runs.zip r1": "chains",
    "chain restore runs.zip": "chains",
    "train run jobs.yaml": "jobs",
    "train list": "jobs",
    "train show r1": "jobs",
    "train add r1 jobs.yaml": "jobs",
    "train cancel r1 a": "jobs",
    "train priority r1 5 a": "jobs",
    "train drain r1 here": "jobs",
    "train undrain r1 here": "jobs",
    "learn train": "learn",
    "learn evaluate w.safetensors": "learn",
    "learn export trained": "learn",
    "learn lengths trace.csv --epsilon 1": "private",
    "learn transfer w.safetensors --to tiny": "learn",
    "federate server federation.yaml": "serve",
    "federate client trace.csv --server http://127.0.0.1:1": "serve",
    "federate keys": "private",
    "epp --config gateway.yaml": "envoy",
    "kube scheduler": "kube",
    "kube extender": "kube",
    "kube record trace": "kube",
    "kube check": "kube",
    "kube train --journal runs": "kube",
    "yarn queues capacity-scheduler.xml": "",
    "yarn import answers yarn": "",
    "slurm scheduler --help": "",
    "slurm record --help": "",
    "slurm check --help": "",
    "warmup --help": "",
}


def paths(command: object, path: str = "") -> Iterator[str]:
    """The commands of the program."""
    for name, inner in getattr(command, "commands", {"": None}).items():
        yield from [path] if inner is None else paths(inner, f"{path} {name}".strip())


def test_every_command_works_or_names_its_extra(tmp_path: Path) -> None:
    commands = list(OUTCOMES)
    known = {next((p for p in paths(typer.main.get_command(app)) if c.startswith(p)), c) for c in commands}
    assert known == set(paths(typer.main.get_command(app)))
    write_trace(tmp_path / "trace.csv")
    write_files(tmp_path)
    done = subprocess.run(
        [str(linked_environment(tmp_path / "bare", ["trimtab"])), "-c", RUN],
        input=json.dumps([command.split() for command in commands]),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(trimtab.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    ends = dict(zip(commands, json.loads(done.stdout), strict=True))
    for command, extra in OUTCOMES.items():
        code, stderr = ends[command]
        if extra:
            assert (code, stderr[:6]) == (2, "error:"), (command, stderr)
            assert f"pip install 'trimtab[{extra}]'" in stderr, command
        else:
            assert "trimtab[" not in stderr, command
            expected = 2 if command in REFUSED else 0
            assert (code or 0) == expected, (command, stderr)


def write_files(folder: Path) -> None:
    """The files that the commands name."""
    text = yaml.safe_load(write_cluster(folder / "cluster.yaml").read_text())
    text["types"]["big"]["usd_per_hour"] = 2.0
    text["types"]["small"]["usd_per_hour"] = 1.0
    (folder / "types.yaml").write_text(yaml.safe_dump(text))
    (folder / "jobs.csv").write_text("job_id,submit_s,gpus,duration_s\na,0,1,100\n")
    (folder / "gap.txt").write_text("2 2\n1 2\n2 1\n1 1\n1 1\n2 2\n")
    (folder / "log.csv").write_text(
        "arrival_s,size,node,recorded_s\n" + "".join(f"{i},{1 + i % 3},big,{2 + i % 3}\n" for i in range(50))
    )
    iterations = "".join(f"{1 + i % 4},{100 * i},0,0.0{10 + i}\n" for i in range(12))
    (folder / "rows.csv").write_text("batch,context,prompt_tokens,seconds\n" + iterations)
    (folder / "gateway.yaml").write_text("nodes: [{name: a, url: 'http://127.0.0.1:9'}]\n")
    (folder / "capacity-scheduler.xml").write_text(configuration(REST_PAGE))
    save_answers(folder / "answers")
    (folder / "chain.py").write_text(CHAIN)
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline()))
    (folder / "in.jsonl").write_text("1\n")
    (folder / "jobs.yaml").write_text(JOBS)
    load_chain(f"{folder / 'chain.py'}:doubled")  # both are valid
    job_list_of(JOBS, "jobs.yaml", folder)


def test_the_page_on_installing_names_every_extra() -> None:
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (root / "docs" / "start" / "install.md").read_text()
    assert not {extra for extra in extras if f"`{extra}`" not in page}
