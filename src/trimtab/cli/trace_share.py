"""`trimtab trace share`: a recording as a synthetic trace under differential privacy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from trimtab.cli.output import note, print_json, progress_bar, show, where
from trimtab.cli.shared_options import Json, Quiet, TraceRows
from trimtab.cli.table_options import TableOptions
from trimtab.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.experiments.compare import Comparison
    from trimtab.experiments.serving.share_check import DecisionsMoved
    from trimtab.experiments.serving.sizing import FleetSizing
    from trimtab.privacy.spending_ledger import Balance
    from trimtab.traces import Trace
    from trimtab.traces.sharing.promise import Promise
    from trimtab.traces.sharing.release import Released

PRIVACY_PANEL, CHECK_PANEL = "Privacy", "Check"
BOUND = 20
SIZING_S = 60.0
Measured: TypeAlias = "tuple[Comparison, FleetSizing | None]"


@dataclass(frozen=True, slots=True)
class PromiseOptions:
    """Options of the promise."""

    delta: Annotated[
        float,
        typer.Option(
            "--delta",
            help="Chance that the loss is larger; below one over the number of units.",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = 1e-6
    unit: Annotated[
        str,
        typer.Option(
            "--unit",
            help="What is protected: a row, or all rows of one tenant, user or session.",
            metavar="UNIT",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = "row"
    bound: Annotated[
        int | None,
        typer.Option(
            "--bound",
            help=f"Rows of a unit that count, chosen at random.  [dim]Default: {BOUND}; 1 of rows[/dim]",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = None
    public: Annotated[
        list[str] | None,
        typer.Option(
            "--public",
            help="Names of a column that all may know: class=chat,batch. May be repeated.",
            metavar="COLUMN=NAMES",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = None

    def promise(self, epsilon: float) -> Promise:
        """The promise. Raises UsageError for a text that names no public names."""
        from trimtab.traces.sharing.promise import ROW, Promise

        bound = self.bound if self.bound is not None else 1 if self.unit == ROW else BOUND
        return Promise(epsilon, self.delta, self.unit, bound, dict(map(_public, self.public or ())))


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Options of what a release is charged to."""

    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Name of the source in the ledger.  [dim]Default: that of its file[/dim]",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = None
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            help="Most ε of the source, all in all; its first release fixes it.  [dim]Default: 8[/dim]",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = None
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            help="File of what was spent.  [dim]Default: in the user's data folder[/dim]",
            metavar="FILE",
            rich_help_panel=PRIVACY_PANEL,
        ),
    ] = None

    def check(self) -> None:
        """Refuse a budget that is none. Raises UsageError."""
        from trimtab.errors import UsageError

        if self.budget is not None and not 0.0 < self.budget < float("inf"):
            raise UsageError("cannot be used", field="--budget", value=self.budget, expected="above 0")

    def charge(
        self,
        file: Path,
        what: str,
        unit: str,
        epsilon: float,
        delta: float,
        rho: float | None = None,
        delta_of_names: float = 0.0,
    ) -> Balance:
        """Charge a release to its source. Raises UsageError where its budget does not cover it."""
        from trimtab.privacy.spending_ledger import Spending, content_hash, default_ledger, spend

        entry = Spending(
            source=self.name or file.name.removesuffix(".gz").rpartition(".")[0] or file.name,
            sha256=content_hash(file),
            what=what,
            unit=unit,
            epsilon=epsilon,
            delta=delta,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            rho=rho,
            delta_of_names=delta_of_names,
        )
        return spend(self.ledger or default_ledger(), entry, self.budget)


