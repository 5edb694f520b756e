"""Paced chains whose prompts repeat: results from the store beside eager submission, which runs every stage.

Workers, arrivals and lengths are those of `chain_pacing`; stages are deterministic, and there is a journal.

- none: each chain has a prompt of its own;
- half: each chain has, with a chance of one half, the prompt of an earlier one, which may still run;
- all: the chains of before once more, in a new session with the same journal.

    python -m bench.chain_repeats
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.chain_pacing import CHAINS, OUTPUT_BYTES, POLICY, SLOWNESS, WARMING, course, eager, nodes
from trimtab.chains import Session, chain, stage
from trimtab.clusters.processes import Processes

RESULTS = Path(__file__).with_name("chain-repeats.json")
SEEDS, REPEATED_FRAC, STAGES = 3, 0.5, 3


def drawn(prompt: int, seconds: float, before: bytes = b"") -> bytes:
    time.sleep(seconds * SLOWNESS[os.environ["TRIMTAB_NODE"]])
    return random.Random(f"{prompt} {before[:8].hex()}").randbytes(OUTPUT_BYTES)


write = stage(drawn, name="write", size="seconds", cpu=0, deterministic=True)
draw = stage(drawn, name="draw", size="seconds", cpu=0, deterministic=True)
film = stage(drawn, name="film", size="seconds", cpu=0, deterministic=True)


@chain
def narrated(prompt: int, first: float, second: float, third: float) -> Any:
    return film(prompt, third, draw(prompt, second, write(prompt, first)))


def prompts_of(seed: int, repeated_frac: float) -> np.ndarray:
    """The prompt of each chain, by the number of the chain that had it first."""
    rng, prompts = np.random.default_rng([seed, 1]), np.arange(CHAINS)
    for k in range(1, CHAINS):
        if rng.random() < repeated_frac:
            prompts[k] = prompts[rng.integers(k)]
    return prompts


def hosted(
    arrivals_s: np.ndarray, seconds: np.ndarray, prompts: np.ndarray, folder: str, *, warm: bool = True
) -> tuple[dict[str, float], list[bytes]]:
    """Mean completion, the share of stages that ran, and the output of each chain."""
    with Session(narrated, on=Processes(nodes()), policy=POLICY, journal=folder) as session:
        if warm:
            told = [dict.fromkeys(("first", "second", "third"), s) for s in WARMING]
            session.run(narrated, [{"prompt": -1 - k} | given for k, given in enumerate(told)]).wait()
        begun_s, handles = time.perf_counter(), []
        for at_s, prompt, lengths in zip(
            arrivals_s.tolist(), prompts.tolist(), seconds.tolist(), strict=True
        ):
            time.sleep(max(0.0, begun_s + at_s - time.perf_counter()))
            given = dict(zip(("first", "second", "third"), lengths, strict=True))
            handles.append(session.run(narrated, [{"prompt": prompt} | given]))
        results = [handle.wait()[0] for handle in handles]
        counts = [each for handle in handles for each in handle.counts.values()]
        ran = sum(each.done - each.reused + each.retries + each.failed for each in counts)
        return {
            "mean_s": float(np.mean([result.elapsed_s for result in results])),
            "ran_frac": ran / (STAGES * CHAINS),
        }, [result.value for result in results]


def measured(seed: int) -> dict[str, dict[str, float]]:
    """Mean completions of a seed, by what repeats."""
    arrivals_s, seconds = course(seed)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, frac in (("none", 0.0), ("half", REPEATED_FRAC)):
            prompts = prompts_of(seed, frac)
            place, lengths = f"{folder}/{name}", seconds[prompts]
            host, outputs = hosted(arrivals_s, lengths, prompts, place)
            eager_s, _ = eager(arrivals_s, lengths, "least outstanding")
            found[name] = host | {
                "eager_mean_s": float(np.mean(eager_s)),
                "new_frac": len(set(prompts)) / CHAINS,
            }
        again, outputs_again = hosted(arrivals_s, lengths, prompts, place, warm=False)
        assert outputs_again == outputs
        found["all"] = again | {"eager_mean_s": found["half"]["eager_mean_s"], "new_frac": 0.0}
    return found


def main() -> None:
    """Measure, save and print means over seeds."""
    found = {}
    for seed in range(SEEDS):
        found[f"seed {seed}"] = measured(seed)
        print(f"seed {seed} is measured", file=sys.stderr, flush=True)
    means = {
        name: {key: float(np.mean([seed[name][key] for seed in found.values()])) for key in figures}
        for name, figures in found["seed 0"].items()
    }
    RESULTS.write_text(json.dumps({"policy": POLICY, **found, "means": means}, indent=1) + "\n")
    json.dump(means, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
