"""The narrated film, predicted and measured: costs come from one run, and another run is simulated.

Two worker processes make films of some prompts; that run is kept in a journal. Films of other prompts are
then predicted in virtual time by its mean costs, and made. Needs the package examples/film.

    python -m bench.film_prediction
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from trimtab_film.film_chain import narrated_film

from bench.page_command import save_figures
from trimtab.chains import Session
from trimtab.chains.run_costs import ChainCosts, workers_by_cost
from trimtab.chains.run_reports import costs_of_run
from trimtab.chains.session import RunHandle
from trimtab.clusters.processes import Processes
from trimtab.live.stage_backend import StageNode

RESULTS = Path(__file__).with_name("film-prediction.json")
NODES = [StageNode("local", slots=2)]
LEARNED_FROM = (
    "a red fox walks to the sea at dusk",
    "an owl in a snowy forest at night",
    "a brown horse on a green meadow at noon",
)
PREDICTED = (
    "a white rabbit in the desert at dawn",
    "a black cat by a lake in the evening",
    "a grey wolf on a hill under the stars",
    "a yellow duck on a river in the morning",
    "a brown bear in the mountains at noon",
)


def made(prompts: Sequence[str], journal: Path) -> tuple[str, dict[str, float]]:
    """The run that makes films of these prompts, and what it took."""
    with Session(narrated_film, on=Processes(NODES), journal=journal) as session:
        handle = session.run(narrated_film, prompts)
        return handle.id, times(handle)


def predicted(prompts: Sequence[str], costs: ChainCosts) -> dict[str, float]:
    """What it would take in virtual time."""
    backend = workers_by_cost(narrated_film, NODES, {}, costs)
    with Session(narrated_film, on=backend) as session:
        return times(session.run(narrated_film, prompts))


def times(handle: RunHandle) -> dict[str, float]:
    """Mean completion and makespan of a run, when it is over."""
    completions_s = [result.elapsed_s for result in handle.wait()]
    return {"mean_s": fmean(completions_s), "makespan_s": handle.elapsed_s}


def errors(told: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Predicted over measured, less 1."""
    return {key: told[key] / measured[key] - 1.0 for key in measured}


def main() -> None:
    """Measure, save, and print the errors."""
    with tempfile.TemporaryDirectory() as folder:
        first, learned = made(LEARNED_FROM, Path(folder))
        second, measured = made(PREDICTED, Path(folder))
        before = predicted(PREDICTED, costs_of_run(narrated_film, folder, first))
        # With the measured run's own costs, only what the model leaves out is wrong.
        by_own = predicted(PREDICTED, costs_of_run(narrated_film, folder, second))
    found = {
        "learned_from": learned,
        "measured": measured,
        "predicted": before,
        "predicted_by_own_costs": by_own,
        "error_frac": errors(before, measured),
        "error_frac_by_own_costs": errors(by_own, measured),
        "load_average": os.getloadavg()[0],
    }
    save_figures(RESULTS, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