def _public(text: str) -> tuple[str, tuple[str, ...]]:
    from trimtab.errors import UsageError

    column, _, names = text.partition("=")
    found = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not found:
        expected = "a column and its names, such as class=chat,batch"
        raise UsageError("names nothing", field="--public", value=text, expected=expected)
    return column.strip(), found


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of the check, which reads the original."""

    check: Annotated[
        str | None,
        typer.Option(
            "--check",
            help="Compare the policies of this scenario on both traces. The result is not for sharing.",
            metavar="SCENARIO",
            rich_help_panel=CHECK_PANEL,
        ),
    ] = None
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo",
            help="Also size a fleet on both: 'completion_p99<8s'. Needs --node-types.",
            metavar="OBJECTIVES",
            rich_help_panel=CHECK_PANEL,
        ),
    ] = None
    node_types: Annotated[
        Path | None,
        typer.Option(
            "--node-types",
            help="Node types with prices, and classes, for --slo.",
            metavar="FILE",
            rich_help_panel=CHECK_PANEL,
        ),
    ] = None
    seeds: Annotated[
        int, typer.Option("--seeds", "-n", min=1, help="Seeds of the check.", rich_help_panel=CHECK_PANEL)
    ] = 3

    def refuse(self) -> None:
        """Refuse options that don't go together. Raises UsageError."""
        from trimtab.errors import UsageError

        if (self.slo is None) != (self.node_types is None) or (self.slo is not None and self.check is None):
            expected = "--check SCENARIO --slo OBJECTIVES --node-types FILE together"
            raise UsageError("does not go alone", field="--slo, --node-types", expected=expected)

    def measured(self, trace: Path, rows: TraceRows, table: TableOptions, *, quiet: bool) -> Measured:
        """What policies, and the cheapest fleet, come to on a trace. Raises UsageError and PolicyError."""
        from trimtab.cli.shared_options import with_rows
        from trimtab.experiments.compare_policies import compare
        from trimtab.experiments.scenario.loader import resolve_scenario, scenario_on
        from trimtab.experiments.serving.objectives import objectives_of
        from trimtab.experiments.serving.sizing import load_node_types, size_fleet

        scenario = with_rows(resolve_scenario(self.check, trace=trace), rows, table)
        sizing = None
        if self.slo is not None and self.node_types is not None:
            types, objectives = load_node_types(self.node_types), objectives_of(self.slo)
            of_types = with_rows(scenario_on(trace, types), rows, table)
            note(f"sizing for {trace.name}", quiet=quiet)
            sizing = size_fleet(of_types, objectives, seconds_max=SIZING_S)
        note(f"comparing on {trace.name}", quiet=quiet)
        return compare(scenario, seeds=self.seeds, sweep=()), sizing

    def refuse_names(self, trace: Trace, promise: Promise) -> None:
        """Refuse a scenario that knows classes by name where the shared trace would not name them."""
        from trimtab.errors import UsageError
        from trimtab.experiments.scenario.loader import resolve_scenario

        scenario = resolve_scenario(self.check, trace=trace.file)
        of_trace = scenario.workload.trace
        by_name = of_trace is not None and of_trace.default_class is None and len(scenario.classes) > 1
        if by_name and "class" in trace.table.columns and "class" not in promise.public:
            expected = f"--public class={','.join(scenario.classes)}, or default_class in the scenario"
            raise UsageError("has classes by name, which are hidden", field="--check", expected=expected)


