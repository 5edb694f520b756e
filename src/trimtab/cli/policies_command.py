"""`trimtab policies` and `trimtab metrics`: lists of policies and metrics."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from trimtab.cli import completion
from trimtab.cli.option_groups import examples
from trimtab.cli.output import print_json, show, stdout_console
from trimtab.cli.shared_options import Json

if TYPE_CHECKING:
    from trimtab.policies import Description

policies_app = typer.Typer(
    invoke_without_command=True,
    epilog=examples(
        "trimtab policies",
        "trimtab policies --kind training --json",
        "trimtab policies show power-of-d",
        "trimtab policies show tiresias",
    ),
)


class Work(StrEnum):
    """Kinds of work, each with a catalogue of its own."""

    SERVING = "serving"
    TRAINING = "training"


Kind: TypeAlias = Annotated[
    Work | None,
    typer.Option(
        "--kind",
        help="Of this work only: requests, or training jobs.  [dim]Default: both[/dim]",
        show_default=False,
    ),
]


@policies_app.callback()
def list_policies(context: typer.Context, kind: Kind = None, json: Json = False) -> None:
    """List the policies that serve requests and the allocators of training jobs: ideas and sources."""
    if context.invoked_subcommand is not None:
        return
    described = {work: _described(work) for work in Work if kind in (None, work)}
    if json:
        print_json({"policies": [asdict(d) for found in described.values() for d in found]})
    else:
        from trimtab.report.terminal_tables import policies_table

        show(
            *(
                policies_table(found, stdout_console().width, _TITLES[work])
                for work, found in described.items()
            )
        )


_TITLES = {Work.SERVING: "policies that serve requests", Work.TRAINING: "allocators of training jobs"}


def _described(work: Work) -> list[Description]:
    if work is Work.SERVING:
        from trimtab.policies import describe, names

        return [describe(name) for name in names()]
    from trimtab.training.allocator_catalogue import allocator_names, describe_allocator

    return [describe_allocator(name) for name in allocator_names()]


@policies_app.command(
    "show",
    epilog=examples("trimtab policies show least-expected-wait", "trimtab policies show edf --kind training"),
)
def show_policy(
    name: Annotated[
        str,
        typer.Argument(help="Name of a policy, or file.py:Class.", autocompletion=completion.any_policies),
    ],
    kind: Kind = None,
    json: Json = False,
) -> None:
    """Show one policy or allocator: idea, source, cost, when it wins and loses, parameters."""
    description = _description_of(name, kind)
    if json:
        print_json(asdict(description))
        return
    print(f"{description.name} ({description.kind})\n\n{description.documentation}\n")
    for parameter in description.parameters:
        print(f"{parameter.name}: {parameter.kind} = {parameter.default}")
    print(f"\nuse it as  --policy {_usage(description)}")


def _description_of(name: str, kind: Work | None) -> Description:
    """The policy of this name; without a kind one that serves requests if there is one."""
    from trimtab.errors import UsageError
    from trimtab.policies import describe
    from trimtab.training.allocator_catalogue import allocator_names, describe_allocator

    if kind is Work.TRAINING or (
        kind is None and name in allocator_names() and name not in completion.policy_names()
    ):
        return describe_allocator(name)
    try:
        return describe(name)
    except UsageError:
        if kind is None and ":" in name:
            return describe_allocator(name)
        raise


def _usage(description: Description) -> str:
    name = description.name
    if description.kind == Work.TRAINING:
        return f"{name}, with training jobs"
    if "dispatch" not in description.kind:
        return f"least-expected-wait+{name}"
    changeable = description.parameters[:1]
    return f"'{name}({changeable[0].name}={changeable[0].default})'" if changeable else name


def metrics(kind: Kind = Work.SERVING, json: Json = False) -> None:
    """List the metrics: unit, definition, and better direction."""
    from trimtab.metrics import METRICS
    from trimtab.training.job_metrics import JOB_METRICS

    listed = (JOB_METRICS if kind is Work.TRAINING else METRICS).values()
    if json:
        print_json({"metrics": [asdict(metric) for metric in listed]})
        return
    from trimtab.report.terminal_tables import metrics_table

    show(metrics_table(listed))
