"""`trimtab scenario`: lists, shows and checks scenarios."""

from __future__ import annotations

from typing import Annotated

import typer

from trimtab.cli import completion
from trimtab.cli.help_texts import examples
from trimtab.cli.output import print_json, show
from trimtab.cli.shared_options import Json

app = typer.Typer(
    no_args_is_help=True,
    help="List built-in scenarios, and check your own.",
    epilog=examples("trimtab scenario show tiny > my.yaml", "trimtab scenario check my.yaml"),
)


@app.command("list", epilog=examples("trimtab scenario list"))
def list_scenarios(json: Json = False) -> None:
    """List the built-in scenarios."""
    from trimtab.experiments.scenario import builtin_names, load_scenario

    described = {name: load_scenario(name).description.strip() for name in builtin_names()}
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
    from trimtab.experiments.scenario import builtin_text

    print(builtin_text(name), end="")


@app.command("check", epilog=examples("trimtab scenario check my.yaml"))
def check_scenario(
    scenario: Annotated[
        str, typer.Argument(help="A YAML file, or a built-in name.", autocompletion=completion.scenarios)
    ],
    json: Json = False,
) -> None:
    """Check a scenario: its fields, trace and policies, and that its requests can be built."""
    from trimtab.experiments.scenario import load_scenario
    from trimtab.experiments.scenario.build import build
    from trimtab.policies import find

    checked = load_scenario(scenario)
    for policy in checked.policies:
        find(policy)
    built = build(checked, checked.seed_list()[0])
    facts = {
        "scenario": checked.name,
        "hash": checked.hash(),
        "nodes": built.cluster.n_nodes,
        "requests": len(built.requests),
        "offered_load": built.offered_load,
        "seeds": list(checked.seed_list()),
    }
    if json:
        print_json(facts)
    else:
        print(
            f"{checked.name} is fine: {facts['nodes']:,} nodes, {facts['requests']:,} requests, "
            f"offered load {built.offered_load:.3g}, {len(checked.seed_list())} seeds"
        )


@app.command("schema", epilog=examples("trimtab scenario schema > trimtab.schema.json"))
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from trimtab.experiments.scenario import scenario_schema

    print_json(scenario_schema())
