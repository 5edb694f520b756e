"""trimtab's federated estimates with Flower's FedAvg, all sites in this process.

python flower_app.py FOLDER_OF_SITES OUT.npy [ROUNDS]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg

SWEEPS, FIRST = 2, 200.0 / 256.0
KNOTS = 27  # of the one class, whose curve comes first


class SiteClient(NumPyClient):
    """A site that sweeps over its numbers by coordinate descent."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as data:
            self.square, self.beside, self.target, self.rows = (
                data[key] for key in ("square", "beside", "target", "rows")
            )

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict]:
        w = parameters[0].copy()
        for _ in range(SWEEPS):
            for j in np.flatnonzero(self.square > 0.0):
                pull = self.target[j]
                pull -= self.beside[j - 1] * w[j - 1] if j else 0.0
                pull -= self.beside[j] * w[j + 1] if j + 1 < len(w) else 0.0
                w[j] = max(0.0, pull / self.square[j])
        return [w], int(self.rows.sum()), {}


def learned(files: list[Path], rounds: int) -> np.ndarray:
    clients = [SiteClient(file) for file in files]
    w = np.zeros(len(clients[0].square))
    w[:KNOTS] = FIRST
    strategy = FedAvg(min_fit_clients=len(files), min_available_clients=len(files))
    for number in range(1, rounds + 1):
        results = []
        for client in clients:
            found, rows, metrics = client.fit([w], {})
            answer = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(found), rows, metrics)
            results.append((None, answer))
        combined, _ = strategy.aggregate_fit(number, results, [])
        assert combined is not None
        (w,) = parameters_to_ndarrays(combined)
    return w


if __name__ == "__main__":
    sites = sorted(Path(sys.argv[1]).glob("*.npz"))
    np.save(sys.argv[2], learned(sites, int(sys.argv[3]) if len(sys.argv) > 3 else 20))
