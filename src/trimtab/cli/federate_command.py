"""`trimtab federate`: sites learn together what policies read, without showing each other their traces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli import completion
from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, progress_bar, where
from trimtab.cli.serve_command import refuse_missing
from trimtab.cli.shared_options import Json, Quiet, TraceRows, out_option, with_rows
from trimtab.cli.table_options import TableOptions
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.learn.federated.learning_problem import Problem, Site
    from trimtab.learn.federated.rounds import RoundReport

NEEDED = ("aiohttp", "orjson")
OWN_FILE = "own.safetensors"
SITES_KEY, SERVER_KEY = "sites.key", "server.key"

app = typer.Typer(
    no_args_is_help=True,
    help="Learn estimates or a policy's parameters together with other sites (extra serve).",
    epilog=examples(
        "trimtab federate server --example > federation.yaml",
        "trimtab federate server federation.yaml --out federation",
        "trimtab federate client trace.csv --server https://host:9443 --ca ca.pem --key-env SITE_KEY",
        "trimtab federate keys --out keys   for a server that cannot read updates",
        "trimtab serve gateway.yaml --check   with `learned: learned.safetensors` in it",
    ),
)


@app.command("keys", epilog=examples("trimtab federate keys --out keys"))
@grouped
def keys(
    out: Annotated[Path, out_option()] = Path("trimtab-keys"), json: Json = False, quiet: Quiet = False
) -> None:
    """Make keys of encrypted updates: a secret one for the sites, a public one for the server.

    It needs the extra private, on all sides.
    """
    from trimtab.errors import UsageError
    from trimtab.privacy.secure_sums import PublicKey, new_keys
    from trimtab.report.whole_files import check_writable, write_bytes

    names = (SITES_KEY, SERVER_KEY)
    if any((out / name).exists() for name in names):
        raise UsageError("has keys already", file=str(out), expected="a folder without them")
    check_writable(out)
    contents = new_keys()
    out.mkdir(parents=True, exist_ok=True)
    before = os.umask(0o077)  # nobody else may read the secret one, not even for a moment
    try:
        files = [write_bytes(out / name, content) for name, content in zip(names, contents, strict=True)]
    finally:
        os.umask(before)
    fingerprint = PublicKey.parsed(contents[1], str(files[1])).fingerprint
    if json:
        print_json({"sites": str(files[0]), "server": str(files[1]), "fingerprint": fingerprint})
        return
    print(f"{files[0]}: for the sites (--sum-key), never for the server")
    print(f"{files[1]}: for the server (aggregation: {{sum_key: …}})")
    note(f"fingerprint {fingerprint}", quiet=quiet)


@app.command(
    "server",
    epilog=examples(
        "trimtab federate server --example > federation.yaml",
        "trimtab federate server federation.yaml --check",
        "trimtab federate server federation.yaml --out federation",
    ),
)
@grouped
def server(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file: sites, what is learned, how.", metavar="FILE")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the file and exit.")] = False,
    example: Annotated[bool, typer.Option("--example", help="Print an example with comments.")] = False,
    out: Annotated[Path, out_option()] = Path("trimtab-federation"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Bring sites together: ask them round by round, combine what they answer, write what was learned.

    Started again with the same --out it goes on where it was, whatever ended it.
    """
    refuse_missing("federate", NEEDED, "serve")
    from trimtab.errors import UsageError
    from trimtab.learn.federated.settings import example_text, read_federation, site_digests

    if example:
        print(example_text(), end="")
        return
    if config is None:
        raise UsageError("which federation is not told", field="FILE", expected="a YAML file, or --example")
    read = read_federation(config)
    site_digests(read)
    if read.tls is not None:
        read.tls.context("tls")
    federation = read.federation()
    if check:
        print(f"the federation is fine: {counted(len(read.sites), 'site')}")
        return
    from trimtab.gateway.app.launch import listening
    from trimtab.gateway.nodes.address import with_port
    from trimtab.learn.federated.server import FederationServer
    from trimtab.live.event_loop import new_runner
    from trimtab.report.whole_files import check_writable, write_bytes

    check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    silent = quiet or json
    with listening(read.address, "listen") as port, new_runner() as runner:

        def told(report: RoundReport, rounds: int) -> None:
            note(_round_text(report, rounds), quiet=silent)

        async def serve() -> tuple[FederationServer, Path]:
            made = FederationServer(read, federation, out, write_bytes)
            done = len(made.federation.history)
            scheme = "http" if read.tls is None else "https"
            address = f"{scheme}://{with_port(*port.getsockname()[:2])}"
            after = f", after {counted(done, 'round')}" if done else ""
            note(f"sites may call {address}{after}", quiet=silent)
            return made, await made.run(port, told)

        made, path = runner.run(serve())
    if json:
        print_json({"learned": str(path), **made.status()})
        return
    rounds, took_part = made.federation.reports, {s for r in made.federation.reports for s in r.answered}
    print(f"learned in {counted(len(rounds), 'round')} from {counted(len(took_part), 'site')}")
    note(where(path, path.stat().st_size), quiet=quiet)


def _round_text(report: RoundReport, rounds: int) -> str:
    parts = [f"round {report.number} of {rounds}: {counted(len(report.answered), 'site')} answered"]
    if report.missed:
        parts.append(f"without {', '.join(report.missed)}")
    parts += [f"{site} refused: {why}" for site, why in report.refused.items()]
    parts.append("the sum is encrypted" if report.step is None else f"step {report.step:.3g}")
    return "; ".join(parts)


