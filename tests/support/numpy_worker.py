"""A rank that fits a line by gradient descent, with NumPy. `--fault` makes it break a rule of the protocol.

Its state has the weights, and how often each item was trained on, over all ranks and generations.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import time
from pathlib import Path

import numpy as np

from trimtab.training.elastic import ElasticJob
from trimtab.training.runner.paced_job import TcpSum

FEATURES = 3


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--items", type=int, default=64)
    options.add_argument("--step-s", type=float, default=0.0)
    options.add_argument("--fault", default="")
    options.add_argument("--at", type=int, default=10, help="step of the fault")
    options.add_argument("--variance", type=float, default=-1.0, help="of a sample's gradient, as told")
    options.add_argument("--gates", default="", help="40:2/80:1 = step 40 waits for two ranks, 80 for one")
    options.add_argument("--after", default="", help="file to which rank 0 writes after the loop")
    options.add_argument("--after-s", type=float, default=0.0, help="seconds that this takes")
    given = options.parse_args()
    gates = [tuple(map(int, gate.split(":"))) for gate in given.gates.split("/") if gate]
    if given.fault == "silent":
        time.sleep(3600)
    job, summed = ElasticJob(), TcpSum()
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(given.items, FEATURES))
    targets = inputs @ np.arange(1.0, FEATURES + 1) + 0.1 * rng.normal(size=given.items)
    weights, counts = np.zeros(FEATURES), np.zeros(given.items)
    if job.resume_from is not None:
        state = json.loads((job.resume_from / "state").read_text())
        weights, counts = np.array(state["weights"]), np.array(state["counts"])
    if given.fault == "deaf" and job.generation == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def write(folder: Path) -> None:
        if given.fault == "full" and job.generation == 1:
            (folder / "state").symlink_to("/dev/full")
        told = {"weights": weights.tolist(), "counts": counts.tolist()}
        (folder / "state").write_text(json.dumps(told))
        if given.fault in ("truncated", "other-generation") and job.generation == 2:
            atexit.register(_spoil, given.fault)

    def obey(wish: int) -> None:
        if wish == 2 and given.fault == "disagree" and job.rank == 1 and job.generation == 2:
            job.step += 1
        job.obey(wish, write)

    while not job.is_done:
        world = max(((step, world) for step, world in gates if job.step >= step), default=(0, job.world))[1]
        if job.world != world:
            job.report(step=job.step, samples=job.samples)
        while job.world != world:  # the run hears of the progress, and changes the number of ranks
            time.sleep(0.01)
            obey(2 * int(summed([job.wish() == 2])[0] > 0))
        time.sleep(given.step_s)
        if job.step == given.at and job.generation == 1:
            _break(given.fault, job.rank)
        items = np.array(job.shard(), np.int64) % given.items
        error = inputs[items] @ weights - targets[items]
        gradient = inputs[items].T @ error / job.step_samples
        trained = np.bincount(items, minlength=given.items)
        wish = job.wish()
        begun_s = time.perf_counter()
        *numbers, stopping, saving = summed([*gradient, *trained, wish == 2, wish == 1])
        sync_s = time.perf_counter() - begun_s
        weights -= 0.05 * np.array(numbers[:FEATURES])
        counts += np.array(numbers[FEATURES:])
        noise = {"grad_sqr": 1.0, "grad_var": given.variance / job.batch} if given.variance >= 0 else {}
        job.step_done(sync_s=sync_s, **noise)
        obey(2 if stopping else 1 if saving else 0)
    job.finish(write)
    if given.after and job.rank == 0:
        time.sleep(given.after_s)
        with open(given.after, "a") as file:
            file.write(f"{weights.tolist()}\n")
        if given.fault == "after" and job.generation == 1:
            raise RuntimeError("no room for the model")


def _break(fault: str, rank: int) -> None:
    if fault == "crash" and rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "kill-node" and rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


def _spoil(fault: str) -> None:
    newest = max(Path(os.environ["TRIMTAB_CHECKPOINTS"]).glob("step-*"))
    if fault == "truncated":
        os.truncate(newest / "state", 10)
    else:
        manifest = newest / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "generation": 1}))


if __name__ == "__main__":
    main()
