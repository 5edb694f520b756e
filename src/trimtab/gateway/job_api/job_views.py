"""Jobs as clients see them: the gateway's own form, and the video of OpenAI's API."""

from __future__ import annotations

from typing import Any

import orjson

from trimtab.gateway.api.json_scan import JsonScan
from trimtab.gateway.api.multipart import MultipartScan, boundary_of
from trimtab.jobs import Job, JobState

_DEFAULTS = {"seconds": "4", "size": "720x1280"}  # of OpenAI's API
_MAX_TEXT = 64
_VIDEO_STATUS = {JobState.QUEUED: "queued", JobState.DISPATCHED: "in_progress", JobState.DONE: "completed"}


def job_view(job: Job, position: int | None = None, progress: Any = None) -> dict[str, Any]:
    """The gateway's own form. Times are whole seconds since 1970. `progress`: of the run of a chain."""
    done = job.state is JobState.DONE
    return {
        **({} if progress is None else {"progress": progress}),
        "id": job.id,
        "object": "job",
        "status": job.state.value,
        "model": job.queue,
        "kind": job.kind,
        "position": position,
        "created_at": int(job.created_s),
        "dispatched_at": _whole(job.dispatched_s),
        "ended_at": _whole(job.ended_s),
        "expires_at": _whole(job.expires_s) if done else None,
        "error": _error(job),
        "note": _note(job),
        "result": _result(job) if done else None,
    }


def video_view(job: Job) -> dict[str, Any]:
    """OpenAI's form, which knows no cancelled or lost videos: they have failed."""
    done = job.state is JobState.DONE
    return {
        "id": job.id,
        "object": "video",
        "status": _VIDEO_STATUS.get(job.state, "failed"),
        "progress": 100 if done else 0,
        "model": job.queue,
        "created_at": int(job.created_s),
        "completed_at": _whole(job.ended_s) if done else None,
        "expires_at": _whole(job.expires_s) if done else None,
        "error": _error(job),
        "remixed_from_video_id": None,
        **(_DEFAULTS | job.labels),
    }


class VideoFields:
    """Reads what a request for a video says of its length and size, and nothing of what it shows."""

    def __init__(self, content_type: str) -> None:
        boundary = boundary_of(content_type)
        self._scan = (
            JsonScan(dict.fromkeys(_DEFAULTS, _MAX_TEXT)) if boundary is None else MultipartScan(boundary)
        )

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the body."""
        self._scan.feed(chunk)

    def found(self) -> dict[str, str]:
        """The fields of the request, as text."""
        scan = self._scan
        if isinstance(scan, MultipartScan):
            fields = {part.name: part.text for part in scan.parts if part.name in _DEFAULTS}
        else:
            fields = {name: _text(scan.raw(name)) for name in _DEFAULTS}
        return {name: value[:_MAX_TEXT] for name, value in fields.items() if value}


def _text(raw: bytes | None) -> str:
    try:
        value = orjson.loads(raw or b"null")
    except ValueError:
        return ""
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _note(job: Job) -> str | None:
    """A remark on a job that has ended well."""
    return job.error if job.error and not job.error_code else None


def _error(job: Job) -> dict[str, str] | None:
    return {"code": job.error_code, "message": job.error} if job.error_code else None


def _result(job: Job) -> dict[str, Any]:
    return {"url": f"/v1/jobs/{job.id}/result", "bytes": job.result_bytes, "content_type": job.result_type}


def _whole(time_s: float | None) -> int | None:
    return None if time_s is None else int(time_s)
