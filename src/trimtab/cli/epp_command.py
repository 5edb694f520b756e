"""`trimtab epp`: the endpoint picker, which Envoy and gateways of the Gateway API ask where requests go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.option_groups import examples
from trimtab.cli.serve_command import (
    NEEDED,
    SETTINGS_PANEL,
    AdminListen,
    Check,
    InsecureNoAuth,
    PolicyInstead,
    ReusePort,
    check_config,
    refuse_missing,
    warn,
)
from trimtab.cli.shared_options import Quiet


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples(
        "trimtab epp --config gateway.yaml",
        "trimtab epp --config gateway.yaml --check",
        "trimtab epp --config gateway.yaml --pool serving/llama",
        "trimtab epp --config gateway.yaml --listen 0.0.0.0:9002 --policy least-expected-wait",
    )
    app.command("epp", epilog=epilog)(epp)


def epp(
    config: Annotated[Path, typer.Option("--config", "-c", help="YAML file, as of `trimtab serve`.")],
    pool: Annotated[
        str | None,
        typer.Option(
            "--pool",
            help="InferencePool of Kubernetes whose pods are the endpoints, instead of the file's nodes.",
            metavar="[NAMESPACE/]NAME",
            rich_help_panel=SETTINGS_PANEL,
        ),
    ] = None,
    policy: PolicyInstead = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", help="Address for the proxy.", metavar="HOST:PORT", rich_help_panel=SETTINGS_PANEL
        ),
    ] = None,
    admin_listen: AdminListen = None,
    reuse_port: ReusePort = False,
    insecure_no_auth: InsecureNoAuth = False,
    check: Check = False,
    quiet: Quiet = False,
) -> None:
    """Pick endpoints for Envoy (ext_proc), by the endpoint-picker protocol of the Gateway API."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the event loop needs the cores more
    refuse_missing("epp", (*NEEDED, "grpc", "google.protobuf"), "envoy")
    from trimtab.gateway.app import launch
    from trimtab.gateway.app.picker_plane import check_picker
    from trimtab.gateway.config import GatewayConfig, Overrides, load_config, require_keys

    overrides = Overrides(
        admin_listen=admin_listen,
        policy=policy,
        insecure_no_auth=insecure_no_auth,
        reuse_port=reuse_port,
        picker_listen=listen,
        pool=pool,
    )

    def read() -> GatewayConfig:
        return overrides.over(load_config(config))

    chosen = read()
    require_keys(chosen)
    check_picker(chosen)
    if check:
        check_config(chosen, quiet=quiet)
        return
    warn(chosen, quiet=quiet)
    launch.pick(chosen, reload=read, quiet=quiet)
