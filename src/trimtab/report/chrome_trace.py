"""A recorded run of a chain as trace events, which Perfetto and Chrome's tracing show.

Format: "Trace Event Format" (Google, JSON object format). Times are microseconds since the run began. A node
is a process, a worker a thread; arrows lead from a stage to those that read its output.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.chains.run_timeline import RunTimeline, StageRun

US = 1e6
JITTER_S = 0.005  # overlap of two attempts of a worker up to which the host only learned late of an end
MOST_ARROWS = 50  # that lead to an instance: those from its last inputs
ENDS_TID = 0  # the track of a node for attempts without a result

Event = dict[str, Any]
Track = tuple[int, int]  # process and thread


def chrome_trace(timeline: RunTimeline) -> dict[str, Any]:
    """The trace as JSON."""
    nodes = sorted({run.node for run in timeline.runs} | {a.node for a in timeline.open_attempts})
    pids = {node: k + 1 for k, node in enumerate(nodes)}
    tracks, begin_s, names = _tracks(timeline, pids)
    events = [_meta("process_name", pid, 0, name=node) for node, pid in pids.items()]
    events += [_meta("thread_name", *track, name=name) for track, name in names.items()]
    for row, track in enumerate(tracks):
        events += _slices(timeline, row, track, begin_s[row])
    events += _arrows(timeline, tracks, begin_s)
    events += _unfinished(timeline, pids)
    record = timeline.record
    about = {"run": record.id, "chain": record.chain, "state": record.state, "tenant": record.tenant}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _meta(kind: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _tracks(timeline: RunTimeline, pids: dict[str, int]) -> tuple[list[Track], list[float], dict[Track, str]]:
    """For each instance its track and when it begins there; and the names of tracks.

    The slices of a track lie one after the other. Calls of a batch share a worker and get several.
    """
    tracks: list[Track] = [(0, 0)] * len(timeline.runs)
    begin_s = [run.start_s for run in timeline.runs]
    names = {(pid, ENDS_TID): "attempts without a result" for pid in pids.values()}
    lanes: defaultdict[tuple[str, str], list[tuple[Track, float]]] = defaultdict(list)  # and when it is free
    for row in sorted(range(len(timeline.runs)), key=lambda row: timeline.runs[row].start_s):
        run = timeline.runs[row]
        own, pid = lanes[run.node, run.worker], pids[run.node]
        free = (k for k, (_, end_s) in enumerate(own) if end_s <= run.start_s + _tolerance_s(run))
        lane = next(free, len(own))
        if lane == len(own):
            track = pid, sum(p == pid for p, _ in names)
            names[track] = f"worker {run.worker}" + (f" ({lane + 1})" if lane else "")
            own.append((track, 0.0))
        tracks[row], begin_s[row] = own[lane][0], max(run.start_s, own[lane][1])
        own[lane] = tracks[row], run.finish_s
    return tracks, begin_s, names


def _tolerance_s(run: StageRun) -> float:
    return min(JITTER_S, 0.5 * (run.finish_s - run.start_s))


def _slices(timeline: RunTimeline, row: int, track: Track, begin_s: float) -> list[Event]:
    """An instance on its worker; loading is a part of it."""
    run = timeline.runs[row]
    stage = timeline.stages[run.stage].name
    args = {
        "input": run.number,
        "instance": run.instance,
        "attempts": run.attempts,
        "output_bytes": run.bytes,
        **{f"{reason}_s": round(spent_s, 6) for reason, spent_s in run.waits_s.items()},
    }
    found = [_slice(stage, "stage", track, begin_s, run.finish_s, args)]
    if run.service_start_s - begin_s > 1e-4:
        found.append(_slice(f"load {stage}", "loading", track, begin_s, run.service_start_s, {}))
    return found


def _slice(name: str, kind: str, track: Track, start_s: float, end_s: float, args: Any) -> Event:
    ts = round(start_s * US, 3)
    dur = round(round(end_s * US, 3) - ts, 3)
    where = {"pid": track[0], "tid": track[1]}
    return {"ph": "X", "name": name, "cat": kind, **where, "ts": ts, "dur": dur, "args": args}


def _arrows(timeline: RunTimeline, tracks: list[Track], begin_s: list[float]) -> list[Event]:
    """From each output to those that read it. Each end lies within its slice."""
    found: list[Event] = []
    for row, read in enumerate(timeline.inputs_of()):
        latest = sorted(read, key=lambda source: timeline.runs[source].finish_s)[-MOST_ARROWS:]
        for source in latest:
            id_, end_s = len(found) // 2 + 1, timeline.runs[source].finish_s
            out_s = max(0.5 * (begin_s[source] + end_s), end_s - 1.0 / US)
            found.append(_flow("s", id_, tracks[source], out_s))
            found.append(_flow("f", id_, tracks[row], max(out_s, begin_s[row])) | {"bp": "e"})
    return found


def _flow(phase: str, id_: int, track: Track, at_s: float) -> Event:
    where = {"pid": track[0], "tid": track[1]}
    return {"ph": phase, "name": "output", "cat": "output", "id": id_, **where, "ts": round(at_s * US, 3)}


def _unfinished(timeline: RunTimeline, pids: dict[str, int]) -> list[Event]:
    """Marks where attempts began that have no result."""
    return [
        {
            "ph": "i",
            "s": "t",
            "name": f"{a.stage}[{a.instance}] attempt {a.attempt}"
            + (" runs" if a in timeline.running else " without a result"),
            "cat": "attempt",
            "pid": pids[a.node],
            "tid": ENDS_TID,
            "ts": round(max(0.0, a.started_s - timeline.record.created_s) * US, 3),
            "args": {"input": a.number},
        }
        for a in timeline.open_attempts
    ]
