"""Python processes that do for us what would make the loop late."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

LEAST_PRIORITY = 19  # behind everything that serves


class ChildError(RuntimeError):
    """It failed; the message is the last line it wrote to standard error, or its exit code."""


async def said_by(*arguments: str, timeout_s: float, priority: int = 0) -> bytes:
    """What `python ARGUMENTS…` prints; `priority` is its nice value.

    Raises:
        ChildError: it ended with another exit code than 0.
        TimeoutError: it took too long and was killed.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    if priority:
        with contextlib.suppress(OSError):  # it has ended, or may not
            os.setpriority(os.PRIO_PROCESS, process.pid, priority)
    try:
        async with asyncio.timeout(timeout_s):
            said, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = complaint.decode(errors="replace").strip().splitlines()
        raise ChildError(lines[-1] if lines else f"exit code {process.returncode}")
    return said
