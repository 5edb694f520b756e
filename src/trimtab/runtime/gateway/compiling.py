"""Compiling policies in a process of their own, while the gateway serves."""

from __future__ import annotations

from trimtab.domain.errors import UsageError
from trimtab.runtime.gateway.children import ChildError, said_by

COMPILE_TIMEOUT_S = 300.0


async def compile_elsewhere(policies: list[str]) -> None:
    """Fill the cache of kernels from another process: compiling here would make the loop late.

    Raises UsageError where a policy does not compile.
    """
    try:
        await said_by("-c", _COMPILE, *policies, timeout_s=COMPILE_TIMEOUT_S)
    except ChildError as error:
        raise UsageError(f"does not compile: {error}", field="policy") from None


_COMPILE = """
import sys
from trimtab.mechanics.calls import compile_all
from trimtab.mechanics.fallback import Fallback
from trimtab.policies.catalogue import find
compile_all([Fallback(), *(policy for spec in sys.argv[1:] for policy in find(spec))])
"""
