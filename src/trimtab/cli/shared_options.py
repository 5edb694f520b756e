"""Options that several commands share, and their combined meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from trimtab.cli import completion
from trimtab.cli.help_texts import FLAG
from trimtab.cli.output import progress_bar

if TYPE_CHECKING:
    from pydantic import ValidationError

    from trimtab.errors import UsageError
    from trimtab.experiments.scenario import Scenario
    from trimtab.traces import TraceOptions

TRACE_PANEL, OUTPUT_PANEL = "Trace", "Output"

Json: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object and nothing else.", rich_help_panel=OUTPUT_PANEL, metavar=FLAG
    ),
]
Quiet: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print no progress and no notes.", rich_help_panel=OUTPUT_PANEL, metavar=FLAG
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

    def chosen(
        self, rows: TraceRows, *, policies: list[str] | None = None, seeds: int | list[int] | None = None
    ) -> Scenario:
        """The scenario of the command line. Raises UsageError."""
        from trimtab.experiments.scenario import resolve_scenario

        scenario = resolve_scenario(
            self.scenario,
            trace=self.trace,
            cluster=self.cluster,
            load=self.load,
            policies=policies,
            seeds=seeds,
        )
        return _with_rows(scenario, rows)


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


def read_ahead(scenario: Scenario, *, quiet: bool) -> None:
    """Read the scenario's trace, if any, with a progress bar, and keep it for the runs."""
    trace = scenario.workload.trace
    if trace is not None:
        from trimtab.experiments.scenario.trace_rows import recorded

        with progress_bar(f"reading {trace.file.name}", quiet=quiet) as progress:
            recorded(trace, progress)


def _with_rows(scenario: Scenario, rows: TraceRows) -> Scenario:
    if not rows.given() and rows.format is None:
        return scenario
    trace = scenario.workload.trace
    if trace is None:
        from trimtab.errors import UsageError

        named = _OPTION_OF[next(iter(rows.given()))] if rows.given() else "--trace-format"
        raise UsageError("needs a trace", field=named, expected="--trace FILE, or a scenario with a trace")
    changed = {"options": rows.over(trace.options), "format": rows.format or trace.format}
    workload = scenario.workload.model_copy(update={"trace": trace.model_copy(update=changed)})
    return scenario.model_copy(update={"workload": workload})
