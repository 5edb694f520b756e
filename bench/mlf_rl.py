"""`python -m bench.mlf_rl`: MLF-RL in both readings, trained for three CPU minutes, and MLF-H on unseen jobs.

Saves the figures in bench/mlf-rl.json and the weights in bench/mlf-rl-ACTIONS.safetensors, and trains only
what is not there; `--docs` only writes the page.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import yaml

from bench.mlf_rl_page import KEPT, LOADS, page
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT
from trimtab.experiments.training.training_inputs import TrainingInputs, build_training
from trimtab.experiments.training.training_kind import TRAINING_KIND
from trimtab.experiments.training.training_scenario import TRAINING_JOBS
from trimtab.training.job_metrics import job_metrics
from trimtab.training.job_records import JobRecords

RESULTS, PAGE = ROOT / "bench" / "mlf-rl.json", ROOT / "docs" / "benchmarks" / "mlf-rl.md"
CPU_S = {"mlfs-style": 110.0, "paper": 50.0}  # of the policy gradient
TRAINING_SEEDS, SEEDS = range(1000, 1009), range(5)
OTHERS = ("elasticflow", "weighted-goodput")


@cache
def inputs(seed: int, load: float) -> TrainingInputs:
    about = yaml.safe_load(TRAINING_JOBS.builtin("elastic-training"))
    about["cluster"]["nodes"][0]["count"] = 8
    about["jobs"]["load"] = load
    about["jobs"]["generate"]["jobs"] = 100
    return build_training(TRAINING_JOBS.parse(about), seed)


def runner(seed: int, load: float) -> Callable[[Any], JobRecords]:
    return lambda allocator: TRAINING_KIND.run(inputs(seed, load), allocator, "compiled")


def weights_of(actions: str) -> str:
    return str(ROOT / "bench" / f"mlf-rl-{actions}.safetensors")


def trained(actions: str) -> dict[str, Any]:
    from trimtab.learn.methods.mlfs_rl import Settings, train

    jobs = [runner(seed, LOADS[k % len(LOADS)]) for k, seed in enumerate(TRAINING_SEEDS)]
    made = train(jobs, Settings(actions=actions, cpu_s=CPU_S[actions]))
    with open(weights_of(actions), "wb") as file:
        file.write(made.artifact.content())
    return {"agreement": made.agreement, "cpu_s": made.cpu_s, "course": made.course}


def evaluated() -> dict[str, list[dict[str, float]]]:
    """Allocator and load → metrics of the unseen seeds; exploring ones draw their actions."""
    from trimtab.learn.methods.mlfs_rl import Exploring
    from trimtab.training.allocator_catalogue import find_allocator
    from trimtab.training.allocators.mlf_rl import MlfRl

    found: dict[str, list[dict[str, float]]] = {}
    for load in LOADS:
        for seed in SEEDS:
            run = runner(seed, load)
            made: dict[str, Any] = {name: name for name in ("mlfs", *OTHERS)}
            for actions in CPU_S:
                learned = find_allocator(f"mlf-rl(actions={actions},artifact={weights_of(actions)})")
                assert isinstance(learned, MlfRl)
                made[f"mlf-rl, {actions}"] = learned
                made[f"mlf-rl, {actions}, exploring"] = Exploring(
                    learned, learned.weights(), np.random.default_rng(seed)
                )
            for name, allocator in made.items():
                metrics = job_metrics(run(allocator))
                found.setdefault(f"{name} | {load}", []).append({key: metrics[key] for key in KEPT})
    return found


def main() -> None:
    if not page_parser("bench.mlf_rl", __doc__).parse_args().docs:
        saved = saved_figures(RESULTS) if RESULTS.exists() else {"trained": {}}
        for actions in CPU_S:
            if actions not in saved["trained"]:
                saved["trained"][actions] = trained(actions)
                save_figures(RESULTS, saved)
        save_figures(RESULTS, saved | {"evaluated": evaluated()})
    write_page(PAGE, page(saved_figures(RESULTS)))


if __name__ == "__main__":
    main()
