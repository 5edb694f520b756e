"""The requests of one run: what policies see of them, and the truth that only the host knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TRUTH = np.dtype([("units", "f8"), ("factor", "f8")], align=True)  # work units; hidden factor on service time


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival.

    `work` is a WORK array (see `trimtab.domain.view`), `truth` a TRUTH array of the same length. Service
    takes (fixed_s + unit_s · truth.units) · truth.factor seconds, whatever the policy was told.
    """

    work: NDArray[np.void]  # WORK [requests]
    truth: NDArray[np.void]  # TRUTH [requests]
    tenant_names: tuple[str, ...] = ("default",)

    def __len__(self) -> int:
        return len(self.work)
