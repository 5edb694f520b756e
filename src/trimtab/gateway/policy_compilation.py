"""Compiles policies in a separate process: at a first start, and while the gateway serves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from typing import Final

from trimtab.engine.calls import is_ready
from trimtab.engine.compilation import compile_kernels
from trimtab.engine.fallback import Fallback
from trimtab.errors import UsageError
from trimtab.policies.catalogue import find

COMPILE_TIMEOUT_S = 300.0


def compile_here(policies: Iterable[str]) -> None:
    """Compile all kernels of a gateway with these policies, or load cached ones. Raises PolicyError.

    Prints a line of progress now and then if the loop must be compiled.
    """
    compile_kernels([Fallback(), *policies], notice=partial(print, "trimtab:", flush=True))


def compile_first(policies: list[str], *, quiet: bool) -> None:
    """Fill the kernel cache in another process, because the compiler would leave much memory in use here.

    Progress goes to stderr. Kernels that do not compile are reported when they are loaded.
    """
    if not is_ready(Fallback()) or not all(is_ready(*find(spec)) for spec in policies):
        null = subprocess.DEVNULL
        shown = null if quiet else sys.stderr
        subprocess.run(
            [sys.executable, "-c", _COMPILE, *policies], stdin=null, stdout=shown, stderr=null, check=False
        )


async def compile_elsewhere(policies: list[str]) -> None:
    """Fill the kernel cache in another process, because compilation here would delay the event loop.

    Raises UsageError if a policy does not compile.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _COMPILE,
        *policies,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(COMPILE_TIMEOUT_S):
            _, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = complaint.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit code {process.returncode}"
        raise UsageError(f"does not compile: {reason}", field="policy")


_COMPILE: Final = f"import sys; from {__name__} import compile_here; compile_here(sys.argv[1:])"
