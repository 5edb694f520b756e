"""`trimtab scenario`: lists, shows and checks scenarios."""

from __future__ import annotations

from typing import Annotated

import typer

from trimtab.cli import completion
from trimtab.cli.option_groups import examples
from trimtab.cli.output import print_json, show
from trimtab.cli.shared_options import Json
from trimtab.words import counted

app = typer.Typer(
    no_args_is_help=True,
    help="List built-in scenarios, and check your own.",
    epilog=examples("trimtab scenario show tiny > my.yaml", "trimtab scenario check my.yaml"),
)


@app.command("list", epilog=examples("trimtab scenario list"))
def list_scenarios(json: Json = False) -> None:
    """List the built-in scenarios."""
    from trimtab.experiments.kinds import all_builtins

    described = {name: scenario.description.strip() for name, scenario in all_builtins().items()}
    if json:
        print_json({"scenarios": [{"name": name, "description": text} for name, text in described.items()]})
        return
    from rich.table import Table

    table = Table("scenario", "description", box=None, pad_edge=False)
    for name, text in described.items():
        table.add_row(name, " ".join(text.split()))
    show(table)


@app.command("show", epilog=examples("trimtab scenario show tiny > my.yaml"))
def show_scenario(
    name: Annotated[
        str, typer.Argument(help="Name of a built-in scenario.", autocompletion=completion.builtin_scenarios)
    ],
) -> None:
    """Print the file of a built-in scenario."""
    from trimtab.experiments.kinds import any_builtin_text

    print(any_builtin_text(name), end="")


@app.command("check", epilog=examples("trimtab scenario check my.yaml"))
def check_scenario(
    scenario: Annotated[
        str, typer.Argument(help="A YAML file, or a built-in name.", autocompletion=completion.scenarios)
    ],
    json: Json = False,
) -> None:
    """Check a scenario: its fields, trace and policies, and that its requests can be built."""
    from trimtab.experiments.kinds import kind_of, load_any

    read = load_any(scenario)
    kind = kind_of(read)
    settings = kind.read(read, load=None, policies=None, seeds=None)
    for policy in settings.policies:
        kind.find(policy)
    seeds = list(settings.seed_list())
    built = kind.build(settings, seeds[0], None)
    amounts, offered_load = kind.amounts(built), built.offered_load
    if json:
        by_name = {name.lower(): n for name, n in amounts.items()}
        head = {"scenario": settings.name, "hash": settings.hash()}
        print_json({**head, **by_name, "offered_load": offered_load, "seeds": seeds})
    else:
        named = ", ".join(counted(n, name.removesuffix("s")) for name, n in amounts.items())
        load = f"offered load {offered_load:.3g}"
        print(f"{settings.name} is fine: {named}, {load}, {counted(len(seeds), 'seed')}")


@app.command("schema", epilog=examples("trimtab scenario schema > trimtab.schema.json"))
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from trimtab.experiments.scenario import scenario_schema

    print_json(scenario_schema())
