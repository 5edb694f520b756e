"""docs/benchmarks/llm-truth.md from bench/llm-truth.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.page import markdown_table

GOAL = 0.08  # of the median error of a time per token

HEAD = """<!-- Made by `python -m bench.llm_truth` from what it measured; `--docs` writes it anew. -->

# Language models, simulated and measured

How near do simulated nodes that serve a language model come to real ones? **Nothing is fitted to a run**: seconds of iterations come from
measurements of single operations (`../shared/data/llm_op_profiles`), settings from the configuration of the server.
"""

RUNS = """## Runs of vLLM

Two runs of vLLM 0.19 with Llama-3.1-8B in 16 bits: 300 requests with lengths of ShareGPT, 10 a second, more than either GPU can serve
(`../shared/data/vllm_measured_runs`). Seconds; *TTFT* from the queue to the first token, *TPOT* a token after it, *end to end* to the last token.
Goals: RTX 4090 each within 3 %; RTX PRO 6000 TPOT and end to end within 5 %, TTFT within 8 %.
"""

CHOICES = """Three choices are not in the operations, and matter:

- **The prefix cache is on**, as it was in both runs. All prompts differ, but a request that is preempted may find blocks of its own prompt
  again. Without this, latencies of the RTX 4090 are 4 to 6 % too long.
- **Unequal contexts** in a batch take longer than equal ones, with which attention was measured. The skew table of the profiler says how much, if
  the largest and the mean context are known. An engine knows the contexts in all only, so they are taken to be as unequal as in Azure's
  conversation trace of 2023. A first try with exponential contexts gave +10 % in TTFT on the RTX PRO 6000, no skew −12 %. For the RTX 4090 the
  profiler marks its skew table as not in force, so none is used; with it, latencies would be 3 to 5 % too long.
- **Iterations as in serving** are fitted: contexts of 64 to 4,096 tokens, chunks of prompts of 32 tokens and more, up to 2,048 read before. Over the
  profiler's whole grid the linear form of iterations with prompts is 5 to 8 % off in the mean.
"""

OPERATIONS = """## Profiles

Relative errors of iterations that were held back: each fifth of the operations' rows is predicted by a fit of the others. Iterations are put
together from operations, so these errors are of the form only: a table over the rows, linear in the context, and linear with prompts.
"""

SILICON = """## Time per token of servers

1,777 rows of AIConfigurator's silicon data (`../shared/data/llm_silicon_latency`): the time per token at a constant number of requests. A configuration
is a model, GPU, precision, backend and parallelism. *Rows held back*: `trimtab profile fit` predicts each row from the others of its configuration
(10 or more). *Configurations held back*: all rows of a configuration are predicted from the other configurations alone, by a roofline that a Gaussian
process corrects; its settings are those that are best for the *other* GPUs, of four tried. Goal: median within 8 %.
"""

WORST = """### Why GB200 is worse

Three quarters of its rows are of DeepSeek-R1, which is predicted worst on other GPUs too. And its rows say too little of what was served. Two facts of the
rows themselves, without any model of ours:

- *Of no one engine*: the number of GPUs does not divide the model's heads of attention, so it is not the tensor parallelism of an engine, but all
  GPUs of a deployment: of an unknown number of engines, for prompts, for answers, or for both. No other GPU has such rows, so nothing near is there to
  predict them from. With DeepSeek-R1 on 72 GPUs and prompts of 8,192 tokens, TPOT stays at 32 ms from 128 to 4,096 requests.
- *Contradict*: two rows of one configuration with the same lengths and loads next to each other, where more requests take less time, or x times the
  requests more than x times as long, by over 8 %. No engine does that, so no function of configuration and load predicts both rows. With Qwen3-32B on 2 GPUs,
  one request has a TPOT of 8 ms, two have 42 ms, and 128 have 52 ms.

So rows held back from their own configuration are hardly better predicted. Tried on 26 November 2026, and not taken, as they are no better for the *other* GPUs,
or by less than 0.2 points: 25 more settings of the process (GB200 21 % with those that are best for the others), the number of requests of each engine
(`batch_size` instead of all requests, which differ in 11 rows of GB200: 21 %), and GPUs divided by the experts' where both exceed a server's 8 (32 %).
"""

ROOFLINES = """## Rooflines

The built-in profiles marked `roofline` rest on published bandwidth and arithmetic alone. Against the servers with H100 above whose precision is not
told, taken as 16 bits. They are good for orders of magnitude, not for a choice between two fleets that differ by less.
"""

SPEED = """## How long a simulation takes

Beside what others publish. Ours: processor time of the loop, median of several, on 26 November 2026 at commit ab485b07, one of two shared cores of an AMD EPYC, kernels compiled before.
No other simulator was run for this table; machines and models of GPUs differ.

