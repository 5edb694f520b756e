"""Plain calls as tasks of Ray: each once, in any order, wherever there is a free CPU."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import cloudpickle
import ray
from ray.exceptions import RayTaskError

from trimtab.clusters.ray import connection

LOSSES: Final = 3  # times that Ray begins a call anew after its worker or machine was lost
POLL_S: Final = 0.2  # how soon an interruption is noticed


def run_calls(
    address: str | None, function: Callable[[Any], Any], given: Sequence[Any], at_once: int | None = None
) -> Iterator[tuple[int, Any]]:
    """The position and the result of each call, as they end.

    Args:
        address: of a cluster to join; None = one of its own on this machine.
        at_once: how many calls run at a time; default: one for each CPU of the cluster.

    Raises what a call raises. All that still runs is stopped when the iteration ends.
    """
    options = {} if address is None else {"runtime_env": connection.shipped_env({})}
    is_shared = connection.connect(address, num_cpus=at_once, dashboard=True, options=options)
    running: dict[Any, int] = {}
    try:
        limit = at_once or max(1, int(ray.cluster_resources().get("CPU", 1.0)))
        task = ray.remote(_called).options(max_retries=LOSSES, retry_exceptions=False)
        paths = [] if address is not None else sys.path
        waiting = iter(enumerate(given))
        while True:
            for k, value in islice(waiting, limit - len(running)):
                running[task.remote(cloudpickle.dumps((function, value), 5), paths)] = k
            if not running:
                return
            for ended in ray.wait(list(running), timeout=POLL_S)[0]:
                yield running.pop(ended), _result(ended)
    finally:
        for left in running:
            ray.cancel(left, force=True)
        if is_shared:
            connection.disconnect()


def _called(data: bytes, paths: Sequence[str]) -> Any:
    sys.path += [path for path in paths if path not in sys.path]
    function, value = pickle.loads(data)
    return function(value)


def _result(ended: Any) -> Any:
    try:
        return ray.get(ended)
    except RayTaskError as error:
        raise error.cause from None
