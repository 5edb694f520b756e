"""A job whose step takes a stated time: for demonstrations and tests. Standard library only.

python -m trimtab.training.runner.paced_job --step-s 0.01 --sample-s 0.002
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from trimtab.training.elastic import ElasticJob
from trimtab.training.runner.tcp_sum import TcpSum


def main() -> None:
    """Sleep through the samples of a job."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--step-s", type=float, default=0.01, help="seconds of each step")
    options.add_argument("--sample-s", type=float, default=0.002, help="seconds of each sample of a rank")
    options.add_argument("--samples", type=int, default=1000, help="samples in all, without a run")
    pace = options.parse_args()
    job, summed = ElasticJob(pace.samples, batch=32), TcpSum()
    due_s = time.perf_counter()
    while not job.is_done:
        due_s += pace.step_s + pace.sample_s * -(-job.step_samples // job.world)
        time.sleep(max(0.0, due_s - time.perf_counter()))
        begun_s = time.perf_counter()
        stopping, saving = summed((job.wish() == 2, job.wish() == 1))
        job.step_done(sync_s=time.perf_counter() - begun_s)
        job.obey(2 if stopping else 1 if saving else 0, lambda folder: _write(folder, job))
    job.finish(lambda folder: _write(folder, job))


def _write(folder: Path, job: ElasticJob) -> None:
    (folder / "state").write_text(f"{job.samples}\n")


if __name__ == "__main__":
    main()
