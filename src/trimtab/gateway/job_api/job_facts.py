"""The facts of a request as parameters of its job, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from trimtab.gateway.model import Facts
from trimtab.jobs import Job

METHOD = "POST"  # of every request that can become a job
VIDEOS = "/v1/videos"  # where videos are made, in OpenAI's API and at nodes that have it

_NAMES = [field.name for field in fields(Facts)]


def parameters_of(facts: Facts) -> dict[str, Any]:
    """The sizes of a request, never its text."""
    return {name: getattr(facts, name) for name in _NAMES}


def facts_of(job: Job) -> Facts:
    """The facts that `parameters_of` has written, possibly in another version."""
    known = {name: job.parameters[name] for name in _NAMES if name in job.parameters}
    known["prefix_blocks"] = tuple(known.get("prefix_blocks", ()))
    return Facts(**known)
