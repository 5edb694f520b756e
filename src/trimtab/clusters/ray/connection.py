"""Ray as this process uses it: a cluster of its own, or one at an address that was given."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray

from trimtab import errors
from trimtab.errors import UsageError

logger = logging.getLogger(__name__)

_AUTH_MODE: Final = "RAY_AUTH_MODE"
_lock = threading.Lock()
_users = 0  # of the connection that this module made


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the cluster."""

    name: str
    id: str  # of the Ray node
    resources: Mapping[str, float]  # in Ray's names
    labels: Mapping[str, str]
    address: str = ""  # where other machines reach it


def connect(
    address: str | None, *, num_cpus: float | None, dashboard: bool, options: Mapping[str, Any]
) -> bool:
    """Use Ray. True if this made the connection, or shares the one that was made so; then call `disconnect`.

    Without an address a cluster of its own starts, and no other one is looked for. A connection that the
    user's program made is used as it is. Raises UsageError.
    """
    global _users
    with _lock:
        if _users or not ray.is_initialized():
            if not _users:
                _begin(address, num_cpus, dashboard, options)
            _users += 1
            return True
    return False


def disconnect() -> None:
    """The connection is needed no more by one who made or shared it."""
    global _users
    with _lock:
        _users -= 1
        if not _users:
            ray.shutdown()


def _begin(address: str | None, num_cpus: float | None, dashboard: bool, options: Mapping[str, Any]) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # hides no GPU; without it Ray warns
    given = {"logging_level": logging.ERROR, "log_to_driver": False, "namespace": "trimtab", **options}
    if address is None:
        given = {"num_cpus": num_cpus, "include_dashboard": dashboard, **given}
    else:
        _use_token()
    _log_raylet()
    try:
        ray.init(address="local" if address is None else address, **given)
    except Exception as error:  # Ray raises many kinds
        raise UsageError(
            f"Ray does not {'start' if address is None else 'answer'}: {error}",
            field="on",
            value=address or "ray",
            expected="" if address is None else _expected(),
        ) from error


def _use_token() -> None:
    """Send the token of this machine, if it has one: Ray's own client does so only where it is told."""
    with contextlib.suppress(ImportError, AttributeError):  # an older Ray, which asks for none
        from ray._private.authentication import authentication_token_setup as setup

        level = setup.logger.level
        setup.logger.setLevel(logging.ERROR)  # what it warns of is for who starts a cluster
        try:
            setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        finally:
            setup.logger.setLevel(level)


def _expected() -> str:
    """What a cluster that does not answer may want."""
    if os.environ.get(_AUTH_MODE, "").lower() == "token":
        return "a cluster at this address that has this token (RAY_AUTH_TOKEN, or ~/.ray/auth_token)"
    return (
        f"a cluster at this address; if it asks for a token, as those of `ray start` do: {_AUTH_MODE}=token,"
        " and the token of its head (`ray get-auth-token` prints it) in RAY_AUTH_TOKEN or ~/.ray/auth_token"
    )


def _log_raylet() -> None:
    """Have what Ray tells of its own processes logged: it would print paragraphs to standard output."""
    worker = ray._private.worker
    shown = getattr(worker, "print_to_stdstream", None)
    if shown is None or getattr(shown, "by_trimtab", False):
        return

    def told(data: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        if data.get("pid") == "raylet" and _users:
            logger.info("Ray: %s", "\n".join(data["lines"]))
        else:
            shown(data, *args, **kwargs)

    told.by_trimtab = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = told


def shipped_env(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of workers on a cluster that was joined: this package goes along."""
    modules = [*runtime_env.get("py_modules", ()), str(Path(errors.__file__).parent)]
    return {**runtime_env, "py_modules": modules}


def machines() -> list[Machine]:
    """The machines that are alive."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    names = [node.get("NodeName") or node["NodeManagerHostname"] for node in alive]
    return [
        Machine(
            name if names.count(name) == 1 else f"{name}-{node['NodeID'][:8]}",
            node["NodeID"],
            node["Resources"],
            node.get("Labels") or {},
            node["NodeManagerAddress"],
        )
        for name, node in zip(names, alive, strict=True)
    ]


def head_address() -> tuple[str, int] | None:
    """Where the head of the cluster answers; None where it is not known, as through Ray's client."""
    try:
        host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
        return host.strip("[]"), int(port)
    except Exception:  # Ray's client raises many kinds
        return None


def own_machine_id() -> str:
    """The Ray node that this process is connected to."""
    found: str = ray.get_runtime_context().get_node_id()
    return found
