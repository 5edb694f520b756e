"""Compiles what a comparison needs, once and before there are workers."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.domain.kernel import is_compiled
from trimtab.experiments.bounds import compile_bounds
from trimtab.experiments.machine import cores
from trimtab.mechanics.calls import compile_all, compile_policies
from trimtab.mechanics.loop import advance
from trimtab.policies import PolicySpec, find


def compile_kernels(specs: Sequence[PolicySpec]) -> None:
    """Compile the loop, the bounds and these policies, or load them from the cache.

    The loop takes longer than all else together: where it is not cached, another process does the rest
    meanwhile, and leaves it in the cache.
    """
    if is_compiled(advance) or cores() == 1:
        compile_all([])
        compile_rest(specs)
        return
    from loky import ProcessPoolExecutor

    executor = ProcessPoolExecutor(max_workers=1)
    try:
        rest = executor.submit(compile_rest, [spec for spec in specs if isinstance(spec, str)])
        compile_all([])
        rest.result()
    finally:
        executor.shutdown(wait=True, kill_workers=True)
    compile_rest(specs)


def compile_rest(specs: Sequence[PolicySpec]) -> None:
    """All but the loop. Raises PolicyError where a policy does not compile."""
    compile_policies(policy for spec in specs for policy in find(spec))
    compile_bounds()
