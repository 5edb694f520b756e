"""Compiles the kernels of runs: in parallel processes and with progress, unless the cache has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from trimtab.compiled.compiling import is_compiled
from trimtab.compiled.parallel import Job, Notice, compile_apart
from trimtab.domain.policy import Policy
from trimtab.engine.calls import compile_all, compile_engines, compile_policies, is_ready, kernels_of
from trimtab.policies import PolicySpec, find, names

AT_ONCE = 4  # policies compiled in one job


def compile_kernels(
    specs: Sequence[PolicySpec], notice: Notice | None = None, others: Sequence[Job] = ()
) -> None:
    """Compile the loop and these policies, or load them from the cache. Raises PolicyError.

    If the loop must be compiled, the jobs `others` run beside it.
    """
    cold = [spec for spec in specs if isinstance(spec, str) and not _are_compiled(find(spec))]
    if not is_ready():
        compile_apart([compile_loop, *_policy_jobs(cold), *others], notice)
    elif cold and notice is not None:
        notice("compiling policies, once on this machine")
    compile_all(policy for spec in specs for policy in find(spec))


def compile_everything(others: Sequence[Job], notice: Notice | None = None) -> None:
    """Compile the loop, engines and all policies into the cache, and run the jobs `others`."""
    specs = [*names("dispatch"), *(f"random+{name}" for name in names("order"))]
    cold = [spec for spec in specs if not _are_compiled(find(spec))]
    compile_apart([compile_loop, compile_engines, *_policy_jobs(cold), *others], notice)


def compile_loop() -> None:
    """Compile the loop, the slowest kernel."""
    compile_all([])


def _policy_jobs(specs: Sequence[str]) -> list[Job]:
    """Policies to compile per process: composites, with more kernels, alone and first; others in groups."""
    alone = [spec for spec in specs if any(policy.candidates for policy in find(spec))]
    others = [spec for spec in specs if spec not in alone]
    chunks = [[spec] for spec in alone]
    chunks += [others[k : k + AT_ONCE] for k in range(0, len(others), AT_ONCE)]
    return [partial(_compile_named, chunk) for chunk in chunks]


def _are_compiled(policies: Iterable[Policy]) -> bool:
    return all(is_compiled(*kernel) for kernel in kernels_of(policies))


def _compile_named(specs: Sequence[str]) -> None:
    compile_policies(policy for spec in specs for policy in find(spec))
