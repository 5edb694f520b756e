"""Slurm's own programs, which find slurm.conf and prove who calls them. `--json` needs 21.08 or later."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from trimtab.errors import ClusterLost, UsageError

Json = Mapping[str, Any]
TIMEOUT_S: Final = 60.0  # Slurm's programs try for 10 to 30 s themselves
_NO_CLUSTER: Final = (  # what they say if slurmctld or munge is gone, or slurm.conf
    "unable to contact slurm controller", "connection refused", "timed out", "connect failure", "munge",
    "authentication", "configuration file", "configuration source", "communication", "failed to fetch config",
)  # fmt: skip


def read_json(program: str, *arguments: str) -> Json:
    """What `squeue --json` or `sinfo --json` says.

    Raises ClusterLost where the cluster does not answer, UsageError where the program is missing or has no
    JSON.
    """
    code, out, problem = call(program, "--json", *arguments)
    if "unrecognized option" in problem or "JSON" in problem:
        expected = "Slurm 21.08 or later, with the plugin serializer_json"
        raise UsageError("has no --json", field=program, value=problem, expected=expected)
    try:
        found: Json = json.loads(out)
    except ValueError:
        found = {}
    # Without slurmctld they print empty lists, end with 0, and tell it here only.
    told = [str(e.get("description") or e.get("error")) for e in found.get("errors") or ()]
    if code or told or not found:
        raise ClusterLost(f"{program}: {problem or '; '.join(told) or 'no answer'}")
    return found


def change(*command: str) -> str:
    """Change something in the cluster; returns what Slurm objects, "" = done. Raises ClusterLost."""
    code, _, problem = call(*command)
    if not code:
        return ""
    if any(text in problem.lower() for text in _NO_CLUSTER):
        raise ClusterLost(f"{command[0]}: {problem}")
    return problem or f"{command[0]} ended with code {code}"


def output(*command: str) -> str:
    """What a program prints. Raises ClusterLost where it fails."""
    code, out, problem = call(*command)
    if code:
        raise ClusterLost(f"{command[0]}: {problem or f'ended with code {code}'}")
    return out


def call(*command: str, data: str = "", env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, output, and what went wrong in one line.

    Raises UsageError where the program is not installed.
    """
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, text=True, timeout=TIMEOUT_S, env=env, errors="replace"
        )
    except FileNotFoundError as error:
        expected = "Slurm's programs on this machine (Debian: slurm-client)"
        raise UsageError("is not installed", field=command[0], expected=expected) from error
    except subprocess.TimeoutExpired:
        return 1, "", f"timed out after {TIMEOUT_S:g} s"
    lines = [line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip()]
    munge = [line for line in lines if "Munge" in line]  # the cause, among lines that follow from it
    return done.returncode, done.stdout, (munge or lines or [""])[0].strip()