| work | simulator | seconds | source |
| --- | --- | --- | --- |
| Azure's conversations of 2023, one hour, 19,366 requests; 1 / 4 / 16 / 64 replicas, chunks of 512 tokens, batches of 128 | Vidur | not found; 80 / 87 / 121 / 95, measured by this project before | published is the search for the best configuration of Llama-2-70B: one hour on a CPU machine (Agrawal et al., MLSys 2024) |
| | trimtab, A100 roofline, round robin | 0.012 / 0.017 / 0.015 / 0.013 | |
| Mooncake, 8 replicas, round robin, blocks of 512 tokens | DynoSim, the 23,608 requests of its tool agents, 60 minutes | 2.41 (wall time, one thread, Apple M4) | NVIDIA Technical Blog, "DynoSim: simulating the Pareto frontier", 29 May 2026 |
| | trimtab, the 12,031 requests of its conversations, 59 minutes, H100 roofline; the other trace is not at hand | 0.024 | |
| 300 requests of ShareGPT, RTX 4090 / RTX PRO 6000 (the runs above) | LLMServingSim 2.0 | not found for these runs; "around 10 minutes even for complex" configurations | Cho et al., arXiv 2602.23036, abstract |
| | trimtab | 0.0034 / 0.0032 | |
"""

LEFT_OUT = """## What the model leaves out

- **Asynchronous scheduling**: vLLM prepares an iteration while the one before runs. Here an iteration begins when the one before ends, and preparing takes
  no time. **Captured graphs**: operations were measured without them; they save about 0.5 ms of an iteration, and pad batches to certain sizes.
- **Imbalance of experts**: all are as likely. The busiest rank of a mixture of experts is later than the mean one.
- **Lock-step of data-parallel ranks**: replicas of one model with shared experts wait for each other in every iteration. Here they are nodes by themselves.
- **Largest context of a batch**: an assumption, see above. **KV memory in blocks** of answers: a request holds as many tokens as it has, not whole blocks.
- **Network, tokenizer and HTTP** of the server: latencies are those of the engine.
- KV memory where none is told: nine tenths of the GPU's memory less the weights, which is more than vLLM finds after its own buffers
  (RTX 4090: 50,800 instead of 41,408 tokens; its profile has the latter).
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = [HEAD, RUNS, _runs(results["runs"]), CHOICES, OPERATIONS, _operations(results["operations"])]
    parts += [
        SILICON,
        _silicon(results["within"], results["across"]),
        WORST,
        _contradictions(results["contradictions"]),
        _models(results["across"]),
        ROOFLINES,
        _rooflines(results["rooflines"]),
    ]
    return "\n".join([*parts, SPEED, LEFT_OUT])


def _runs(runs: Mapping[str, Any]) -> str:
    lines = []
    names = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end to end"}
    for gpu, run in runs.items():
        for key, name in names.items():
            for k, which in enumerate(("mean", "p99")):
                measured, simulated = run["measured"][key][k], run["simulated"][key][k]
                error = f"{100 * (simulated / measured - 1):+.1f}"
                lines.append([gpu, f"{name}, {which}", f"{measured:.4g}", f"{simulated:.4g}", error])
    preempted = ", ".join(f"{run['preemptions']} on the {gpu}" for gpu, run in runs.items())
    table = markdown_table(["GPU", "latency", "measured s", "simulated s", "error %"], lines)
    return f"{table}\nSimulated preemptions: {preempted}.\n"


def _operations(operations: Mapping[str, Any]) -> str:
    head = ["profile", "iterations", "rows", "mean %", "median %", "p90 %"]
    lines = [[name, kind, *_error(e)] for name, kinds in operations.items() for kind, e in kinds.items()]
    return markdown_table(head, lines)


def _silicon(within: Mapping[str, Any], across: Mapping[str, Any]) -> str:
    head = ["GPU", "held back", "rows", "mean %", "median %", "p90 %"]
    lines = [[gpu, "rows", *_error(e)] for gpu, e in within.items()]
    lines += [[gpu, "configurations", *_error(e)] for gpu, e in across.items()]
    missed = [gpu for gpu, e in across.items() if e["median"] > GOAL]
    return (
        f"{markdown_table(head, lines)}\nWhole configurations miss the goal: {', '.join(missed) or 'none'}.\n"
    )


def _contradictions(gpus: Mapping[str, Any]) -> str:
    head = ["GPU", "rows", "of no one engine", "pairs", "contradict", "%"]
    lines = [
        [
            gpu,
            *(f"{e[name]:,}" for name in ("rows", "not_one", "pairs", "contradict")),
            f"{100 * e['contradict'] / max(e['pairs'], 1):.0f}",
        ]
        for gpu, e in sorted(gpus.items())
    ]
    return markdown_table(head, lines)


def _models(across: Mapping[str, Any]) -> str:
    head = ["configurations held back: GPU", "model", "rows", "bias %", "median error %"]
    lines = [
        [gpu, model, f"{e['rows']:,}", f"{100 * e['bias']:+.0f}", f"{100 * e['median']:.0f}"]
        for gpu, of in across.items()
        for model, e in of["models"].items()
    ]
    return markdown_table(head, lines)


def _rooflines(rooflines: Mapping[str, Any]) -> str:
    head = ["model, GPUs", "rows", "bias %", "median error %", "p90 %"]
    lines = [
        [
            name,
            f"{e['rows']:,}",
            f"{100 * e['bias']:+.0f}",
            f"{100 * e['median']:.0f}",
            f"{100 * e['p90']:.0f}",
        ]
        for name, e in rooflines.items()
    ]
    return markdown_table(head, lines)


def _error(e: Mapping[str, Any]) -> list[str]:
    return [f"{e['rows']:,}", *(f"{100 * e[name]:.1f}" for name in ("mean", "median", "p90"))]
