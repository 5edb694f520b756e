"""`trimtab serve`: the gateway, which routes requests to real backends by a policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.option_groups import examples
from trimtab.cli.output import note, print_json
from trimtab.cli.shared_options import Quiet, policy_option
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.gateway.config import GatewayConfig, Overrides
    from trimtab.gateway.tenancy.tenants import ShownKeys

NEEDED = (
    "aiohttp",
    "httptools",
    "orjson",
)  # what the extra `serve` brings and every gateway needs
FILE_PANEL, SETTINGS_PANEL = "Configuration file", "Instead of what the file says"

PolicyInstead = Annotated[
    str | None,
    policy_option("Policy: NAME, NAME+ORDER or file.py:Class.", panel=SETTINGS_PANEL),
]
AdminListen = Annotated[
    str | None,
    typer.Option(
        "--admin-listen",
        help="Address of metrics, dashboard and admin API.",
        metavar="HOST:PORT",
        rich_help_panel=SETTINGS_PANEL,
    ),
]
ReusePort = Annotated[
    bool,
    typer.Option(
        "--reuse-port",
        help="Share the port with other replicas on this machine.",
        rich_help_panel=SETTINGS_PANEL,
    ),
]
InsecureNoAuth = Annotated[
    bool,
    typer.Option(
        "--insecure-no-auth",
        help="Serve clients without keys.",
        rich_help_panel=SETTINGS_PANEL,
    ),
]
Check = Annotated[
    bool,
    typer.Option("--check", help="Check the configuration and exit.", rich_help_panel=FILE_PANEL),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples(
        "trimtab serve                            a demonstration with four local nodes",
        "trimtab serve --backend http://127.0.0.1:8000",
        "trimtab serve --example > gateway.yaml   a configuration to edit",
        "trimtab serve gateway.yaml --check",
        "trimtab serve gateway.yaml --policy power-of-d+edf",
    )
    app.command("serve", epilog=epilog)(serve)


def serve(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="YAML file.  [dim]Default: a demonstration, or --backend[/dim]", show_default=False
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", "-b", help="URL of a backend, instead of a file; may be repeated.", metavar="URL"
        ),
    ] = None,
    policy: PolicyInstead = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", help="Address for clients.", metavar="HOST:PORT", rich_help_panel=SETTINGS_PANEL
        ),
    ] = None,
    admin_listen: AdminListen = None,
    reuse_port: ReusePort = False,
    insecure_no_auth: InsecureNoAuth = False,
    check: Check = False,
    example: Annotated[
        bool,
        typer.Option("--example", help="Print an example with comments.", rich_help_panel=FILE_PANEL),
    ] = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print its JSON Schema, for editors.", rich_help_panel=FILE_PANEL),
    ] = False,
    new_key: Annotated[
        bool,
        typer.Option("--new-key", help="Print a new key and its digest.", rich_help_panel=FILE_PANEL),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Serve OpenAI-compatible clients from many backends; a policy chooses the backend of each request."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the event loop needs the cores more
    refuse_missing("serve", NEEDED, "serve")
    if example or schema or new_key:
        _print_parts(example=example, schema=schema, new_key=new_key)
        return
    from trimtab.gateway.config import Overrides

    overrides = Overrides(listen, admin_listen, policy, insecure_no_auth, reuse_port)
    chosen, keys = _chosen(config, backend or [], overrides)
    if check:
        check_config(chosen, quiet=quiet)
        return
    _serve(chosen, config, overrides, keys=keys, quiet=quiet)


def _print_parts(*, example: bool, schema: bool, new_key: bool) -> None:
    from trimtab.gateway.config import config_schema, example_text

    if example:
        print(example_text(), end="")
    if schema:
        print_json(config_schema())
    if new_key:
        from trimtab.gateway.tenancy.tenants import new_key as make_key

        key, digest = make_key()
        print(f"key:    {key}\nsha256: {digest}")
        note("the key is for the client, its digest for gateway.yaml; the digest does not reveal the key")


def _chosen(
    file: Path | None, backends: list[str], overrides: Overrides
) -> tuple[GatewayConfig | None, ShownKeys | None]:
    """The configuration (None = the demonstration), and new keys for it, if any. Raises UsageError."""
    from trimtab.errors import UsageError
    from trimtab.gateway.config import config_for_backends, load_config, require_keys
    from trimtab.gateway.tenancy.tenants import with_new_keys

    if file is not None and backends:
        expected = "either a file with nodes, or --backend"
        raise UsageError("does not go with a file", field="--backend", value=backends[0], expected=expected)
    if file is not None:
        config = overrides.over(load_config(file))
        require_keys(config)
        return config, None
    if not backends:
        return None, None
    config = overrides.over(config_for_backends(backends))
    return with_new_keys(config, "default")


def check_config(config: GatewayConfig | None, *, quiet: bool) -> None:
    """Say what a valid configuration holds. Raises UsageError: there is none."""
    if config is None:
        from trimtab.errors import UsageError

        raise UsageError("nothing to check", field="--check", expected="a configuration file, or --backend")
    warn(config, quiet=quiet)
    found = "" if not config.discovery.is_on else ", and those that are found"
    print(
        f"the configuration is fine: {counted(len(config.nodes), 'node')}{found}, "
        f"{counted(len(config.keys), 'tenant')}, policy {config.policy.default}"
    )


def warn(config: GatewayConfig, *, quiet: bool) -> None:
    """Print warnings about settings that are valid but possibly unintended."""
    from trimtab.gateway.config import config_warnings

    for warning in config_warnings(config):
        note(f"warning: {warning}", quiet=quiet)


def _serve(
    config: GatewayConfig | None,
    file: Path | None,
    overrides: Overrides,
    *,
    keys: ShownKeys | None,
    quiet: bool,
) -> None:
    """Serve until a signal to stop. Raises ConfigError."""
    from trimtab.gateway.app import launch
    from trimtab.gateway.config import load_config

    if config is not None:
        warn(config, quiet=quiet)
    reload = None if file is None else lambda: overrides.over(load_config(file))
    launch.serve(config, overrides=overrides, reload=reload, keys=keys, quiet=quiet)


def refuse_missing(command: str, needed: Sequence[str], extra: str) -> None:
    """Raise MissingExtra if modules that a command needs are not installed."""
    missing = [name for name in needed if not _is_there(name)]
    if missing:
        from trimtab.errors import MissingExtra

        raise MissingExtra(
            f"`trimtab {command}` needs {', '.join(missing)}", expected=f"pip install 'trimtab[{extra}]'"
        )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False
