"""`trimtab yarn`: queues, clusters and jobs of YARN. It reads only; nothing is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trimtab.cli.option_groups import examples
from trimtab.cli.output import note, print_json, where, write_yaml
from trimtab.cli.shared_options import Json, Quiet
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.clusters.yarn.imported_queues import ImportedQueues

SCENARIO = "scenario.yaml"
app = typer.Typer(
    no_args_is_help=True,
    help="Take over queues, clusters and jobs of YARN, from its files or its ResourceManager's answers.",
    epilog=examples(
        "trimtab yarn queues capacity-scheduler.xml yarn-site.xml >> my.yaml",
        "trimtab yarn import http://rm.example:8088 yarn/  &&  trimtab compare yarn/scenario.yaml",
    ),
)


@app.command("queues", epilog=examples(
    "trimtab yarn queues capacity-scheduler.xml >> my.yaml",
    "trimtab yarn queues capacity-scheduler.xml yarn-site.xml --for gateway >> gateway.yaml",
    "trimtab yarn queues fair-scheduler.xml yarn-site.xml --total memory=819200,vcores=256",
    "trimtab yarn queues scheduler.json    # as of /ws/v1/cluster/scheduler",
))  # fmt: skip
def queues(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="capacity-scheduler.xml or fair-scheduler.xml, and yarn-site.xml, which says whether queues "
            "preempt; or a saved answer of /ws/v1/cluster/scheduler.",
            metavar="FILE…",
        ),
    ],
    total: Annotated[
        str,
        typer.Option(
            help="What the cluster has: absolute amounts become parts of it.",
            metavar="NAME=AMOUNT,…",
            show_default=False,
        ),
    ] = "",
    work: Annotated[
        Literal["training", "requests", "gateway"],
        typer.Option(
            "--for", help="Whose section: amounts have its names; a gateway's has a queue `default`."
        ),
    ] = "training",
    json: Json = False,
) -> None:
    """Print the queues of YARN's files as a section for a scenario, gateway.yaml or a list of jobs."""
    from trimtab.clusters.yarn.read_queues import queues_of_files

    found = queues_of_files(files, total)
    if work != "training":
        found = found.for_requests() if work == "requests" else found.for_gateway()
    if json:
        print_json({"queues": found.section, **_told(found)})
    else:
        print(found.text(), end="")


@app.command("import", epilog=examples(
    "trimtab yarn import http://rm.example:8088 yarn/  &&  trimtab compare yarn/scenario.yaml",
    "trimtab yarn import saved/ yarn/      # nodes.json, scheduler.json, apps.json",
))  # fmt: skip
def import_cluster(
    source: Annotated[
        str, typer.Argument(help="Address of a ResourceManager, or a folder of its saved answers.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where scenario and jobs go.", metavar="FOLDER")],
    slots: Annotated[
        Literal["gpus", "cpus"] | None,
        typer.Option(help="What jobs share out.  [dim]Default: GPUs where there are some[/dim]"),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a scenario of training jobs from a ResourceManager's nodes, queues and ended applications."""
    from trimtab.clusters.yarn.hadoop_xml import read_bytes
    from trimtab.clusters.yarn.imported_cluster import JOBS_FILE, imported_cluster
    from trimtab.clusters.yarn.rest_answers import NAMES, answer_of, fetched, is_address, saved
    from trimtab.report.whole_files import check_writable, write_text

    check_writable(folder, (SCENARIO, JOBS_FILE))
    if is_address(source):
        note(f"asking {source}", quiet=quiet or json)
        data, files = fetched(source), {name: f"{source}/ws/v1/cluster/{name}" for name in NAMES}
    else:
        paths = saved(Path(source))
        data = {name: read_bytes(path) for name, path in paths.items()}
        files = {name: str(path) for name, path in paths.items()}
    answers = {name: answer_of(data[name], files[name], name) for name in NAMES}
    made = imported_cluster(answers, files, slots)
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / SCENARIO
    write_text(folder / JOBS_FILE, made.jobs)
    write_yaml(written, "Made by `trimtab yarn import`.", made.scenario)
    told = _told(made.queues)
    if json:
        counts = {"nodes": made.n_nodes, "jobs": made.n_jobs, "slots": made.slots}
        print_json({"scenario": str(written), **counts, "left_out": list(made.left_out), **told})
        return
    for text in (*(f"left out: {each}" for each in made.left_out), *map(str, made.queues.not_carried)):
        note(text)  # what is lost is told to those who want quiet too
    note(
        f"{counted(made.n_nodes, 'node')}, {counted(made.n_jobs, 'job')}; slots are {made.slots}", quiet=quiet
    )
    for path in (written, folder / JOBS_FILE):
        note(where(path, path.stat().st_size), quiet=quiet)


def _told(queues: ImportedQueues) -> dict[str, object]:
    """What a machine reads beside the section."""
    return {
        "scheduler": queues.scheduler,
        "dominant_resource": queues.is_dominant,
        "not_carried": [each._asdict() for each in queues.not_carried],
    }
