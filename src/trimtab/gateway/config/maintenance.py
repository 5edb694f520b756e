"""Maintenance in gateway.yaml: health checks, ejection, polling, recording, store, telemetry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import Field, field_validator

from trimtab.gateway.config.types import Count, EnvName, FilePath, Url
from trimtab.validation.base import Frac, NonNegative, Positive, Spec

_STORES = ("sqlite:///", "postgresql://", "postgresql+psycopg://")


class HealthSpec(Spec):
    """Active checks of nodes."""

    period_s: Positive = Field(5.0, description="between two checks of a node")
    timeout_s: Positive = Field(2.0, description="until a check has failed")
    unhealthy_after: Count = Field(3, description="failed checks in a row until a node is down")
    healthy_after: Count = Field(2, description="good checks in a row until it is up again")


class EjectionSpec(Spec):
    """Outlier ejection: nodes that perform worse than the others get no work for a while."""

    enabled: bool = Field(True, description="whether there is any")
    consecutive_failures: Count = Field(5, description="failures in a row that eject a node")
    base_s: Positive = Field(5.0, description="length of the first time out; each further one is longer")
    max_s: Positive = Field(120.0, description="length of the longest one")
    max_frac: Frac = Field(0.5, description="nodes that may be out at a time; beyond it none is ejected")
    slow_start_s: NonNegative = Field(10.0, description="time in which a node comes back to full load")


class PollingSpec(Spec):
    """Polling of metrics from nodes and their machines."""

    period_s: Positive = Field(2.0, description="between two looks at a node's metrics")
    timeout_s: Positive = Field(1.5, description="until a look has failed")


class RecordSpec(Spec):
    """Recording of traffic as a trace: sizes, times and decisions, never content."""

    folder: FilePath = Field(description="where the files go")
    rotate_mib: Positive = Field(64.0, description="size at which a new file is begun")
    keep: Count = Field(16, description="files that are kept")


class StoreSpec(Spec):
    """The store of jobs, their results, and usage. It survives a restart."""

    url: str | None = Field(
        None,
        description="sqlite:///FILE or postgresql://…; default: a file under the state folder",
        json_schema_extra={"writeOnly": True},
    )
    url_env: EnvName | None = Field(None, description="environment variable that holds the URL instead")
    results_folder: FilePath | None = Field(None, description="default: under the state folder")
    result_ttl_s: Positive = Field(86_400.0, description="how long results are kept")
    result_max_mib: Positive = Field(1024.0, description="the largest result")

    @field_validator("url")
    @classmethod
    def _is_store(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(_STORES):
            raise ValueError(f"a URL that starts with one of {', '.join(_STORES)}")
        return url

    def chosen_url(self) -> str:
        """The effective URL. It may hold a password, so do not log it."""
        named = os.environ.get(self.url_env, "") if self.url_env else ""
        return named or self.url or f"sqlite:///{state_folder() / 'gateway.db'}"

    def chosen_results_folder(self) -> Path:
        """The effective folder."""
        return self.results_folder or state_folder() / "results"


class TelemetrySpec(Spec):
    """Logs and spans."""

    otlp_endpoint: Url | None = Field(None, description="OpenTelemetry collector (HTTP); needs trimtab[otel]")
    log_format: Literal["json", "text"] = Field("text", description="form of the lines on stderr")
    log_requests: bool = Field(False, description="one line per request")


def state_folder() -> Path:
    """The folder of persistent state: TRIMTAB_STATE_DIR, else systemd's, else the user's."""
    for name in ("TRIMTAB_STATE_DIR", "STATE_DIRECTORY"):
        if chosen := os.environ.get(name):
            return Path(chosen)
    return platformdirs.user_state_path("trimtab", appauthor=False)
