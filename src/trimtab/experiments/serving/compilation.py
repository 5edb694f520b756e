"""Compiles what a comparison needs, once and before there are workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trimtab.compiled.kernel import is_compiled
from trimtab.engine.calls import advance_bound, compile_all, compile_policies
from trimtab.experiments.bounds import compile_bounds
from trimtab.experiments.compare.machine import cores
from trimtab.policies import PolicySpec, find, names

AT_ONCE = 8  # policies compiled in one job


def compile_kernels(specs: Sequence[PolicySpec]) -> None:
    """Compile the loop, the bounds and these policies, or load them from the cache."""
    if not is_compiled(advance_bound):
        compile_apart([compile_loop, partial(_compile_named, [s for s in specs if isinstance(s, str)])])
    compile_loop()
    _compile_named(specs)
    compile_bounds()


def compile_everything(others: Sequence[Callable[[], None]]) -> None:
    """Compile the loop, the bounds and all policies into the cache, and what `others` compile."""
    specs = [*names("dispatch"), *(f"random+{name}" for name in names("order"))]
    parts = [partial(_compile_named, specs[k : k + AT_ONCE]) for k in range(0, len(specs), AT_ONCE)]
    compile_apart([compile_loop, *others, compile_bounds, *parts])


def compile_apart(jobs: Sequence[Callable[[], None]]) -> None:
    """Do these jobs, in as many processes as there are cores: what they compile is in the cache then."""
    workers = min(cores(), len(jobs))
    if workers == 1:
        for job in jobs:
            job()
        return
    from loky import ProcessPoolExecutor

    executor = ProcessPoolExecutor(max_workers=workers)
    try:
        for future in [executor.submit(job) for job in jobs]:
            future.result()
    finally:
        executor.shutdown(wait=True, kill_workers=True)


def compile_loop() -> None:
    """Compile the loop, which takes longest. Raises PolicyError."""
    compile_all([])


def _compile_named(specs: Sequence[PolicySpec]) -> None:
    compile_policies(policy for spec in specs for policy in find(spec))
