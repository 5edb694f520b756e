"""`trimtab forecast`: the next values of a column with quantiles, and the accuracy of past forecasts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.option_groups import examples
from trimtab.cli.output import note, print_json, progress_bar, show, spinner
from trimtab.cli.shared_options import Json, Quiet
from trimtab.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.forecast import Accuracy, Forecast

MOST_ROWS = 40  # of the printed table; --json has all


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "forecast",
        epilog=examples(
            "trimtab forecast load.csv --column requests --horizon 6",
            "trimtab forecast trace.csv --column TIMESTAMP --window 60 --horizon 10",
            "trimtab forecast jobs.csv --column timestamp --window 3600 --period 24 --horizon 24 --json",
        ),
    )(forecast)


def forecast(
    file: Annotated[Path, typer.Argument(help="CSV, JSONL (also as .gz) or Parquet.", metavar="FILE")],
    column: Annotated[
        str, typer.Option("--column", help="Column of the series: numbers, or times to count.")
    ],
    horizon: Annotated[int, typer.Option("--horizon", help="Steps ahead.", min=1, metavar="N")],
    window: Annotated[
        float | None,
        typer.Option(
            "--window", help="The column has times: count them in windows of S seconds.", metavar="S"
        ),
    ] = None,
    period: Annotated[
        int,
        typer.Option(
            "--period", help="Steps of a season, such as 24 for hours of a day.", min=0, metavar="N"
        ),
    ] = 0,
    least: Annotated[
        float | None,
        typer.Option(
            "--least", help="Lower limit of forecasts.  [dim]Default: 0 for counts, else none[/dim]"
        ),
    ] = None,
    arima: Annotated[
        bool,
        typer.Option(
            "--arima",
            help="Also run ARIMA, with the order of least AICc (needs the extra forecast).",
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Forecast a series: mean and quantiles of the next steps, and the accuracy of past forecasts."""
    from trimtab.forecast import Forecaster, checked_history

    values = _read(file, column, window, quiet=quiet or json)
    history = checked_history(values, horizon=horizon, file=str(file), field=f"column {column}")
    floor = least if least is not None else (0.0 if window is not None else float("-inf"))
    forecaster = Forecaster(1, horizon=horizon, period=period, least=floor)
    forecaster.update(history[:, None])
    made = forecaster.forecast()
    with spinner("looking how good such forecasts were …", quiet=quiet or json):
        rows, why_not = _accuracy(history, horizon, period, floor, arima)
    if json:
        origin = {"file": str(file), "column": column, "window_s": window, "values": len(history)}
        print_json({**origin, "horizon": horizon, "period": period, **_as_json(made, rows)})
        return
    _print(file, history, made, rows)
    for text in why_not:
        note(f"note: {text}", quiet=quiet)


def _read(file: Path, column: str, window_s: float | None, *, quiet: bool) -> Any:
    from trimtab.traces.frames import read_counts, read_numbers

    with progress_bar(f"reading {file.name}", quiet=quiet) as progress:
        if window_s is None:
            return read_numbers(file, column, progress)
        return read_counts(file, column, window_s, progress)


def _accuracy(
    history: Any, horizon: int, period: int, least: float, has_arima: bool
) -> tuple[list[Accuracy], list[str]]:
    """Rows of the table of accuracy, and a note on it; no rows if the history is too short."""
    from trimtab.errors import MissingExtra, UsageError
    from trimtab.forecast import loses_to_naive, rolling_accuracy

    try:
        rows = rolling_accuracy(history, horizon=horizon, period=period, least=least, has_arima=has_arima)
    except MissingExtra:
        raise
    except UsageError as error:
        return [], [str(error)]
    if all(row.mase is None for row in rows):
        return rows, ["the first half of the series is constant, so that errors have no scale"]
    lost = "the mixture loses to naive on this series: the last value is the better forecast"
    return rows, [lost] if loses_to_naive(rows) else []


def _as_json(made: Forecast, rows: list[Accuracy]) -> dict[str, Any]:
    from trimtab.forecast import loses_to_naive

    quantiles = made.quantiles[0]
    steps = [
        {
            "step": step + 1,
            "point": float(made.point[0, step]),
            "mean": float(mean),
            "quantiles": {
                f"{level:g}": float(q) for level, q in zip(made.levels, quantiles[step], strict=True)
            },
        }
        for step, mean in enumerate(made.mean[0])
    ]
    lost = loses_to_naive(rows) if rows else None
    return {"forecast": steps, "accuracy": [asdict(row) for row in rows], "loses_to_naive": lost}


def _print(file: Path, history: Any, made: Forecast, rows: list[Accuracy]) -> None:
    from trimtab.report.terminal_plots import plot_forecast

    print(f"{file}: {counted(len(history), 'value')}, {counted(made.mean.shape[1], 'step')} ahead")
    show(_forecast_table(made))
    low, high = made.quantiles[0, :, 0], made.quantiles[0, :, -1]
    print(plot_forecast(history, made.mean[0], low, high))
    if rows:
        show(_accuracy_table(rows))


def _forecast_table(made: Forecast) -> Table:
    from rich.table import Table

    table = Table("step", box=None, pad_edge=False)
    for title in ("point", "mean", *(f"{100 * level:g} %" for level in made.levels)):
        table.add_column(title, justify="right")
    steps = made.mean.shape[1]
    shown = [(str(k + 1), k) for k in range(min(steps, MOST_ROWS))]
    if steps > MOST_ROWS:
        shown.append((f"… {steps}", -1))
    for title, k in shown:
        figures = (made.point[0, k], made.mean[0, k], *made.quantiles[0, k])
        table.add_row(title, *(f"{value:.4g}" for value in figures))
    return table


def _accuracy_table(rows: list[Accuracy]) -> Table:
    from rich.table import Table

    table = Table("method", box=None, pad_edge=False)
    for title in ("MASE", "pinball", "in 80 %", "in 90 %"):
        table.add_column(title, justify="right")
    best = min((row.mase for row in rows if row.mase is not None), default=None)
    for row in rows:
        shares = (row.coverage_80_frac, row.coverage_90_frac)
        cells = [
            *(_text(v, "{:.3f}") for v in (row.mase, row.pinball)),
            *(_text(v, "{:.1%}") for v in shares),
        ]
        name = row.method if row.order is None else f"{row.method}({','.join(map(str, row.order))})"
        table.add_row(name, *cells, style="green" if row.mase is not None and row.mase == best else "")
    return table


def _text(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
