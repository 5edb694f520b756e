"""TrainingJob objects, against a server in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.kubernetes.server_in_memory import ServerInMemory
from trimtab.clusters.kube.api import KubeApi
from trimtab.clusters.kube.job_objects import TrainingJobs
from trimtab.clusters.kube.worker_pods import PodSettings
from trimtab.training.runner.job_list import JobSpec


def training_job(name: str, **spec: Any) -> dict[str, Any]:
    named = {"name": name, "uid": f"{name}-uid"}
    return {"metadata": named, "spec": {"command": ["true"], "samples": 64, "batch": 8, **spec}}


def test_a_refusal_is_written_though_the_server_was_gone_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerInMemory(
        jobs=[
            training_job("odd", gpus=2, gpus_min=3),
            training_job("imaged", image="other:1"),
            training_job("huge", gpus=4),
        ]
    )
    server.loses = 1

    async def connect(*_: object) -> ServerInMemory:
        return server

    monkeypatch.setattr(KubeApi, "connect", connect)
    objects = TrainingJobs(PodSettings(image="none"), tmp_path, has_lease=False)
    objects.start()
    try:
        found = objects.next_run()
        assert isinstance(found, JobSpec)
        assert found.gpus == 4
        told = server.job_status("odd")
        assert (told["phase"], "gpus_min: cannot be used" in told["message"]) == ("rejected", True)
        assert "image: unknown key" in server.job_status("imaged")["message"]
        objects.reject(found.id, "too many")
        assert server.job_status("huge") == {"phase": "rejected", "message": "too many"}
    finally:
        objects.stop()
