"""Durations by model and kind. They are noted one by one and counted in batches, which is much cheaper.

A line is one model and kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from trimtab.gateway.observe.metric_store import ERROR_BOUNDS, MetricStore
from trimtab.gateway.observe.window import Buckets, Second, buckets_of
from trimtab.gateway.stalled_streams import GAP_BOUNDS_S, StreamGaps
from trimtab.live.metric_family import DURATION_BOUNDS_S
from trimtab.metrics.run_records import FloatArray

MOST_NOTED: Final = 4096  # answers
_HISTOGRAMS: Final = (
    "trimtab_request_duration_seconds",
    "trimtab_queue_seconds",
    "trimtab_time_to_first_byte_seconds",
)


class _Histograms:
    """Counts by line and bucket; the last column is the sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = np.array(bounds)
        self.counts = np.zeros((0, len(bounds) + 2))  # [lines, buckets + 1]

    def grow(self, lines: int) -> None:
        missing = lines - len(self.counts)
        if missing > 0:
            self.counts = np.vstack([self.counts, np.zeros((missing, self.counts.shape[1]))])

    def add(self, line: FloatArray, values: FloatArray, weights: FloatArray | None = None) -> None:
        """Count values; `weights`: how often each of them."""
        rows, (lines, width) = line.astype(np.intp), self.counts.shape
        places = rows * width + np.searchsorted(self._bounds, values)
        self.counts += np.bincount(places, weights, lines * width).reshape(lines, width)
        self.counts[:, -1] += np.bincount(rows, values if weights is None else values * weights, lines)


class Timings:
    """The histograms of all lines of this process.

    When MOST_NOTED answers are noted, call `count`.
    """

    def __init__(self) -> None:
        self.n_noted = 0  # answers that are not counted yet
        self._noted: list[FloatArray] = []  # [columns, answers] each
        self._noted_gaps: list[tuple[int, StreamGaps]] = []  # likewise
        self._labels: list[tuple[str, str]] = []
        self._times = [_Histograms(DURATION_BOUNDS_S) for _ in _HISTOGRAMS]
        self._errors = _Histograms(ERROR_BOUNDS)
        self._gaps = _Histograms(GAP_BOUNDS_S)
        self._predicted_s = np.zeros(0)  # [lines]
        self._actual_s = np.zeros(0)

    def new_line(self, model: str, kind: str) -> int:
        """Add a line. Returns its position."""
        self._labels.append((model, kind))
        return len(self._labels) - 1

    def note(
        self,
        lines: Sequence[int],
        durations_s: FloatArray,
        waits_s: FloatArray,
        first_bytes_s: FloatArray,
        services_s: FloatArray,
        estimates_s: FloatArray,
        gaps: FloatArray,
        gaps_s: FloatArray,
    ) -> None:
        """Store durations of answers, each with its line, until `count`; -1 = no such duration.

        `gaps`: between the chunks of a stream, the number of those that `note_gaps` has not; `gaps_s`: their
        sum.
        """
        self.n_noted += len(lines)
        columns = (lines, durations_s, waits_s, first_bytes_s, services_s, estimates_s, gaps, gaps_s)
        self._noted.append(np.array(columns))

    def note_gaps(self, line: int, gaps: StreamGaps) -> None:
        """Store the gaps of an answer that were measured one by one, until `count`."""
        self._noted_gaps.append((line, gaps))

    def count(self, second: Second) -> None:
        """Count the noted durations in this second."""
        if not self._noted:
            return
        noted = np.hstack(self._noted).T
        self._noted.clear()
        self.n_noted = 0
        self._grow()
        line = noted[:, 0]
        for column, histograms in enumerate(self._times, start=1):
            there = noted[:, column] >= 0.0
            histograms.add(line[there], noted[there, column])
        self._count_errors(noted[noted[:, 4] > 0.0])
        streams = noted[noted[:, 6] > 0.0]
        self._gaps.add(streams[:, 0], streams[:, 7] / streams[:, 6], streams[:, 6])
        for of, gaps in self._noted_gaps:
            self._gaps.counts[of] += (*gaps.counts, gaps.sum_s)
        self._noted_gaps.clear()
        _count_window(second, noted)

    def _count_errors(self, noted: FloatArray) -> None:
        line, actual_s, predicted_s = noted[:, 0], noted[:, 4], noted[:, 5]
        self._errors.add(line, np.abs(actual_s - predicted_s) / actual_s)
        rows, lines = line.astype(np.intp), len(self._labels)
        self._predicted_s += np.bincount(rows, predicted_s, lines)
        self._actual_s += np.bincount(rows, actual_s, lines)

    def _grow(self) -> None:
        lines = len(self._labels)
        for histograms in (*self._times, self._errors, self._gaps):
            histograms.grow(lines)
        missing = lines - len(self._predicted_s)
        self._predicted_s = np.append(self._predicted_s, np.zeros(missing))
        self._actual_s = np.append(self._actual_s, np.zeros(missing))

    def write(self, store: MetricStore) -> None:
        """Write all counted lines to the store."""
        for name, histograms in zip(_HISTOGRAMS, self._times, strict=True):
            table = store.table(name)
            for labels, counts in zip(self._labels, histograms.counts.tolist(), strict=False):
                table[labels] = counts
        gaps = store.table("trimtab_inter_token_latency_seconds")
        for labels, counts in zip(self._labels, self._gaps.counts.tolist(), strict=False):
            if any(counts):
                gaps[labels] = counts
        for (model, kind), counts, predicted_s, actual_s in zip(
            self._labels,
            self._errors.counts.tolist(),
            self._predicted_s.tolist(),
            self._actual_s.tolist(),
            strict=False,
        ):
            class_name = (f"{model}/{kind}",)
            store.table("trimtab_prediction_error_ratio")[class_name] = counts
            store.table("trimtab_predicted_seconds_total")[class_name] = [predicted_s]
            store.table("trimtab_actual_seconds_total")[class_name] = [actual_s]


def _count_window(second: Second, noted: FloatArray) -> None:
    durations_s = noted[:, 1]
    second.timed += len(durations_s)
    second.sum_s += float(durations_s.sum())
    second.sum_s2 += float(np.square(durations_s).sum())
    queued_s = noted[noted[:, 2] >= 0.0, 2]
    second.queued += len(queued_s)
    second.queued_s += float(queued_s.sum())
    _fill(second.durations, durations_s)
    _fill(second.first_bytes, noted[noted[:, 3] >= 0.0, 3])


def _fill(buckets: Buckets, durations_s: FloatArray) -> None:
    found, counts = np.unique(buckets_of(durations_s), return_counts=True)
    for bucket, count in zip(found.tolist(), counts.tolist(), strict=True):
        buckets[bucket] = buckets.get(bucket, 0) + count