def share_trace(
    file: Annotated[Path, typer.Argument(help="The recording, which stays here.", metavar="FILE")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The shared trace: .csv, .jsonl (also with .gz) or .parquet.", metavar="FILE"
        ),
    ],
    epsilon: Annotated[
        float,
        typer.Option("--epsilon", help="Privacy loss: 0.5 is strong, 8 weak.", rich_help_panel=PRIVACY_PANEL),
    ],
    options: PromiseOptions,
    charged: LedgerOptions,
    checks: CheckOptions,
    rows: TraceRows,
    table: TableOptions,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Share a recording as a synthetic trace under differential privacy: none of its rows is told.

    Noisy statistics are released, such as rates, bursts, sizes and shares of names, and a trace is drawn from
    them. OUT and its report (.share.json) may be given away; the ledger and the check (.check.json) may not.
    """
    import numpy as np

    from trimtab.experiments.serving.share_check import decisions_moved
    from trimtab.privacy.library import opendp
    from trimtab.privacy.mechanisms import gaussian_noise
    from trimtab.privacy.spending_ledger import content_hash
    from trimtab.report.packed_text import json_text
    from trimtab.report.whole_files import write_text
    from trimtab.traces import read_trace, write_trace
    from trimtab.traces.sharing.promise import check, cost
    from trimtab.traces.sharing.release import release
    from trimtab.traces.sharing.synthesis import synthetic

    charged.check()
    silent, promise = quiet or json, options.promise(epsilon)
    opendp()
    _refuse(file, out, rows, table)
    checks.refuse()
    mapping = table.over(None) if table.given() else None
    with progress_bar(f"reading {file.name}", quiet=silent) as progress:
        trace = read_trace(file, rows.format or "auto", mapping, rows.options(), progress)
    check(trace, promise)
    _note_shared(file, quiet=silent)
    original = None
    if checks.check is not None:
        checks.refuse_names(trace, promise)
        original = checks.measured(file, rows, table, quiet=silent)
    balance = charged.charge(
        file, "trace share", promise.unit, promise.epsilon, promise.delta, *cost(promise)
    )
    rng = np.random.default_rng()
    released = release(trace.table, promise, trace.size_rule, gaussian_noise, rng)
    made = synthetic(released, rng, rows.options().prompt_token_frac)
    write_trace(made, out)
    about = released.to_dict() | {"requests": made.height, "sha256": content_hash(out)}
    files = [out, write_text(_beside(out, "share"), json_text(about))]
    moved = None
    if original is not None:
        moved = decisions_moved(original, checks.measured(out, TraceRows(), TableOptions(), quiet=silent))
        kept = {"for": "the owner alone: it was computed on the original"} | moved.to_dict()
        files.append(write_text(_beside(out, "check"), json_text(kept)))
    if json:
        print_json(about | {"ledger": asdict(balance), "check": None if moved is None else moved.to_dict()})
        return
    show(*_costs_table(released))
    if moved is not None:
        show(*_check_tables(moved))
    note(balance_text(balance), quiet=quiet)
    note(f"{counted(made.height, 'request')}, none of them a row of {file.name}", quiet=quiet)
    for path in files:
        note(where(path, path.stat().st_size), quiet=quiet)


def _beside(path: Path, what: str) -> Path:
    """The file of that kind of JSON that belongs to a trace."""
    stem = path.name.removesuffix(".gz")
    return path.with_name(f"{stem.rpartition('.')[0] or stem}.{what}.json")


def _refuse(file: Path, out: Path, rows: TraceRows, table: TableOptions) -> None:
    """Refuse what would spoil the source, or let one row choose others; before anything is spent."""
    from trimtab.errors import UsageError
    from trimtab.report.whole_files import check_file
    from trimtab.traces.write import writer_of

    writer_of(out)
    for path in (out, _beside(out, "share"), _beside(out, "check")):
        if path.resolve() == file.resolve() or file.resolve() in path.resolve().parents:
            expected = "another file than the recording"
            raise UsageError("would overwrite the source", field="--out", value=str(out), expected=expected)
        check_file(path)
    refuse_chosen_rows(rows, table)


def refuse_chosen_rows(rows: TraceRows, table: TableOptions) -> None:
    """Refuse options by which one row decides over others. Raises UsageError."""
    from trimtab.errors import UsageError

    for option, given in (("--limit", rows.limit), ("--sample", rows.sample_frac)):
        if given is not None:
            expected = "--start and --stop: which rows it takes depends on other rows"
            raise UsageError("does not go with privacy", field=option, value=given, expected=expected)
    if table.given() and table.over(None).on_bad_row == "fill":
        expected = "drop: a value that is filled in depends on other rows"
        raise UsageError("does not go with privacy", field="--on-bad-row", value="fill", expected=expected)


def _note_shared(file: Path, *, quiet: bool) -> None:
    """Say so where the source is a shared trace itself."""
    import json

    from trimtab.privacy.spending_ledger import content_hash

    report = _beside(file, "share")
    if report.is_file() and file.is_file():
        about = json.loads(report.read_text(encoding="utf-8"))
        if about.get("sha256") == content_hash(file):
            epsilon = about["promise"]["epsilon"]
            text = (
                f"the source is itself synthetic (ε {epsilon:g}): the noise of both is in what is made of it"
            )
            note(text, quiet=quiet)


def balance_text(balance: Balance) -> str:
    """What a source has spent, for a person."""
    spent = f"ε {balance.epsilon:.4g} of {balance.budget_epsilon:g}, δ {balance.delta:.3g}"
    return f"spent on this source: {spent}, in {counted(balance.releases, 'release')} ({balance.ledger})"


def _costs_table(released: Released) -> list[Table | str]:
    from rich.table import Table

    promise, table = released.promise, Table(box=None, pad_edge=False)
    table.add_column("statistic")
    for title in ("cells", "noise σ", "of budget %", "ε alone"):
        table.add_column(title, justify="right")
    for cost in released.costs():
        cells = (f"{cost['cells']:,}", f"{cost['sigma']:.4g}", f"{100 * cost['share_frac']:.3g}")
        table.add_row(cost["statistic"], *cells, f"{cost['epsilon_alone']:.3g}")
    of_unit = "" if promise.unit == "row" else f", of which {counted(promise.bound, 'row')} count"
    unshared = f" Not shared: {', '.join(released.not_shared)}." if released.not_shared else ""
    loss = f"ε {promise.epsilon:g}, δ {promise.delta:g} for each {promise.unit}{of_unit}"
    return [table, f"{loss}; ρ {released.rho:.4g} in all.{unshared}"]


def _check_tables(moved: DecisionsMoved) -> list[Table | str]:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="Check, for the owner alone", title_justify="left")
    order = (
        f"{counted(moved.policies, 'policy', 'policies')}, {counted(moved.seeds, 'seed')}: Kendall's τ of "
        f"their order {moved.mean_tau:.2f} by mean, {moved.p99_tau:.2f} by p99. Best: {moved.best[0]}; on "
        f"the shared trace {moved.best[1]}, which costs {100 * moved.regret_frac:.2g} % on the original."
    )
    for title in ("policy", "mean s", "shared", "p99 s", "shared"):
        table.add_column(title, justify="left" if title == "policy" else "right")
    for row in moved.best_five:
        table.add_row(row.policy, *(f"{value:.4g}" for value in (*row.mean_s, *row.p99_s)))
    if moved.fleet is None:
        return [table, order]
    (fleet, shared), (usd, shared_usd) = moved.fleet.fleet, moved.fleet.usd_per_hour
    words = f"Fleet for {moved.fleet.objectives}: {fleet} ({usd:.4g} USD/h); on the shared trace {shared}"
    return [table, order, f"{words} ({shared_usd:.4g} USD/h)."]
