"""Options that several commands share, and their combined meaning."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from trimtab.cli import completion
from trimtab.cli.output import note, progress_bar
from trimtab.cli.table_options import TableOptions

if TYPE_CHECKING:
    from pydantic import ValidationError

    from trimtab.errors import UsageError
    from trimtab.experiments.kinds import AnyScenarioKind
    from trimtab.experiments.scenario import Scenario
    from trimtab.experiments.scenario.scenario_changes import WhatIf
    from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile
    from trimtab.traces import TraceOptions

TRACE_PANEL, OUTPUT_PANEL, WHAT_IF_PANEL = "Trace", "Output", "What if"

Json: TypeAlias = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT_PANEL),
]
Journal: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--journal",
        help="Folder of journal and large values, or a database URL. Default: in the user's data folder.",
        metavar="FOLDER|URL",
    ),
]
Quiet: TypeAlias = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print no progress and no notes.", rich_help_panel=OUTPUT_PANEL),
]
Report: TypeAlias = Annotated[bool, typer.Option(help="Write report.html.", rich_help_panel=OUTPUT_PANEL)]
Simulations: TypeAlias = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Simulations at a time.  [dim]Default: one per core[/dim]"),
]
SimulationsOn: TypeAlias = Annotated[
    str,
    typer.Option(
        "--on",
        help="Where simulations run: processes of this machine, ray, or ray://HOST:PORT.",
        metavar="PLACE",
    ),
]
Slo: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--slo",
        help="Say which policies meet these: 'ttft_p99<2s, goodput>0.95'.",
        metavar="OBJECTIVES",
        rich_help_panel=OUTPUT_PANEL,
    ),
]


def policy_option(text: str, *, has_default: bool = False, panel: str | None = None) -> Any:
    """The option of a policy, or of several."""
    return typer.Option(
        "--policy",
        "-p",
        help=text,
        autocompletion=completion.policy_specs,
        show_default=has_default,
        rich_help_panel=panel,
    )


def policies_option(verb: str, default: str) -> Any:
    """The option of policies to compare or replay."""
    return policy_option(f"{verb} this policy; may be repeated.  [dim]Default: {default}[/dim]")


def out_option() -> Any:
    """The option of the folder of results."""
    text = "Write results, records and report to this folder."
    return typer.Option("--out", "-o", help=text, rich_help_panel=OUTPUT_PANEL)


_OPTION_OF = {
    "start_s": "--start",
    "stop_s": "--stop",
    "rate_scale": "--rate-scale",
    "sample_frac": "--sample",
    "limit": "--limit",
}


@dataclass(frozen=True, slots=True)
class TraceRows:
    """Options that select rows of a trace and scale their rate; None = not given."""

    format: Annotated[
        str | None,
        typer.Option(
            "--trace-format",
            "--format",
            help="Format, if it is not recognised.",
            rich_help_panel=TRACE_PANEL,
        ),
    ] = None
    start_s: Annotated[
        float | None,
        typer.Option("--start", help="Start at this second of the trace.", rich_help_panel=TRACE_PANEL),
    ] = None
    stop_s: Annotated[
        float | None, typer.Option("--stop", help="End before this second.", rich_help_panel=TRACE_PANEL)
    ] = None
    rate_scale: Annotated[
        float | None,
        typer.Option("--rate-scale", help="Multiply the arrival rate by this.", rich_help_panel=TRACE_PANEL),
    ] = None
    sample_frac: Annotated[
        float | None,
        typer.Option("--sample", help="Keep this fraction of the requests.", rich_help_panel=TRACE_PANEL),
    ] = None
    limit: Annotated[
        int | None,
        typer.Option("--limit", help="Keep at most this many requests.", rich_help_panel=TRACE_PANEL),
    ] = None

    def given(self) -> dict[str, Any]:
        """The trace options of the command line."""
        return {name: getattr(self, name) for name in _OPTION_OF if getattr(self, name) is not None}

    def given_options(self) -> list[str]:
        """The options that were given, as the command line has them."""
        return [_OPTION_OF[name] for name in self.given()] + self.given_format()

    def given_format(self) -> list[str]:
        """The option of the format, if it was given."""
        return [] if self.format is None else ["--trace-format"]

    def options(self) -> TraceOptions:
        """The checked trace options. Raises UsageError."""
        return self.over(None)

    def over(self, recorded: TraceOptions | None) -> TraceOptions:
        """The trace section of a scenario, overridden by the command line. Raises UsageError."""
        from pydantic import ValidationError

        from trimtab.traces import TraceOptions

        try:
            return TraceOptions.model_validate({**dict(recorded or {}), **self.given()})
        except ValidationError as error:
            raise usage_error(error, _OPTION_OF) from None


def _what_if(name: str, text: str, metavar: str) -> Any:
    return typer.Option(
        name,
        help=f"{text} May be repeated.",
        metavar=metavar,
        rich_help_panel=WHAT_IF_PANEL,
        show_default=False,
    )


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """Options that select the scenario; None = not given."""

    scenario: Annotated[
        str | None,
        typer.Argument(
            help="Built-in name or YAML file.  [dim]Default: aigc-images, or --trace on --cluster[/dim]",
            autocompletion=completion.scenarios,
            show_default=False,
        ),
    ] = None
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="Take the cluster from this YAML file.", metavar="FILE")
    ] = None
    load: Annotated[
        float | None,
        typer.Option(
            "--load", help="Scale arrival times to this load (offered work over capacity).", metavar="X"
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", help="Take the requests from this trace.", metavar="FILE", rich_help_panel=TRACE_PANEL
        ),
    ] = None

    fail: Annotated[
        list[str] | None,
        _what_if("--fail", "Let nodes fail: node[[3]@600+300, a100@600+300.", "WHO@START+DURATION"),
    ] = None
    slow: Annotated[
        list[str] | None,
        _what_if("--slow", "Let nodes be slow: node[[3]@600+300x0.5.", "WHO@START+DURATIONxSPEED"),
    ] = None
    burst: Annotated[
        list[str] | None,
        _what_if("--burst", "Let arrivals come faster for a time: 3x@1200+120.", "FACTORx@START+DURATION"),
    ] = None
    nodes: Annotated[
        list[str] | None,
        _what_if("--nodes", "Change how many nodes there are: a100=+2, a100=-1, a100=6.", "TYPE=COUNT"),
    ] = None

    def _what_if(self) -> WhatIf:
        from trimtab.experiments.scenario.scenario_changes import WhatIf

        return WhatIf(self.fail or (), self.slow or (), self.burst or (), self.nodes or ())

    def chosen(self, rows: TraceRows, table: TableOptions | None = None) -> Scenario:
        """The scenario of requests of the command line. Raises UsageError, also for another kind of work."""
        from trimtab.experiments.kinds import load_any
        from trimtab.experiments.scenario import resolve_scenario

        scenario = resolve_scenario(
            None if self.scenario is None else load_any(self.scenario),
            trace=self.trace,
            cluster=self.cluster,
            load=self.load,
        )
        return self._changed(rows, table, scenario)

    def _changed(self, rows: TraceRows, table: TableOptions | None, scenario: Scenario) -> Scenario:
        """The scenario with the rows of the trace, and what if."""
        from trimtab.experiments.scenario.scenario_changes import with_what_if

        if rows.rate_scale is not None and scenario.workload.load is not None:
            from trimtab.errors import UsageError

            expected = "without --load: a load sets the arrival rate by itself"
            if self.load is None:
                expected = (
                    f"no load in the scenario ({scenario.workload.load:g}), which sets the arrival rate"
                )
            raise UsageError("has no effect", field="--rate-scale", value=rows.rate_scale, expected=expected)
        return with_what_if(with_rows(scenario, rows, table), self._what_if())

    def of_any_kind(
        self,
        rows: TraceRows,
        table: TableOptions,
        *,
        profiles: Path | None,
        policies: list[str] | None = None,
        seeds: int | list[int] | None = None,
    ) -> tuple[AnyScenarioKind, ScenarioFile]:
        """The kind of work and the scenario of the command line. Raises UsageError."""
        from trimtab.experiments.kinds import resolve
        from trimtab.experiments.scenario.scenario_parts import Parts

        parts = Parts(
            trace=self.trace,
            cluster=self.cluster,
            profiles=profiles,
            limit=rows.limit,
            load=self.load,
            policies=policies,
            seeds=seeds,
            change=partial(self._changed, rows, table),
            given=self._given(rows, table, profiles),
        )
        return resolve(self.scenario, parts)

    def _given(self, rows: TraceRows, table: TableOptions, profiles: Path | None) -> dict[str, str]:
        """Part of a scenario → option that replaces it."""
        paths = {"trace": self.trace, "cluster": self.cluster, "profiles": profiles}
        given = {part: f"--{part}" for part, value in paths.items() if value is not None}
        for name in rows.given():
            given.setdefault("limit" if name == "limit" else "rows", _OPTION_OF[name])
        for option in (*table.given(), *rows.given_format()):
            given.setdefault("columns", option)
        changed = self._what_if().first()
        return given if changed is None else given | {"what_if": changed}


@contextlib.contextmanager
def resumable(ends: tuple[type[BaseException], ...], command: str, options: str = "") -> Iterator[list[str]]:
    """Context that tells how to go on with a run that one of these ends; its id is put into the list."""
    begun: list[str] = []
    try:
        yield begun
    except ends as error:
        for run in begun:
            error.add_note(f"go on with: {command} --resume {run}{options}")
        raise


def check_resume(what: str, option: str, *, given: bool, resume: str, retry_failed: bool) -> None:
    """Refuse a command without work and without a run to go on with, or with both. Raises UsageError."""
    from trimtab.errors import UsageError

    if given is (resume != ""):
        raise UsageError(
            f"needs {what}, or a run to go on with", field=option, expected=f"one of {option}, --resume"
        )
    if retry_failed and not resume:
        raise UsageError("goes with a run", field="--retry-failed", expected="--resume RUN")


def usage_error(error: ValidationError, option_of: dict[str, str]) -> UsageError:
    """The first validation error of pydantic, as a message about the option that caused it."""
    from trimtab.errors import UsageError

    first = error.errors()[0]
    kind, given, context = first["type"], first["input"], first.get("ctx", {})
    if kind == "union_tag_invalid":
        tagged = option_of[context["discriminator"].strip("'")]
        return UsageError("unknown", field=tagged, value=context["tag"], expected=context["expected_tags"])
    option = option_of.get(str(first["loc"][-1])) if first["loc"] else None
    if kind == "missing":
        return UsageError("missing", field=option, expected="a value")
    if kind == "extra_forbidden":
        return UsageError("does not apply here", field=option, value=given)
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    expected = re.sub(r"\w+_\w+", lambda name: option_of.get(name[0], name[0]), expected)
    value = None if isinstance(given, dict) else given
    return UsageError("cannot be used", field=option, value=value, expected=expected)


def read_ahead(scenario: ScenarioFile, *, quiet: bool) -> None:
    """Read what is large in a scenario, such as its trace, with a progress bar, and keep it for the runs."""
    from trimtab.experiments.kinds import kind_of

    for text in kind_of(scenario).read_ahead(scenario, partial(progress_bar, quiet=quiet)):
        note(text, quiet=quiet)


def with_rows(scenario: Scenario, rows: TraceRows, table: TableOptions | None) -> Scenario:
    """The scenario with these options of its trace. Raises UsageError where it has none."""
    written = {} if table is None else table.given()
    named = [*written, *rows.given_options()]
    if not named:
        return scenario
    trace = scenario.workload.trace
    if trace is None:
        from trimtab.errors import UsageError

        raise UsageError("needs a trace", field=named[0], expected="--trace FILE, or a scenario with a trace")
    changed: dict[str, Any] = {"options": rows.over(trace.options), "format": rows.format or trace.format}
    if table is not None and written:
        changed["mapping"] = table.over(trace.mapping)
    workload = scenario.workload.model_copy(update={"trace": trace.model_copy(update=changed)})
    return scenario.model_copy(update={"workload": workload})
