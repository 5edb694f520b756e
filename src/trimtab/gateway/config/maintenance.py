"""Maintenance in gateway.yaml: health checks, ejection, polling, recording, store, telemetry."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import Field, ValidationInfo, field_validator

from trimtab.gateway.config.types import Count, EnvName, FilePath, Url
from trimtab.traces.gateway_format import Redaction
from trimtab.validation.base import Frac, NonNegative, Positive, Spec

_STORES = ("sqlite:///", "postgresql://", "postgresql+psycopg://")


class HealthSpec(Spec):
    """Active checks of nodes."""

    period_s: Positive = Field(5.0, description="seconds between two checks of a node")
    timeout_s: Positive = Field(2.0, description="time after which a check fails")
    unhealthy_threshold: Count = Field(3, description="consecutive failed checks that make a node unhealthy")
    healthy_threshold: Count = Field(2, description="consecutive passed checks that make it healthy again")


class EjectionSpec(Spec):
    """Outlier ejection: nodes that perform worse than the others get no work for a while."""

    enabled: bool = Field(True, description="eject nodes")
    consecutive_failures: Count = Field(5, description="consecutive failed requests that eject a node")
    base_ejection_s: Positive = Field(
        5.0, description="length of the first ejection; each further one is longer"
    )
    max_ejection_s: Positive = Field(120.0, description="length of the longest ejection")
    max_ejected_frac: Frac = Field(0.5, description="largest fraction of nodes ejected at a time")
    slow_start_s: NonNegative = Field(
        10.0, description="time in which a returning node gets back to its full share"
    )


class PollingSpec(Spec):
    """Polling of metrics from nodes and their machines."""

    period_s: Positive = Field(2.0, description="seconds between two reads of a node's metrics")
    timeout_s: Positive = Field(1.5, description="time after which a read fails")


class RecordSpec(Spec):
    """Recording of traffic as a trace: sizes, times and decisions, never content."""

    folder: FilePath = Field(description="folder of the files")
    redact: Redaction = Field(
        "pseudonyms",
        description="none: tenants by name; pseudonyms; coarse: times and sizes rounded too; "
        "unlinked: without tenants, sessions and prompts' prefixes too",
    )
    rotate_mib: Positive = Field(64.0, description="size at which a new file starts")
    max_files: Count | None = Field(
        None,
        description="files to keep, the oldest are deleted; default: 16; none beside keep_days or keep_gib",
    )
    keep_days: Positive | None = Field(
        None, description="days after which requests are deleted, by whole files"
    )
    keep_gib: Positive | None = Field(
        None, description="size of all files, beyond which the oldest are deleted"
    )

    @field_validator("keep_gib")
    @classmethod
    def _holds_a_file(cls, keep_gib: float | None, info: ValidationInfo) -> float | None:
        least_gib = info.data.get("rotate_mib", 0.0) / 1024.0
        if keep_gib is not None and keep_gib < 2.0 * least_gib:
            raise ValueError(
                f"at least {2.0 * least_gib:g}, two files of rotate_mib, or a smaller rotate_mib"
            )
        return keep_gib


class StoreSpec(Spec):
    """The store of jobs, their results, and usage. It survives a restart."""

    url: str | None = Field(
        None,
        description="sqlite:///FILE or postgresql://…; default: a file in the state folder",
        json_schema_extra={"writeOnly": True},
    )
    url_env: EnvName | None = Field(None, description="environment variable that holds the URL instead")
    results_folder: FilePath | None = Field(
        None, description="folder of results; default: results in the state folder"
    )
    result_ttl_s: Positive = Field(86_400.0, description="time to keep results")
    result_max_mib: Positive = Field(1024.0, description="largest result")

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


class BatchesSpec(Spec):
    """Files of clients and batches of requests (/v1/files, /v1/batches)."""

    max_file_mib: Positive = Field(100.0, description="largest file that clients may upload")
    max_lines: Count = Field(50_000, description="requests of one batch")
    concurrency: Count = Field(16, description="requests of one batch that run at a time")
    file_ttl_s: Positive = Field(30 * 86_400.0, description="time to keep files, and batches")


class TelemetrySpec(Spec):
    """Logs and spans."""

    otlp_endpoint: Url | None = Field(None, description="OpenTelemetry collector (HTTP); needs trimtab[otel]")
    log_format: Literal["json", "text"] = Field("text", description="format of log lines on stderr")
    log_requests: bool = Field(False, description="log one line per request")


def state_folder() -> Path:
    """The folder of persistent state: TRIMTAB_STATE_DIR, else systemd's, else the user's."""
    for name in ("TRIMTAB_STATE_DIR", "STATE_DIRECTORY"):
        if chosen := os.environ.get(name):
            return Path(chosen)
    return platformdirs.user_state_path("trimtab", appauthor=False)