def _key(env: str | None) -> str:
    """The key in an environment variable. Raises UsageError where there is none."""
    from trimtab.errors import UsageError

    if env is None:
        return ""
    if not os.environ.get(env):
        raise UsageError("is not set", field=f"environment variable {env}", expected="the key of this site")
    return os.environ[env]


def _renamed(names: list[str]) -> dict[str, str]:
    """`OWN=THEIRS` as a table. Raises UsageError."""
    from trimtab.errors import UsageError

    found = {}
    for text in names:
        own, _, theirs = text.rpartition("=")
        if not own or not theirs:
            raise UsageError("names no pair", field="--rename", value=text, expected="OWN=THEIRS")
        found[own] = theirs
    return found


@app.command(
    "client",
    epilog=examples(
        "trimtab federate client recordings/ --server https://host:9443 --ca ca.pem --key-env SITE_KEY",
        "trimtab federate client log.csv --cluster cluster.yaml --server https://host:9443 --ca ca.pem "
        "--certificate site.pem --certificate-key site.key --rename A100-80G=a100",
        "trimtab federate client trace.csv --cluster cluster.yaml --server http://127.0.0.1:9443 "
        "--key-env SITE_KEY --out learned",
        "trimtab federate client recordings/ --server https://host:9443 --ca ca.pem --key-env SITE_KEY "
        "--sum-key keys/sites.key",
    ),
)
@grouped
def client(
    workload: Annotated[
        str,
        typer.Argument(
            help="The site's own: a trace or a recording; for a policy also a scenario.",
            metavar="TRACE|SCENARIO",
            autocompletion=completion.scenarios,
        ),
    ],
    rows: TraceRows,
    table: TableOptions,
    server: Annotated[str, typer.Option("--server", help="URL of the server.", metavar="URL")],
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", help="Nodes that served it; a recording names its own.", metavar="FILE"),
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option("--key-env", help="Environment variable with the site's key.", metavar="NAME"),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", help="Authority of the server's certificate.", metavar="PEM")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Certificate of this site.", metavar="PEM")
    ] = None,
    certificate_key: Annotated[
        Path | None, typer.Option("--certificate-key", help="Key of that certificate.", metavar="PEM")
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename", help="Class or node type of this site, as the others call it.", metavar="OWN=THEIRS"
        ),
    ] = None,
    sum_key: Annotated[
        Path | None,
        typer.Option(
            "--sum-key",
            help="Secret key of the sites, for a server that adds encrypted updates.",
            metavar="FILE",
        ),
    ] = None,
    patience_s: Annotated[
        float, typer.Option("--patience-s", min=0, help="How long the server may be away.")
    ] = 600.0,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that simulate.")] = 1,
    out: Annotated[Path, out_option()] = Path("trimtab-learned-together"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Take part as a site: learn from a trace of one's own, send updates, get what all learned.

    Prompts, times and rows stay here. What is sent: for estimates one number and its rows for each knot of
    a curve, for a policy one score for each candidate.
    """
    refuse_missing("federate", NEEDED, "serve")
    from trimtab.learn.federated.client import Access, take_part
    from trimtab.learn.federated.estimates import EstimatesProblem, EstimatesSite
    from trimtab.live.event_loop import new_runner
    from trimtab.report.whole_files import check_writable, write_bytes

    check_writable(out)
    access = Access(server, _key(key_env), ca, certificate, certificate_key, patience_s, sum_key)
    silent, names = quiet or json, _renamed(rename or [])
    told: dict[str, Any] = {}
    made: list[tuple[Problem, Site]] = []

    def site(problem: Problem) -> Site:
        if isinstance(problem, EstimatesProblem):
            from trimtab.learn.federated.site_data import site_rows
            from trimtab.traces import read_trace

            mapping = table.over(None) if table.given() else None
            trace = read_trace(Path(workload), rows.format or "auto", mapping, rows.options())
            data = site_rows(trace, problem.layout, names=names, cluster=cluster)
            told.update(data.told())
            found: Site = EstimatesSite(problem, data.moments)
        else:
            from trimtab.experiments.tuning.named_workload import workload_of
            from trimtab.learn.federated.policy_search import PolicyProblem, PolicySite

            assert isinstance(problem, PolicyProblem)
            scenario = with_rows(workload_of(workload, cluster, None), rows, table)
            found = PolicySite(problem, scenario, jobs=jobs)
        made.append((problem, found))
        return found

    with progress_bar("learning together", quiet=silent) as progress, new_runner() as runner:
        name, content = runner.run(take_part(access, site, progress))
    out.mkdir(parents=True, exist_ok=True)
    files = [write_bytes(out / name, content)]
    problem, found = made[0]
    if isinstance(problem, EstimatesProblem) and isinstance(found, EstimatesSite):
        files.append(write_bytes(out / OWN_FILE, found.own_content(content)))
    if json:
        print_json({"files": [str(file) for file in files], "rows": told})
        return
    for text, count in told.get("left_out", {}).items():
        note(f"{text} is not learned: {counted(count, 'row')} left out", quiet=quiet)
    print(f"learned together: {', '.join(str(file) for file in files)}")
    for file in files:
        note(where(file, file.stat().st_size), quiet=quiet)
