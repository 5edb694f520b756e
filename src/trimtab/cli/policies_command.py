"""`trimtab policies` and `trimtab metrics`: lists of policies and metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli import completion
from trimtab.cli.help_texts import examples
from trimtab.cli.output import print_json, show, stdout_console
from trimtab.cli.shared_options import Json

if TYPE_CHECKING:
    from trimtab.policies import Description

policies_app = typer.Typer(
    invoke_without_command=True,
    epilog=examples("trimtab policies", "trimtab policies --json", "trimtab policies show power-of-d"),
)


@policies_app.callback()
def list_policies(context: typer.Context, json: Json = False) -> None:
    """List the policies with their ideas and sources."""
    if context.invoked_subcommand is not None:
        return
    from trimtab.policies import describe, names

    descriptions = [describe(name) for name in names()]
    if json:
        print_json({"policies": [asdict(d) for d in descriptions]})
    else:
        from trimtab.report.terminal_tables import policies_table

        show(policies_table(descriptions, stdout_console().width))


@policies_app.command("show", epilog=examples("trimtab policies show least-expected-wait"))
def show_policy(
    name: Annotated[
        str, typer.Argument(help="Name of a policy, or file.py:Class.", autocompletion=completion.policies)
    ],
    json: Json = False,
) -> None:
    """Show one policy: idea, source, cost, when it wins and loses, parameters."""
    from trimtab.policies import describe

    description = describe(name)
    if json:
        print_json(asdict(description))
        return
    print(f"{description.name} ({description.kind})\n\n{description.documentation}\n")
    for parameter in description.parameters:
        print(f"{parameter.name}: {parameter.kind} = {parameter.default}")
    print(f"\nuse it as  --policy {_usage(description)}")


def _usage(description: Description) -> str:
    name = description.name
    if "dispatch" not in description.kind:
        return f"least-expected-wait+{name}"
    changeable = description.parameters[:1]
    return f"'{name}({changeable[0].name}={changeable[0].default})'" if changeable else name


def metrics(json: Json = False) -> None:
    """List the metrics: unit, definition, and better direction."""
    from trimtab.metrics import METRICS

    if json:
        print_json({"metrics": [asdict(metric) for metric in METRICS.values()]})
        return
    from trimtab.report.terminal_tables import metrics_table

    show(metrics_table(METRICS.values()))
